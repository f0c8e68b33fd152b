//! The one owner of the agent's state: takes an input, changes what it knows, then settles: everything that is due is
//! derived from the whole state, never from the input alone, so that no missed event leaves anything undone.

use crate::Effect;
use crate::card::Card;
use crate::catch_up::CatchUp;
use crate::foreign::Activity;
use crate::input::{Input, MarketInput};
use crate::lease::{Lease, Stop};
use crate::policy::Policy;
use crate::presence::{self, Service, Surroundings};
use crate::record::{Record, UnsettledLease};
use crate::schedule;
use crate::senses;
use crate::stop::stop_demand;
use crate::timetable::{Hours, Timetable};
use crate::wake::Wake;
use sela_protocol::card::{CardDescription, CardReading};
use sela_protocol::id::{GpuUuid, LeaseId, NodeId};
use sela_protocol::lease::EndCause;
use sela_protocol::local::{CardState, Command, CommandReply, Earned, Event, IsolationState, MarketLink, Pause};
use sela_protocol::node::{NodeMessage, Scratch};
use sela_protocol::presence::{Availability, HoldReason, Observed, Signals};
use sela_protocol::units::{BootMs, Millis, Now, Percent, UtcMs};
use std::collections::BTreeMap;

/// While a job runs, sensors and cards report each second and may miss three reports.
const PATIENCE_RUNNING: Millis = Millis(3_500);
/// Otherwise each ten seconds.
const PATIENCE_IDLE: Millis = Millis(35_000);
/// An agent that leaves while the exchange is away waits so long for it before it gives up storing what jobs have left.
const LEAVE_WITHOUT: Millis = Millis(5_000);
/// A job that uses at most this share of its card counts as quiet: drivers round.
const QUIET: Percent = Percent(0);

/// All that the agent knows and decides from.
#[derive(Debug)]
pub struct State {
    pub(crate) policy: Policy,
    pub(crate) service: Service,
    pub(crate) lab: bool,
    asleep: bool,
    pub(crate) isolation: IsolationState,
    pub(crate) scratch: Scratch,
    pub(crate) pause: Option<Pause>,
    pub(crate) settings_problem: Option<String>,
    pub(crate) signals: Signals,
    signals_heard: BootMs,
    /// Whether sensors have said anything yet: what is unknown before that is no flapping.
    signals_seen: bool,
    activity: Activity,
    timetable: Timetable,
    pub(crate) cards: BTreeMap<GpuUuid, Card>,
    pub(crate) market: MarketLink,
    pub(crate) node: Option<NodeId>,
    pub(crate) beats: crate::heartbeat::Heartbeats,
    /// Gone from their cards; results are being stored.
    pub(crate) uploading: BTreeMap<LeaseId, UnsettledLease>,
    /// Ended and reported, not yet receipted as closed: reported again in each new session.
    pub(crate) unsettled: BTreeMap<LeaseId, UnsettledLease>,
    /// How far what is not settled has been told in the present session.
    pub(crate) catch_up: CatchUp,
    /// Since when the agent leaves and the exchange is away.
    leaves_alone: Option<BootMs>,
    pub(crate) earned: Earned,
    attention: bool,
    pub(crate) wake: Wake,
    published: BTreeMap<GpuUuid, CardState>,
}

impl State {
    /// A state that offers nothing until [`Input::Started`].
    pub fn new(policy: Policy, now: Now) -> Self {
        let nothing_seen = || "nothing seen yet".to_owned();
        Self {
            timetable: Timetable::new(&policy),
            policy,
            service: Service::Starting,
            lab: false,
            asleep: false,
            isolation: IsolationState::Missing {
                why: "not looked at yet".into(),
            },
            scratch: Scratch::Memory,
            pause: None,
            settings_problem: None,
            signals: Signals {
                input: Observed::Unknown {
                    source: "sensors".into(),
                    why: nothing_seen(),
                },
                foreign: Observed::Unknown {
                    source: "sensors".into(),
                    why: nothing_seen(),
                },
                senses: Box::new(sela_protocol::senses::Senses::unseen()),
            },
            signals_heard: now.boot_ms,
            signals_seen: false,
            activity: Activity::default(),
            cards: BTreeMap::new(),
            market: MarketLink::NotConfigured,
            node: None,
            beats: crate::heartbeat::Heartbeats::default(),
            uploading: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            catch_up: CatchUp::default(),
            leaves_alone: None,
            earned: Earned::default(),
            attention: false,
            wake: Wake::default(),
            published: BTreeMap::new(),
        }
    }

