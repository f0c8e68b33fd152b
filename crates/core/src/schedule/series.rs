//! When the events of a calendar are: repetitions, moved and cancelled occurrences, "this and all later ones", on whichever
//! clock each is meant. What they mean for the card is decided in the module above.

use super::calendar::{Calendar, Event, InsteadOf, Length, Moment, Rule};
use super::rule::{self, Budget};
use super::slots::{Slot, Slots};
use super::week::{moment, utc};
use super::zone::{WallClock, Zones};
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use std::collections::{BTreeMap, BTreeSet};

/// Looks that one event may cost; one that begins every minute costs more in a look ahead of a month.
const LOOKS_OF_EVENT: u32 = 60_000;
/// Looks that a whole calendar may cost.
const LOOKS_OF_CALENDAR: u32 = 400_000;
/// Problems that are told; a calendar that has more has them all alike.
const TOLD: usize = 5;
/// Clocks differ from UTC by less than this.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_hours(48);

/// What was found in a calendar.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// When its events are, of those asked for.
    pub(super) slots: Slots,
    /// What could not be placed, in words; then something may be missing in `slots`.
    pub(super) problems: Vec<String>,
}

/// What is asked of a calendar.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// The owner's wall, for whole days and floating times.
    pub(super) owner: &'a TimeZone,
    pub(super) zones: &'a Zones,
    pub(super) range: Slot,
    /// Events shown as free count too, and one whose zone is unknown does not; else that one counts whenever it could be.
    pub(super) opens: bool,
}

/// When the events of a calendar are, within the range.
pub(super) fn find(calendar: &Calendar, question: Question<'_>) -> Found {
    let mut families: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in &calendar.events {
        families.entry(&event.uid).or_default().push(event);
    }
    let mut search = Search {
        calendar,
        question,
        clocks: BTreeMap::new(),
        left: LOOKS_OF_CALENDAR,
        found: Vec::new(),
        problems: calendar.unread.iter().take(TOLD).cloned().collect(),
    };
    for events in families.values() {
        search.family(events);
    }
    Found {
        slots: Slots::of(search.found),
        problems: search.problems,
    }
}

struct Search<'a> {
    calendar: &'a Calendar,
    question: Question<'a>,
    clocks: BTreeMap<&'a str, WallClock>,
    left: u32,
    found: Vec<Slot>,
    problems: Vec<String>,
}

/// How long, once start and end are on clocks.
#[derive(Debug, Clone, Copy)]
struct Lasting {
    days: i32,
    time: SignedDuration,
}

/// The occurrences of a series that differ from it or are none.
#[derive(Default)]
struct Differences<'a> {
    except_at: BTreeSet<Timestamp>,
    except_on: BTreeSet<Date>,
    single_at: BTreeSet<Timestamp>,
    single_on: BTreeSet<Date>,
    /// From which occurrence on all are as this override, by how much they move, and how long they are.
    later: BTreeMap<Timestamp, (&'a Event, SignedDuration, Lasting)>,
}

