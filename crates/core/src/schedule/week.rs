//! The hours of the week and the exceptions to it, as moments. The rule is the simplest that can be told: open exactly while the
//! clock on the wall shows a time in them. So an hour that a change of the clock leaves out is not there, and one that it
//! repeats counts twice; nothing is ever missed, since nothing is ever waited for.

use super::plan::{Exception, Hours, Week, Window};
use super::slots::{Slot, Slots};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use sela_protocol::units::UtcMs;

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// A stretch in which the clock on the wall runs evenly.
#[derive(Debug, Clone, Copy)]
pub(super) struct EvenStretch {
    pub(super) slot: Slot,
    /// What the wall shows beyond UTC.
    pub(super) ahead_ms: i64,
}

/// A moment as jiff has it; none beyond the years that jiff knows.
pub(super) fn moment(at: UtcMs) -> Option<Timestamp> {
    Timestamp::from_millisecond(at.0).ok()
}

/// A moment as the protocol has it.
pub(super) fn utc(at: Timestamp) -> UtcMs {
    UtcMs(at.as_millisecond())
}

/// Cuts a slot where the clock on the wall is changed.
pub(super) fn even_stretches(zone: &TimeZone, slot: Slot) -> Vec<EvenStretch> {
    let mut stretches = Vec::new();
    let mut from = slot.from;
    while from < slot.to {
        let Some(start) = moment(from) else { break };
        let ahead_ms = i64::from(zone.to_offset(start).seconds()) * 1_000;
        // A transition may change the name of the time alone: then the clock on the wall runs on.
        let change = zone
            .following(start)
            .take_while(|change| utc(change.timestamp()) < slot.to)
            .find(|change| i64::from(change.offset().seconds()) * 1_000 != ahead_ms);
        let to = change.map_or(slot.to, |change| utc(change.timestamp()));
        stretches.extend(Slot::between(from, to).map(|slot| EvenStretch { slot, ahead_ms }));
        from = to;
    }
    stretches
}

/// When the clock on the wall shows a time that week or exceptions name, within `slot`.
pub(super) fn open(week: &Week, exceptions: &[Exception], zone: &TimeZone, slot: Slot) -> Slots {
    let mut slots = Vec::new();
    for stretch in even_stretches(zone, slot) {
        let on_wall = |at: UtcMs| at.0.saturating_add(stretch.ahead_ms);
        let (first, last) = (on_wall(stretch.slot.from), on_wall(stretch.slot.to));
        for day in first.div_euclid(DAY)..=last.div_euclid(DAY) {
            let Some(date) = date_of(day) else { continue };
            for minutes in minutes_of(date, week, exceptions) {
                let at = |minute: i64| UtcMs(day * DAY + minute * MINUTE - stretch.ahead_ms);
                let open = Slot::between(at(minutes.start), at(minutes.end));
                slots.extend(open.and_then(|open| open.common(stretch.slot)));
            }
        }
    }
    Slots::of(slots)
}

/// The whole of the dates that an exception governs, within `slot`.
pub(super) fn excepted(exceptions: &[Exception], zone: &TimeZone, slot: Slot) -> Slots {
    let whole_day = vec![Hours::whole_day()];
    let dates: Vec<Exception> = exceptions
        .iter()
        .map(|exception| Exception {
            hours: whole_day.clone(),
            ..exception.clone()
        })
        .collect();
    open(&Week::Windows(Vec::new()), &dates, zone, slot)
}

/// The minutes of one date, 0 to 1440, in which it is open: its own hours, and what the night before brings.
fn minutes_of(date: Date, week: &Week, exceptions: &[Exception]) -> Vec<std::ops::Range<i64>> {
    const END: i64 = 24 * 60;
    let own = hours_beginning(date, week, exceptions);
    let mut minutes: Vec<_> = own
        .into_iter()
        .map(|hours| hours.start.min(END)..hours.end.min(END))
        .collect();
    if !is_excepted(date, exceptions)
        && let Ok(before) = date.yesterday()
    {
        let night = hours_beginning(before, week, exceptions).into_iter();
        minutes.extend(night.filter(|hours| hours.end > END).map(|hours| 0..hours.end - END));
    }
    minutes
}

fn hours_beginning(date: Date, week: &Week, exceptions: &[Exception]) -> Vec<std::ops::Range<i64>> {
    if is_excepted(date, exceptions) {
        let on_date = exceptions.iter().filter(|exception| governs(exception, date));
        return on_date
            .flat_map(|exception| exception.hours.iter().copied().map(Hours::minutes))
            .collect();
    }
    match week {
        Week::Always => vec![Hours::whole_day().minutes()],
        Week::Windows(windows) => {
            let today = windows
                .iter()
                .filter(|window: &&Window| window.days.has(date.weekday()));
            today.map(|window| window.hours.minutes()).collect()
        }
    }
}

fn is_excepted(date: Date, exceptions: &[Exception]) -> bool {
    exceptions.iter().any(|exception| governs(exception, date))
}

fn governs(exception: &Exception, date: Date) -> bool {
    (exception.from..=exception.to).contains(&date)
}

/// The date that is so many days after 1970-01-01.
fn date_of(day: i64) -> Option<Date> {
    Date::constant(1970, 1, 1)
        .checked_add(SignedDuration::from_hours(day.checked_mul(24)?))
        .ok()
}
