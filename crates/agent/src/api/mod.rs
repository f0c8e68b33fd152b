//! The local interface: HTTP over the agent's Unix socket, and on a loopback port where the owner asked for one. Reads,
//! forwards and streams; the loop decides.

mod events;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod guest;
mod page;
#[cfg(test)]
mod page_tests;
mod peer;
mod routes;
mod serve;
#[cfg(test)]
mod tests;

pub(crate) use serve::listen;

use crate::store::StoreReader;
use sela_protocol::local::{Command, CommandReply, DoctorLine, Event, Snapshot};
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc, oneshot};

/// What a client wants of the loop.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Do something.
    Command {
        /// What.
        command: Command,
        /// Where the answer goes.
        reply: oneshot::Sender<CommandReply>,
    },
    /// Show everything.
    Snapshot {
        /// Where it goes.
        reply: oneshot::Sender<Box<Snapshot>>,
    },
}

/// What all requests share.
#[derive(Clone)]
pub(crate) struct Agent {
    /// The way to the loop.
    pub(crate) asks: mpsc::Sender<Ask>,
    /// What the loop publishes.
    pub(crate) events: broadcast::Sender<Arc<Event>>,
    /// Pages of the store.
    pub(crate) store: StoreReader,
    /// The self-test. Blocking.
    pub(crate) doctor: Arc<dyn Fn() -> Vec<DoctorLine> + Send + Sync>,
}

/// The loop is gone.
#[derive(Debug)]
pub(crate) struct Leaving;

impl Agent {
    pub(crate) async fn snapshot(&self) -> Result<Box<Snapshot>, Leaving> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Snapshot { reply }).await.map_err(|_| Leaving)?;
        answer.await.map_err(|_| Leaving)
    }

    pub(crate) async fn command(&self, command: Command) -> Result<CommandReply, Leaving> {
        let (reply, answer) = oneshot::channel();
        self.asks
            .send(Ask::Command { command, reply })
            .await
            .map_err(|_| Leaving)?;
        answer.await.map_err(|_| Leaving)
    }
}
