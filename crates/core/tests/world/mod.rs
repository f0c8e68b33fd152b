//! A scripted world around `State`: time is passed in, effects are written down as short words. Shared by the tests of
//! this crate; nothing of the product lives here.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

use sela_core::{CardPolicy, Effect, Input, LeaseEvent, MarketInput, Policy, Record, State};
use sela_protocol::card::{CardDescription, CardReading, PowerLimits, Reading};
use sela_protocol::confidential::{Confidential, SealingKey};
use sela_protocol::id::{GpuUuid, IdSource, LeaseId};
use sela_protocol::job::{JobSpec, Tier};
use sela_protocol::lease::FencingToken;
use sela_protocol::local::{IsolationState, MarketLink};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::node::{Award, Isolation, NodeMessage};
use sela_protocol::presence::{ForeignUse, InputActivity, Observed, Signals};
use sela_protocol::units::{BootMs, Bytes, Celsius, Megahertz, Millis, Milliwatts, Now, Percent, UtcMs};
use std::collections::BTreeMap;

/// The card of these tests.
pub const GPU: &str = "GPU-0";
const START: u64 = 10_000_000;

/// One agent with one card, two hours of quiet behind it.
pub struct World {
    pub state: State,
    pub now: Now,
    pub last_input: Option<BootMs>,
    pub foreign: Vec<ForeignUse>,
    /// What else is seen.
    pub senses: sela_protocol::senses::Senses,
    /// The source of keyboard and mouse fails.
    pub blind: bool,
    pub temperature: i32,
    /// The sensors report nothing.
    pub deaf: bool,
    /// The exchange acknowledges no heartbeat.
    pub mute: bool,
    pub ids: IdSource,
    /// Who this machine is at the exchange.
    pub node: sela_protocol::id::NodeId,
    /// Everything that was done since the start, in short words.
    pub done: Vec<String>,
    pub effects: Vec<Effect>,
}

impl World {
    /// Started, connected, offering.
    pub fn new() -> Self {
        Self::with(CardPolicy::default())
    }

    pub fn with(card: CardPolicy) -> Self {
        let now = Now {
            boot_ms: BootMs(START),
            utc_ms: UtcMs(1_800_000_000_000),
        };
        let policy = Policy {
            rest: card,
            job_memory: Bytes::from_gib(8),
            ..Policy::default()
        };
        let mut world = Self {
            state: State::new(policy, now),
            now,
            last_input: None,
            foreign: Vec::new(),
            senses: sela_protocol::senses::Senses::default(),
            blind: false,
            temperature: 50,
            deaf: false,
            mute: false,
            node: IdSource::new(now.utc_ms, [3; 32]).draw(),
            ids: IdSource::new(now.utc_ms, [3; 32]),
            done: Vec::new(),
            effects: Vec::new(),
        };
        world.input(started());
        world.input(Input::Cards(vec![description()]));
        world.see();
        world.input(Input::Market(MarketInput::Link(MarketLink::Connected {
            url: "ws://127.0.0.1:7350".into(),
            exchange: "test".into(),
            node: world.node,
        })));
        let node = world.node;
        world.input(Input::Market(MarketInput::Session { node, resumed: false }));
        world
    }

    /// One step; what it did is written down.
    pub fn input(&mut self, input: Input) -> Vec<Effect> {
        let effects = self.state.step(self.now, input);
        self.done.extend(effects.iter().filter_map(word));
        self.effects.extend(effects.iter().cloned());
        for effect in &effects {
            if let Effect::Send(NodeMessage::Heartbeat { beat, .. }) = effect
                && !self.mute
            {
                self.input(Input::Market(MarketInput::Renew {
                    beat: *beat,
                    end: Vec::new(),
                }));
            }
        }
        effects
    }

    /// Sensors and card report.
    pub fn see(&mut self) {
        if !self.deaf {
            let signals = self.signals();
            self.input(Input::Signals(signals));
        }
        let reading = reading(self.temperature);
        self.input(Input::Readings(vec![reading]));
    }

