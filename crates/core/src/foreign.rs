//! Somebody else's work on a card: which of it counts, by how much it computes, holds, and for how long it has held only. What is
//! seen of it comes in; what follows for a job is in `state`.

use crate::card::Card;
use crate::policy::CardPolicy;
use crate::wake::Wake;
use sela_protocol::id::GpuUuid;
use sela_protocol::presence::{ForeignUse, HoldReason, Observed};
use sela_protocol::units::{BootMs, Now, Percent};
use std::collections::BTreeMap;

/// When each program was last seen computing, or first seen at all.
#[derive(Debug, Default)]
pub(crate) struct Activity(BTreeMap<(GpuUuid, u32), BootMs>);

impl Activity {
    /// Takes what is seen now; programs that are gone are forgotten.
    pub(crate) fn seen(&mut self, foreign: &Observed<Vec<ForeignUse>>, now: Now) {
        let Observed::Value { value, .. } = foreign else {
            return;
        };
        let key = |process: &ForeignUse| (process.gpu.clone(), process.pid);
        let mut activity = BTreeMap::new();
        for process in value {
            let since = if process.utilisation == Some(Percent(0)) {
                self.0.get(&key(process)).copied().unwrap_or(now.boot_ms)
            } else {
                now.boot_ms
            };
            activity.insert(key(process), since);
        }
        self.0 = activity;
    }

    fn last(&self, process: &ForeignUse, now: Now) -> BootMs {
        let last = self.0.get(&(process.gpu.clone(), process.pid));
        last.copied().unwrap_or(now.boot_ms)
    }
}

/// The first program that keeps a card from being shared.
pub(crate) fn reason(
    foreign: &Observed<Vec<ForeignUse>>,
    activity: &Activity,
    card: &Card,
    policy: &CardPolicy,
    now: Now,
    wake: &mut Wake,
) -> Option<HoldReason> {
    let Observed::Value { value, .. } = foreign else {
        return None;
    };
    let on_card = |process: &&ForeignUse| process.gpu == card.description.uuid && !ignored(process, policy);
    value.iter().filter(on_card).find_map(|process| {
        let (vram, utilisation) = (process.vram_used, process.utilisation);
        // Where the driver tells nothing of a program, its being there counts: silence is never taken for idleness.
        let computes = match utilisation {
            Some(share) => share >= policy.foreign_utilisation && share > Percent(0),
            None => vram.is_none_or(|vram| vram >= policy.foreign_vram),
        };
        let holds_much = vram.is_some_and(|vram| vram >= policy.foreign_idle_vram.max(policy.foreign_vram));
        if computes || holds_much {
            return Some(HoldReason::ForeignUse {
                process: process.clone(),
                idle_for_ms: None,
            });
        }
        let until = activity.last(process, now).plus(policy.foreign_idle_for);
        if vram.is_none_or(|vram| vram < policy.foreign_vram) || wake.due(now.boot_ms, until) {
            return None;
        }
        Some(HoldReason::ForeignUse {
            process: process.clone(),
            idle_for_ms: Some(until.since(now.boot_ms)),
        })
    })
}

/// Whether a running job ends for it.
pub(crate) fn evicts(process: &ForeignUse, policy: &CardPolicy) -> bool {
    let (vram, utilisation) = (process.vram_used, process.utilisation);
    (vram.is_none() && utilisation.is_none())
        || vram.is_some_and(|vram| vram >= policy.foreign_evict_vram.max(policy.foreign_vram))
        || utilisation.is_some_and(|share| share >= policy.foreign_evict_utilisation.max(policy.foreign_utilisation))
}

fn ignored(process: &ForeignUse, policy: &CardPolicy) -> bool {
    let name = process.name.as_ref();
    name.is_some_and(|name| policy.ignored_programs.contains(name))
}
