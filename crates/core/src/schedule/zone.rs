//! Which clock a moment is meant on: zones of the time zone database, of Windows, and those that a calendar defines itself.
//! The database is passed in: nothing here looks at the machine's own.

use super::calendar::{Calendar, Observance};
use super::plan::PlanFault;
use super::rule::{self, Budget};
use super::windows_zones::zone_of_windows;
use jiff::civil::{DateTime, date};
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

/// The time zone database.
#[derive(Debug, Clone)]
pub struct Zones(TimeZoneDatabase);

impl Zones {
    /// The one that this program was built with: the same on every machine, so that a recording replays.
    pub fn bundled() -> Self {
        Self(TimeZoneDatabase::bundled())
    }

    /// A zone as the owner names it.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub fn named(&self, name: &str) -> Result<TimeZone, PlanFault> {
        self.find(name).ok_or_else(|| {
            PlanFault(format!(
                "there is no time zone {name:?}; name one of the time zone database, such as \"Asia/Jakarta\" or \"UTC\""
            ))
        })
    }

    /// Names as they are found in calendars: of the database, of Windows, and with what some programs put before them
    /// (`/freeassociation.sourceforge.net/Europe/Berlin`).
    fn find(&self, name: &str) -> Option<TimeZone> {
        let name = name.trim().trim_matches('"');
        let whole = || self.0.get(name).ok();
        let of_windows = || self.0.get(zone_of_windows(name)?).ok();
        let tail = || {
            name.match_indices('/')
                .find_map(|(at, _)| self.0.get(name.get(at + 1..)?).ok())
        };
        let utc = || matches!(name, "Z" | "tzone://Microsoft/Utc").then_some(TimeZone::UTC);
        whole().or_else(of_windows).or_else(tail).or_else(utc)
    }
}

/// A clock on a wall, to turn what it shows into a moment.
#[derive(Debug, Clone)]
pub(super) enum WallClock {
    Known(TimeZone),
    /// Defined by the calendar: from when on, and before, how far ahead of UTC. In order.
    Defined {
        first_ahead: i32,
        changes: Vec<(Timestamp, i32)>,
    },
    /// Named, and nowhere defined.
    Unknown,
}

/// The farthest that any clock on Earth is ahead of UTC, and the farthest behind (with an hour to spare).
const AHEAD: SignedDuration = SignedDuration::from_hours(15);
const BEHIND: SignedDuration = SignedDuration::from_hours(13);

impl WallClock {
    /// The clock that a calendar means by a name. What everybody means by a name stands before what the calendar says of it:
    /// calendars carry rules of the day they were made.
    pub(super) fn of(name: &str, calendar: &Calendar, zones: &Zones, budget: &mut Budget) -> Self {
        if let Some(zone) = zones.find(name) {
            return Self::Known(zone);
        }
        if let Some(observances) = calendar.zones.get(name)
            && let Some(defined) = Self::defined(observances, budget)
        {
            return defined;
        }
        let own = calendar.zone.as_deref().and_then(|own| zones.find(own));
        own.map_or(Self::Unknown, Self::Known)
    }

    fn defined(observances: &[Observance], budget: &mut Budget) -> Option<Self> {
        let mut changes = Vec::new();
        for observance in observances {
            let mut onsets = observance.dates.clone();
            onsets.push(observance.start);
            for rule in &observance.rules {
                let until = rule::last_on_wall(rule, observance.ahead_before);
                // Beyond this, what a calendar says of a zone of its own is not a plan but a habit of its program.
                let range = date(1970, 1, 1).at(0, 0, 0, 0)..=date(2100, 1, 1).at(0, 0, 0, 0).min(until);
                onsets.extend(rule::starts(rule, observance.start, range, budget));
            }
            let before = Offset::from_seconds(observance.ahead_before).ok()?;
            Offset::from_seconds(observance.ahead).ok()?;
            changes.extend(
                onsets
                    .into_iter()
                    .filter_map(|wall| Some((before.to_timestamp(wall).ok()?, observance.ahead))),
            );
        }
        changes.sort_unstable();
        let first = observances.iter().min_by_key(|observance| observance.start)?;
        Some(Self::Defined {
            first_ahead: first.ahead_before,
            changes,
        })
    }

    /// The moment at which the wall shows this. A time that a change leaves out is read as before the change, one that it
    /// repeats is the first (RFC 5545, 3.3.5). From … to: the same where it is known.
    pub(super) fn moments(&self, wall: DateTime) -> Option<(Timestamp, Timestamp)> {
        let one = |at: Timestamp| (at, at);
        match self {
            Self::Known(zone) => zone.to_timestamp(wall).ok().map(one),
            Self::Defined { first_ahead, changes } => {
                let mut ahead = *first_ahead;
                for (change, next) in changes {
                    let at = Offset::from_seconds(ahead).ok()?.to_timestamp(wall).ok()?;
                    if at < *change {
                        break;
                    }
                    // Left out: on the wall before the change it is past, on that after it not yet come.
                    let after = Offset::from_seconds(*next).ok()?.to_timestamp(wall).ok()?;
                    if after < *change {
                        break;
                    }
                    ahead = *next;
                }
                let at = Offset::from_seconds(ahead).ok()?.to_timestamp(wall).ok()?;
                Some(one(at))
            }
            Self::Unknown => {
                let at = TimeZone::UTC.to_timestamp(wall).ok()?;
                Some((at.checked_sub(AHEAD).ok()?, at.checked_add(BEHIND).ok()?))
            }
        }
    }
}
