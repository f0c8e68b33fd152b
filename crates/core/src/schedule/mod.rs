//! When the owner lets a card be shared, by the clock: weekly hours in a named zone, exceptions by date, and calendars. Asked
//! by level only, "is it open now?", so that a sleep, a clock that is set, or a start that was missed can spoil nothing. Pure: the
//! moment and the time zone database are passed in, and calendars come as values.

pub mod calendar;
mod export;
mod outlook;
mod plan;
mod preview;
mod rule;
mod series;
mod slots;
mod week;
mod windows_zones;
mod zone;

pub use export::export;
pub use outlook::{Outlook, Standing};
pub use plan::{CalendarUse, Days, Exception, Hours, Meaning, Plan, PlanFault, TimeOfDay, Week, Window};
pub use preview::preview;
pub use slots::{Slot, Slots};
pub use zone::Zones;

use calendar::Feed;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use sela_protocol::units::UtcMs;
use std::collections::BTreeMap;

/// The calendars that are read, by name.
pub type Feeds = BTreeMap<String, Feed>;

/// When a pause "until tomorrow" ends: after the night, before the day.
const MORNING: Time = Time::constant(6, 0, 0, 0);

/// Six in the morning of the next date on a zone's wall.
///
/// # Errors
/// Where there is no such zone.
pub fn tomorrow(now: UtcMs, zone: &str, zones: &Zones) -> Result<UtcMs, PlanFault> {
    let clock = zones.named(zone)?;
    week::moment(now)
        .and_then(|now| clock.to_datetime(now).date().tomorrow().ok())
        .and_then(|date| clock.to_timestamp(date.to_datetime(MORNING)).ok())
        .map(week::utc)
        .ok_or_else(|| PlanFault("there is no tomorrow".into()))
}

/// A plan whose zone is found and whose windows make sense.
#[derive(Debug, Clone)]
pub struct Schedule {
    plan: Plan,
    zone: TimeZone,
    zones: Zones,
}

impl Schedule {
    /// Checks a plan.
    ///
    /// # Errors
    /// In words for its owner: an unknown zone, a window on no day, one that begins at 24:00, an exception that ends before it begins.
    pub fn of(plan: Plan, zones: &Zones) -> Result<Self, PlanFault> {
        plan.check()?;
        Ok(Self {
            zone: zones.named(&plan.zone)?,
            zones: zones.clone(),
            plan,
        })
    }

    /// The plan.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When it is open within a slot; all else follows from this.
    ///
    /// A calendar that closes counts most, then an exception, which says everything about its dates, then week and calendars that open.
    pub fn outlook(&self, feeds: &Feeds, range: Slot) -> Outlook {
        let mut notes = Vec::new();
        let mut unsure = Vec::new();
        let mut opened = Slots::default();
        let mut closed = Slots::default();
        for calendar_use in &self.plan.calendars {
            let opens = calendar_use.meaning == Meaning::Opens;
            let said = if opens { &mut notes } else { &mut unsure };
            let mut say = |word: String| said.push(format!("calendar {:?}: {word}", calendar_use.name));
            let Some(feed) = feeds.get(&calendar_use.name) else {
                say("it has not been read yet".into());
                continue;
            };
            let Some(good) = &feed.last_good else {
                say(feed
                    .problem
                    .clone()
                    .unwrap_or_else(|| "it has not been read yet".into()));
                continue;
            };
            let question = series::Question {
                owner: &self.zone,
                zones: &self.zones,
                range,
                opens,
            };
            let found = series::find(&good.calendar, question);
            found.problems.into_iter().for_each(&mut say);
            if let Some(problem) = &feed.problem {
                notes.push(format!(
                    "calendar {:?}: {problem}; what was read of it last stays in force",
                    calendar_use.name
                ));
            }
            if opens {
                opened = opened.or(found.slots);
            } else {
                closed = closed.or(found.slots);
            }
        }
        let excepted = week::excepted(&self.plan.exceptions, &self.zone, range);
        let by_week = week::open(&self.plan.week, &self.plan.exceptions, &self.zone, range);
        let open = by_week.or(opened.and(&excepted.rest_of(range)));
        Outlook::new(range, open.and(&closed.rest_of(range)), unsure, notes)
    }
}

#[cfg(test)]
mod calendar_tests;
#[cfg(test)]
mod tests;
