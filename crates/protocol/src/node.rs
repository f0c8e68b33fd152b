//! What a node and the exchange say to each other over the node's one outbound WebSocket (market.md §6). Frames are
//! numbered and acknowledged in `session`; bulk (blobs, logs) goes over HTTP with the lease's token.

use crate::blob::BlobId;
use crate::card::CardDescription;
use crate::confidential::Confidential;
use crate::envelope::{Envelope, Payload, PublicKey};
use crate::id::{AwardId, GpuUuid, JobId, LeaseId, NodeId, OwnerId, SessionId};
use crate::job::JobSpec;
use crate::lease::{EndCause, FencingToken, LeasePhase, MeterNote, Receipt};
use crate::money::HourlyPrice;
use crate::network::{self, HostRule};
use crate::units::{Bytes, Millis, UtcMs};
use serde::{Deserialize, Serialize};

/// The version of this protocol. Current and previous are served; within one, fields are only added.
pub const PROTOCOL: u32 = 1;

/// Frames larger than this are refused.
pub const FRAME_LIMIT: Bytes = Bytes(1 << 20);

/// A lease lives this long after the exchange received the last heartbeat; the node, after it sent it.
pub const LEASE_TTL: Millis = Millis(60_000);

/// After this long without a heartbeat the exchange frees the card.
pub const LEASE_LOST: Millis = Millis(75_000);

/// After this long without a heartbeat the exchange calls a lease `unknown`.
pub const LEASE_UNKNOWN: Millis = Millis(30_000);

/// An award that is not accepted within this is withdrawn.
pub const RESERVATION: Millis = Millis(10_000);

/// A node sends one this often while connected.
pub const HEARTBEAT_INTERVAL: Millis = Millis(10_000);

/// The first thing on a connection, from the exchange: what the Hello must contain, so that none can be replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Oldest protocol served.
    pub protocol_from: u32,
    /// Newest protocol served.
    pub protocol_to: u32,
    /// The exchange's key: receipts are signed by it. A node that knew another key stops and tells its owner.
    pub exchange: PublicKey,
    /// The exchange's name, for people.
    pub name: String,
    /// Fresh randomness, hex.
    pub nonce: String,
    /// Whether this is a lab: simulated cards admitted, money of no worth.
    pub lab: bool,
}

/// The first thing from the node, signed by the node's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol that the node will speak.
    pub protocol: u32,
    /// From [`Greeting`].
    pub nonce: String,
    /// The exchange's key as it was greeted by: a Hello that is said to one exchange opens no other.
    pub exchange: PublicKey,
    /// The key that signs; a known key is a known node.
    pub key: PublicKey,
    /// For an unknown key: the operator's invitation, which names the owner.
    pub invitation: Option<String>,
    /// The node's name, for people.
    pub name: String,
    /// The session to go on with, and the last frame received in it.
    pub resume: Option<Resume>,
}

impl Payload for Hello {
    const TYPE: &'static str = "application/vnd.sela.hello.v1+json";
}

/// Where a session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Which session.
    pub session: SessionId,
    /// The last frame that this side has received and acted on.
    pub received: u64,
}

/// The exchange's answer to a Hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HelloReply {
    /// Come in.
    Welcome {
        /// Who the node is.
        node: NodeId,
        /// Who is paid.
        owner: OwnerId,
        /// The session. If it is another than asked for, both sides start numbering anew and the node sends its whole state.
        session: SessionId,
        /// The last frame that the exchange has received in it.
        received: u64,
    },
    /// Not like this.
    Refused {
        /// For programs.
        code: RefusalCode,
        /// For people: what to do.
        message: String,
    },
}

/// Why a node was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The signature or the nonce is wrong.
    BadSignature,
    /// The key is unknown and the invitation is missing, used or wrong.
    NotInvited,
    /// No common protocol version.
    ProtocolVersion,
    /// Another connection with this identity is alive.
    IdentityInUse,
    /// The node broke the protocol.
    ProtocolBroken,
    /// Something newer.
    #[serde(other)]
    Unknown,
}

/// How strongly a node isolates jobs (docs/security.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Native, limits by cgroup v1 on a hybrid machine: for labs only.
    LabCgroupV1,
    /// In containers of Docker's.
    Docker,
    /// In containers of Podman's.
    Podman,
    /// Native on cgroup v2.
    Native,
    /// Something newer.
    #[serde(other)]
    Unknown,
}

/// Where a node can put a job's scratch: `/tmp`, `/out` and `/checkpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Scratch {
    /// In the job's memory only.
    #[default]
    Memory,
    /// On a disk, too, encrypted with a key that is in memory only.
    EncryptedDisk,
    /// Something newer.
    #[serde(other)]
    Unknown,
}