    /// Takes one input; what must be done, urgent effects first, the rest in order.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.take(now, input, &mut effects);
        self.settle(now, &mut effects);
        // Stable: urgent effects come first, the order among the others stays.
        effects.sort_by_key(|effect| !effect.is_urgent());
        effects
    }

    /// The next moment at which [`Input::Tick`] is needed if nothing else happens before.
    pub const fn next_wake(&self) -> Option<BootMs> {
        self.wake.earliest()
    }

    fn take(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Started {
                lab,
                isolation,
                scratch,
                pause,
                open,
                unsettled,
            } => {
                self.service = Service::Open;
                self.lab = lab;
                self.isolation = isolation;
                self.scratch = scratch;
                self.pause = pause;
                self.unsettled
                    .extend(unsettled.into_iter().map(|lease| (lease.note.lease, lease)));
                for lease in open {
                    self.recover(lease, now, effects);
                }
            }
            Input::Tick => {}
            Input::Policy(policy) => {
                self.timetable.follow(&policy);
                self.policy = policy;
            }
            Input::Calendar { name, attempt } => self.timetable.heard(name, attempt, now),
            Input::SettingsProblem(problem) => {
                if problem != self.settings_problem {
                    self.settings_problem.clone_from(&problem);
                    effects.push(Effect::Publish(Event::Settings { problem }));
                }
            }
            Input::Signals(signals) => {
                self.signals_heard = now.boot_ms;
                self.signals_seen = true;
                self.activity.seen(&signals.foreign, now);
                if signals != self.signals {
                    self.signals = signals;
                    effects.push(Effect::Publish(Event::Signals(Box::new(self.signals.clone()))));
                }
            }
            Input::Cards(descriptions) => self.know_cards(descriptions, now, effects),
            Input::Readings(readings) => self.hear_cards(readings, now),
            Input::CardUnreadable { gpu, why } => {
                for card in self.cards.values_mut() {
                    if gpu.as_ref().is_none_or(|gpu| *gpu == card.description.uuid) {
                        card.unreadable = Some(why.clone());
                    }
                }
            }
            Input::CardUse {
                gpu,
                lease,
                vram,
                utilisation,
            } => {
                if let Some(held) = self.lease_on(&gpu).filter(|held| held.award.lease == lease) {
                    held.card_use_seen(utilisation <= QUIET, vram.0 == 0, now);
                }
            }
            Input::Command { request, command } => {
                let reply = self.command(command, now, effects);
                effects.push(Effect::Reply { request, reply });
            }
            Input::Sleep { asleep } => self.asleep = asleep,
            Input::Shutdown => self.service = Service::Stopping,
            Input::Market(input) => self.market(input, now, effects),
            Input::Lease { lease, event } => self.lease_event(lease, event, now, effects),
            Input::Earned(earned) => {
                if earned != self.earned {
                    self.earned = earned;
                    effects.push(Effect::Publish(Event::Earned(earned)));
                }
            }
        }
    }

    fn know_cards(&mut self, descriptions: Vec<CardDescription>, now: Now, effects: &mut Vec<Effect>) {
        for card in self.cards.values_mut() {
            if !descriptions
                .iter()
                .any(|description| description.uuid == card.description.uuid)
            {
                card.unreadable = Some("the driver does not list the card any more".into());
            }
        }
        // A card without a lease that is gone is forgotten; one with a lease stays until its job is gone.
        self.cards
            .retain(|uuid, card| card.lease.is_some() || descriptions.iter().any(|known| known.uuid == *uuid));
        for description in descriptions {
            let uuid = description.uuid.clone();
            match self.cards.get_mut(&uuid) {
                Some(card) => {
                    card.unreadable = None;
                    card.description = description;
                }
                None => drop(self.cards.insert(uuid, Card::new(description, now))),
            }
        }
        self.say_capability(effects);
    }

    fn hear_cards(&mut self, readings: Vec<CardReading>, now: Now) {
        for reading in readings {
            if let Some(card) = self.cards.get_mut(&reading.uuid) {
                let policy = self.policy.cards.get(&reading.uuid).unwrap_or(&self.policy.rest);
                card.hear(reading, policy, now);
            }
        }
    }

    fn command(&mut self, command: Command, now: Now, effects: &mut Vec<Effect>) -> CommandReply {
        match command {
            Command::Pause { for_ms } => {
                self.pause_until(for_ms.map(|span| now.utc_ms.plus(span)), now, effects);
                CommandReply::Done
            }
            Command::PauseUntilTomorrow { zone } => {
                match schedule::tomorrow(now.utc_ms, &zone, self.timetable.zones()) {
                    Ok(tomorrow) => {
                        self.pause_until(Some(tomorrow), now, effects);
                        CommandReply::Done
                    }
                    Err(fault) => CommandReply::Refused {
                        message: fault.to_string(),
                    },
                }
            }
            Command::Resume => {
                self.set_pause(None, effects);
                CommandReply::Done
            }
            Command::EndLease { lease } => match self.lease_mut(lease) {
                Some(held) => {
                    held.end(EndCause::OwnerCommand, now, effects);
                    CommandReply::Done
                }
                None => CommandReply::Refused {
                    message: format!("{lease} does not run here; `sela jobs` lists what does"),
                },
            },
            Command::Quit => {
                self.service = Service::Stopping;
                CommandReply::Done
            }
            Command::Unknown => CommandReply::Refused {
                message: "this agent does not know that command; update the agent".into(),
            },
        }
    }

    fn pause_until(&mut self, until_utc_ms: Option<UtcMs>, now: Now, effects: &mut Vec<Effect>) {
        let pause = Pause {
            since_utc_ms: now.utc_ms,
            until_utc_ms,
        };
        self.set_pause(Some(pause), effects);
    }

    fn set_pause(&mut self, pause: Option<Pause>, effects: &mut Vec<Effect>) {
        if pause != self.pause {
            self.pause = pause;
            effects.push(Effect::Append(Record::Pause { pause }));
            effects.push(Effect::Publish(Event::Pause { pause }));
        }
    }

    pub(crate) fn lease_on(&mut self, gpu: &GpuUuid) -> Option<&mut Lease> {
        self.cards.get_mut(gpu)?.lease.as_mut()
    }

    pub(crate) fn lease_mut(&mut self, lease: LeaseId) -> Option<&mut Lease> {
        self.cards
            .values_mut()
            .filter_map(|card| card.lease.as_mut())
            .find(|held| held.award.lease == lease)
    }

    /// Derives everything that is due from the whole state.
    fn settle(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.wake = Wake::default();
        self.end_pause(now, effects);
        let uuids: Vec<GpuUuid> = self.cards.keys().cloned().collect();
        for gpu in &uuids {
            self.settle_senses(gpu, now);
            let availability = self.availability(gpu, now);
            self.settle_lease(gpu, &availability, now, effects);
            self.settle_finished(gpu, now, effects);
            let availability = self.availability(gpu, now);
            self.say_offer(gpu, &availability, effects);
            self.publish_card(gpu, availability, effects);
        }
        self.settle_attention(now, effects);
        self.say_heartbeat(now, effects);
        self.give_up_uploads(now, effects);
        let busy = self.cards.values().any(|card| card.lease.is_some()) || !self.uploading.is_empty();
        if self.service == Service::Stopping && !busy {
            effects.push(Effect::Exit);
        }
    }

    /// The account of the money is closed and written here all the same, and is told in the next session; what the jobs have
    /// left is lost, so that a job which ended by itself is not done.
    fn give_up_uploads(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.service != Service::Stopping || matches!(self.market, MarketLink::Connected { .. }) {
            self.leaves_alone = None;
            return;
        }
        let since = *self.leaves_alone.get_or_insert(now.boot_ms);
        if self.uploading.is_empty() || !self.wake.due(now.boot_ms, since.plus(LEAVE_WITHOUT)) {
            return;
        }
        let leases: Vec<LeaseId> = self.uploading.keys().copied().collect();
        for lease in leases {
            let message = "the agent left while the exchange was away, so that what the job made is not stored".into();
            self.uploaded(lease, None, Some(EndCause::NodeFault { message }), effects);
        }
    }

    fn end_pause(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Some(Pause {
            until_utc_ms: Some(until),
            ..
        }) = self.pause
        else {
            return;
        };
        if now.utc_ms >= until {
            self.set_pause(None, effects);
        } else {
            // A clock that is set while paused is noticed at the next wake, since this is asked anew each time.
            self.wake.at(now.boot_ms.plus(until.since(now.utc_ms)));
        }
    }

    pub(crate) fn availability(&mut self, gpu: &GpuUuid, now: Now) -> Availability {
        let hours = self.timetable.hours(gpu, &self.policy, now, &mut self.wake);
        let Some(card) = self.cards.get(gpu) else {
            return Availability::Held {
                reasons: vec![HoldReason::CardUnreadable {
                    why: "there is no such card".into(),
                }],
            };
        };
        let around = self.surroundings(&hours);
        let mut wake = self.wake;
        let availability = presence::availability(&around, card, self.policy.for_card(gpu), now, &mut wake);
        self.wake = wake;
        availability
    }

    /// Notes whether anything that is seen holds a card. Once it has gone it must stay away for a while: a source that comes and goes ten
    /// times a second offers nothing.
    fn settle_senses(&mut self, gpu: &GpuUuid, now: Now) {
        let hours = Hours::default();
        let policy = self.policy.for_card(gpu);
        let Some(card) = self.cards.get(gpu) else { return };
        let mut wake = self.wake;
        let sensed = !presence::sensed(&self.surroundings(&hours), card, policy, now, &mut wake).is_empty();
        let steady_for = policy.steady_for;
        self.wake = wake;
        let seen = self.signals_seen;
        if let Some(card) = self.cards.get_mut(gpu) {
            if card.sensed && !sensed {
                card.settling_until = Some(now.boot_ms.plus(steady_for));
            }
            card.sensed = sensed && seen;
        }
    }

    fn surroundings<'a>(&'a self, hours: &'a Hours) -> Surroundings<'a> {
        Surroundings {
            service: self.service,
            asleep: self.asleep,
            pause: self.pause,
            isolation: &self.isolation,
            signals: &self.signals,
            activity: &self.activity,
            hours,
            signals_heard: self.signals_heard,
            patience: if self.attention {
                PATIENCE_RUNNING
            } else {
                PATIENCE_IDLE
            },
        }
    }

    fn settle_lease(&mut self, gpu: &GpuUuid, availability: &Availability, now: Now, effects: &mut Vec<Effect>) {
        let newest_input = senses::last_input(&self.signals);
        let policy = self.policy.cards.get(gpu).unwrap_or(&self.policy.rest);
        let Some(lease) = self.cards.get_mut(gpu).and_then(|card| card.lease.as_mut()) else {
            return;
        };
        let stop = stop_demand(lease, availability, newest_input, policy, now, &mut self.wake);
        let before = lease.phase_word();
        effects.extend(lease.settle(stop, policy, now, &mut self.wake));
        let after = lease.phase_word();
        if before != after {
            let (lease, fencing) = (lease.award.lease, lease.award.fencing);
            self.say(
                NodeMessage::Progress {
                    lease,
                    fencing,
                    phase: after,
                },
                effects,
            );
            self.say_reclaim(gpu, effects);
        }
    }

    fn publish_card(&mut self, gpu: &GpuUuid, availability: Availability, effects: &mut Vec<Effect>) {
        let Some(view) = self.card_view(gpu, availability) else {
            return;
        };
        if self.published.get(gpu) != Some(&view) {
            self.published.insert(gpu.clone(), view.clone());
            effects.push(Effect::Publish(Event::Card(Box::new(view))));
        }
    }

    fn settle_attention(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let high = self.cards.values().any(|card| card.lease.is_some());
        if high == self.attention {
            return;
        }
        self.attention = high;
        effects.push(Effect::Attention { high });
        if high {
            // From here on silence counts by the second; what was heard at the slow rate is no fault.
            self.signals_heard = now.boot_ms;
            for card in self.cards.values_mut() {
                card.heard = now.boot_ms;
            }
            self.wake.at(now.boot_ms.plus(PATIENCE_RUNNING));
        }
    }

    pub(crate) fn market(&mut self, input: MarketInput, now: Now, effects: &mut Vec<Effect>) {
        match input {
            MarketInput::Link(link) => {
                if link != self.market {
                    self.market = link.clone();
                    effects.push(Effect::Publish(Event::Market { link }));
                }
            }
            MarketInput::Session { node, resumed } => {
                self.node = Some(node);
                self.beats.session_opened();
                if !resumed {
                    self.say_everything(now, effects);
                    self.tell_ended_anew(node, effects);
                }
            }
            MarketInput::Award(award) => self.award(award, now, effects),
            MarketInput::Renew { beat, end } => {
                if let Some(sent) = self.beats.acknowledged(beat) {
                    for lease in self.cards.values_mut().filter_map(|card| card.lease.as_mut()) {
                        lease.renew(sent);
                    }
                }
                for lease in end {
                    if let Some(held) = self.lease_mut(lease) {
                        held.end(EndCause::LeaseExpired, now, effects);
                    }
                }
                self.catch_up.heard_up_to(beat);
                self.tell_ended(effects);
            }
            MarketInput::Cancel {
                lease,
                fencing,
                cause,
                save,
            } => {
                if let Some(held) = self.lease_mut(lease).filter(|held| held.award.fencing == fencing) {
                    held.cancelled
                        .get_or_insert(if save { Stop::Save(cause) } else { Stop::End(cause) });
                }
            }
            MarketInput::Receipt(receipt) => {
                let settles = |ended: &UnsettledLease| receipt.closed.is_some() && Some(ended.note.node) == self.node;
                if self.unsettled.get(&receipt.lease).is_some_and(settles) {
                    self.unsettled.remove(&receipt.lease);
                    effects.push(Effect::Append(Record::Settled { lease: receipt.lease }));
                }
                self.catch_up.answered(receipt.lease);
                self.tell_ended(effects);
            }
            // The edge has logged it for the owner. What is not this node's any more comes as Cancel or in a Renew: a refused
            // note or checkpoint is no reason to end a paying job.
            MarketInput::Refused { lease, message: _ } => {
                if let Some(lease) = lease {
                    self.catch_up.answered(lease);
                    self.tell_ended(effects);
                }
            }
        }
    }
}
