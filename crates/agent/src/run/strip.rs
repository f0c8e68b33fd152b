//! Turns what the loop publishes into the gap strip's stretches: a new one where the first reason that holds a card, or its
//! lease, is another. Pure: moments are passed in, what is to be kept comes out; keeping it is the store's.

use crate::store::StripEntry;
use sela_protocol::card::CardDescription;
use sela_protocol::id::{GpuUuid, LeaseId};
use sela_protocol::local::{CardState, Event, Sold, Stretch};
use sela_protocol::presence::{Availability, HoldReason};
use sela_protocol::units::{Millis, UtcMs};
use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};

/// How far what is open goes is kept this often; a crash loses no more.
const KEPT: Millis = Millis(60_000);
/// The loop hears of sensors far more often than this. After a longer silence the machine slept without having said so, and
/// nothing is claimed of that time.
const SILENCE: Millis = Millis(120_000);

/// What is open, and since when nothing was heard.
#[derive(Debug, Default)]
pub(super) struct StripRecorder {
    open: BTreeMap<GpuUuid, Stretch>,
    last: Option<UtcMs>,
    kept: Option<UtcMs>,
}

impl StripRecorder {
    /// Something was published.
    pub(super) fn published(&mut self, now: UtcMs, event: &Event) -> Vec<StripEntry> {
        match event {
            Event::Card(card) => {
                let mut entries = self.passes(now);
                entries.extend(self.card(now, card));
                entries
            }
            Event::Yielded(measure) => vec![StripEntry::Yielded(measure.clone())],
            Event::Snapshot(_)
            | Event::Market { .. }
            | Event::Pause { .. }
            | Event::Settings { .. }
            | Event::Signals(_)
            | Event::Earned(_)
            | Event::Unknown => Vec::new(),
        }
    }

    /// Time has passed and the agent lived: at most once a minute there is something to keep.
    pub(super) fn lived(&mut self, now: UtcMs) -> Vec<StripEntry> {
        let mut entries = self.passes(now);
        if !self.open.is_empty() && self.kept.is_none_or(|kept| now < kept || now.since(kept) >= KEPT) {
            self.kept = Some(now);
            entries.push(StripEntry::Seen(now));
        }
        entries
    }

    /// These cards are there: what is open of others ends.
    pub(super) fn present(&mut self, now: UtcMs, cards: &[CardDescription]) -> Vec<StripEntry> {
        let mut entries = self.passes(now);
        let gone = |gpu: &&GpuUuid| !cards.iter().any(|card| card.uuid == **gpu);
        let gone: Vec<GpuUuid> = self.open.keys().filter(gone).cloned().collect();
        entries.extend(gone.into_iter().filter_map(|gpu| self.ended(gpu, now)));
        entries
    }

    /// The agent leaves: everything ends.
    pub(super) fn left(&mut self, now: UtcMs) -> Vec<StripEntry> {
        let mut entries = self.passes(now);
        let all: Vec<GpuUuid> = self.open.keys().cloned().collect();
        entries.extend(all.into_iter().filter_map(|gpu| self.ended(gpu, now)));
        entries
    }

    fn card(&mut self, now: UtcMs, card: &CardState) -> Vec<StripEntry> {
        let stretch = stretch_of(card, now);
        let gpu = stretch.gpu.clone();
        if self.open.get(&gpu).is_some_and(|open| kind(open) == kind(&stretch)) {
            return Vec::new();
        }
        let mut entries: Vec<StripEntry> = self.ended(gpu.clone(), now).into_iter().collect();
        self.open.insert(gpu, stretch.clone());
        entries.push(StripEntry::Began(stretch));
        entries
    }

    fn ended(&mut self, gpu: GpuUuid, at: UtcMs) -> Option<StripEntry> {
        self.open.remove(&gpu)?;
        Some(StripEntry::Ended { gpu, at })
    }

    /// Notes the moment; where time jumped, what was open ends at the last moment that is known, and the same begins anew.
    fn passes(&mut self, now: UtcMs) -> Vec<StripEntry> {
        let Some(last) = self.last.replace(now) else {
            return Vec::new();
        };
        let set_back = now < last;
        if !set_back && now.since(last) <= SILENCE {
            return Vec::new();
        }
        let mut entries = Vec::new();
        for (gpu, open) in &mut self.open {
            // The machine said that it goes to sleep: so it did.
            if !set_back && matches!(open.held, Some(HoldReason::Asleep)) {
                continue;
            }
            open.from_utc_ms = now;
            open.to_utc_ms = now;
            entries.push(StripEntry::Ended {
                gpu: gpu.clone(),
                at: last,
            });
            entries.push(StripEntry::Began(open.clone()));
        }
        entries
    }
}

/// What makes two stretches one: the numbers of a reason change each second and make no new one.
fn kind(stretch: &Stretch) -> (Option<LeaseId>, Option<Discriminant<HoldReason>>) {
    (
        stretch.sold.as_ref().map(|sold| sold.lease),
        stretch.held.as_ref().map(discriminant),
    )
}

fn stretch_of(card: &CardState, now: UtcMs) -> Stretch {
    let held = match &card.availability {
        Availability::Available { .. } => None,
        Availability::Held { reasons } => Some(reasons.first().cloned().unwrap_or(HoldReason::Unknown)),
    };
    Stretch {
        gpu: card.description.uuid.clone(),
        from_utc_ms: now,
        to_utc_ms: now,
        held: held.filter(|_| card.lease.is_none()),
        sold: card.lease.as_ref().map(|lease| Sold {
            lease: lease.lease,
            job: lease.job,
            name: lease.name.clone(),
            price: lease.price,
        }),
    }
}

#[cfg(test)]
#[path = "strip_tests.rs"]
mod tests;
