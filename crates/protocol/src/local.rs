//! The agent's local interface as its clients see it: snapshot, events, commands, pages. The window, the tray and the
//! command line get whole view-models from here and decide nothing.

use crate::card::{CardDescription, CardReading};
use crate::id::{GpuUuid, JobId, LeaseId, NodeId};
use crate::lease::{EndCause, LeasePhase};
use crate::money::{HourlyPrice, Micros};
use crate::network::NetworkUse;
use crate::node::Isolation;
use crate::presence::{Availability, HoldReason, Signals};
use crate::units::{Bytes, Celsius, Millis, Milliwatts, Now, Percent, UtcMs};
use serde::{Deserialize, Serialize};

/// The version of the local interface. Current and previous are served; within one, fields are only added.
pub const LOCAL_PROTOCOL: u32 = 1;

/// Everything that a client needs to show the agent at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Snapshot {
    /// Protocol of the local interface.
    pub protocol: u32,
    /// The agent's version.
    pub agent_version: String,
    /// When it was taken.
    pub now: Now,
    /// Whether this is a lab: simulated cards, money of no worth.
    pub lab: bool,
    /// The link to the exchange.
    pub market: MarketLink,
    /// How jobs are isolated here, or why they cannot be.
    pub isolation: IsolationState,
    /// The pause, if the owner paused.
    pub pause: Option<Pause>,
    /// What is wrong with the settings file, if anything.
    pub settings_problem: Option<String>,
    /// What is seen of the owner.
    pub signals: Signals,
    /// The cards.
    pub cards: Vec<CardState>,
    /// Sums for display.
    pub earned: Earned,
}

/// How jobs are isolated, or why they cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum IsolationState {
    /// They are.
    Ready {
        /// How.
        level: Isolation,
    },
    /// They cannot be.
    Missing {
        /// What to do.
        why: String,
    },
}

/// The link to the exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MarketLink {
    /// No exchange is set in `agent.toml`.
    NotConfigured,
    /// Trying.
    Connecting {
        /// Where.
        url: String,
        /// What went wrong last.
        last_error: Option<String>,
    },
    /// Connected.
    Connected {
        /// Where.
        url: String,
        /// The exchange's name.
        exchange: String,
        /// Who this machine is there.
        node: NodeId,
    },
    /// Refused: trying again does not help.
    Refused {
        /// Where.
        url: String,
        /// What to do.
        message: String,
    },
}

/// A pause that the owner asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Pause {
    /// Since when.
    pub since_utc_ms: UtcMs,
    /// Until when; until told otherwise where `None`.
    pub until_utc_ms: Option<UtcMs>,
}

/// One card as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct CardState {
    /// What it is.
    pub description: CardDescription,
    /// What it reports; `None` before the first reading or while it is asleep.
    pub reading: Option<CardReading>,
    /// The floor in force.
    pub floor: HourlyPrice,
    /// How hot it may become.
    pub limits: ThermalLimits,
    /// Whether it may be shared now, and if not, why.
    pub availability: Availability,
    /// The lease on it.
    pub lease: Option<LeaseState>,
    /// The last time it was given back.
    pub last_yield: Option<YieldMeasure>,
}

/// How hot the owner lets a card become while a job is on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct ThermalLimits {
    /// At this core temperature the job ends within one reading.
    pub core_hard: Celsius,
    /// Below this core temperature the card is shared again.
    pub resume_below: Celsius,
}

/// A lease as the owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct LeaseState {
    /// Which.
    pub lease: LeaseId,
    /// For which job.
    pub job: JobId,
    /// The job's name, as its tenant wrote it.
    pub name: Option<String>,
    /// How far.
    pub phase: LeasePhase,
    /// At which price.
    pub price: HourlyPrice,
    /// Thawed time so far.
    pub thawed_ms: Millis,
    /// Earned so far, before the fee.
    pub gross: Micros,
    /// What it uses of the network, where it may use any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "bindings", ts(optional))]
    pub network: Option<NetworkUse>,
    /// How far its image is, while that is being transferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "bindings", ts(optional))]
    pub transfer: Option<ImageTransfer>,
    /// What was wiped of the card's memory before its job was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "bindings", ts(optional))]
    pub wiped: Option<CardWiped>,
}

