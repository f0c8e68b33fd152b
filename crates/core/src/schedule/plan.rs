//! A schedule as its owner writes it: which hours of which days, on which dates otherwise, and which calendars count.
//! What is written is checked here, in words; what it means is in `week` and in the module above.

use jiff::civil::{Date, Weekday};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// When a card may be shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The zone whose clock counts, as the time zone database names it: `Asia/Jakarta`.
    pub zone: String,
    /// The hours of each week.
    #[serde(default)]
    pub week: Week,
    /// Dates on which only these hours count, whatever the week says.
    #[serde(default)]
    pub exceptions: Vec<Exception>,
    /// Calendars that open or close hours.
    #[serde(default)]
    pub calendars: Vec<CalendarUse>,
}

/// The hours of each week.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Week {
    /// All.
    #[default]
    Always,
    /// These; none where there is none.
    Windows(Vec<Window>),
}

/// The same hours on some days of each week. They are open exactly while the clock on the wall shows a time in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The days on which it begins.
    pub days: Days,
    /// Its hours.
    pub hours: Hours,
}

/// From one time of day to another. One that does not lie later lies on the next day, so that `22:00` to `06:00` is a night and
/// `00:00` to `00:00` a whole day. Written `"22:00-06:00"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hours {
    /// The first minute.
    pub from: TimeOfDay,
    /// The first minute after it.
    pub to: TimeOfDay,
}

/// Days of the week.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Days(BTreeSet<i8>);

/// Minutes since midnight on the clock on the wall, 0 to 1440.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(u16);

/// What counts on some dates in place of the week, and of what the night before would bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The first date.
    pub from: Date,
    /// The last date.
    pub to: Date,
    /// The hours of each of these dates; closed where there are none.
    #[serde(default)]
    pub hours: Vec<Hours>,
}

/// A calendar that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalendarUse {
    /// Under which name it is read.
    pub name: String,
    /// What its events mean.
    pub meaning: Meaning,
}

/// What the events of a calendar mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// The card may be shared during them, as in a window.
    Opens,
    /// The owner wants the card during them, whatever else says so. Events shown as free do not count.
    Closes,
}

/// What is wrong with what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFault(pub(super) String);

impl fmt::Display for PlanFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for PlanFault {}

impl Plan {
    /// What can be seen to be wrong without a time zone database.
    ///
    /// # Errors
    /// In words: a window on no day, one that begins at 24:00, an exception that ends before it begins.
    pub(super) fn check(&self) -> Result<(), PlanFault> {
        if let Week::Windows(windows) = &self.week {
            for window in windows {
                window.hours.check()?;
                if window.days.0.is_empty() {
                    return Err(PlanFault(format!(
                        "the window {} is on no day of the week",
                        window.hours
                    )));
                }
            }
        }
        for exception in &self.exceptions {
            if exception.to < exception.from {
                return Err(PlanFault(format!(
                    "the exception from {} ends before it begins, on {}",
                    exception.from, exception.to
                )));
            }
            exception.hours.iter().try_for_each(Hours::check)?;
        }
        Ok(())
    }
}

impl Hours {
    fn check(&self) -> Result<(), PlanFault> {
        if self.from.0 == MINUTES_OF_DAY {
            return Err(PlanFault(format!(
                "{self} begins at 24:00; that is 00:00 of the next day"
            )));
        }
        Ok(())
    }

    pub(super) const fn whole_day() -> Self {
        Self {
            from: TimeOfDay(0),
            to: TimeOfDay(MINUTES_OF_DAY),
        }
    }

    /// Minutes after the midnight that begins its day; the end may lie in the next day.
    pub(super) fn minutes(self) -> std::ops::Range<i64> {
        let (from, to) = (i64::from(self.from.0), i64::from(self.to.0));
        from..if to > from { to } else { to + i64::from(MINUTES_OF_DAY) }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.from, self.to)
    }
}

impl FromStr for Hours {
    type Err = PlanFault;

    fn from_str(text: &str) -> Result<Self, PlanFault> {
        let (from, to) = text
            .split_once(['-', '–'])
            .ok_or_else(|| PlanFault(format!("{text:?} is no span of hours; write it as \"22:00-06:00\"")))?;
        let hours = Self {
            from: from.trim().parse()?,
            to: to.trim().parse()?,
        };
        hours.check()?;
        Ok(hours)
    }
}