impl<'a> Search<'a> {
    /// Events with one uid: a series and what differs from it.
    fn family(&mut self, events: &[&'a Event]) {
        let mut overrides: BTreeMap<Timestamp, &'a Event> = BTreeMap::new();
        let mut series: Option<&'a Event> = None;
        for event in events.iter().copied() {
            let Some(InsteadOf { start, .. }) = &event.instead_of else {
                if series.is_none_or(|known| known.sequence <= event.sequence) {
                    series = Some(event);
                }
                continue;
            };
            let Some((at, _)) = self.moments(start) else { continue };
            let newest = overrides.entry(at).or_insert(event);
            if newest.sequence <= event.sequence {
                *newest = event;
            }
        }
        for event in overrides.values() {
            self.single(event);
        }
        if let Some(event) = series
            && self.counts(event)
        {
            self.series(event, &overrides);
        }
    }

    /// Whether an event is one at all.
    fn counts(&self, event: &Event) -> bool {
        !event.cancelled && (self.question.opens || !event.free)
    }

    fn single(&mut self, event: &'a Event) {
        if self.counts(event)
            && let Some(lasting) = self.lasting(&event.start, &event.length)
        {
            self.place(&event.start, wall(&event.start), lasting);
        }
    }

    fn series(&mut self, event: &'a Event, overrides: &BTreeMap<Timestamp, &'a Event>) {
        let Some(lasting) = self.lasting(&event.start, &event.length) else {
            return;
        };
        let differences = self.differences(event, overrides);
        let mut starts = self.starts(event, lasting, &differences);
        let mut dates: Vec<(DateTime, &Moment, Lasting)> = Vec::new();
        for (date, length) in &event.dates {
            // On another clock than the series, or of another length: an occurrence of its own.
            let lasting = length
                .as_ref()
                .and_then(|length| self.lasting(date, length))
                .unwrap_or(lasting);
            dates.push((wall(date), date, lasting));
        }
        starts.dedup();
        let of_rules = starts.into_iter().map(|start| (start, &event.start, lasting));
        for (start, on, lasting) in of_rules.chain(dates) {
            let Some((at, _)) = self.clock(on).and_then(|clock| clock.moments(start)) else {
                continue;
            };
            if differences.leave_out(at, start.date()) {
                continue;
            }
            match differences.later.range(..=at).next_back() {
                Some((_, (changed, _, _))) if !self.counts(changed) => {}
                Some((_, (_, moved, lasting))) => self.place(on, start.saturating_add(*moved), *lasting),
                None => self.place(on, start, lasting),
            }
        }
    }

    /// Starts on the wall of the series that could reach into the range.
    fn starts(&mut self, event: &'a Event, lasting: Lasting, differences: &Differences<'_>) -> Vec<DateTime> {
        let reach = differences
            .later
            .values()
            .map(|(_, moved, lasting)| moved.abs().saturating_add(lasting.most()))
            .fold(lasting.most(), Ord::max)
            .saturating_add(CLOCKS_DIFFER);
        let utc_wall = |at| moment(at).map(|at| TimeZone::UTC.to_datetime(at));
        let (Some(from), Some(to)) = (utc_wall(self.question.range.from), utc_wall(self.question.range.to)) else {
            return Vec::new();
        };
        let range = from.saturating_sub(reach)..=to.saturating_add(reach);
        let first = wall(&event.start);
        if event.rules.is_empty() {
            return vec![first];
        }
        let mut starts = BTreeSet::new();
        let given = LOOKS_OF_EVENT.min(self.left);
        let mut budget = Budget::of(given);
        for rule in &event.rules {
            let found = rule::starts(rule, first, range.clone(), &mut budget);
            starts.extend(
                found
                    .into_iter()
                    .filter(|start| self.is_within_end(rule, event, *start)),
            );
        }
        self.left -= given - budget.left();
        if budget.is_spent() {
            self.tell(format!(
                "the event that begins on {} repeats so often that not all of it can be looked at; let it repeat less often",
                first.date()
            ));
        }
        starts.into_iter().collect()
    }

    fn is_within_end(&mut self, rule: &'a Rule, event: &'a Event, start: DateTime) -> bool {
        match &rule.end {
            super::calendar::End::Never | super::calendar::End::After(_) => true,
            super::calendar::End::Last(Moment::Day(last)) => start.date() <= *last,
            super::calendar::End::Last(last) => {
                // A floating end is on the wall of the event (Outlook and others write it so).
                let end = match last {
                    Moment::Floating(end) => self.clock(&event.start).and_then(|clock| clock.moments(*end)),
                    Moment::Day(_) | Moment::Utc(_) | Moment::In(..) => self.moments(last),
                };
                let start = self.clock(&event.start).and_then(|clock| clock.moments(start));
                start.zip(end).is_some_and(|((start, _), (end, _))| start <= end)
            }
        }
    }

    fn differences(&mut self, event: &'a Event, overrides: &BTreeMap<Timestamp, &'a Event>) -> Differences<'a> {
        let mut differences = Differences::default();
        for except in &event.except {
            match except {
                Moment::Day(date) => drop(differences.except_on.insert(*date)),
                Moment::Floating(_) | Moment::Utc(_) | Moment::In(..) => {
                    differences.except_at.extend(self.moments(except).map(|(at, _)| at));
                }
            }
        }
        for (at, changed) in overrides {
            let Some(InsteadOf { start, and_later }) = &changed.instead_of else {
                continue;
            };
            match start {
                Moment::Day(date) => drop(differences.single_on.insert(*date)),
                Moment::Floating(_) | Moment::Utc(_) | Moment::In(..) => drop(differences.single_at.insert(*at)),
            }
            if *and_later && let Some(lasting) = self.lasting(&changed.start, &changed.length) {
                let moved = self.moved(start, &changed.start);
                differences.later.insert(*at, (changed, moved, lasting));
            }
        }
        differences
    }

