//! Carries out what a step decided. What is urgent, and what depends on nothing, is done at once; what depends on an entry of the
//! store goes through the outbox and is done when that entry is committed.

use super::accounts;
use super::agent_loop::Hands;
use crate::calendars::Calendars;
use crate::jobs::LeaseOrder;
use crate::market::{Link, LinkSettings, SILENCE};
use crate::store::Entry;
use sela_core::{Effect, Record};
use sela_protocol::envelope::Envelope;
use sela_protocol::id::{LeaseId, SessionId};
use sela_protocol::lease::MeterNote;
use sela_protocol::local::{CommandReply, Event, MarketLink};
use sela_protocol::node::{Award, NodeMessage};
use std::sync::Arc;
use tokio::sync::oneshot;

/// What is done only when everything before it is on the disk.
#[derive(Debug)]
pub(super) enum Dependent {
    /// Tell the exchange.
    Say(Box<NodeMessage>),
    /// Begin to fetch.
    Fetch(Box<Award>),
    /// Tell clients.
    Publish(Box<Event>),
    /// Answer a client.
    Reply { request: u64, reply: CommandReply },
    /// Acknowledge to the exchange that its message was acted on.
    ActedOn { session: SessionId, number: u64 },
    /// The lease is closed in the store: its keeper's account is of no use any more.
    RemoveAccount { lease: LeaseId },
}

