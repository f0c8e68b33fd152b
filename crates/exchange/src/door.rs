//! The way to the floor for everybody outside its loop: requests, looks and what sockets report, over one bounded queue.
//! Nothing is decided here; an answer comes only after what it depends on is committed.

use crate::session::Outgoing;
use crate::session::table::SessionTable;
use crate::store::blob_owners::BlobOwner;
use sela_market::effect::{Answer, Refusal};
use sela_market::floor::Floor;
use sela_market::input::{Ask, ConnectionId};
use sela_protocol::confidential::Confidential;
use sela_protocol::id::TenantId;
use sela_protocol::node::{Hello, NodeMessage};
use sela_protocol::session::Frame;
use sela_protocol::units::Now;
use tokio::sync::{mpsc, oneshot, watch};

/// How many arrivals may wait for the loop.
const QUEUE: usize = 1_024;

/// What comes in at the door.
pub(crate) enum Arrival {
    /// Somebody asks for a change.
    Ask {
        /// What.
        ask: Ask,
        /// What is to be committed with it.
        along: Option<Along>,
        /// Who waits.
        reply: oneshot::Sender<Result<Answer, AskError>>,
    },
    /// Somebody looks at what is committed.
    Look(Box<dyn FnOnce(&Scene<'_>) + Send>),
    /// A node's Hello, whose signature, nonce and version are good.
    Hello {
        /// On which connection.
        connection: ConnectionId,
        /// The Hello.
        hello: Box<Hello>,
        /// To its socket.
        outgoing: mpsc::Sender<Outgoing>,
    },
    /// A frame of an admitted connection.
    Frame {
        /// On which connection.
        connection: ConnectionId,
        /// The frame.
        frame: Box<Frame<NodeMessage>>,
    },
    /// A connection's socket has ended.
    Gone {
        /// Which.
        connection: ConnectionId,
    },
    /// Finish what has come in, and end.
    Stop,
}

/// What is committed together with what is asked, if it is granted.
#[derive(Debug, Clone)]
pub(crate) enum Along {
    /// A job is submitted.
    Submission {
        /// By whom.
        tenant: TenantId,
        /// Under which idempotency key, if any.
        once: Option<Once>,
        /// What only the job may read.
        confidential: Box<Confidential>,
    },
    /// The blob belongs to a tenant from then on.
    BlobOwner(BlobOwner),
}

/// What makes a submission one job, however often it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Once {
    /// As sent.
    pub(crate) idempotency_key: String,
    /// Of the job as sent.
    pub(crate) fingerprint: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The market says no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The same key came with another spec.
    #[error("this Idempotency-Key was used for another job spec: use a new key for a new job")]
    KeyUsed,
    /// The loop is gone.
    #[error(
        "the exchange is being stopped: whether this was done is not known yet; ask again in a moment, with the same Idempotency-Key"
    )]
    Stopping,
}

/// What a look sees: the committed state between two turns of the loop.
pub(crate) struct Scene<'a> {
    /// The market.
    pub(crate) floor: &'a Floor,
    /// Who is connected.
    pub(crate) sessions: &'a SessionTable,
    /// The turn's time.
    pub(crate) now: Now,
}

/// The door. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Door {
    arrivals: mpsc::Sender<Arrival>,
    changed: watch::Receiver<u64>,
}

/// The loop's side of the door.
pub(crate) struct Inside {
    /// What has come in.
    pub(crate) arrivals: mpsc::Receiver<Arrival>,
    /// Rises when something that a look could see has changed.
    pub(crate) changed: watch::Sender<u64>,
}

/// A new door.
pub(crate) fn door() -> (Door, Inside) {
    let (sender, arrivals) = mpsc::channel(QUEUE);
    let (changed, receiver) = watch::channel(0);
    let door = Door {
        arrivals: sender,
        changed: receiver,
    };
    (door, Inside { arrivals, changed })
}

impl Door {
    /// Asks for a change and waits until it is committed or refused.
    ///
    /// # Errors
    /// See [`AskError`].
    pub(crate) async fn ask(&self, ask: Ask, along: Option<Along>) -> Result<Answer, AskError> {
        let (reply, answer) = oneshot::channel();
        self.send(Arrival::Ask { ask, along, reply })
            .await
            .map_err(|Stopping| AskError::Stopping)?;
        answer.await.map_err(|_| AskError::Stopping)?
    }

    /// Looks at what is committed.
    ///
    /// # Errors
    /// Where the loop is gone.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Scene<'_>) -> T + Send + 'static,
    ) -> Result<T, Stopping> {
        let (reply, seen) = oneshot::channel();
        let look = move |scene: &Scene<'_>| {
            // Nobody waits any more: that is fine.
            let _ = reply.send(look(scene));
        };
        self.send(Arrival::Look(Box::new(look))).await?;
        seen.await.map_err(|_| Stopping)
    }

    /// Brings something in.
    ///
    /// # Errors
    /// Where the loop is gone.
    pub(crate) async fn send(&self, arrival: Arrival) -> Result<(), Stopping> {
        self.arrivals.send(arrival).await.map_err(|_| Stopping)
    }

    /// Rises when something that a look could see has changed.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }
}

/// The loop is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the exchange is being stopped: try again in a moment")]
pub(crate) struct Stopping;
