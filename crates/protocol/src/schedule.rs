//! A schedule as clients see it: the coming days with their open hours. How they are worked out is in `sela-core`.

use crate::units::UtcMs;
use serde::{Deserialize, Serialize};

/// The coming days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct SchedulePreview {
    /// The zone whose clock counts, as the time zone database names it.
    pub zone: String,
    /// Day by day.
    pub days: Vec<PreviewDay>,
    /// What could not be read of calendars, in words.
    pub notes: Vec<String>,
}

/// One day on the wall of the schedule's zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct PreviewDay {
    /// `2026-03-29`.
    pub date: String,
    /// Its open hours, in order.
    pub open: Vec<OpenHours>,
    /// Where the clock is changed on this day.
    pub clock_change: Option<ClockChange>,
}

/// Hours of one day in which the card may be shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct OpenHours {
    /// The first moment.
    pub from_utc_ms: UtcMs,
    /// The first moment after.
    pub to_utc_ms: UtcMs,
    /// What the wall shows at first: `22:00`.
    pub from: String,
    /// What it shows at the end: `24:00` at the end of the day.
    pub to: String,
}

/// The clock is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct ClockChange {
    /// When.
    pub at_utc_ms: UtcMs,
    /// What the wall would have shown: `02:00`.
    pub from: String,
    /// What it shows: `03:00`.
    pub to: String,
}
