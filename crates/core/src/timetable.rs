//! The schedules of all cards, with what each says of the coming weeks worked out once: asked with every input, that must cost
//! nothing. Worked out anew when the policy, a calendar, or the time requires it.

use crate::policy::{CardPolicy, Policy};
use crate::schedule::{Feeds, Outlook, Schedule, Slot, Zones, calendar::Calendar};
use crate::wake::Wake;
use sela_protocol::id::GpuUuid;
use sela_protocol::presence::HoldReason;
use sela_protocol::units::{Millis, Now, UtcMs};
use std::collections::BTreeMap;

/// How far is looked ahead: the next opening is told if it is within this.
const AHEAD: Millis = Millis::from_secs(36 * 86_400);
/// And how far always remains to be seen.
const LEAST_AHEAD: Millis = Millis::from_secs(28 * 86_400);
/// A clock that is set back by less asks for nothing new.
const BEHIND: i64 = 86_400_000;

/// All schedules and calendars.
#[derive(Debug)]
pub(crate) struct Timetable {
    zones: Zones,
    feeds: Feeds,
    /// By card; `None` for the rest. Cards without a schedule are not here.
    entries: BTreeMap<Option<GpuUuid>, Entry>,
}

#[derive(Debug)]
struct Entry {
    zone: String,
    /// Or why it makes no sense; the settings refuse such a plan, so that only a recording could bring it.
    schedule: Result<Schedule, String>,
    outlook: Option<Outlook>,
}

/// What a schedule says of a card now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hours {
    /// Why it is not open.
    pub(crate) reasons: Vec<HoldReason>,
    /// When it closes.
    pub(crate) until: Option<UtcMs>,
}

impl Timetable {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut timetable = Self {
            zones: Zones::bundled(),
            feeds: Feeds::new(),
            entries: BTreeMap::new(),
        };
        timetable.follow(policy);
        timetable
    }

    /// Takes the schedules of a policy.
    pub(crate) fn follow(&mut self, policy: &Policy) {
        let cards = policy.cards.iter().map(|(gpu, card)| (Some(gpu.clone()), card));
        let all = cards.chain([(None, &policy.rest)]);
        self.entries = all.filter_map(|(key, card)| Some((key, self.entry(card)?))).collect();
    }

    fn entry(&self, policy: &CardPolicy) -> Option<Entry> {
        let plan = policy.schedule.clone()?;
        Some(Entry {
            zone: plan.zone.clone(),
            schedule: Schedule::of(plan, &self.zones).map_err(|fault| fault.to_string()),
            outlook: None,
        })
    }

    /// Takes what an attempt to read a calendar has brought.
    pub(crate) fn heard(&mut self, name: String, attempt: Result<Calendar, String>, now: Now) {
        self.feeds.entry(name).or_default().heard(attempt, now.utc_ms);
        for entry in self.entries.values_mut() {
            entry.outlook = None;
        }
    }

    /// The zones, to reckon in.
    pub(crate) const fn zones(&self) -> &Zones {
        &self.zones
    }

    /// What the schedule of a card says; asks to be woken when that changes.
    pub(crate) fn hours(&mut self, gpu: &GpuUuid, policy: &Policy, now: Now, wake: &mut Wake) -> Hours {
        let key = policy.cards.contains_key(gpu).then(|| gpu.clone());
        let Some(entry) = self.entries.get_mut(&key) else {
            return Hours::default();
        };
        let schedule = match &entry.schedule {
            Ok(schedule) => schedule,
            Err(why) => {
                return Hours {
                    reasons: vec![HoldReason::ScheduleUnsure { why: why.clone() }],
                    until: None,
                };
            }
        };
        let at = now.utc_ms;
        let outlook = match entry.outlook.take() {
            Some(outlook) if outlook.reaches(at, LEAST_AHEAD) => entry.outlook.insert(outlook),
            Some(_) | None => {
                let range = Slot {
                    from: UtcMs(at.0.saturating_sub(BEHIND)),
                    to: at.plus(AHEAD),
                };
                entry.outlook.insert(schedule.outlook(&self.feeds, range))
            }
        };
        let standing = outlook.standing(at);
        if let Some(change) = standing.until {
            // A clock that is set meanwhile is noticed at the next input, since this is asked anew each time.
            wake.at(now.boot_ms.plus(change.since(at)));
        }
        let mut reasons = Vec::new();
        if !standing.open {
            reasons.push(HoldReason::OutsideSchedule {
                opens_utc_ms: standing.until,
                zone: entry.zone.clone(),
            });
        }
        reasons.extend(
            outlook
                .unsure()
                .iter()
                .map(|why| HoldReason::ScheduleUnsure { why: why.clone() }),
        );
        Hours {
            reasons,
            until: standing.until.filter(|_| standing.open),
        }
    }
}
