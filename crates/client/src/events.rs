//! Reading the agent's stream of events: server-sent events, one JSON per event. What to do about an event is the
//! caller's.

use crate::ClientError;
use crate::connection::Connection;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use sela_protocol::local::NumberedEvent;
use std::time::Duration;
use tokio::time::timeout;

/// The largest event that is taken: a snapshot of many cards is a few kilobytes.
const EVENT_LIMIT: usize = 4 << 20;

/// The agent says each half minute that it lives: after so long a silence it does not.
const SILENCE: Duration = Duration::from_secs(120);

/// A stream of events; ends when the agent does.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    lines: Lines,
    _connection: Connection,
}

impl Events {
    pub(crate) fn new(body: Incoming, connection: Connection) -> Self {
        Self {
            body,
            lines: Lines::default(),
            _connection: connection,
        }
    }

    /// The next event; `None` when the agent closed the stream.
    ///
    /// # Errors
    /// A broken connection or an event that does not read.
    pub async fn next(&mut self) -> Result<Option<NumberedEvent>, ClientError> {
        loop {
            if let Some(event) = self.lines.take_event()? {
                return Ok(Some(event));
            }
            let frame = timeout(SILENCE, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| broken(&"nothing came for two minutes"))? else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| broken(&error))?;
            if let Ok(bytes) = frame.into_data() {
                self.lines.push(&bytes)?;
            }
        }
    }
}

/// What has arrived and is not read yet. Only `data:` lines matter: the number travels in the JSON.
#[derive(Debug, Default)]
struct Lines {
    waiting: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        if self.waiting.len() + bytes.len() > EVENT_LIMIT {
            return Err(broken(&"an event is larger than 4 MiB"));
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    fn take_event(&mut self) -> Result<Option<NumberedEvent>, ClientError> {
        while let Some(end) = self.waiting.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.waiting.drain(..=end).collect();
            if let Some(json) = line.strip_prefix(b"data:") {
                return serde_json::from_slice(json).map(Some).map_err(|error| broken(&error));
            }
        }
        Ok(None)
    }
}

fn broken(why: &dyn std::fmt::Display) -> ClientError {
    ClientError::Broken {
        what: "/v1/events".to_owned(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_cut_anywhere_is_read_whole_and_comments_are_passed_over() {
        let event = r#"{"number":3,"event":{"type":"pause","pause":null}}"#;
        let stream = format!(": alive\n\nevent: pause\ndata: {event}\n\n");
        for cut in 0..stream.len() {
            let mut lines = Lines::default();
            lines.push(&stream.as_bytes()[..cut]).expect("room");
            let early = lines.take_event().expect("reads");
            lines.push(&stream.as_bytes()[cut..]).expect("room");
            let found = early.or(lines.take_event().expect("reads")).expect("one event");
            assert_eq!(found.number, 3, "cut at {cut}");
            assert_eq!(lines.take_event().expect("reads"), None);
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut lines = Lines::default();
        assert!(lines.push(&vec![b'x'; EVENT_LIMIT + 1]).is_err());
    }
}