    fn signals(&self) -> Signals {
        let source = || "test".to_owned();
        let input = match self.last_input {
            _ if self.blind => Observed::Unknown {
                source: source(),
                why: "the compositor went away".into(),
            },
            Some(last_input_boot_ms) => Observed::Value {
                value: InputActivity { last_input_boot_ms },
                source: source(),
                seen_boot_ms: self.now.boot_ms,
            },
            None => Observed::NotApplicable { why: "no seat".into() },
        };
        let foreign = Observed::Value {
            value: self.foreign.clone(),
            source: source(),
            seen_boot_ms: self.now.boot_ms,
        };
        Signals {
            input,
            foreign,
            senses: Box::new(self.senses.clone()),
        }
    }

    /// Time passes: every wake that was asked for comes, and the sensors report each second.
    pub fn pass(&mut self, span_ms: u64) {
        let end = self.now.boot_ms.0 + span_ms;
        let mut next_look = self.now.boot_ms.0 + 1_000;
        while self.now.boot_ms.0 < end {
            let wake = self.state.next_wake().map_or(u64::MAX, |wake| wake.0);
            let at = wake.min(next_look).min(end).max(self.now.boot_ms.0);
            self.set_time(at);
            if at == wake {
                self.input(Input::Tick);
                assert!(
                    self.state.next_wake().is_none_or(|wake| wake.0 > at),
                    "a wake that has come is not asked again"
                );
            }
            if at == next_look {
                next_look += 1_000;
                self.see();
            }
        }
    }

    /// The clock jumps without a tick, as over a suspend.
    pub fn jump(&mut self, span_ms: u64) {
        self.set_time(self.now.boot_ms.0 + span_ms);
    }

    fn set_time(&mut self, at: u64) {
        self.now.utc_ms = self.now.utc_ms.plus(Millis(at - self.now.boot_ms.0));
        self.now.boot_ms = BootMs(at);
    }

    /// The owner touches mouse or keyboard.
    pub fn touch(&mut self) {
        self.last_input = Some(self.now.boot_ms);
        self.see();
    }

    /// A signal as the sensors give it now.
    pub fn seen<T>(&self, value: T) -> Observed<T> {
        Observed::Value {
            value,
            source: "test".into(),
            seen_boot_ms: self.now.boot_ms,
        }
    }

    /// Whether the card may be shared.
    pub fn shared(&mut self) -> bool {
        self.why().is_empty()
    }

    /// An award of the default job.
    pub fn award(&mut self, price: i64) -> LeaseId {
        self.award_of(price, spec())
    }

    pub fn award_of(&mut self, price: i64, spec: JobSpec) -> LeaseId {
        let award = Award {
            award: self.ids.draw(),
            lease: self.ids.draw(),
            fencing: FencingToken(1),
            gpu: GpuUuid(GPU.into()),
            job: self.ids.draw(),
            spec,
            price: HourlyPrice(Micros(price)),
            run_limit_ms: Millis(600_000),
            checkpoint: None,
            token: "token".into(),
            confidential: Some(Confidential {
                result_key: SealingKey::from_bytes([1; 32]),
                secrets: BTreeMap::new(),
            }),
        };
        let lease = award.lease;
        self.input(Input::Market(MarketInput::Award(Box::new(award))));
        lease
    }

    /// An award, fetched, started and running for a second.
    pub fn running(&mut self) -> LeaseId {
        let lease = self.award(500_000);
        self.event(lease, LeaseEvent::Fetched);
        self.event(lease, LeaseEvent::Started);
        self.pass(1_000);
        lease
    }

    pub fn event(&mut self, lease: LeaseId, event: LeaseEvent) {
        self.input(Input::Lease { lease, event });
    }

    /// The job uses this of its card.
    pub fn card_use(&mut self, lease: LeaseId, utilisation: u8, mib: u64) {
        self.input(Input::CardUse {
            gpu: GpuUuid(GPU.into()),
            lease,
            vram: Bytes::from_mib(mib),
            utilisation: Percent(utilisation),
        });
    }

    /// What was done since the last call, offers and heartbeats aside.
    pub fn drain(&mut self) -> Vec<String> {
        let mut done = std::mem::take(&mut self.done);
        done.retain(|word| !word.starts_with("beat") && word != "grant");
        done
    }

    /// The reasons of `sela why`.
    pub fn why(&mut self) -> Vec<String> {
        let snapshot = self.state.snapshot(self.now);
        match &snapshot.cards[0].availability {
            sela_protocol::presence::Availability::Available { .. } => Vec::new(),
            sela_protocol::presence::Availability::Held { reasons } => {
                reasons.iter().map(ToString::to_string).collect()
            }
        }
    }
}

