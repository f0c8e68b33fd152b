//! What the agent says to the exchange and when: capability, offers, heartbeats, notes, results, and how it answers an
//! award. The messages are facts of the state; nothing is decided by having been said.

use crate::effect::Effect;
use crate::input::RecoveredLease;
use crate::lease::Lease;
use crate::record::{OpenLease, Record, UnsettledLease};
use crate::senses;
use crate::state::State;
use crate::tenure::at_once;
use sela_protocol::card::CardDescription;
use sela_protocol::id::GpuUuid;
use sela_protocol::lease::{LeasePhase, MeterNote};
use sela_protocol::local::{IsolationState, MarketLink};
use sela_protocol::network::first_uncovered;
use sela_protocol::node::{Award, LeaseBeat, NodeMessage, Offer};
use sela_protocol::presence::Availability;
use sela_protocol::units::Now;

impl State {
    /// Says something in the session, if there is one: between connections the session keeps it.
    pub(crate) fn say(&self, message: NodeMessage, effects: &mut Vec<Effect>) {
        if self.node.is_some() {
            effects.push(Effect::Send(message));
        }
    }

    /// Writes a meter note down, then says it.
    pub(crate) fn note(&self, note: MeterNote, effects: &mut Vec<Effect>) {
        effects.push(Effect::Append(Record::Noted(note.clone())));
        if self.node.is_some() {
            effects.push(Effect::SendMeter(note));
        }
    }

