//! Where answers go: text with colour on a terminal only, or JSON. Money, bytes and times are written here in one way.

use sela_protocol::money::Micros;
use sela_protocol::plain;
use sela_protocol::units::{Bytes, Millis, UtcMs};
use serde::Serialize;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};

/// What stands wherever money of a lab shows.
pub(crate) const LAB: &str = "LAB: money has no worth";

/// Standard output.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    /// What stands in a line for the beginning of a tone, where there is colour. Drawn at random, so that no stranger's text can have it.
    mark: Option<String>,
}

/// What a word means, so that colour is never the only carrier of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Money is being made.
    Earning,
    /// Held by the owner or a limit; needs no action.
    Held,
    /// Needs attention.
    Alarm,
    /// Beside the point.
    Dim,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let colour =
            std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mark = colour.then(|| getrandom::u64().ok()).flatten();
        Self {
            json,
            mark: mark.map(|random| format!("{random:016x}:")),
        }
    }

    /// Whether JSON was asked for.
    pub(crate) const fn is_json(&self) -> bool {
        self.json
    }

    /// One line of text, whatever strangers' words are in it: nothing of them moves a cursor or turns a line round.
    ///
    /// # Errors
    /// Where nobody reads any more.
    pub(crate) fn line(&self, text: impl fmt::Display) -> std::io::Result<()> {
        writeln!(std::io::stdout().lock(), "{}", self.shown(&text.to_string()))
    }

    /// A line as it is shown: strangers' letters escaped, our own tones as colours.
    fn shown(&self, text: &str) -> String {
        let Some(mark) = &self.mark else {
            return plain::line(text).into_owned();
        };
        let mut parts = text.split(mark.as_str());
        let mut shown = plain::line(parts.next().unwrap_or_default()).into_owned();
        for part in parts {
            let (code, rest) = part.split_once(';').unwrap_or(("0", part));
            shown.push_str(&format!("\x1b[{code}m{}", plain::line(rest)));
        }
        shown
    }

    /// Bytes as they are.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub(crate) fn bytes(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// A value as JSON: many lines for people who look at it, one line where it is piped.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub(crate) fn document(&self, value: &impl Serialize) -> std::io::Result<()> {
        let text = if std::io::stdout().is_terminal() {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        writeln!(std::io::stdout().lock(), "{}", plain::json(&text?))
    }

    /// A value as one line of JSON.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub(crate) fn json_line(&self, value: &impl Serialize) -> std::io::Result<()> {
        writeln!(
            std::io::stdout().lock(),
            "{}",
            plain::json(&serde_json::to_string(value)?)
        )
    }

    /// A word in its tone.
    pub(crate) fn tone(&self, tone: Tone, text: impl fmt::Display) -> String {
        let Some(mark) = &self.mark else {
            return text.to_string();
        };
        let code = match tone {
            Tone::Earning => "36",
            Tone::Held => "33",
            Tone::Alarm => "31",
            Tone::Dim => "2",
        };
        format!("{mark}{code};{text}{mark}0;")
    }
}

/// Money with two decimals, rounded down: more is not shown than there is. A minus is never hidden.
pub(crate) fn short(amount: Micros) -> String {
    let cents = amount.0.div_euclid(10_000);
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", cents / 100, cents % 100)
}

/// Bytes of a card's memory.
pub(crate) fn gib(bytes: Bytes) -> String {
    let tenths = (bytes.0.saturating_mul(10) + (1 << 29)) >> 30;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// An amount of transferred bytes, in the decimal units of lines and tariffs.
pub(crate) fn transferred(bytes: Bytes) -> String {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    match units.into_iter().find(|(_, unit)| bytes.0 >= *unit) {
        Some((name, unit)) => {
            let tenths = u128::from(bytes.0) * 10 / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => bytes.to_string(),
    }
}

/// A moment in local time.
pub(crate) fn local(moment: UtcMs) -> String {
    jiff::Timestamp::from_millisecond(moment.0).map_or_else(
        |_| format!("{} ms UTC", moment.0),
        |timestamp| {
            let zoned = timestamp.to_zoned_datetime(jiff::tz::TimeZone::system());
            zoned.strftime("%Y-%m-%d %H:%M:%S").to_string()
        },
    )
}

/// A span as people say it.
pub(crate) fn span(span: Millis) -> sela_protocol::presence::Span {
    sela_protocol::presence::Span(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_tones_reach_a_terminal() {
        let name = "\x1b[31m0123456789abcdef:31;\u{202e}\n0;";
        let escaped = "\\u{1b}[31m0123456789abcdef:31;\\u{202e}\\n0;";
        let coloured = Output {
            json: false,
            mark: Some("fedcba9876543210:".to_owned()),
        };
        let line = format!(
            "{} {name} {}",
            coloured.tone(Tone::Alarm, name),
            coloured.tone(Tone::Dim, "dim")
        );
        assert_eq!(
            coloured.shown(&line),
            format!("\x1b[31m{escaped}\x1b[0m {escaped} \x1b[2mdim\x1b[0m")
        );
        let piped = Output {
            json: false,
            mark: None,
        };
        assert_eq!(
            piped.shown(&format!("{} x", piped.tone(Tone::Alarm, name))),
            format!("{escaped} x")
        );
    }

    #[test]
    fn money_is_shown_with_two_decimals_and_never_as_more_than_it_is() {
        for (micros, shown) in [
            (0, "0.00"),
            (1_849_999, "1.84"),
            (9_999, "0.00"),
            (-1, "-0.01"),
            (-1_500_000, "-1.50"),
            (12_000_000, "12.00"),
        ] {
            assert_eq!(short(Micros(micros)), shown);
        }
    }

    #[test]
    fn memory_is_shown_in_tenths_of_a_gibibyte() {
        for (bytes, shown) in [
            (0, "0.0"),
            (1 << 30, "1.0"),
            (25_769_803_776, "24.0"),
            (19_541_000_000, "18.2"),
        ] {
            assert_eq!(gib(Bytes(bytes)), shown);
        }
    }
}