    /// By how much an override moves an occurrence on the wall of the series.
    fn moved(&mut self, from: &'a Moment, to: &'a Moment) -> SignedDuration {
        let (wall_from, wall_to) = (wall(from), wall(to));
        match (from, to) {
            (Moment::In(_, one), Moment::In(_, other)) if one != other => {
                let (from, to) = (self.moments(from), self.moments(to));
                from.zip(to)
                    .map_or(SignedDuration::ZERO, |((from, _), (to, _))| to.duration_since(from))
            }
            (Moment::Utc(_), Moment::In(..)) | (Moment::In(..), Moment::Utc(_)) => {
                let (from, to) = (self.moments(from), self.moments(to));
                from.zip(to)
                    .map_or(SignedDuration::ZERO, |((from, _), (to, _))| to.duration_since(from))
            }
            (Moment::Day(_) | Moment::Floating(_) | Moment::Utc(_) | Moment::In(..), _) => {
                wall_to.duration_since(wall_from)
            }
        }
    }

    /// Puts an occurrence into what was found, where it reaches into the range.
    fn place(&mut self, on: &'a Moment, start: DateTime, lasting: Lasting) {
        let opens = self.question.opens;
        let Some(clock) = self.clock(on) else { return };
        let unknown = matches!(clock, WallClock::Unknown);
        let end = start.checked_add(i64::from(lasting.days).days()).ok();
        let (Some((from, _)), Some((_, to))) = (clock.moments(start), end.and_then(|end| clock.moments(end))) else {
            return;
        };
        let to = to.saturating_add(lasting.time).unwrap_or(Timestamp::MAX);
        let Some(slot) = Slot::between(utc(from), utc(to)).and_then(|slot| slot.common(self.question.range)) else {
            return;
        };
        if unknown && let Moment::In(_, zone) = on {
            self.tell(format!(
                "an event names the time zone {zone:?}, which neither the calendar nor the time zone database defines"
            ));
            if opens {
                return;
            }
        }
        self.found.push(slot);
    }

    /// How long an event is; `None`, and told, where it ends before it begins. One of no length is none.
    fn lasting(&mut self, start: &'a Moment, length: &'a Length) -> Option<Lasting> {
        let lasting = match (length, start) {
            (Length::Unsaid, Moment::Day(_)) => Lasting::days(1),
            (Length::Unsaid, Moment::Floating(_) | Moment::Utc(_) | Moment::In(..)) => Lasting::days(0),
            (Length::Nominal { days, time }, _) => Lasting {
                days: *days,
                time: *time,
            },
            (Length::Until(Moment::Day(end)), Moment::Day(start)) => {
                Lasting::days(i32::try_from(end.duration_since(*start).as_hours() / 24).ok()?)
            }
            (Length::Until(end), _) => {
                let ((start, _), (end, _)) = (self.moments(start)?, self.moments(end)?);
                Lasting {
                    days: 0,
                    time: end.duration_since(start),
                }
            }
        };
        if lasting.days < 0 || lasting.time.is_negative() {
            self.tell(format!(
                "the event that begins on {} ends before it begins",
                wall(start).date()
            ));
            return None;
        }
        Some(lasting)
    }

    fn moments(&mut self, on: &'a Moment) -> Option<(Timestamp, Timestamp)> {
        self.clock(on)?.moments(wall(on))
    }

    fn clock(&mut self, on: &'a Moment) -> Option<&WallClock> {
        let name = match on {
            Moment::Day(_) | Moment::Floating(_) => "",
            Moment::Utc(_) => "UTC",
            Moment::In(_, zone) => zone,
        };
        if !self.clocks.contains_key(name) {
            let clock = if name.is_empty() {
                WallClock::Known(self.question.owner.clone())
            } else {
                let mut budget = Budget::of(LOOKS_OF_EVENT.min(self.left));
                WallClock::of(name, self.calendar, self.question.zones, &mut budget)
            };
            self.clocks.insert(name, clock);
        }
        self.clocks.get(name)
    }

    fn tell(&mut self, problem: String) {
        if self.problems.len() < TOLD && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

impl Differences<'_> {
    fn leave_out(&self, at: Timestamp, on: Date) -> bool {
        self.except_at.contains(&at)
            || self.except_on.contains(&on)
            || self.single_at.contains(&at)
            || self.single_on.contains(&on)
    }
}

impl Lasting {
    const fn days(days: i32) -> Self {
        Self {
            days,
            time: SignedDuration::ZERO,
        }
    }

    /// Not less than it ever lasts.
    fn most(self) -> SignedDuration {
        SignedDuration::from_hours(i64::from(self.days) * 24).saturating_add(self.time)
    }
}

/// What the wall shows.
fn wall(moment: &Moment) -> DateTime {
    match moment {
        Moment::Day(date) => date.at(0, 0, 0, 0),
        Moment::Floating(wall) | Moment::Utc(wall) | Moment::In(wall, _) => *wall,
    }
}
