//! What the owner allows, as values. Read from `agent.toml` by the agent; the defaults are the design's (provider.md §1–§3).

use sela_protocol::id::GpuUuid;
use sela_protocol::money::HourlyPrice;
use sela_protocol::network::NetworkShare;
use sela_protocol::units::{Bytes, Celsius, Millis, Percent};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All that the owner allows: a policy for each card, and the one for the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Policy {
    /// For cards without their own.
    pub rest: CardPolicy,
    /// By card.
    pub cards: BTreeMap<GpuUuid, CardPolicy>,
    /// Most memory that one job may use.
    pub job_memory: Bytes,
    /// What jobs may use of the network.
    #[serde(default)]
    pub network: NetworkShare,
}

/// What the owner allows for one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardPolicy {
    /// Never let for less.
    pub floor: HourlyPrice,
    /// How long no input before sharing starts.
    pub idle_after: Millis,
    /// How long a card rests after it was given back; at least `idle_after` is the design's default.
    pub cool_off: Millis,
    /// How long a job stays frozen before it is saved and ended.
    pub evict_after: Millis,
    /// How long a job may save.
    pub save_grace: Millis,
    /// A single bump of the mouse is forgiven if it was quiet for this long before.
    pub bump_quiet: Millis,
    /// Another program counts from this much memory on,
    pub foreign_vram: Bytes,
    /// or from this share of the card on.
    pub foreign_utilisation: Percent,
    /// Programs that never count: compositor, browser, wallpaper.
    pub ignored_programs: Vec<String>,
    /// At this core temperature a job ends within one sample.
    pub core_hard: Celsius,
    /// Below this, for [`CardPolicy::resume_samples`] valid samples in a row, the card is shared again.
    pub resume_below: Celsius,
    /// See `resume_below`.
    pub resume_samples: u32,
}

impl Default for CardPolicy {
    fn default() -> Self {
        Self {
            floor: HourlyPrice::default(),
            idle_after: Millis::from_secs(300),
            cool_off: Millis::from_secs(300),
            evict_after: Millis::from_secs(3),
            save_grace: Millis::from_secs(5),
            bump_quiet: Millis::from_secs(900),
            foreign_vram: Bytes::from_mib(256),
            foreign_utilisation: Percent(5),
            ignored_programs: Vec::new(),
            core_hard: Celsius(83),
            resume_below: Celsius(65),
            resume_samples: 5,
        }
    }
}

impl Policy {
    /// The policy in force for a card.
    pub fn for_card(&self, gpu: &GpuUuid) -> &CardPolicy {
        self.cards.get(gpu).unwrap_or(&self.rest)
    }
}