pub fn started() -> Input {
    Input::Started {
        lab: true,
        isolation: IsolationState::Ready {
            level: Isolation::LabCgroupV1,
        },
        scratch: sela_protocol::node::Scratch::EncryptedDisk,
        pause: None,
        open: Vec::new(),
        unsettled: Vec::new(),
    }
}

fn description() -> CardDescription {
    CardDescription {
        uuid: GpuUuid(GPU.into()),
        name: "SIMULATED card".into(),
        index: 0,
        simulated: true,
        vram_total: Bytes::from_gib(24),
        driver_version: "1".into(),
        power_limits: Reading::of(PowerLimits {
            least: Milliwatts::from_watts(100),
            most: Milliwatts::from_watts(350),
            factory: Milliwatts::from_watts(350),
        }),
    }
}

pub fn reading(temperature: i32) -> CardReading {
    let temperature = if temperature == 511 {
        Reading::invalid("511 °C")
    } else {
        Reading::of(Celsius(temperature))
    };
    CardReading {
        uuid: GpuUuid(GPU.into()),
        temperature,
        memory_temperature: Reading::NotSupported,
        power: Reading::of(Milliwatts::from_watts(100)),
        power_limit: Reading::of(Milliwatts::from_watts(350)),
        utilisation: Reading::of(Percent(0)),
        vram_used: Reading::of(Bytes(0)),
        fan: Reading::of(Percent(30)),
        core_clock: Reading::of(Megahertz(1_000)),
    }
}

pub fn spec() -> JobSpec {
    let mut spec = JobSpec::parse(
        &serde_json::json!({
            "image": {"type": "archive", "blob": format!("sha256:{}", "0".repeat(64))},
            "cap": "0.600000", "budget": "1.000000", "wall_limit_ms": 600_000,
        })
        .to_string(),
    )
    .expect("a good spec");
    spec.tier = Tier::Bronze;
    spec
}

fn word(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Freeze { .. } => "freeze".into(),
        Effect::Thaw { .. } => "thaw".into(),
        Effect::Save { cause, .. } => format!("save {cause:?}"),
        Effect::End { cause, .. } => format!("end {cause:?}"),
        Effect::Grant { .. } => "grant".into(),
        Effect::Append(Record::Accepted(_)) => "record accepted".into(),
        Effect::Append(Record::Noted(note)) => match &note.closing {
            Some(cause) => format!(
                "record note {} {} closing {cause:?}",
                note.thawed_ms.0, note.frozen_ms.0
            ),
            None => format!("record note {} {}", note.thawed_ms.0, note.frozen_ms.0),
        },
        Effect::Append(Record::Closed(ended)) => format!("record closed {:?}", ended.cause),
        Effect::Append(Record::Settled { .. }) => "record settled".into(),
        Effect::Append(Record::Pause { .. }) => "record pause".into(),
        Effect::Send(message) => say(message),
        Effect::SendMeter(note) => format!("say meter {}", note.thawed_ms.0),
        Effect::Fetch(_) => "fetch".into(),
        Effect::Start { .. } => "start".into(),
        Effect::Upload { .. } => "upload".into(),
        Effect::WatchCard { on, .. } => format!("watch {on}"),
        Effect::Attention { high } => format!("attention {high}"),
        Effect::Publish(_) => return None,
        Effect::Reply { reply, .. } => format!("reply {reply:?}"),
        Effect::Exit => "exit".into(),
    })
}

fn say(message: &NodeMessage) -> String {
    match message {
        NodeMessage::Capability { .. } => "say capability".into(),
        NodeMessage::Offer(offer) => format!("say offer {}", offer.available),
        NodeMessage::Heartbeat { leases, .. } => format!("beat {}", leases.len()),
        NodeMessage::Accept { .. } => "say accept".into(),
        NodeMessage::Reject { message, .. } => format!("say reject: {message}"),
        NodeMessage::Progress { phase, .. } => format!("say {phase:?}"),
        NodeMessage::Meter(_) => "say sealed meter".into(),
        NodeMessage::Checkpoint { .. } => "say checkpoint".into(),
        NodeMessage::Result { cause, output, .. } => format!("say result {cause:?} output {}", output.is_some()),
        NodeMessage::Reclaim { cause, .. } => format!("say reclaim {cause:?}"),
        NodeMessage::Unknown => "say unknown".into(),
    }
}
