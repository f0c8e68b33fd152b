//! What the market knows only while it runs: who is connected, what is offered, when each lease was last heard of, why each job
//! waits. Lost at a restart and learned anew from the nodes; nothing that money depends on is here without being written
//! down in time (`lease::Coverage`).

use crate::books::{Books, Lease};
use crate::input::ConnectionId;
use crate::lease::Coverage;
use sela_protocol::card::CardDescription;
use sela_protocol::id::{GpuUuid, JobId, LeaseId, NodeId, TenantId};
use sela_protocol::lease::LeasePhase;
use sela_protocol::money::HourlyPrice;
use sela_protocol::network::HostRule;
use sela_protocol::node::{Isolation, Scratch};
use sela_protocol::units::{BootMs, Bytes, Millis, Now};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

#[derive(Debug, Clone, Default)]
pub(super) struct Live {
    connections: BTreeMap<ConnectionId, NodeId>,
    pub(super) nodes: BTreeMap<NodeId, LiveNode>,
    /// Of every lease whose money is not closed.
    pub(super) leases: BTreeMap<LeaseId, LiveLease>,
    /// Of every job that waits.
    pub(super) jobs: BTreeMap<JobId, Waiting>,
    /// How many jobs each tenant may submit at present.
    pub(super) submissions: BTreeMap<TenantId, SubmissionRate>,
    /// How long the exchange had been up when this process took over, and when that was: at its first step.
    up_before: Millis,
    up_since: Option<BootMs>,
}

/// How fast a tenant submits jobs: a bucket that fills with time and that each job takes from.
#[derive(Debug, Clone)]
pub(super) struct SubmissionRate {
    /// In thousandths of a job.
    left: u64,
    filled_at: BootMs,
}

/// Jobs that a tenant may submit at once, and how many more each second: each one is a few records for ever, also where it is
/// cancelled in the next moment.
pub(super) const SUBMISSIONS_AT_ONCE: u64 = 1_000;
const SUBMISSIONS_PER_SECOND: u64 = 1;

impl SubmissionRate {
    pub(super) const fn new(now: BootMs) -> Self {
        Self {
            left: SUBMISSIONS_AT_ONCE * 1_000,
            filled_at: now,
        }
    }

    /// Takes one job.
    ///
    /// # Errors
    /// How long to wait for the next.
    pub(super) fn take(&mut self, now: BootMs) -> Result<(), Millis> {
        let filled = now.since(self.filled_at).0.saturating_mul(SUBMISSIONS_PER_SECOND);
        self.left = self.left.saturating_add(filled).min(SUBMISSIONS_AT_ONCE * 1_000);
        self.filled_at = now;
        match self.left.checked_sub(1_000) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Millis((1_000 - self.left).div_ceil(SUBMISSIONS_PER_SECOND))),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct LiveNode {
    pub(super) connection: Option<ConnectionId>,
    pub(super) heard_at: BootMs,
    pub(super) capability: Option<Capability>,
    pub(super) offers: BTreeMap<GpuUuid, LiveOffer>,
    /// Awards in a row that it has not taken.
    pub(super) not_taken: u32,
    /// After several of these: no award to any of its cards before this.
    pub(super) not_before: BootMs,
    /// Leases whose newest receipt it is still to be sent again in its present session, oldest first.
    pub(super) receipts_due: VecDeque<LeaseId>,
}

#[derive(Debug, Clone)]
pub(super) struct Capability {
    pub(super) cards: Vec<CardDescription>,
    pub(super) isolation: Isolation,
    pub(super) memory: Bytes,
    pub(super) scratch: Scratch,
}

#[derive(Debug, Clone)]
pub(super) struct LiveOffer {
    pub(super) floor: HourlyPrice,
    pub(super) available: bool,
    /// The hosts that a job there may reach.
    pub(super) network: Arc<[HostRule]>,
    /// After an award that the node did not take.
    pub(super) not_before: BootMs,
}

#[derive(Debug, Clone)]
pub(super) struct LiveLease {
    pub(super) reserved_at: BootMs,
    /// `None` until it is accepted.
    pub(super) coverage: Option<Coverage>,
    pub(super) phase: LeasePhase,
    /// The longest thawed time heard of, signed or not, and when: an estimate between meter notes.
    pub(super) thawed: Millis,
    pub(super) thawed_at: BootMs,
    pub(super) posted_at: BootMs,
    /// When the coverage was last written down; `None` after a restart: at the next heartbeat, then.
    pub(super) marked_at: Option<BootMs>,
    pub(super) cancel_asked_at: Option<BootMs>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    pub(super) why: String,
    /// After a fault of a node's: that node, if no other can take it, not before this.
    pub(super) alone_not_before: BootMs,
}

impl Live {
    pub(super) fn restored(books: &Books, now: Now) -> Self {
        let live_leases = books.unsettled_leases.iter().filter_map(|id| books.leases.get(id));
        let waiting = Waiting {
            why: "the exchange has just started, and nodes are coming back".to_owned(),
            alone_not_before: now.boot_ms,
        };
        Self {
            leases: live_leases
                .map(|lease| (lease.terms.lease, LiveLease::restored(lease, now)))
                .collect(),
            jobs: books.queue.iter().map(|job| (*job, waiting.clone())).collect(),
            up_before: books.uptime,
            up_since: Some(now.boot_ms),
            ..Self::default()
        }
    }

