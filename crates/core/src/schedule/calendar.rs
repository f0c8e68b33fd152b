//! A calendar as values: what `sela-sensors` has read from an iCalendar text (RFC 5545), with nothing lost that decides when
//! its events are. When they are is worked out in `series`; how a feed that fails is borne with is at the end.

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Weekday};
use sela_protocol::units::UtcMs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One calendar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Calendar {
    /// What it says of its own zone (`X-WR-TIMEZONE`), for moments that name one that is nowhere defined.
    pub zone: Option<String>,
    /// Zones that it defines itself (`VTIMEZONE`), by name.
    pub zones: BTreeMap<String, Vec<Observance>>,
    /// Its events, overrides of single occurrences among them.
    pub events: Vec<Event>,
    /// What in it could not be read, in words: those events are missing here.
    pub unread: Vec<String>,
}

/// From when on a defined zone shows which time (`STANDARD`, `DAYLIGHT`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observance {
    /// The first time that the clock is changed to it, on the wall before the change.
    pub start: DateTime,
    /// Ahead of UTC before, in seconds.
    pub ahead_before: i32,
    /// Ahead of UTC from then on, in seconds.
    pub ahead: i32,
    /// When again.
    pub rules: Vec<Rule>,
    /// And when besides.
    pub dates: Vec<DateTime>,
}

/// One event, or one occurrence of an event that differs from the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Events with the same belong together.
    pub uid: String,
    /// Which occurrence this is in place of.
    pub instead_of: Option<InsteadOf>,
    /// When it begins.
    pub start: Moment,
    /// How long it is.
    pub length: Length,
    /// When again (`RRULE`).
    pub rules: Vec<Rule>,
    /// And when besides (`RDATE`).
    pub dates: Vec<(Moment, Option<Length>)>,
    /// When not (`EXDATE`).
    pub except: Vec<Moment>,
    /// It does not take place.
    pub cancelled: bool,
    /// It is shown as free time.
    pub free: bool,
    /// The greater stands where two are for the same occurrence.
    pub sequence: i64,
}

/// Which occurrence an override is for (`RECURRENCE-ID`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsteadOf {
    /// When it would have begun.
    pub start: Moment,
    /// All later ones are changed alike (`RANGE=THISANDFUTURE`).
    pub and_later: bool,
}

/// A moment as calendars write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// A whole day, wherever the owner is.
    Day(Date),
    /// On the owner's wall.
    Floating(DateTime),
    /// In UTC.
    Utc(DateTime),
    /// On the wall of a zone.
    In(DateTime, String),
}

/// How long an event is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// Nothing is said: a day for a whole day, else no time at all.
    Unsaid,
    /// Until then, and each repetition exactly as long (RFC 5545, 3.8.5.3).
    Until(Moment),
    /// So many days on the wall, then so much time.
    Nominal {
        /// Days and weeks.
        days: i32,
        /// The rest.
        time: SignedDuration,
    },
}

/// When something repeats (RFC 5545, 3.3.10).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the parts have the standard's names and are explained there")]
pub struct Rule {
    pub every: Every,
    pub interval: u32,
    pub end: End,
    pub by_second: Vec<i8>,
    pub by_minute: Vec<i8>,
    pub by_hour: Vec<i8>,
    pub by_day: Vec<NamedDay>,
    pub by_month_day: Vec<i8>,
    pub by_year_day: Vec<i16>,
    pub by_week: Vec<i8>,
    pub by_month: Vec<i8>,
    pub by_position: Vec<i32>,
    #[serde(with = "weekday_number")]
    pub week_start: Weekday,
}

/// A day of the week, or how manieth of them in its month or year, from the end where negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "said above")]
pub struct NamedDay {
    pub which: Option<i16>,
    #[serde(with = "weekday_number")]
    pub day: Weekday,
}

/// 1 is Monday, as in ISO 8601.
mod weekday_number {
    use jiff::civil::Weekday;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(day: &Weekday, serializer: S) -> Result<S::Ok, S::Error> {
        day.to_monday_one_offset().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Weekday, D::Error> {
        Weekday::from_monday_one_offset(i8::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// The unit in which a rule repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as the standard's frequencies")]
pub enum Every {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// When a rule ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Never.
    Never,
    /// After so many occurrences.
    After(u32),
    /// With the last that does not begin later.
    Last(Moment),
}

impl Rule {
    /// One that repeats in this unit, without end and without any other part.
    pub const fn every(every: Every) -> Self {
        Self {
            every,
            interval: 1,
            end: End::Never,
            by_second: Vec::new(),
            by_minute: Vec::new(),
            by_hour: Vec::new(),
            by_day: Vec::new(),
            by_month_day: Vec::new(),
            by_year_day: Vec::new(),
            by_week: Vec::new(),
            by_month: Vec::new(),
            by_position: Vec::new(),
            week_start: Weekday::Monday,
        }
    }
}

/// A calendar as it is known over time. What was read last stays in force while reading fails: a server that is down, or sends
/// a page to log in, neither opens nor closes anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Feed {
    /// What was read last.
    pub last_good: Option<LastGood>,
    /// Why it could not be read since.
    pub problem: Option<String>,
}

/// What was read last of a calendar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastGood {
    /// The calendar.
    pub calendar: Calendar,
    /// When it was read.
    pub read_utc_ms: UtcMs,
}

impl Feed {
    /// Takes what an attempt to read it has brought.
    pub fn heard(&mut self, attempt: Result<Calendar, String>, at: UtcMs) {
        match attempt {
            Ok(calendar) => {
                *self = Self {
                    last_good: Some(LastGood {
                        calendar,
                        read_utc_ms: at,
                    }),
                    problem: None,
                };
            }
            Err(problem) => self.problem = Some(problem),
        }
    }
}