impl Scratch {
    /// Whether a job with this much memory can have what it asks for.
    pub fn holds(self, asked: Bytes, memory: Bytes) -> bool {
        match self {
            Self::EncryptedDisk => true,
            Self::Memory | Self::Unknown => asked <= memory,
        }
    }
}

/// What a node offers for one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Which card.
    pub gpu: GpuUuid,
    /// The owner's floor; the card is never let for less.
    pub floor: HourlyPrice,
    /// Whether it may be let now.
    pub available: bool,
    /// The hosts that a job there may reach; none where empty.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "network::known_rules"
    )]
    pub network: Vec<HostRule>,
}

/// From node to exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeMessage {
    /// What the node has. Sent first in a new session, and on change.
    Capability {
        /// Its cards.
        cards: Vec<CardDescription>,
        /// How jobs are isolated.
        isolation: Isolation,
        /// Its processor architecture in OCI's words (`amd64`).
        architecture: String,
        /// Main memory that jobs may use.
        memory: Bytes,
        /// Where a job's scratch can lie.
        #[serde(default)]
        scratch: Scratch,
        /// The agent's version.
        agent_version: String,
    },
    /// What is offered now. Replaces the last offer of that card.
    Offer(Offer),
    /// Alive, with all open leases.
    Heartbeat {
        /// The node's own counter; the Renew names it.
        beat: u64,
        /// The open leases and how far each is.
        leases: Vec<LeaseBeat>,
    },
    /// The award is taken.
    Accept {
        /// Which.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
    },
    /// The award is not taken.
    Reject {
        /// Which.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
        /// Why, for the tenant.
        message: String,
    },
    /// A lease has come further.
    Progress {
        /// Which.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
        /// How far.
        phase: LeasePhase,
    },
    /// What a lease has used.
    Meter(Envelope<MeterNote>),
    /// A checkpoint has been stored under the lease's token.
    Checkpoint {
        /// Of which lease.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
        /// Where.
        blob: BlobId,
        /// Thawed time when it was taken.
        thawed_ms: Millis,
    },
    /// The lease has ended on the node; its closing meter note was sent before this.
    Result {
        /// Which.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
        /// Why it ended.
        cause: EndCause,
        /// The tar of `/out`, if it left anything and it was stored.
        output: Option<BlobId>,
    },
    /// The owner wants the card back: said at once, before the job has ended.
    Reclaim {
        /// Which lease is being ended.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
        /// Why.
        cause: EndCause,
    },
    /// Something newer: ignored.
    #[serde(other)]
    Unknown,
}

/// One open lease in a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseBeat {
    /// Which.
    pub lease: LeaseId,
    /// Its token.
    pub fencing: FencingToken,
    /// How far it is.
    pub phase: LeasePhase,
    /// Thawed time so far (unsigned: for display; money follows meter notes).
    pub thawed_ms: Millis,
}

/// One award: everything that the node needs to run the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Award {
    /// The award.
    pub award: AwardId,
    /// The lease that it opens.
    pub lease: LeaseId,
    /// Its fencing token.
    pub fencing: FencingToken,
    /// On which card.
    pub gpu: GpuUuid,
    /// For which job.
    pub job: JobId,
    /// The job's spec.
    pub spec: JobSpec,
    /// The clearing price.
    pub price: HourlyPrice,
    /// Longest thawed run of this lease: the wall limit less what earlier leases used.
    pub run_limit_ms: Millis,
    /// From where to go on.
    pub checkpoint: Option<BlobId>,
    /// Opens the job's blobs and takes its results over HTTP.
    pub token: String,
    /// What only the job may read. The market's rules do not know it: the exchange puts it in when the award is sent, and a node
    /// that finds none (an exchange of an older version) does not take the award.
    #[serde(default)]
    pub confidential: Option<Confidential>,
}

/// From exchange to node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExchangeMessage {
    /// A lease is offered; accept within [`RESERVATION`].
    Award(Box<Award>),
    /// Acknowledges one heartbeat: the open leases live on.
    Renew {
        /// The heartbeat's counter.
        beat: u64,
        /// Leases of the heartbeat that the exchange does not count as this node's any more: end them.
        end: Vec<LeaseId>,
    },
    /// End the lease: the job was cancelled, displaced, or has used its budget.
    Cancel {
        /// Which.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
        /// Why.
        cause: EndCause,
        /// Whether the job may save first.
        save: bool,
    },
    /// What was posted.
    Receipt(Envelope<Receipt>),
    /// A message of the node's was not acted on.
    Refused {
        /// The lease it was about, where there was one.
        lease: Option<LeaseId>,
        /// Why, and what to do.
        message: String,
    },
    /// The exchange's time, so that a wrong clock shows.
    Time {
        /// Now.
        utc_ms: UtcMs,
    },
    /// Something newer: ignored.
    #[serde(other)]
    Unknown,
}