    /// Called at each step: the first one is where the uptime begins.
    pub(super) fn is_up(&mut self, now: BootMs) {
        self.up_since.get_or_insert(now);
    }

    /// How long the exchange has been up in all.
    pub(super) fn uptime(&self, now: BootMs) -> Millis {
        let since_start = self.up_since.map_or(Millis(0), |since| now.since(since));
        Millis(self.up_before.0.saturating_add(since_start.0))
    }

    pub(super) fn connect(&mut self, connection: ConnectionId, node: NodeId, now: BootMs) -> &mut LiveNode {
        self.connections.insert(connection, node);
        let live = self.nodes.entry(node).or_insert_with(|| LiveNode {
            connection: None,
            heard_at: now,
            capability: None,
            offers: BTreeMap::new(),
            not_taken: 0,
            not_before: now,
            receipts_due: VecDeque::new(),
        });
        live.connection = Some(connection);
        live.heard_at = now;
        live
    }

    pub(super) fn disconnect(&mut self, connection: ConnectionId) {
        let node = self.connections.remove(&connection);
        if let Some(live) = node.and_then(|node| self.nodes.get_mut(&node))
            && live.connection == Some(connection)
        {
            live.connection = None;
        }
    }

    pub(super) fn node_of(&self, connection: ConnectionId) -> Option<NodeId> {
        self.connections.get(&connection).copied()
    }
}

impl LiveNode {
    pub(super) fn card(&self, gpu: &GpuUuid) -> Option<&CardDescription> {
        let capability = self.capability.as_ref()?;
        capability.cards.iter().find(|card| card.uuid == *gpu)
    }
}

impl LiveLease {
    pub(super) const fn reserved(now: BootMs) -> Self {
        Self {
            reserved_at: now,
            coverage: None,
            phase: LeasePhase::Starting,
            thawed: Millis(0),
            thawed_at: now,
            posted_at: now,
            marked_at: None,
            cancel_asked_at: None,
        }
    }

    fn restored(lease: &Lease, now: Now) -> Self {
        Self {
            coverage: lease.mark.map(|(covered, at)| Coverage::restored(covered, at, now)),
            phase: LeasePhase::Unknown,
            thawed: lease.noted(),
            cancel_asked_at: lease.cancel.as_ref().map(|_| now.boot_ms),
            ..Self::reserved(now.boot_ms)
        }
    }

    /// Whether its program may have run: by its heartbeats, or because the exchange has just started and does not know.
    pub(super) fn has_run(&self) -> bool {
        match self.phase {
            LeasePhase::Fetching | LeasePhase::Starting | LeasePhase::Ending | LeasePhase::Uploading => {
                self.thawed > Millis(0)
            }
            LeasePhase::Running | LeasePhase::Frozen | LeasePhase::Saving | LeasePhase::Unknown => true,
        }
    }

    /// The thawed time that has probably passed by now.
    pub(super) fn estimated(&self, now: BootMs) -> Millis {
        match self.phase {
            LeasePhase::Running | LeasePhase::Saving | LeasePhase::Unknown => {
                Millis(self.thawed.0.saturating_add(now.since(self.thawed_at).0))
            }
            LeasePhase::Fetching
            | LeasePhase::Starting
            | LeasePhase::Frozen
            | LeasePhase::Ending
            | LeasePhase::Uploading => self.thawed,
        }
    }

    pub(super) fn heard_thawed(&mut self, thawed: Millis, now: BootMs) {
        if thawed >= self.thawed {
            self.thawed = thawed;
            self.thawed_at = now;
        }
    }
}