const MINUTES_OF_DAY: u16 = 24 * 60;

impl TimeOfDay {
    /// `None` beyond 24:00.
    pub const fn new(hour: u16, minute: u16) -> Option<Self> {
        if hour > 24 || minute > 59 || hour == 24 && minute > 0 {
            return None;
        }
        Some(Self(hour * 60 + minute))
    }

    /// Minutes since midnight.
    pub const fn minutes(self) -> u16 {
        self.0
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl FromStr for TimeOfDay {
    type Err = PlanFault;

    fn from_str(text: &str) -> Result<Self, PlanFault> {
        let number = |digits: &str, most: usize| {
            let short = (1..=most).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
            short.then(|| digits.parse().ok()).flatten()
        };
        text.split_once(':')
            .filter(|(_, minute)| minute.len() == 2)
            .and_then(|(hour, minute)| Self::new(number(hour, 2)?, number(minute, 2)?))
            .ok_or_else(|| {
                PlanFault(format!(
                    "{text:?} is no time of day; write it as \"07:30\", 00:00 to 24:00"
                ))
            })
    }
}

const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl Days {
    /// All seven.
    pub fn all() -> Self {
        Self((1..=7).collect())
    }

    /// Whether this day is one of them.
    pub fn has(&self, day: Weekday) -> bool {
        self.0.contains(&day.to_monday_one_offset())
    }
}

impl FromIterator<Weekday> for Days {
    fn from_iter<I: IntoIterator<Item = Weekday>>(days: I) -> Self {
        Self(days.into_iter().map(Weekday::to_monday_one_offset).collect())
    }
}

impl FromStr for Days {
    type Err = PlanFault;

    /// `mon`, `mon-fri`, `sat,sun`, `fri-mon`, `daily`.
    fn from_str(text: &str) -> Result<Self, PlanFault> {
        let day = |name: &str| {
            let name = name.trim();
            let at = DAY_NAMES.iter().position(|known| name.eq_ignore_ascii_case(known));
            at.and_then(|at| i8::try_from(at + 1).ok()).ok_or_else(|| {
                PlanFault(format!(
                    "{name:?} is no day; days are mon, tue, wed, thu, fri, sat, sun, daily"
                ))
            })
        };
        if text.trim().eq_ignore_ascii_case("daily") {
            return Ok(Self::all());
        }
        let mut days = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (day(first)?, day(last)?),
                None => (day(part)?, day(part)?),
            };
            let length = (last - first).rem_euclid(7);
            days.extend((first..=first + length).map(|day| (day - 1) % 7 + 1));
        }
        Ok(Self(days))
    }
}

impl fmt::Display for Days {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = (1_i8..)
            .zip(DAY_NAMES)
            .filter_map(|(day, name)| self.0.contains(&day).then_some(name))
            .collect();
        out.write_str(&names.join(","))
    }
}

macro_rules! written_as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
written_as_text!(Hours, TimeOfDay, Days);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_read_as_people_write_them_and_nothing_else_is() {
        for (text, minutes) in [("00:00", 0), ("7:05", 425), ("23:59", 1439), ("24:00", 1440)] {
            assert_eq!(text.parse::<TimeOfDay>().map(TimeOfDay::minutes), Ok(minutes), "{text}");
        }
        for text in [
            "", "24:01", "25:00", "7", "07:5", "07:60", "+7:00", "07:000", "7:0a", "-1:00", "٧:00",
        ] {
            let fault = text.parse::<TimeOfDay>().expect_err(text);
            assert!(fault.to_string().contains("no time of day"), "{fault}");
        }
    }

    #[test]
    fn days_are_read_by_name_range_and_list() {
        for (text, days) in [
            ("mon", "mon"),
            ("mon-fri", "mon,tue,wed,thu,fri"),
            ("fri-mon", "mon,fri,sat,sun"),
            ("Sat, sun", "sat,sun"),
            ("daily", "mon,tue,wed,thu,fri,sat,sun"),
        ] {
            assert_eq!(text.parse::<Days>().expect(text).to_string(), days);
        }
        assert!("mon-".parse::<Days>().is_err());
        assert!("noday".parse::<Days>().is_err());
    }
}
