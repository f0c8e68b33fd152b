//! `GET /v1/events`: a whole snapshot first, then numbered events; a reader that falls behind gets a new snapshot instead of
//! what it missed.

use super::{Agent, Leaving};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::{Stream, stream};
use sela_protocol::local::{Event, NumberedEvent};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// A silent stream shows that it lives this often.
const ALIVE: Duration = Duration::from_secs(30);

struct Reader {
    agent: Agent,
    events: Receiver<Arc<Event>>,
    number: u64,
    /// The next event must be a snapshot.
    behind: bool,
}

/// The stream of one reader.
pub(super) fn stream_of(agent: Agent) -> Sse<impl Stream<Item = Result<Sent, Infallible>>> {
    // Listening begins before the snapshot is taken: what happens in between may be told twice, never not at all.
    let events = agent.events.subscribe();
    let reader = Reader {
        agent,
        events,
        number: 0,
        behind: true,
    };
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await.ok()?;
        reader.number += 1;
        let numbered = NumberedEvent {
            number: reader.number,
            event,
        };
        let sent = Sent::default().json_data(&numbered).ok()?;
        Some((Ok(sent), reader))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE))
}

impl Reader {
    async fn next(&mut self) -> Result<Event, Leaving> {
        if !self.behind {
            match self.events.recv().await {
                Ok(event) => return Ok(event.as_ref().clone()),
                Err(RecvError::Lagged(_)) => self.events = self.agent.events.subscribe(),
                Err(RecvError::Closed) => return Err(Leaving),
            }
        }
        self.behind = false;
        Ok(Event::Snapshot(self.agent.snapshot().await?))
    }
}
