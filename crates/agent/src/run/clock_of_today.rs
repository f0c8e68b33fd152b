//! Where today began, for the sum that the owner sees: local midnight, from a moment that is passed in.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use sela_protocol::units::UtcMs;

/// The local midnight at or before `now`, and the next one. Where the system's zone cannot be told it is UTC's.
pub(crate) fn today(now: UtcMs) -> (UtcMs, UtcMs) {
    today_in(now, &TimeZone::system())
}

fn today_in(now: UtcMs, zone: &TimeZone) -> (UtcMs, UtcMs) {
    let ends = || {
        let moment = Timestamp::from_millisecond(now.0).ok()?.to_zoned_datetime(zone.clone());
        let start = moment.start_of_day().ok()?;
        let next = start.checked_add(1.day()).ok()?.start_of_day().ok()?;
        let ms = |zoned: &jiff::ZonedDateTime| UtcMs(zoned.timestamp().as_millisecond());
        Some((ms(&start), ms(&next)))
    };
    // Moments of this program's lifetime are all within jiff's range.
    ends().unwrap_or((UtcMs(0), UtcMs(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_as_long_as_its_zone_makes_it() {
        const HOUR: i64 = 3_600_000;
        let jakarta = TimeZone::fixed(jiff::tz::offset(7));
        // 2026-12-01T20:00:00Z is 03:00 of the next day in Jakarta.
        let now = UtcMs(1_796_155_200_000);
        let (start, next) = today_in(now, &jakarta);
        assert_eq!((now.0 - start.0, next.0 - start.0), (3 * HOUR, 24 * HOUR));
        let (start, _) = today_in(now, &TimeZone::UTC);
        assert_eq!(now.0 - start.0, 20 * HOUR);
    }
}
