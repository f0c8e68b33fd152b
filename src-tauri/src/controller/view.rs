//! What is known of the agent: its last snapshot with every event since, or why there is none. Only kept here; what it means is
//! named in `condition`.

use crate::trouble::Trouble;
use sela_protocol::local::{Event, LOCAL_PROTOCOL, Snapshot};

/// How the line to the agent stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// Nobody has answered yet.
    Asking,
    /// The agent as it is.
    Live(Box<Snapshot>),
    /// Not reached.
    Lost(Trouble),
    /// It speaks another version of the local interface: its events are not understood.
    OtherVersion {
        /// The agent's version, for people.
        agent: String,
        /// Whether it is the newer one.
        newer: bool,
    },
}

impl Line {
    /// Takes in one event. Without a snapshot before, only a snapshot says anything.
    pub(crate) fn hear(&mut self, event: Event) {
        if let Event::Snapshot(snapshot) = event {
            *self = Self::from_snapshot(snapshot);
            return;
        }
        let Self::Live(snapshot) = self else {
            return;
        };
        match event {
            Event::Card(card) => {
                let known = snapshot
                    .cards
                    .iter_mut()
                    .find(|known| known.description.uuid == card.description.uuid);
                match known {
                    Some(known) => *known = *card,
                    None => snapshot.cards.push(*card),
                }
            }
            Event::Market { link } => snapshot.market = link,
            Event::Pause { pause } => snapshot.pause = pause,
            Event::Settings { problem } => snapshot.settings_problem = problem,
            Event::Signals(signals) => snapshot.signals = *signals,
            Event::Earned(earned) => snapshot.earned = earned,
            Event::Snapshot(_) | Event::Yielded(_) | Event::Unknown => {}
        }
    }

    fn from_snapshot(snapshot: Box<Snapshot>) -> Self {
        if snapshot.protocol == LOCAL_PROTOCOL {
            return Self::Live(snapshot);
        }
        Self::OtherVersion {
            agent: snapshot.agent_version,
            newer: snapshot.protocol > LOCAL_PROTOCOL,
        }
    }
}
