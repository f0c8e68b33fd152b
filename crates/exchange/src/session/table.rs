//! The sessions of all nodes and their connections, owned by the floor's loop. A session outlives its connection, so that
//! a node that comes back goes on where it was; it is kept in memory only, and after a restart both sides begin a new one.

use crate::session::{Farewell, Outgoing};
use sela_market::input::ConnectionId;
use sela_protocol::card::CardDescription;
use sela_protocol::id::{GpuUuid, NodeId, OwnerId, SessionId};
use sela_protocol::node::{ExchangeMessage, HelloReply, NodeMessage, Offer, RefusalCode, Resume};
use sela_protocol::session::{Frame, SessionSide};
use sela_protocol::tenant::NodeView;
use std::collections::{BTreeMap, HashMap};
use tokio::sync::mpsc;

/// How many messages may wait for a node's acknowledgement.
const SESSION_BOUND: usize = 1_024;
/// Cards of one node that are kept to be shown; the floor lets none of a node that has more.
const MOST_CARDS: usize = 64;
/// How many texts may wait for a connection's socket: a whole session sent again, and some acknowledgements.
pub(crate) const OUTBOX: usize = SESSION_BOUND + 64;

/// All sessions and connections.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    nodes: BTreeMap<NodeId, NodeSession>,
    connections: HashMap<ConnectionId, Connection>,
    broken: Vec<ConnectionId>,
}

#[derive(Debug)]
struct NodeSession {
    owner: OwnerId,
    name: String,
    session: SessionId,
    /// `None` once it cannot go on: the next Hello begins a new one.
    side: Option<SessionSide<ExchangeMessage, NodeMessage>>,
    connection: Option<ConnectionId>,
    acknowledgement_due: bool,
    cards: Vec<CardDescription>,
    offers: BTreeMap<GpuUuid, Offer>,
}

#[derive(Debug)]
struct Connection {
    outgoing: mpsc::Sender<Outgoing>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The floor decides about its Hello.
    Greeting { name: String, resume: Option<Resume> },
    /// In.
    Admitted(NodeId),
}

impl SessionTable {
    /// Takes a connection whose Hello is being decided about, and says whether its session can go on.
    pub(crate) fn greet(
        &mut self,
        connection: ConnectionId,
        outgoing: mpsc::Sender<Outgoing>,
        name: String,
        resume: Option<Resume>,
        node: Option<NodeId>,
    ) -> bool {
        let resume = resume.filter(|resume| node.is_some_and(|node| self.can_resume(node, *resume)));
        let resumed = resume.is_some();
        let stage = Stage::Greeting { name, resume };
        self.connections.insert(connection, Connection { outgoing, stage });
        resumed
    }

    /// A connection that the floor counts as dead: nothing more that comes on it is taken, from this moment on. What came before
    /// in the same turn was; what comes after was not acknowledged, and its node sends it again.
    pub(crate) fn silence(&mut self, connection: ConnectionId) {
        if let Some(Stage::Admitted(node)) = self.connections.get(&connection).map(|known| &known.stage)
            && let Some(known) = self.nodes.get_mut(node)
            && known.connection == Some(connection)
        {
            known.connection = None;
        }
    }

    fn can_resume(&self, node: NodeId, resume: Resume) -> bool {
        self.nodes
            .get(&node)
            .filter(|known| known.session == resume.session)
            .and_then(|known| known.side.clone())
            .is_some_and(|mut side| side.resume(resume.received).is_ok())
    }

    /// Lets a connection in: Welcome, then what its node has not received yet. `fresh` names the session if it is new.
    pub(crate) fn admit(&mut self, connection: ConnectionId, node: NodeId, owner: OwnerId, fresh: SessionId) {
        let Some(Connection { stage, .. }) = self.connections.get_mut(&connection) else {
            return;
        };
        let Stage::Greeting { name, resume } = std::mem::replace(stage, Stage::Admitted(node)) else {
            return;
        };
        let known = self.nodes.entry(node).or_insert_with(|| NodeSession::new(owner, fresh));
        known.owner = owner;
        known.name = name;
        known.connection = Some(connection);
        let waiting = match resume {
            None => {
                known.session = fresh;
                known.side = Some(SessionSide::new(SESSION_BOUND));
                Vec::new()
            }
            Some(resume) => match known.side.as_mut().map(|side| side.resume(resume.received)) {
                Some(Ok(frames)) => frames,
                // Broken between the step and now: the floor counts on this session, so the node must come again.
                Some(Err(_)) | None => {
                    self.close(connection, Farewell::TooSlow);
                    self.broken.push(connection);
                    return;
                }
            },
        };
        let welcome = HelloReply::Welcome {
            node,
            owner,
            session: known.session,
            received: known.side.as_ref().map_or(0, SessionSide::received),
        };
        self.put(connection, Outgoing::Admitted(written(&welcome)));
        for frame in &waiting {
            self.put(connection, Outgoing::Text(written(frame)));
        }
    }

    /// Tells a connection why it is not let in.
    pub(crate) fn refuse(&mut self, connection: ConnectionId, code: RefusalCode, message: String) {
        let reply = HelloReply::Refused { code, message };
        self.put(connection, Outgoing::Text(written(&reply)));
        self.close(connection, Farewell::Refused(code));
    }

    /// Closes a connection; the session stays.
    pub(crate) fn close(&mut self, connection: ConnectionId, farewell: Farewell) {
        self.put(connection, Outgoing::Close(farewell));
        self.forget(connection);
    }