impl Hands {
    /// Does what the core decided, or puts it where it waits for what it depends on.
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Freeze { lease } => self.order(lease, LeaseOrder::Freeze),
            Effect::Thaw { lease } => self.order(lease, LeaseOrder::Thaw),
            Effect::Save { lease, grace, cause } => self.order(lease, LeaseOrder::Save { grace, cause }),
            Effect::End { lease, cause } => self.order(lease, LeaseOrder::End { cause }),
            Effect::Grant { lease } => self.order(lease, LeaseOrder::Grant),
            Effect::Start { lease } => self.order(lease, LeaseOrder::Start),
            Effect::Upload { lease } => self.order(lease, LeaseOrder::Upload),
            Effect::WatchCard { gpu, lease, on } => self.eyes.watch_card(gpu, lease, on),
            Effect::Attention { high } => self.eyes.attend(high),
            Effect::Exit => self.leaving = true,
            Effect::Append(record) => self.append(record),
            Effect::Send(message) => self.then(Dependent::Say(Box::new(message))),
            Effect::SendMeter(note) => {
                if let Some(envelope) = self.seal(&note) {
                    self.then(Dependent::Say(Box::new(NodeMessage::Meter(envelope))));
                }
            }
            Effect::Fetch(award) => {
                if let Some(jobs) = &mut self.jobs {
                    jobs.expect(award.lease);
                }
                self.then(Dependent::Fetch(award));
            }
            Effect::Publish(event) => self.then(Dependent::Publish(Box::new(event))),
            Effect::Reply { request, reply } => self.then(Dependent::Reply { request, reply }),
        }
    }

    /// Does it now, or once everything appended so far is committed.
    pub(super) fn then(&mut self, dependent: Dependent) {
        if let Some(free) = self.outbox.pass(self.store.appended(), dependent) {
            self.perform(free);
        }
    }

    /// Entries up to this number are on the disk.
    pub(super) fn committed(&mut self, number: u64) {
        for dependent in self.outbox.committed(number) {
            self.perform(dependent);
        }
    }

    fn perform(&mut self, dependent: Dependent) {
        match dependent {
            Dependent::Say(message) => {
                if let (Some(link), Some(session)) = (&self.link, self.session) {
                    link.say(session, *message);
                }
            }
            Dependent::ActedOn { session, number } => {
                if let Some(link) = &self.link {
                    link.acted_on(session, number);
                }
            }
            Dependent::Fetch(award) => match (&mut self.jobs, &self.settings.market) {
                (Some(jobs), Some(market)) => jobs.fetch(award, &market.url),
                // Nothing is offered without both, so no award can come; the lease runs out at the exchange.
                (None, _) | (_, None) => tracing::error!(lease = %award.lease, "an award that cannot be served"),
            },
            Dependent::Publish(event) => {
                let entries = self.strip.published(sela_clock::now().utc_ms, &event);
                self.store.strip(entries);
                // Nobody may be listening.
                drop(self.events.send(Arc::new(*event)));
            }
            Dependent::Reply { request, reply } => {
                if let Some(waiting) = self.replies.remove(&request) {
                    // The client may have gone.
                    drop(waiting.send(reply));
                }
            }
            Dependent::RemoveAccount { lease } => accounts::remove(&accounts::path(&self.accounts, lease)),
        }
    }

    fn order(&self, lease: LeaseId, order: LeaseOrder) {
        if let Some(jobs) = &self.jobs {
            jobs.order(lease, order);
        }
    }

    fn append(&mut self, record: Record) {
        let closed = match &record {
            Record::Closed(closing) => Some(closing.note.lease),
            Record::Accepted(_) | Record::Noted(_) | Record::Settled { .. } | Record::Pause { .. } => None,
        };
        let entry = match record {
            Record::Accepted(lease) => Some(Entry::Accepted {
                lease,
                exchange: self.exchange,
            }),
            Record::Noted(note) => self.seal(&note).map(|envelope| Entry::Noted {
                note,
                envelope: Box::new(envelope),
            }),
            Record::Closed(closing) => Some(Entry::Closed {
                closing,
                per_kwh: self.settings.per_kwh,
            }),
            Record::Settled { lease } => Some(Entry::Settled { lease }),
            Record::Pause { pause } => Some(Entry::Pause { pause }),
        };
        if let Some(entry) = entry {
            self.store.append(entry);
        }
        if let Some(lease) = closed {
            self.then(Dependent::RemoveAccount { lease });
        }
    }

    /// Signed; Ed25519 gives the same signature for the same note each time.
    fn seal(&self, note: &MeterNote) -> Option<Envelope<MeterNote>> {
        Envelope::seal(note, &self.key)
            .inspect_err(|error| tracing::error!(%error, "a note cannot be written as JSON"))
            .ok()
    }

    /// Remembers who waits for the answer to a command.
    pub(super) fn expect_reply(&mut self, reply: oneshot::Sender<CommandReply>) -> u64 {
        self.requests += 1;
        self.replies.retain(|_, waiting| !waiting.is_closed());
        self.replies.insert(self.requests, reply);
        self.requests
    }

    /// Follows the calendars that the settings name, and no longer those before.
    pub(super) fn follow_calendars(&mut self) {
        let (sources, folder) = (self.settings.calendars.clone(), self.calendar_folder.clone());
        match Calendars::follow(sources, folder, self.report.clone()) {
            Ok(calendars) => self.calendars = calendars,
            Err(error) => tracing::error!(%error, "TLS could not be set up: no calendar is read"),
        }
    }

    /// Connects to the exchange that the settings name, and leaves the one before.
    pub(super) fn connect(&mut self) {
        self.session = None;
        self.link = self.settings.market.as_ref().map(|market| {
            let settings = LinkSettings {
                url: market.url.clone(),
                invitation: market.invitation.clone(),
                name: market.name.clone(),
                key: self.key.clone(),
                known: self.known.clone(),
                lab: self.lab,
                silence: SILENCE,
            };
            Link::start(settings, self.link_news.clone())
        });
        if self.link.is_none() {
            tracing::info!("no exchange is set in agent.toml: nothing is offered");
            let news = crate::market::LinkNews::State(MarketLink::NotConfigured);
            // The queue is full only while the loop is busy with the old link's news; then its last word stands a little longer.
            drop(self.link_news.try_send(news));
        }
    }
}
