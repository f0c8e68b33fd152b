//! Nodes: who they are, what they have and offer, and that they are alive. What they say about one lease is in `lease`.

use super::live::{Capability, LiveOffer};
use super::{Floor, Turn};
use crate::effect::Effect;
use crate::input::ConnectionId;
use crate::lease::MARK_INTERVAL;
use crate::record::Record;
use crate::secret::SecretHash;
use sela_protocol::envelope::PublicKey;
use sela_protocol::id::{LeaseId, NodeId, OwnerId};
use sela_protocol::lease::LeasePhase;
use sela_protocol::money::Micros;
use sela_protocol::node::{ExchangeMessage, Isolation, LEASE_UNKNOWN, LeaseBeat, NodeMessage, Offer, RefusalCode};
use sela_protocol::units::Millis;

/// Cards that one node may have.
const MOST_CARDS: usize = 64;

/// Longest name of a node that is kept, in characters.
const LONGEST_NAME: usize = 200;

/// A node that has not ended a lease this long after it was told to is not renewed any more, unless the job is over and it only
/// stores results.
const CANCEL_PATIENCE: Millis = Millis(60_000);

type Refused = (RefusalCode, String);

impl Floor {
    pub(super) fn hello(
        &mut self,
        turn: &mut Turn,
        connection: ConnectionId,
        key: PublicKey,
        invitation: Option<String>,
        name: &str,
        resumed: bool,
    ) {
        match self.admit(turn, connection, key, invitation, name, resumed) {
            Ok((node, owner)) => {
                let live = self.live.connect(connection, node, turn.now.boot_ms);
                if !resumed {
                    // A new session: the node says anew what it has.
                    live.capability = None;
                    live.offers.clear();
                }
                turn.effects.push(Effect::Admit {
                    connection,
                    node,
                    owner,
                });
                if !resumed {
                    self.send_again(turn, node);
                }
            }
            Err((code, message)) => turn.effects.push(Effect::Refuse {
                connection,
                code,
                message,
            }),
        }
    }

    fn admit(
        &mut self,
        turn: &mut Turn,
        connection: ConnectionId,
        key: PublicKey,
        invitation: Option<String>,
        name: &str,
        resumed: bool,
    ) -> Result<(NodeId, OwnerId), Refused> {
        if self.live.node_of(connection).is_some() {
            return Err((RefusalCode::ProtocolBroken, "a connection says Hello once".to_owned()));
        }
        match self.books.node_by_key(&key) {
            Some(node) => self.admit_known(turn, node, resumed),
            None => self.admit_invited(turn, key, invitation, name),
        }
    }

    fn admit_known(&mut self, turn: &mut Turn, node: NodeId, resumed: bool) -> Result<(NodeId, OwnerId), Refused> {
        let entry = self.books.nodes.get(&node);
        let owner = entry.map(|entry| entry.owner).ok_or_else(defect)?;
        let Some(live) = self.live.nodes.get(&node) else {
            return Ok((node, owner));
        };
        if let Some(old) = live.connection {
            // A connection that is silent for so long is dead (its end never came through), and this is its node coming back. So is
            // one that goes on with the session: nobody but the agent that was on the old connection knows that session's name.
            if !resumed && turn.now.boot_ms.since(live.heard_at) < LEASE_UNKNOWN {
                return Err((
                    RefusalCode::IdentityInUse,
                    "another connection with this node's key is alive: if that is not your other agent, somebody has your key; \
                     stop one of the two"
                        .to_owned(),
                ));
            }
            self.live.disconnect(old);
            turn.effects.push(Effect::Close { connection: old });
        }
        Ok((node, owner))
    }

    fn admit_invited(
        &mut self,
        turn: &mut Turn,
        key: PublicKey,
        invitation: Option<String>,
        name: &str,
    ) -> Result<(NodeId, OwnerId), Refused> {
        let refused = |message: &str| Err((RefusalCode::NotInvited, message.to_owned()));
        let Some(invitation) = invitation else {
            return refused(
                "this node is not known here: ask the operator for an invitation and write it into agent.toml",
            );
        };
        let invitation = SecretHash::of(&invitation);
        let owner = match self.books.invitation(invitation) {
            None => return refused("this exchange never gave out this invitation: check it for a typing mistake"),
            Some(invited) if invited.used => {
                return refused("this invitation has admitted another node already: ask the operator for one more");
            }
            Some(invited) => invited.owner,
        };
        let node = turn.ids.draw();
        let record = Record::NodeAdmitted {
            node,
            owner,
            key,
            name: name
                .chars()
                .filter(|letter| !letter.is_control())
                .take(LONGEST_NAME)
                .collect(),
            invitation,
            at_utc_ms: turn.now.utc_ms,
        };
        if self.record(turn, record) {
            Ok((node, owner))
        } else {
            Err(defect())
        }
    }

