//! What the owner allows, as values. Read from `agent.toml` by the agent; the defaults are the design's (provider.md §1–§3).

use crate::schedule::Plan;
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
#[serde(default)]
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
    /// Hands, pads, films and calls do not hold this card: the owner works on another.
    pub share_while_working: bool,
    /// Film, call, camera or microphone in use hold it.
    pub hold_while_engaged: bool,
    /// Game, VR and full screen hold it.
    pub hold_while_playing: bool,
    /// Somebody who works here from elsewhere holds it.
    pub hold_while_remote: bool,
    /// What battery does.
    pub battery: BatteryRule,
    /// A network that costs by volume holds it.
    pub hold_on_metered: bool,
    /// How long what was seen to hold the card must have gone before sharing starts, so that a sensor which flaps shares nothing.
    pub steady_for: Millis,
    /// When it may be shared by the clock; always where `None`.
    pub schedule: Option<Plan>,
    /// Another program counts from this much memory on,
    pub foreign_vram: Bytes,
    /// or from this share of the card on: then nothing is started.
    pub foreign_utilisation: Percent,
    /// A running job ends for another program from this much memory on,
    pub foreign_evict_vram: Bytes,
    /// or from this share of the card on; at least the figures for starting.
    pub foreign_evict_utilisation: Percent,
    /// Memory held by a program that computes nothing counts, from `foreign_vram` on, for `foreign_idle_for` after it last computed; from this
    /// much on it counts as long as it is held (a notebook; a render between frames).
    pub foreign_idle_vram: Bytes,
    /// See `foreign_idle_vram`.
    pub foreign_idle_for: Millis,
    /// Programs that never count: compositor, browser, wallpaper.
    pub ignored_programs: Vec<String>,
    /// At this core temperature a job ends within one sample.
    pub core_hard: Celsius,
    /// Below this, for [`CardPolicy::resume_samples`] valid samples in a row, the card is shared again.
    pub resume_below: Celsius,
    /// See `resume_below`.
    pub resume_samples: u32,
}

/// What battery does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatteryRule {
    /// Nothing is shared on battery.
    Hold,
    /// Shared while at least so much is left.
    From(Percent),
    /// It does not matter.
    Ignore,
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
            share_while_working: false,
            hold_while_engaged: true,
            hold_while_playing: true,
            hold_while_remote: true,
            battery: BatteryRule::Hold,
            hold_on_metered: true,
            steady_for: Millis::from_secs(5),
            schedule: None,
            foreign_vram: Bytes::from_mib(256),
            foreign_utilisation: Percent(5),
            foreign_evict_vram: Bytes::from_mib(256),
            foreign_evict_utilisation: Percent(5),
            foreign_idle_vram: Bytes::from_gib(1),
            foreign_idle_for: Millis::from_secs(1_800),
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