    /// Forgets a connection and says whether it was known.
    pub(crate) fn forget(&mut self, connection: ConnectionId) -> bool {
        let Some(Connection { stage, .. }) = self.connections.remove(&connection) else {
            return false;
        };
        if let Stage::Admitted(node) = stage
            && let Some(known) = self.nodes.get_mut(&node)
            && known.connection == Some(connection)
        {
            known.connection = None;
        }
        true
    }

    /// Takes a frame of an admitted connection: the message in it if it is new. A frame that breaks the protocol closes the
    /// connection and ends the session.
    pub(crate) fn receive(&mut self, connection: ConnectionId, frame: Frame<NodeMessage>) -> Option<NodeMessage> {
        let Some(Stage::Admitted(node)) = self.connections.get(&connection).map(|known| &known.stage) else {
            return None;
        };
        let known = self.nodes.get_mut(node)?;
        let side = known.side.as_mut().filter(|_| known.connection == Some(connection))?;
        known.acknowledgement_due |= frame.message.is_some();
        match side.receive(frame) {
            Ok(message) => {
                message.as_ref().inspect(|message| known.remember(message));
                message
            }
            Err(error) => {
                known.side = None;
                self.close(connection, Farewell::ProtocolBroken(error.to_string()));
                self.broken.push(connection);
                None
            }
        }
    }

    /// Sends within a node's session; kept there while the node is not connected. Where there is no session it is dropped:
    /// the floor says again what still matters after the next Hello.
    pub(crate) fn send(&mut self, node: NodeId, message: ExchangeMessage) {
        let Some(known) = self.nodes.get_mut(&node) else { return };
        let Some(side) = known.side.as_mut() else { return };
        match (side.send(message), known.connection) {
            (Ok(frame), Some(connection)) => {
                known.acknowledgement_due = false;
                let text = written(&frame);
                self.put(connection, Outgoing::Text(text));
            }
            (Ok(_), None) => {}
            (Err(error), connection) => {
                tracing::warn!(%node, %error, "session ended");
                known.side = None;
                if let Some(connection) = connection {
                    self.close(connection, Farewell::TooSlow);
                    self.broken.push(connection);
                }
            }
        }
    }

    /// Acknowledges what was received and not yet acknowledged by another frame. To be called after the commit.
    pub(crate) fn acknowledge(&mut self) {
        let due: Vec<(ConnectionId, String)> = self
            .nodes
            .values_mut()
            .filter_map(|known| {
                std::mem::take(&mut known.acknowledgement_due).then_some(())?;
                Some((known.connection?, written(&known.side.as_ref()?.acknowledge())))
            })
            .collect();
        for (connection, text) in due {
            self.put(connection, Outgoing::Text(text));
        }
    }

    /// Connections that this table closed by itself since the last call: the floor is to be told that they are gone.
    pub(crate) fn take_broken(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.broken)
    }

    /// Says farewell to everybody.
    pub(crate) fn stop(&mut self) {
        let connections: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for connection in connections {
            self.close(connection, Farewell::Stopping);
        }
    }

    /// The nodes that have connected since the start.
    pub(crate) fn views(&self) -> Vec<NodeView> {
        self.nodes
            .iter()
            .map(|(node, known)| NodeView {
                node: *node,
                owner: known.owner,
                name: known.name.clone(),
                connected: known.connection.is_some(),
                cards: known.cards.clone(),
                offers: known.offers.values().cloned().collect(),
            })
            .collect()
    }

    /// How many nodes are connected, and how many cards they offer now.
    pub(crate) fn connected(&self) -> (u64, u64) {
        let connected = || self.nodes.values().filter(|known| known.connection.is_some());
        let offers = connected().flat_map(|known| known.offers.values());
        (
            connected().count() as u64,
            offers.filter(|offer| offer.available).count() as u64,
        )
    }

    fn put(&mut self, connection: ConnectionId, outgoing: Outgoing) {
        let Some(known) = self.connections.get(&connection) else {
            return;
        };
        // The socket cannot keep up, or is gone and its farewell is on the way here. Dropping the sender ends it.
        if known.outgoing.try_send(outgoing).is_err() {
            self.forget(connection);
            self.broken.push(connection);
        }
    }
}

impl NodeSession {
    fn new(owner: OwnerId, session: SessionId) -> Self {
        Self {
            owner,
            name: String::new(),
            session,
            side: None,
            connection: None,
            acknowledgement_due: false,
            cards: Vec::new(),
            offers: BTreeMap::new(),
        }
    }

    /// For the operator's view only; what the market knows of a node is the floor's.
    fn remember(&mut self, message: &NodeMessage) {
        if let NodeMessage::Capability { cards, .. } = message {
            self.cards.clone_from(cards);
            self.cards.truncate(MOST_CARDS);
            self.offers
                .retain(|gpu, _| self.cards.iter().any(|card| card.uuid == *gpu));
        }
        if let NodeMessage::Offer(offer) = message
            && self.cards.iter().any(|card| card.uuid == offer.gpu)
        {
            self.offers.insert(offer.gpu.clone(), offer.clone());
        }
    }
}

fn written<T: serde::Serialize>(message: &T) -> String {
    // Our own words have string keys only, and numbers, texts and enums in them: they always write.
    serde_json::to_string(message).expect("the protocol's messages write as JSON")
}