/// How far the transfer of a job's image is. What was here already counts as transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct ImageTransfer {
    /// Bytes that are here, packed.
    pub done: Bytes,
    /// Of how many; `None` where the source does not say.
    pub total: Option<Bytes>,
    /// Layers that lie unpacked and ready.
    pub layers_done: u32,
    /// Of how many; `None` before the image has said so.
    pub layers: Option<u32>,
}

/// What was wiped of a card's memory before a job was started on it: all that no other program held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct CardWiped {
    /// How much.
    pub wiped: Bytes,
    /// How long it took.
    pub took_ms: Millis,
}

/// How fast a card was given back. Spans are from the cause; `None` where that step did not happen or was not reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct YieldMeasure {
    /// When.
    pub at_utc_ms: UtcMs,
    /// Of which card.
    pub gpu: GpuUuid,
    /// Why.
    pub cause: EndCause,
    /// Until the job stood frozen.
    pub frozen_ms: Option<Millis>,
    /// Until the driver saw no work of the job on the card.
    pub quiet_ms: Option<Millis>,
    /// Until the card's memory was free of the job.
    pub vram_free_ms: Option<Millis>,
}

/// Sums of receipts (and of notes not yet receipted, as `pending`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Earned {
    /// Net of fee since local midnight.
    pub today_net: Micros,
    /// Net of fee in all.
    pub total_net: Micros,
    /// Fees in all.
    pub total_fee: Micros,
    /// Electricity of all leases: measured energy × tariff.
    pub total_electricity: Micros,
    /// Metered but not yet receipted, before the fee.
    pub pending_gross: Micros,
}

/// One line of `sela earnings`: one lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct EarningsLine {
    /// Which lease.
    pub lease: LeaseId,
    /// For which job.
    pub job: JobId,
    /// On which card.
    pub gpu: GpuUuid,
    /// When it was accepted.
    pub started_utc_ms: UtcMs,
    /// At which price.
    pub price: HourlyPrice,
    /// Thawed time by the newest note.
    pub thawed_ms: Millis,
    /// Billed time by the newest receipt.
    pub billed_ms: Millis,
    /// Receipted.
    pub gross: Micros,
    /// The exchange's share.
    pub fee: Micros,
    /// What is left.
    pub net: Micros,
    /// Energy used while it ran, in milliwatt-hours, where the card tells.
    pub energy_mwh: Option<u64>,
    /// What that cost by the owner's tariff.
    pub electricity: Option<Micros>,
    /// Why it ended; `None` while it is open.
    pub end: Option<EndCause>,
    /// Whether it was earned in a lab.
    pub lab: bool,
}

/// One page of a long list, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Page<T> {
    /// The lines of this page.
    pub items: Vec<T>,
    /// Where the next page starts; `None` on the last one.
    pub next: Option<String>,
}

/// One line of `sela jobs`: one lease, running or past.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct JobLine {
    /// Which lease.
    pub lease: LeaseId,
    /// For which job.
    pub job: JobId,
    /// The job's name, as its tenant wrote it.
    pub name: Option<String>,
    /// On which card.
    pub gpu: GpuUuid,
    /// When it was accepted.
    pub started_utc_ms: UtcMs,
    /// Thawed time by the newest note.
    pub thawed_ms: Millis,
    /// How far it is; `None` once it has ended.
    pub phase: Option<LeasePhase>,
    /// Why it ended; `None` while it is open.
    pub end: Option<EndCause>,
    /// What it uses of the network, while it is open and where it may use any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "bindings", ts(optional))]
    pub network: Option<NetworkUse>,
    /// How far its image is, while that is being transferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "bindings", ts(optional))]
    pub transfer: Option<ImageTransfer>,
    /// What was wiped of the card's memory before it was started, while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "bindings", ts(optional))]
    pub wiped: Option<CardWiped>,
}

/// What one card did over one span of time. An absent value was not reported in that span.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Sample {
    /// Which card.
    pub gpu: GpuUuid,
    /// Start of the span.
    pub at_utc_ms: UtcMs,
    /// Its length.
    pub span_ms: Millis,
    /// Highest core temperature.
    pub temperature_most: Option<Celsius>,
    /// Mean power.
    pub power_mean: Option<Milliwatts>,
    /// Mean utilisation.
    pub utilisation_mean: Option<Percent>,
    /// Most memory in use.
    pub vram_most: Option<Bytes>,
}

