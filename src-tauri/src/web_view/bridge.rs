//! What the window's page may ask for: the agent's events, commands and record, forwarded as they are. Nothing is decided, kept
//! or added here; the page's side is `ui/src/transport/desktop.ts`.

use crate::trouble::{Kind, Trouble};
use sela_client::{Client, Events};
use sela_protocol::local::{Command, CommandReply, NumberedEvent, StripRecord};
use sela_protocol::units::UtcMs;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tauri::State;
use tauri::ipc::Channel;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What goes into the channel of `agent_watch`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Watched {
    /// What happened.
    Event {
        /// As the agent sent it.
        event: Box<NumberedEvent>,
    },
    /// Nothing follows. Without trouble the agent left in peace.
    Ended {
        /// What broke the stream.
        trouble: Option<Trouble>,
    },
}

/// What all requests of the page share.
#[derive(Debug)]
pub(crate) struct Bridge {
    client: Client,
    /// What the supervisor last said, for the page that shows that the agent is missing.
    supervisor: watch::Receiver<Option<String>>,
    watches: Mutex<Watches>,
}

#[derive(Debug, Default)]
struct Watches {
    last: u32,
    open: HashMap<u32, AbortHandle>,
}

impl Bridge {
    pub(crate) fn new(client: Client, supervisor: watch::Receiver<Option<String>>) -> Self {
        Self {
            client,
            supervisor,
            watches: Mutex::default(),
        }
    }

    /// Ends all streams: their page is gone.
    pub(crate) fn end_watches(&self) {
        for (_, watch) in self.watches().open.drain() {
            watch.abort();
        }
    }

    fn watches(&self) -> std::sync::MutexGuard<'_, Watches> {
        // Nothing that holds this lock can leave the table half changed.
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trouble with what was tried about it.
    fn explained(&self, error: sela_client::ClientError) -> Trouble {
        let mut trouble = Trouble::from(error);
        if trouble.kind == Kind::NotRunning
            && let Some(said) = self.supervisor.borrow().as_deref()
        {
            trouble.message = format!("{}; {said}", trouble.message);
        }
        trouble
    }
}

/// Opens a stream of events into `channel` and answers its number.
#[tauri::command]
pub(crate) async fn agent_watch(bridge: State<'_, Bridge>, channel: Channel<Watched>) -> Result<u32, Trouble> {
    let events = bridge.client.events().await.map_err(|error| bridge.explained(error))?;
    let mut watches = bridge.watches();
    watches.last = watches.last.wrapping_add(1);
    let number = watches.last;
    let task = tokio::spawn(forward(events, channel));
    watches.open.retain(|_, watch| !watch.is_finished());
    watches.open.insert(number, task.abort_handle());
    Ok(number)
}

/// Ends a stream. One that has ended already is none.
#[tauri::command]
pub(crate) fn agent_unwatch(bridge: State<'_, Bridge>, watching: u32) {
    if let Some(watch) = bridge.watches().open.remove(&watching) {
        watch.abort();
    }
}

/// Tells the agent what its owner wants.
#[tauri::command]
pub(crate) async fn agent_command(bridge: State<'_, Bridge>, command: Command) -> Result<CommandReply, Trouble> {
    let reply = bridge.client.command(&command).await;
    reply.map_err(|error| bridge.explained(error))
}

/// What became of the cards in a span of UTC milliseconds; `None` from an agent that keeps no such record.
#[tauri::command]
pub(crate) async fn agent_strip(
    bridge: State<'_, Bridge>,
    from_utc_ms: i64,
    to_utc_ms: i64,
) -> Result<Option<StripRecord>, Trouble> {
    let record = bridge.client.strip(UtcMs(from_utc_ms), UtcMs(to_utc_ms)).await;
    record.map_err(|error| bridge.explained(error))
}

/// The page has drawn the first news of a stream: said for whoever measures how long that takes.
#[tauri::command]
pub(crate) fn agent_shown() {
    tracing::info!("the window shows the agent");
}

async fn forward(mut events: Events, channel: Channel<Watched>) {
    let trouble = loop {
        match events.next().await {
            Ok(Some(event)) => {
                if channel.send(Watched::Event { event: Box::new(event) }).is_err() {
                    // The page is gone; there is nobody to tell.
                    return;
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(Trouble::from(error)),
        }
    };
    if let Err(error) = channel.send(Watched::Ended { trouble }) {
        tracing::debug!(%error, "the page left before the stream did");
    }
}
