//! The coming days as window and command line show them: by date on the owner's wall, with each change of the clock marked.

use super::slots::Slot;
use super::week::{even_stretches, moment, utc};
use super::{Feeds, Schedule};
use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use sela_protocol::schedule::{ClockChange, OpenHours, PreviewDay, SchedulePreview};
use sela_protocol::units::UtcMs;

/// From the day of `now` on, so many days.
pub fn preview(schedule: &Schedule, feeds: &Feeds, now: UtcMs, days: u16) -> SchedulePreview {
    let mut preview = SchedulePreview {
        zone: schedule.plan.zone.clone(),
        days: Vec::new(),
        notes: Vec::new(),
    };
    let zone = &schedule.zone;
    let midnight = |date: jiff::civil::Date| zone.to_timestamp(date.at(0, 0, 0, 0)).ok().map(utc);
    let mut date = moment(now).map(|now| zone.to_datetime(now).date());
    for _ in 0..days {
        let Some(today) = date else { break };
        date = today.tomorrow().ok();
        let whole = midnight(today).zip(date.and_then(midnight));
        // A date that a zone has left out (Samoa, 2011) has no time in it.
        let Some(day) = whole.and_then(|(from, to)| Slot::between(from, to)) else {
            continue;
        };
        let outlook = schedule.outlook(feeds, day);
        for note in outlook.unsure().iter().chain(outlook.notes()) {
            if !preview.notes.contains(note) {
                preview.notes.push(note.clone());
            }
        }
        preview.days.push(PreviewDay {
            date: today.to_string(),
            open: outlook
                .open()
                .as_slice()
                .iter()
                .map(|slot| hours(zone, *slot, day))
                .collect(),
            clock_change: change(zone, day),
        });
    }
    preview
}

fn hours(zone: &TimeZone, slot: Slot, day: Slot) -> OpenHours {
    OpenHours {
        from_utc_ms: slot.from,
        to_utc_ms: slot.to,
        from: shown(zone, slot.from),
        to: if slot.to == day.to {
            "24:00".into()
        } else {
            shown(zone, slot.to)
        },
    }
}

fn shown(zone: &TimeZone, at: UtcMs) -> String {
    words(moment(at).map_or(Time::MIN, |at| zone.to_datetime(at).time()))
}

fn words(time: Time) -> String {
    format!("{:02}:{:02}", time.hour(), time.minute())
}

/// Where the clock is changed on a day: what it shows before, and then.
fn change(zone: &TimeZone, day: Slot) -> Option<ClockChange> {
    // One at the midnight that begins the day is this day's.
    let around = Slot::between(UtcMs(day.from.0 - 1), day.to)?;
    let stretches = even_stretches(zone, around);
    let (before, after) = (stretches.first()?, stretches.get(1)?);
    let wall = |ahead: i64| Timestamp::from_millisecond(after.slot.from.0 + ahead).ok();
    let time = |ahead: i64| Some(words(TimeZone::UTC.to_datetime(wall(ahead)?).time()));
    Some(ClockChange {
        at_utc_ms: after.slot.from,
        from: time(before.ahead_ms)?,
        to: time(after.ahead_ms)?,
    })
}
