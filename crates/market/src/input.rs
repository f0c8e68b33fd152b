//! Everything that can happen to the market, as values. Who may ask for what has been checked by the caller (API key,
//! operator's key, node's signature and session); no decision and no state lives here.

use sela_protocol::blob::BlobId;
use sela_protocol::envelope::PublicKey;
use sela_protocol::id::{JobId, LeaseId, TenantId};
use sela_protocol::job::JobSpec;
use sela_protocol::money::Micros;
use sela_protocol::node::NodeMessage;

/// Fresh randomness for one step, from which ids and secrets are drawn: 32 bytes of the system's random source, never the
/// same twice. A recorded log that keeps it replays every id; such a log opens accounts, so it is kept like a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entropy(pub [u8; 32]);

impl std::fmt::Debug for Entropy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Entropy(not shown)")
    }
}

/// The caller's number for a request that waits for an answer. Unique among those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The caller's number for one connection of a node. Never used twice while the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Somebody asks for a change; exactly one [`crate::effect::Effect::Reply`] answers it, in the same step.
    Request {
        /// Named in the reply.
        request: RequestId,
        /// What is asked.
        ask: Ask,
    },
    /// A node has connected, and its Hello's signature, nonce and protocol version are good. Answered in the same step by
    /// `Admit` or `Refuse`.
    NodeHello {
        /// This connection.
        connection: ConnectionId,
        /// The key that signed the Hello.
        key: PublicKey,
        /// As in the Hello.
        invitation: Option<String>,
        /// As in the Hello, for people.
        name: String,
        /// Whether the session goes on where it was: the caller still holds it, so nothing that was sent is lost. Look up
        /// whose it is with [`crate::floor::Floor::node_by_key`].
        resumed: bool,
    },
    /// A connection is gone. Its leases live on until they are not renewed for too long.
    NodeDisconnected {
        /// Which.
        connection: ConnectionId,
    },
    /// A message of an admitted node, once and in order (`sela_protocol::session`). Acknowledge it only after the step's
    /// `Commit` is durable. The signature inside a meter note is checked in the step.
    NodeMessage {
        /// On which connection it came; a message of a connection that was not admitted or has been replaced is ignored.
        connection: ConnectionId,
        /// What it says.
        message: NodeMessage,
    },
    /// Time passes: every 250 ms. Reservations, leases and held money run out, postings fall due, jobs are matched.
    Tick,
}

/// A change that somebody asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// The operator admits a tenant.
    CreateTenant {
        /// For people.
        name: String,
    },
    /// The operator invites an owner with one node.
    InviteOwner {
        /// For people.
        name: String,
    },
    /// The operator books money that came in from outside.
    Deposit {
        /// To whom.
        tenant: TenantId,
        /// Above zero.
        amount: Micros,
        /// The same key twice for one tenant is one deposit.
        idempotency_key: String,
    },
    /// A tenant submits a job. The spec has been parsed with `JobSpec::parse`, and the caller has checked that this tenant
    /// stored every blob that the spec names.
    SubmitJob {
        /// Whose API key it was.
        tenant: TenantId,
        /// The job.
        spec: Box<JobSpec>,
    },
    /// A tenant cancels a job. Asking again is answered the same and does nothing more.
    CancelJob {
        /// Whose API key it was.
        tenant: TenantId,
        /// Which job.
        job: JobId,
    },
    /// A node has uploaded a blob under a lease's token, and the caller has checked its hash and keeps it. Only what was taken
    /// here can become a checkpoint or a result. On a refusal the caller deletes the blob again.
    KeepBlob {
        /// Whose token it was (see [`crate::floor::Floor::lease_access`]).
        lease: LeaseId,
        /// The blob.
        blob: BlobId,
    },
}
