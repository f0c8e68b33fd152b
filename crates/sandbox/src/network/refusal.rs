//! Why a job's connection was not made: a sentence for its tenant and its owner, an answer for its program, and a book that does
//! not let a job fill its log, or anybody's screen, by asking again and again.

use super::request::{RequestError, Target};
use sela_protocol::units::Bytes;
use std::collections::BTreeSet;

/// Different refusals that are listed in a job's log.
const MOST_LISTED: usize = 32;

/// Why. Nothing here tells what a name leads to within the owner's network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The request is none.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It did not come in time.
    #[error("a connection to the proxy sent no request within {seconds} s")]
    Slow {
        /// How long was waited.
        seconds: u64,
    },
    /// The tenant did not ask for it.
    #[error("{target} is not among the hosts of the job's network")]
    NotAsked {
        /// It.
        target: Target,
    },
    /// The owner does not allow it, or not any more.
    #[error("{target} is not among the hosts that the owner of this machine allows")]
    NotAllowed {
        /// It.
        target: Target,
    },
    /// The name could not be resolved.
    #[error("{target}: the name could not be resolved")]
    NotResolved {
        /// It.
        target: Target,
    },
    /// The name leads to an address that is not of the internet, or into the owner's network.
    #[error("{target} leads into a local network, which no job reaches")]
    Local {
        /// It.
        target: Target,
    },
    /// Nobody answered there.
    #[error("{target} could not be reached: {why}")]
    NotReached {
        /// It.
        target: Target,
        /// What the system said.
        why: String,
    },
    /// The machine could not do its part.
    #[error("{target}: this machine could not open a connection")]
    Machine {
        /// It.
        target: Target,
    },
    /// Too many at once.
    #[error("more than {most} connections at once")]
    TooMany {
        /// As many as there may be.
        most: usize,
    },
    /// All that may pass has passed.
    #[error("all {limit} that this job may receive and send have passed")]
    UsedUp {
        /// How much that was.
        limit: Bytes,
    },
}

impl Refusal {
    /// The answer to the program, in HTTP.
    pub(super) fn answer(&self) -> Vec<u8> {
        let status = match self {
            Self::Request(RequestError::TooLong) => "431 Request Header Fields Too Large",
            Self::Request(RequestError::NotConnect(_)) => "405 Method Not Allowed",
            Self::Request(RequestError::NotHttp | RequestError::NoTarget(_) | RequestError::BadHost(_)) => {
                "400 Bad Request"
            }
            Self::Slow { .. } => "408 Request Timeout",
            Self::NotAsked { .. } | Self::NotAllowed { .. } | Self::Local { .. } | Self::UsedUp { .. } => {
                "403 Forbidden"
            }
            Self::NotResolved { .. } | Self::NotReached { .. } => "502 Bad Gateway",
            Self::Machine { .. } | Self::TooMany { .. } => "503 Service Unavailable",
        };
        let body = format!("{self}\n");
        let allow = if status.starts_with("405") {
            "Allow: CONNECT\r\n"
        } else {
            ""
        };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

/// All refusals of one job.
#[derive(Debug, Default)]
pub(super) struct RefusalBook {
    pub(super) total: u32,
    pub(super) last: Option<String>,
    listed: BTreeSet<String>,
    closed: bool,
}

impl RefusalBook {
    /// Takes one down; gives the line that the job's log gets, if any.
    pub(super) fn note(&mut self, refusal: &Refusal) -> Option<String> {
        let words = refusal.to_string();
        self.total = self.total.saturating_add(1);
        self.last = Some(words.clone());
        if self.listed.contains(&words) || self.closed {
            return None;
        }
        if self.listed.len() == MOST_LISTED {
            self.closed = true;
            return Some("[sela] network: further refusals are counted, not listed\n".to_owned());
        }
        let line = format!("[sela] network: refused: {words}\n");
        self.listed.insert(words);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_asked(number: usize) -> Refusal {
        let target = format!("host{number}.example.org:443").parse().expect("a target");
        Refusal::NotAsked { target }
    }

    #[test]
    fn each_refusal_is_listed_once_and_all_are_counted() {
        let mut book = RefusalBook::default();
        let lines: Vec<String> = (0..100)
            .filter_map(|number| book.note(&not_asked(number % 50)))
            .collect();
        assert_eq!(lines.len(), MOST_LISTED + 1);
        assert_eq!(
            lines[0],
            "[sela] network: refused: host0.example.org:443 is not among the hosts of the job's network\n"
        );
        assert!(lines[MOST_LISTED].contains("counted, not listed"));
        assert_eq!(book.total, 100);
        assert!(book.last.is_some_and(|last| last.starts_with("host49")));
    }

    #[test]
    fn the_answer_is_whole_and_says_why() {
        for (refusal, status) in [
            (not_asked(1), "403 Forbidden"),
            (Refusal::Request(RequestError::TooLong), "431 "),
            (Refusal::Request(RequestError::NotConnect("GET".into())), "405 "),
            (Refusal::Slow { seconds: 10 }, "408 "),
            (Refusal::UsedUp { limit: Bytes(10) }, "403 "),
        ] {
            let answer = String::from_utf8(refusal.answer()).expect("text");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
            assert_eq!(body, format!("{refusal}\n"));
        }
    }
}