/// What became of the cards in a span of time: what the gap strip of the window draws. Nothing is told of the time in
/// which the agent did not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct StripRecord {
    /// Oldest first; those of one card do not overlap.
    pub stretches: Vec<Stretch>,
    /// Each time that a card was given back, oldest first.
    pub yields: Vec<YieldMeasure>,
}

/// A span of time in which one card was offered, or sold, or held for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Stretch {
    /// Which card.
    pub gpu: GpuUuid,
    /// Its first moment.
    pub from_utc_ms: UtcMs,
    /// The first moment after it; that of the answer where it goes on.
    pub to_utc_ms: UtcMs,
    /// The first reason that held the card, as it was when the stretch began; `None` while it was offered or sold.
    pub held: Option<HoldReason>,
    /// To whom it was sold.
    pub sold: Option<Sold>,
}

/// The lease of a stretch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Sold {
    /// Which lease.
    pub lease: LeaseId,
    /// For which job.
    pub job: JobId,
    /// The job's name, as its tenant wrote it.
    pub name: Option<String>,
    /// At which price.
    pub price: HourlyPrice,
}

/// What the owner can tell the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Command {
    /// Share no card, and end what runs.
    Pause {
        /// For how long; until told otherwise where `None`.
        for_ms: Option<Millis>,
    },
    /// Share no card until the next morning, and end what runs.
    PauseUntilTomorrow {
        /// Whose morning: a zone as the time zone database names it.
        zone: String,
    },
    /// Share again.
    Resume,
    /// End one lease now.
    EndLease {
        /// Which.
        lease: LeaseId,
    },
    /// End all jobs and stop the agent.
    Quit,
    /// Something newer: refused.
    #[serde(other)]
    Unknown,
}

/// What the agent answers to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CommandReply {
    /// Done, or under way and to be seen in the events.
    Done,
    /// Not done.
    Refused {
        /// Why, and what to do.
        message: String,
    },
}

/// A numbered event of `GET /v1/events`. The first of a stream is a whole snapshot; so is the next after a reader fell behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct NumberedEvent {
    /// Rises by one within a stream.
    pub number: u64,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// Everything.
    Snapshot(Box<Snapshot>),
    /// One card changed.
    Card(Box<CardState>),
    /// The link to the exchange changed.
    Market {
        /// The link now. A field of its own, since it is tagged `type` as this is.
        link: MarketLink,
    },
    /// Paused or resumed.
    Pause {
        /// The pause in force.
        pause: Option<Pause>,
    },
    /// The settings file was read again.
    Settings {
        /// What is wrong with it, if anything.
        problem: Option<String>,
    },
    /// What is seen of the owner changed.
    Signals(Box<Signals>),
    /// Sums changed.
    Earned(Earned),
    /// A card was given back.
    Yielded(YieldMeasure),
    /// Something newer: ignored.
    #[serde(other)]
    Unknown,
}

/// One line of `sela doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct DoctorLine {
    /// What was looked at.
    pub subject: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was tried and found.
    pub found: String,
    /// How to mend it.
    pub remedy: Option<String>,
}

/// How a check of `sela doctor` came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Works.
    Good,
    /// Works with a limit that the owner should know.
    Limited,
    /// Does not work.
    Bad,
    /// Is not there and need not be.
    NotApplicable,
}

/// The body of every error of the local interface and of the exchange's REST interface (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Problem {
    /// A name for programs: `unknown_field`, `insufficient_funds`, …
    pub code: String,
    /// HTTP status.
    pub status: u16,
    /// What happened and what to do, for people.
    pub detail: String,
}

/// Disk that images and results may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskBudget {
    /// Most that Sela keeps.
    pub budget: Bytes,
    /// Never leave less than this free.
    pub free_floor: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_the_link_travels_as_an_event() {
        let url = || "https://exchange.example".to_owned();
        for link in [
            MarketLink::NotConfigured,
            MarketLink::Connecting {
                url: url(),
                last_error: None,
            },
            MarketLink::Refused {
                url: url(),
                message: "ask for an invitation".to_owned(),
            },
        ] {
            let event = NumberedEvent {
                number: 7,
                event: Event::Market { link },
            };
            let text = serde_json::to_string(&event).expect("writes");
            assert_eq!(serde_json::from_str::<NumberedEvent>(&text).expect(&text), event);
        }
    }
}