    pub(super) fn node_message(&mut self, turn: &mut Turn, connection: ConnectionId, message: NodeMessage) {
        let Some(node) = self.live.node_of(connection) else {
            return;
        };
        if let Some(live) = self.live.nodes.get_mut(&node) {
            live.heard_at = turn.now.boot_ms;
        }
        match message {
            NodeMessage::Capability {
                cards,
                isolation,
                memory,
                scratch,
                architecture: _,
                agent_version: _,
            } => {
                let capability = Capability {
                    cards,
                    isolation,
                    memory,
                    scratch,
                };
                self.capability(turn, node, capability);
            }
            NodeMessage::Offer(offer) => self.offer(turn, node, offer),
            NodeMessage::Heartbeat { beat, leases } => self.heartbeat(turn, node, beat, &leases),
            NodeMessage::Accept { lease, fencing } => self.accept(turn, node, lease, fencing),
            NodeMessage::Reject {
                lease,
                fencing,
                message,
            } => self.reject(turn, node, lease, fencing, message),
            NodeMessage::Progress { lease, fencing, phase } => self.progress(turn, node, lease, fencing, phase),
            NodeMessage::Meter(signed) => self.meter(turn, node, signed),
            NodeMessage::Checkpoint {
                lease,
                fencing,
                blob,
                thawed_ms,
            } => self.checkpoint(turn, node, lease, fencing, blob, thawed_ms),
            NodeMessage::Result {
                lease,
                fencing,
                cause,
                output,
            } => self.result(turn, node, lease, fencing, cause, output),
            NodeMessage::Reclaim {
                lease,
                fencing,
                cause: _,
            } => self.reclaim(turn, node, lease, fencing),
            NodeMessage::Unknown => {}
        }
    }

    fn capability(&mut self, turn: &mut Turn, node: NodeId, capability: Capability) {
        if capability.cards.len() > MOST_CARDS {
            let message = format!(
                "{} cards are more than the {MOST_CARDS} that one node may have: none of them is let",
                capability.cards.len()
            );
            return refuse(turn, node, None, message);
        }
        if !self.config.lab && capability.isolation != Isolation::Native {
            let message =
                "this exchange lets only nodes that isolate jobs natively on cgroup v2: weaker ones are for labs";
            refuse(turn, node, None, message.to_owned());
        }
        for card in capability
            .cards
            .iter()
            .filter(|card| card.simulated && !self.config.lab)
        {
            let message = format!(
                "{} is SIMULATED: this exchange is no lab and does not let it",
                card.uuid
            );
            refuse(turn, node, None, message);
        }
        if let Some(live) = self.live.nodes.get_mut(&node) {
            live.offers
                .retain(|gpu, _| capability.cards.iter().any(|card| card.uuid == *gpu));
            live.capability = Some(capability);
        }
    }

    fn offer(&mut self, turn: &mut Turn, node: NodeId, offer: Offer) {
        let Some(live) = self.live.nodes.get_mut(&node) else {
            return;
        };
        if live.card(&offer.gpu).is_none() {
            let message = format!(
                "{} is offered, but this node has not said that it has it: send Capability first",
                offer.gpu
            );
            return refuse(turn, node, None, message);
        }
        if offer.floor.0 < Micros::ZERO {
            let message = format!(
                "a floor of {} is below zero: nobody is paid for taking work here",
                offer.floor
            );
            return refuse(turn, node, None, message);
        }
        let not_before = live
            .offers
            .get(&offer.gpu)
            .map_or(turn.now.boot_ms, |old| old.not_before);
        let new = LiveOffer {
            floor: offer.floor,
            available: offer.available,
            network: offer.network.into(),
            not_before,
        };
        live.offers.insert(offer.gpu, new);
    }

    fn heartbeat(&mut self, turn: &mut Turn, node: NodeId, beat: u64, leases: &[LeaseBeat]) {
        let mut end = Vec::new();
        for lease in leases {
            if !self.renew(turn, node, lease) {
                end.push(lease.lease);
            }
        }
        turn.send(node, ExchangeMessage::Renew { beat, end });
        self.send_receipts_due(turn, node);
    }

    /// Whether the lease lives on.
    fn renew(&mut self, turn: &mut Turn, node: NodeId, beat: &LeaseBeat) -> bool {
        match self.held(node, beat.lease, beat.fencing) {
            Ok(lease) if lease.end.is_none() => {
                if lease.accepted.is_none() {
                    // Its Accept was lost with the session that a restart of the exchange ended.
                    self.accept(turn, node, beat.lease, beat.fencing);
                }
            }
            Ok(_) | Err(_) => return false,
        }
        let now = turn.now.boot_ms;
        let Some(live) = self.live.leases.get_mut(&beat.lease) else {
            return false;
        };
        let works_on = match beat.phase {
            LeasePhase::Fetching
            | LeasePhase::Starting
            | LeasePhase::Running
            | LeasePhase::Frozen
            | LeasePhase::Saving
            | LeasePhase::Unknown => true,
            LeasePhase::Ending | LeasePhase::Uploading => false,
        };
        let told = live.cancel_asked_at.is_some_and(|at| now.since(at) > CANCEL_PATIENCE);
        if told && works_on {
            return false;
        }
        live.phase = beat.phase;
        let Some(coverage) = &mut live.coverage else {
            return false;
        };
        coverage.renew(now);
        let (covered, billable) = (coverage.covered(), coverage.billable());
        live.heard_thawed(beat.thawed_ms.min(billable), now);
        if live.marked_at.is_none_or(|at| now.since(at) >= MARK_INTERVAL) {
            live.marked_at = Some(now);
            self.mark(turn, beat.lease, covered);
        }
        true
    }

    /// Writes down how much time renewals cover.
    pub(super) fn mark(&mut self, turn: &mut Turn, lease: LeaseId, covered_ms: Millis) {
        let record = Record::RenewalMarked {
            lease,
            covered_ms,
            at_utc_ms: turn.now.utc_ms,
        };
        // A refused record was reported; the next heartbeat marks again.
        let _recorded = self.record(turn, record);
    }
}

/// Tells a node that something it said was not acted on.
pub(super) fn refuse(turn: &mut Turn, node: NodeId, lease: Option<LeaseId>, message: String) {
    turn.send(node, ExchangeMessage::Refused { lease, message });
}

fn defect() -> Refused {
    let message = "the exchange could not admit this node by a fault of its own: tell its operator".to_owned();
    (RefusalCode::Unknown, message)
}
