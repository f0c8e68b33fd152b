//! Money and times of day as the window's `Intl` writes them for the same locale, so that tray and window agree; and when
//! "until tomorrow" ends. The system's clock is not read here.

use crate::language::Language;
use crate::words::Locale;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};
use sela_protocol::money::Micros;
use sela_protocol::units::{Millis, UtcMs};

/// As in the window (`ui/src/words/day.ts`): after the night, before the day.
const TOMORROW: Time = Time::constant(6, 0, 0, 0);

/// Millionths in a hundredth of the asset's unit.
const MICROS_PER_CENT: i64 = 10_000;

const A_DAY: Millis = Millis::from_secs(24 * 3600);

/// An amount with two decimals. What is more than nothing and less than half a cent says so.
pub(crate) fn money(amount: Micros, locale: &Locale) -> String {
    let magnitude = amount.0.unsigned_abs();
    let per_cent = MICROS_PER_CENT.unsigned_abs();
    if magnitude > 0 && magnitude < per_cent / 2 {
        let sign = if amount.0 < 0 { '>' } else { '<' };
        return format!("{sign}\u{202f}{}", cents(1, amount.0 < 0, locale));
    }
    cents((magnitude + per_cent / 2) / per_cent, amount.0 < 0, locale)
}

fn cents(cents: u64, negative: bool, locale: &Locale) -> String {
    let (thousands, decimal, symbol) = match locale.language {
        Language::En => (',', '.', if at_home_in_dollars(locale) { "$" } else { "US$" }),
        Language::Id => ('.', ',', "US$"),
    };
    let sign = if negative { "-" } else { "" };
    format!(
        "{sign}{symbol}{}{decimal}{:02}",
        grouped(cents / 100, thousands),
        cents % 100
    )
}

fn at_home_in_dollars(locale: &Locale) -> bool {
    locale.region.as_deref().is_none_or(|region| region == "US")
}

fn grouped(number: u64, separator: char) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped
}

/// A time of day, with the weekday where it is not the day of `now`.
pub(crate) fn moment(at: UtcMs, now: UtcMs, zone: &TimeZone, locale: &Locale) -> String {
    let (Some(at), Some(now)) = (in_zone(at, zone), in_zone(now, zone)) else {
        // Beyond the calendar: nobody waits for it.
        return String::new();
    };
    // `Intl` pads the hour only beside a weekday.
    if at.date() == now.date() {
        return time_of_day(&at, 1, locale);
    }
    let time = time_of_day(&at, 2, locale);
    format!("{} {time}", weekday(at.date(), locale.language))
}

fn time_of_day(at: &ZonedDateTime, digits: usize, locale: &Locale) -> String {
    let (hour, minute) = (at.hour(), at.minute());
    match locale.language {
        Language::Id => format!("{hour:0digits$}.{minute:02}"),
        Language::En if at_home_in_dollars(locale) => {
            let half = if hour < 12 { "AM" } else { "PM" };
            format!("{}:{minute:02} {half}", (hour + 11) % 12 + 1)
        }
        Language::En => format!("{hour:0digits$}:{minute:02}"),
    }
}

fn weekday(date: Date, language: Language) -> &'static str {
    const NAMES: [[&str; 2]; 7] = [
        ["Mon", "Sen"],
        ["Tue", "Sel"],
        ["Wed", "Rab"],
        ["Thu", "Kam"],
        ["Fri", "Jum"],
        ["Sat", "Sab"],
        ["Sun", "Min"],
    ];
    let index = usize::from(date.weekday().to_monday_zero_offset().unsigned_abs());
    let [english, indonesian] = NAMES[index];
    match language {
        Language::En => english,
        Language::Id => indonesian,
    }
}

/// How long "until tomorrow" is, asked at `now`: to 6:00 of the next local date, however long that day is.
pub(crate) fn until_tomorrow(now: UtcMs, zone: &TimeZone) -> Millis {
    let tomorrow = in_zone(now, zone)
        .and_then(|now| now.date().tomorrow().ok())
        .and_then(|date| date.to_datetime(TOMORROW).to_zoned_datetime(zone.clone()).ok())
        .map(|at| UtcMs(at.timestamp().as_millisecond()));
    // Only the last day of the calendar has no tomorrow.
    tomorrow.map_or(A_DAY, |tomorrow| tomorrow.since(now))
}

fn in_zone(at: UtcMs, zone: &TimeZone) -> Option<ZonedDateTime> {
    let at = Timestamp::from_millisecond(at.0).ok()?;
    Some(at.to_zoned_datetime(zone.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locale(language: Language, region: Option<&str>) -> Locale {
        Locale {
            language,
            region: region.map(str::to_owned),
        }
    }

    #[test]
    fn money_is_written_as_the_window_writes_it() {
        let american = locale(Language::En, Some("US"));
        let british = locale(Language::En, Some("GB"));
        let indonesian = locale(Language::Id, Some("ID"));
        for (micros, locale, written) in [
            (0, &american, "$0.00"),
            (1_840_000, &american, "$1.84"),
            (1_840_000, &british, "US$1.84"),
            (1_840_000, &indonesian, "US$1,84"),
            (1_234_567_891, &american, "$1,234.57"),
            (1_234_500_000, &indonesian, "US$1.234,50"),
            (-1_500_000, &american, "-$1.50"),
            (4_999, &american, "<\u{202f}$0.01"),
            (5_000, &american, "$0.01"),
            (-1, &indonesian, ">\u{202f}-US$0,01"),
        ] {
            assert_eq!(money(Micros(micros), locale), written, "{micros}");
        }
    }

    fn at(text: &str) -> UtcMs {
        UtcMs(text.parse::<Timestamp>().expect("a moment").as_millisecond())
    }

    #[test]
    fn a_time_has_its_weekday_only_where_it_is_another_day() {
        let zone = TimeZone::get("Asia/Jakarta").expect("known");
        let now = at("2026-12-01T05:00:00Z");
        let write = |moment_at: &str, language, region| moment(at(moment_at), now, &zone, &locale(language, region));
        assert_eq!(write("2026-12-01T08:05:00Z", Language::En, Some("US")), "3:05 PM");
        assert_eq!(write("2026-12-01T08:05:00Z", Language::En, Some("GB")), "15:05");
        assert_eq!(write("2026-12-01T23:00:00Z", Language::En, None), "Wed 6:00 AM");
        assert_eq!(write("2026-12-01T23:00:00Z", Language::Id, None), "Rab 06.00");
        assert_eq!(write("2026-12-01T17:05:00Z", Language::En, None), "Wed 12:05 AM");
        assert_eq!(write("2026-12-01T02:00:00Z", Language::Id, None), "9.00");
        assert_eq!(write("2026-12-02T02:00:00Z", Language::En, Some("GB")), "Wed 09:00");
    }

    #[test]
    fn until_tomorrow_ends_at_six_on_days_of_any_length() {
        let check = |zone: &str, now: &str, hours: u64| {
            let zone = TimeZone::get(zone).expect("known");
            assert_eq!(until_tomorrow(at(now), &zone), Millis::from_secs(hours * 3600), "{now}");
        };
        check("Asia/Jakarta", "2026-12-01T05:00:00Z", 18);
        // Asked shortly after midnight, it is still the whole of the day that has begun.
        check("Asia/Jakarta", "2026-11-30T18:00:00Z", 29);
        // Clocks go forward at 1:00 UTC on 2026-03-29, and back on 2026-10-25.
        check("Europe/Berlin", "2026-03-28T11:00:00Z", 17);
        check("Europe/Berlin", "2026-10-24T10:00:00Z", 19);
    }
}