    pub(crate) fn say_capability(&self, effects: &mut Vec<Effect>) {
        let IsolationState::Ready { level } = self.isolation else {
            return;
        };
        let cards: Vec<CardDescription> = self.cards.values().map(|card| card.description.clone()).collect();
        self.say(
            NodeMessage::Capability {
                cards,
                isolation: level,
                architecture: architecture().to_owned(),
                memory: self.policy.job_memory,
                scratch: self.scratch,
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            effects,
        );
    }

    /// Says what is offered for a card, if that has changed.
    pub(crate) fn say_offer(&mut self, gpu: &GpuUuid, availability: &Availability, effects: &mut Vec<Effect>) {
        let floor = self.policy.for_card(gpu).floor;
        let spoken_to = self.node.is_some();
        let Some(card) = self.cards.get_mut(gpu) else {
            return;
        };
        let available = availability.is_available() && card.lease.is_none();
        let offer = Offer {
            gpu: gpu.clone(),
            floor,
            available,
            network: self.policy.network.hosts.clone(),
        };
        if spoken_to && card.offered.as_ref() != Some(&offer) {
            card.offered = Some(offer.clone());
            effects.push(Effect::Send(NodeMessage::Offer(offer)));
        }
    }

    pub(crate) fn say_heartbeat(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if !matches!(self.market, MarketLink::Connected { .. }) || self.node.is_none() {
            return;
        }
        let Some(beat) = self.beats.due(now.boot_ms, &mut self.wake) else {
            return;
        };
        let mut leases: Vec<LeaseBeat> = self
            .cards
            .values()
            .filter_map(|card| card.lease.as_ref())
            .map(Lease::beat)
            .collect();
        leases.extend(self.uploading.values().map(|ended| LeaseBeat {
            lease: ended.note.lease,
            fencing: ended.note.fencing,
            phase: LeasePhase::Uploading,
            thawed_ms: ended.note.thawed_ms,
        }));
        effects.push(Effect::Send(NodeMessage::Heartbeat { beat, leases }));
    }

    /// The owner wants the card back: said at once, before the job has ended.
    pub(crate) fn say_reclaim(&self, gpu: &GpuUuid, effects: &mut Vec<Effect>) {
        let Some(lease) = self.cards.get(gpu).and_then(|card| card.lease.as_ref()) else {
            return;
        };
        if let Some(cause) = lease.being_reclaimed_for() {
            let (lease, fencing) = (lease.award.lease, lease.award.fencing);
            self.say(
                NodeMessage::Reclaim {
                    lease,
                    fencing,
                    cause: cause.clone(),
                },
                effects,
            );
        }
    }

    pub(crate) fn say_result(&self, ended: &UnsettledLease, effects: &mut Vec<Effect>) {
        self.say(
            NodeMessage::Result {
                lease: ended.note.lease,
                fencing: ended.note.fencing,
                cause: ended.cause.clone(),
                output: ended.output,
            },
            effects,
        );
    }

    /// In a new session the exchange may know nothing of what was said in the last one. What has ended and is not settled is told
    /// by `catch_up`: there may be any number of it.
    pub(crate) fn say_everything(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.say_capability(effects);
        for card in self.cards.values_mut() {
            card.offered = None;
        }
        let here = self.node;
        let open = self.cards.values().filter_map(|card| card.lease.as_ref());
        for lease in open.filter(|lease| Some(lease.node) == here) {
            let (id, fencing) = (lease.award.lease, lease.award.fencing);
            effects.push(Effect::Send(NodeMessage::Accept { lease: id, fencing }));
            effects.push(Effect::Send(NodeMessage::Progress {
                lease: id,
                fencing,
                phase: lease.phase_word(),
            }));
            if let Some((blob, thawed_ms)) = lease.checkpoint {
                effects.push(Effect::Send(NodeMessage::Checkpoint {
                    lease: id,
                    fencing,
                    blob,
                    thawed_ms,
                }));
            }
            effects.push(Effect::SendMeter(lease.newest_note(now)));
        }
        for ended in self.uploading.values().filter(|ended| Some(ended.note.node) == here) {
            effects.push(Effect::SendMeter(MeterNote {
                closing: at_once(&ended.cause),
                ..ended.note.clone()
            }));
        }
    }

    /// Takes an award or says why not.
    pub(crate) fn award(&mut self, award: Box<Award>, now: Now, effects: &mut Vec<Effect>) {
        let (lease, fencing) = (award.lease, award.fencing);
        if self.lease_mut(lease).is_some() {
            // Offered again after a break: the answer was lost, not the lease.
            self.say(NodeMessage::Accept { lease, fencing }, effects);
            return;
        }
        if let Err(message) = self.may_take(&award, now) {
            self.say(
                NodeMessage::Reject {
                    lease,
                    fencing,
                    message,
                },
                effects,
            );
            return;
        }
        let Some(node) = self.node else {
            return;
        };
        let open = OpenLease {
            lease,
            node,
            fencing,
            job: award.job,
            name: award.spec.name.clone(),
            gpu: award.gpu.clone(),
            price: award.price,
            accepted_utc_ms: now.utc_ms,
            lab: self.lab,
        };
        let last_input = senses::last_input(&self.signals);
        if let Some(card) = self.cards.get_mut(&award.gpu) {
            effects.push(Effect::Append(Record::Accepted(open)));
            effects.push(Effect::Send(NodeMessage::Accept { lease, fencing }));
            effects.push(Effect::Fetch(award.clone()));
            card.lease = Some(Lease::accept(award, node, now, last_input));
        }
    }

    fn may_take(&mut self, award: &Award, now: Now) -> Result<(), String> {
        if award.confidential.is_none() {
            let why =
                "it came without a key for what the job makes: it was submitted to an older exchange; submit it again";
            return Err(why.to_owned());
        }
        let policy = self.policy.for_card(&award.gpu);
        if award.price < policy.floor {
            return Err(format!(
                "the price {} is below the owner's floor {}",
                award.price, policy.floor
            ));
        }
        if award.spec.memory > self.policy.job_memory {
            return Err(format!(
                "the job asks for {} MiB of memory; this machine lends {}",
                award.spec.memory.0 >> 20,
                self.policy.job_memory.0 >> 20
            ));
        }
        if let Some(asked) = award.spec.scratch
            && !self.scratch.holds(asked, award.spec.memory)
        {
            return Err(format!(
                "the job asks for {asked} of scratch on a disk; this machine has none that it could encrypt"
            ));
        }
        let asked = award.spec.network.as_ref().map_or(&[][..], |network| &network.hosts);
        let allowed = &self.policy.network.hosts;
        if let Some(rule) = first_uncovered(allowed, asked) {
            return Err(if allowed.is_empty() {
                format!("the job asks for {rule}; this machine's owner lends no network")
            } else {
                format!("the job asks for {rule}, which this machine's owner does not allow")
            });
        }
        if self.cards.get(&award.gpu).is_some_and(|card| card.lease.is_some()) {
            return Err("the card has a job".into());
        }
        match self.availability(&award.gpu, now) {
            Availability::Available { .. } => Ok(()),
            // The owner's reasons are the owner's: the market learns that the card is held, not what they do.
            Availability::Held { .. } => Err("the owner holds the card".into()),
        }
    }

    /// Closes a lease that was open when the agent last stopped.
    pub(crate) fn recover(&mut self, recovered: RecoveredLease, now: Now, effects: &mut Vec<Effect>) {
        let note = MeterNote {
            lease: recovered.lease.lease,
            fencing: recovered.lease.fencing,
            node: recovered.lease.node,
            thawed_ms: recovered.thawed_ms,
            frozen_ms: recovered.frozen_ms,
            taken_utc_ms: now.utc_ms,
            closing: Some(recovered.cause.clone()),
            output: None,
        };
        let ended = UnsettledLease {
            note: note.clone(),
            cause: recovered.cause,
            output: None,
            energy_mwh: None,
            ended_utc_ms: now.utc_ms,
            lasted: now.utc_ms.since(recovered.lease.accepted_utc_ms),
        };
        self.note(note, effects);
        self.close(ended, false, effects);
    }
}

impl Lease {
    fn beat(&self) -> LeaseBeat {
        LeaseBeat {
            lease: self.award.lease,
            fencing: self.award.fencing,
            phase: self.phase_word(),
            thawed_ms: self.thawed,
        }
    }

    /// The newest note: the closing one where the job is gone and nothing of it has to be stored first.
    fn newest_note(&self, now: Now) -> MeterNote {
        self.note(now, self.gone_for().and_then(at_once))
    }
}

/// This machine's processor in OCI's words.
const fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}
