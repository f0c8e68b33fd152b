//! Numbering, acknowledging and resuming a session: one pure type, used by the node and by the exchange. At-least-once
//! on the wire becomes exactly-once here. Sockets and time are elsewhere.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::marker::PhantomData;

/// A numbered message. `ack` is the last number received in order from the other side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame<M> {
    /// 1, 2, 3, … per direction; 0 for a frame that only acknowledges.
    pub seq: u64,
    /// The last number received.
    pub ack: u64,
    /// The message; `None` where the frame only acknowledges.
    pub message: Option<M>,
}

/// One side of a session: sends `S`, receives `R`.
#[derive(Debug, Clone)]
pub struct SessionSide<S, R = S> {
    sent: u64,
    unacknowledged: VecDeque<(u64, S)>,
    received: u64,
    bound: usize,
    other: PhantomData<fn(R)>,
}

/// Why a session cannot go on; both sides then start a new one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A frame is missing.
    #[error("frame {expected} is missing: {found} came instead")]
    Gap {
        /// Expected next.
        expected: u64,
        /// Came.
        found: u64,
    },
    /// The other side acknowledges what was never sent.
    #[error("frame {acknowledged} was acknowledged, but only {sent} were sent")]
    AcknowledgedUnsent {
        /// By the other side.
        acknowledged: u64,
        /// By this side.
        sent: u64,
    },
    /// The other side has forgotten frames that it had acknowledged.
    #[error("the other side is at frame {received}, but frames up to {dropped} were acknowledged and are gone")]
    TooOld {
        /// Where the other side is.
        received: u64,
        /// What this side dropped.
        dropped: u64,
    },
    /// Too much is unacknowledged.
    #[error("{0} frames are unacknowledged: the other side does not keep up")]
    Full(usize),
}

impl<S: Clone, R> SessionSide<S, R> {
    /// A new session; `bound` is how many frames may wait for acknowledgement.
    pub const fn new(bound: usize) -> Self {
        Self {
            sent: 0,
            unacknowledged: VecDeque::new(),
            received: 0,
            bound,
            other: PhantomData,
        }
    }

    /// The last frame received in order.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// How many frames wait for acknowledgement.
    pub fn waiting(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Numbers a message and keeps it until it is acknowledged.
    ///
    /// # Errors
    /// [`SessionError::Full`]: the session should be closed; the message was not taken.
    pub fn send(&mut self, message: S) -> Result<Frame<S>, SessionError> {
        if self.unacknowledged.len() >= self.bound {
            return Err(SessionError::Full(self.unacknowledged.len()));
        }
        self.sent += 1;
        self.unacknowledged.push_back((self.sent, message.clone()));
        Ok(Frame {
            seq: self.sent,
            ack: self.received,
            message: Some(message),
        })
    }

    /// A frame that only acknowledges.
    pub const fn acknowledge(&self) -> Frame<S> {
        Frame {
            seq: 0,
            ack: self.received,
            message: None,
        }
    }

    /// Takes a frame: `Some` for a message that is new, `None` for a repeat or a bare acknowledgement.
    ///
    /// # Errors
    /// A gap, or an acknowledgement of what was never sent; the session cannot go on.
    pub fn receive(&mut self, frame: Frame<R>) -> Result<Option<R>, SessionError> {
        self.drop_acknowledged(frame.ack)?;
        let Some(message) = frame.message else {
            return Ok(None);
        };
        let expected = self.received + 1;
        match frame.seq.cmp(&expected) {
            std::cmp::Ordering::Less => Ok(None),
            std::cmp::Ordering::Greater => Err(SessionError::Gap {
                expected,
                found: frame.seq,
            }),
            std::cmp::Ordering::Equal => {
                self.received = expected;
                Ok(Some(message))
            }
        }
    }

    /// After a reconnect: the frames to send again, given the last that the other side has received.
    ///
    /// # Errors
    /// Where the other side is older or newer than this side can be; both start a new session.
    pub fn resume(&mut self, other_received: u64) -> Result<Vec<Frame<S>>, SessionError> {
        let dropped = self.sent - self.unacknowledged.len() as u64;
        if other_received < dropped {
            return Err(SessionError::TooOld {
                received: other_received,
                dropped,
            });
        }
        self.drop_acknowledged(other_received)?;
        let ack = self.received;
        Ok(self
            .unacknowledged
            .iter()
            .map(|(seq, message)| Frame {
                seq: *seq,
                ack,
                message: Some(message.clone()),
            })
            .collect())
    }

    fn drop_acknowledged(&mut self, acknowledged: u64) -> Result<(), SessionError> {
        if acknowledged > self.sent {
            return Err(SessionError::AcknowledgedUnsent {
                acknowledged,
                sent: self.sent,
            });
        }
        while self.unacknowledged.front().is_some_and(|(seq, _)| *seq <= acknowledged) {
            self.unacknowledged.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_sent_again_after_a_break_is_delivered_once() {
        let mut node = SessionSide::<&str, u8>::new(8);
        let mut exchange = SessionSide::<u8, &str>::new(8);
        let first = node.send("a").expect("room");
        let _lost = node.send("b").expect("room");
        assert_eq!(exchange.receive(first.clone()), Ok(Some("a")));
        let again = node.resume(exchange.received()).expect("resumes");
        assert_eq!(again.len(), 1, "the acknowledged frame is not sent again");
        assert_eq!(exchange.receive(again[0].clone()), Ok(Some("b")));
        assert_eq!(
            exchange.receive(first),
            Ok(None),
            "a replayed frame is not delivered again"
        );
        assert_eq!(node.receive(exchange.acknowledge()), Ok(None));
        assert_eq!(node.waiting(), 0);
    }

    #[test]
    fn gaps_and_impossible_acknowledgements_end_the_session() {
        let mut side = SessionSide::<&str>::new(1);
        let gap = Frame {
            seq: 2,
            ack: 0,
            message: Some("x"),
        };
        assert_eq!(side.receive(gap), Err(SessionError::Gap { expected: 1, found: 2 }));
        let bad = Frame {
            seq: 0,
            ack: 1,
            message: None,
        };
        assert!(matches!(
            side.receive(bad),
            Err(SessionError::AcknowledgedUnsent { .. })
        ));
        side.send("a").expect("room");
        assert_eq!(side.send("b"), Err(SessionError::Full(1)));
        let acknowledged = Frame {
            seq: 0,
            ack: 1,
            message: None,
        };
        side.receive(acknowledged).expect("fine");
        assert!(matches!(side.resume(0), Err(SessionError::TooOld { .. })));
    }
}
