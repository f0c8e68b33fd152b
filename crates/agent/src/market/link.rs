//! Keeps the one session with the exchange: connects, says hello, resumes, and connects again with growing pauses when it
//! breaks. A frame is acknowledged only when the loop says that it was acted on and what depends on it is on the disk.

use super::conversation::{Broken, Conversation};
use crate::keys::{Acquaintance, ExchangeKeys};
use crate::settings::url_of_market::MarketUrl;
use ed25519_dalek::SigningKey;
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::{NodeId, OwnerId, SessionId};
use sela_protocol::local::MarketLink;
use sela_protocol::node::{ExchangeMessage, Greeting, Hello, HelloReply, NodeMessage, PROTOCOL, RefusalCode, Resume};
use sela_protocol::session::{Frame, SessionSide};
use std::time::Duration;
use tokio::sync::mpsc;

/// Where nodes connect.
const PATH: &str = "/v1/nodes/session";
/// How much may wait for the exchange's acknowledgement; more, and a new session begins with the node's whole state.
const SESSION_BOUND: usize = 1_024;
/// Pauses between tries: doubled from the first to the longest, each with jitter, so that nodes do not come back as one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// After a refusal only the operator or the owner can help; whether one did is looked at this often.
const PAUSE_WHEN_REFUSED: Duration = Duration::from_secs(300);

/// Whom to connect to and as whom.
#[derive(Debug, Clone)]
pub(crate) struct LinkSettings {
    /// The exchange.
    pub(crate) url: MarketUrl,
    /// Admits an unknown key.
    pub(crate) invitation: Option<String>,
    /// The node's name, for people.
    pub(crate) name: String,
    /// The node's key.
    pub(crate) key: SigningKey,
    /// The exchanges' keys.
    pub(crate) known: ExchangeKeys,
    /// Whether this agent takes part in labs.
    pub(crate) lab: bool,
    /// How long the exchange may be silent: [`SILENCE`].
    pub(crate) silence: Duration,
}

/// The exchange pings every few seconds; a connection on which nothing came for so long is dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(20);

/// What the link reports.
#[derive(Debug)]
pub(crate) enum LinkNews {
    /// How the link is.
    State(MarketLink),
    /// A session is open.
    Session {
        /// Which.
        session: SessionId,
        /// Who this machine is there.
        node: NodeId,
        /// The exchange's key.
        exchange: PublicKey,
        /// Whether an earlier session of this link goes on.
        resumed: bool,
    },
    /// The exchange said something new. To be acknowledged by [`Link::acted_on`].
    Message {
        /// In which session.
        session: SessionId,
        /// Its number there.
        number: u64,
        /// What.
        message: Box<ExchangeMessage>,
    },
}

#[derive(Debug)]
pub(super) enum Order {
    Say {
        session: SessionId,
        message: Box<NodeMessage>,
    },
    ActedOn {
        session: SessionId,
        number: u64,
    },
}

/// The loop's end of the link. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Link {
    orders: Option<mpsc::UnboundedSender<Order>>,
    task: tokio::task::JoinHandle<()>,
}

/// How long the last words may take when the agent leaves.
const FAREWELL: Duration = Duration::from_secs(2);

impl Link {
    /// Starts to connect; what happens goes to `news`.
    pub(crate) fn start(settings: LinkSettings, news: mpsc::Sender<LinkNews>) -> Self {
        // Unbounded, but emptied at once into the session, whose bound then ends it.
        let (orders, received) = mpsc::unbounded_channel();
        let keeper = Keeper {
            settings,
            orders: received,
            news,
            session: None,
            failures: 0,
        };
        let task = tokio::spawn(keeper.keep());
        Self {
            orders: Some(orders),
            task,
        }
    }

    /// Says something in a session. In another session than the present one it is dropped: what still matters was said again
    /// when that one began.
    pub(crate) fn say(&self, session: SessionId, message: NodeMessage) {
        self.order(Order::Say {
            session,
            message: Box::new(message),
        });
    }

    /// A message was acted on and everything that depends on it is on the disk.
    pub(crate) fn acted_on(&self, session: SessionId, number: u64) {
        self.order(Order::ActedOn { session, number });
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The task ends only with this handle.
            drop(orders.send(order));
        }
    }

    /// Sends what was said before, as far as the exchange takes it within two seconds, and closes the connection. What was not
    /// sent is in the store and is said again in the next session.
    pub(crate) async fn close(mut self) {
        self.orders = None;
        // Whether it ended by itself or not: dropping the handle aborts it.
        drop(tokio::time::timeout(FAREWELL, &mut self.task).await);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A session as this side knows it; outlives its connections.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) side: SessionSide<NodeMessage, ExchangeMessage>,
    /// The last frame that was acted on: what is acknowledged.
    pub(super) acted_on: u64,
}

impl Session {
    fn new(id: SessionId) -> Self {
        Self {
            id,
            side: SessionSide::new(SESSION_BOUND),
            acted_on: 0,
        }
    }

    /// A frame as it goes out: it acknowledges what was acted on, not what was merely received.
    pub(super) fn outgoing(&self, frame: Frame<NodeMessage>) -> Frame<NodeMessage> {
        Frame {
            ack: self.acted_on,
            ..frame
        }
    }
}

struct Keeper {
    settings: LinkSettings,
    orders: mpsc::UnboundedReceiver<Order>,
    news: mpsc::Sender<LinkNews>,
    session: Option<Session>,
    failures: u32,
}

/// Why a try ended.
enum Ended {
    /// Try again soon.
    Broken(String),
    /// Only a person can help.
    Refused(String),
    /// The loop is gone.
    Unwanted,
}

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken.0)
    }
}

impl Keeper {
    async fn keep(mut self) {
        let url = self.settings.url.to_string();
        let mut last_error = None;
        loop {
            let connecting = MarketLink::Connecting {
                url: url.clone(),
                last_error: last_error.take(),
            };
            if !self.tell(LinkNews::State(connecting)).await {
                return;
            }
            match self.try_once().await {
                Ended::Broken(why) => {
                    tracing::info!(%url, why, "the exchange is not reached; it will be tried again");
                    let connecting = MarketLink::Connecting {
                        url: url.clone(),
                        last_error: Some(why.clone()),
                    };
                    if !self.tell(LinkNews::State(connecting)).await {
                        return;
                    }
                    last_error = Some(why);
                    let pause = pause(self.failures);
                    self.failures = self.failures.saturating_add(1);
                    if !self.rest(pause).await {
                        return;
                    }
                }
                Ended::Refused(message) => {
                    tracing::warn!(%url, message, "the exchange does not take this machine");
                    self.session = None;
                    let refused = MarketLink::Refused {
                        url: url.clone(),
                        message,
                    };
                    if !self.tell(LinkNews::State(refused)).await {
                        return;
                    }
                    if !self.rest(PAUSE_WHEN_REFUSED).await {
                        return;
                    }
                }
                Ended::Unwanted => return,
            }
        }
    }

    async fn tell(&self, news: LinkNews) -> bool {
        self.news.send(news).await.is_ok()
    }

    async fn try_once(&mut self) -> Ended {
        match self.connect().await {
            Ok(mut conversation) => match self.talk(&mut conversation).await {
                Ok(()) => Ended::Unwanted,
                Err(ended) => ended,
            },
            Err(ended) => ended,
        }
    }

    /// Connects, says hello and opens or resumes the session.
    async fn connect(&mut self) -> Result<Conversation, Ended> {
        let mut conversation = Conversation::connect(&self.settings.url.socket(PATH), self.settings.silence).await?;
        let greeting: Greeting = conversation.read().await?;
        self.check(&greeting)?;
        let asked = self.session.as_ref().map(|session| Resume {
            session: session.id,
            received: session.acted_on,
        });
        let hello = Hello {
            protocol: PROTOCOL,
            nonce: greeting.nonce.clone(),
            exchange: greeting.exchange,
            key: PublicKey::of(&self.settings.key),
            invitation: self.settings.invitation.clone(),
            name: self.settings.name.clone(),
            resume: asked,
        };
        let sealed = Envelope::seal(&hello, &self.settings.key).map_err(|error| Ended::Broken(error.to_string()))?;
        conversation.write(&sealed).await?;
        match conversation.read().await? {
            HelloReply::Welcome {
                node,
                owner,
                session,
                received,
            } => {
                self.welcome(&mut conversation, &greeting, node, owner, session, received)
                    .await?;
                Ok(conversation)
            }
            HelloReply::Refused { code, message } => Err(match code {
                // The other connection may be this node's own, not yet known to be dead.
                RefusalCode::IdentityInUse | RefusalCode::ProtocolBroken => {
                    self.session = None;
                    Ended::Broken(message)
                }
                RefusalCode::BadSignature
                | RefusalCode::NotInvited
                | RefusalCode::ProtocolVersion
                | RefusalCode::Unknown => Ended::Refused(message),
            }),
        }
    }

    fn check(&self, greeting: &Greeting) -> Result<(), Ended> {
        if !(greeting.protocol_from..=greeting.protocol_to).contains(&PROTOCOL) {
            return Err(Ended::Refused(format!(
                "the exchange speaks protocol {} to {}, this agent {PROTOCOL}; update the older of the two",
                greeting.protocol_from, greeting.protocol_to
            )));
        }
        if greeting.lab && !self.settings.lab {
            return Err(Ended::Refused(
                "this exchange is a LAB: its money has no worth; to take part all the same, start the agent with --lab"
                    .to_owned(),
            ));
        }
        let known = &self.settings.known;
        match known.meet(&self.settings.url.to_string(), greeting.exchange) {
            Ok(Acquaintance::Known) => Ok(()),
            Ok(Acquaintance::Changed { known: before }) => Err(Ended::Refused(format!(
                "the exchange shows another key ({}) than before ({before}): it may be somebody else. If its operator \
                 confirms the new key, remove this exchange from {}",
                greeting.exchange,
                known.path().display()
            ))),
            Err(error) => Err(Ended::Broken(format!("{error:#}"))),
        }
    }

    async fn welcome(
        &mut self,
        conversation: &mut Conversation,
        greeting: &Greeting,
        node: NodeId,
        owner: OwnerId,
        id: SessionId,
        received: u64,
    ) -> Result<(), Ended> {
        tracing::info!(exchange = %greeting.name, %node, %owner, session = %id, "connected");
        let resumed = match self.session.as_mut().filter(|session| session.id == id) {
            Some(session) => match session.side.resume(received) {
                Ok(frames) => {
                    let frames: Vec<_> = frames.into_iter().map(|frame| session.outgoing(frame)).collect();
                    for frame in &frames {
                        conversation.write(frame).await?;
                    }
                    true
                }
                Err(error) => {
                    // The next hello asks for a new session.
                    self.session = None;
                    return Err(Ended::Broken(error.to_string()));
                }
            },
            None => {
                self.session = Some(Session::new(id));
                false
            }
        };
        let session = LinkNews::Session {
            session: id,
            node,
            exchange: greeting.exchange,
            resumed,
        };
        let connected = MarketLink::Connected {
            url: self.settings.url.to_string(),
            exchange: greeting.name.clone(),
            node,
        };
        if self.tell(LinkNews::State(connected)).await && self.tell(session).await {
            self.failures = 0;
            return Ok(());
        }
        Err(Ended::Unwanted)
    }

    /// Until the connection breaks (`Err`) or the loop is gone (`Ok`).
    async fn talk(&mut self, conversation: &mut Conversation) -> Result<(), Ended> {
        loop {
            let Some(session) = self.session.as_mut() else {
                return Err(Ended::Broken("the session is over".to_owned()));
            };
            tokio::select! {
                biased;
                order = self.orders.recv() => {
                    let Some(order) = order else { return Ok(()) };
                    match take(session, order) {
                        Ok(Some(frame)) => conversation.write(&frame).await?,
                        Ok(None) => {}
                        Err(why) => {
                            self.session = None;
                            return Err(Ended::Broken(why));
                        }
                    }
                }
                frame = conversation.read::<Frame<ExchangeMessage>>() => {
                    let frame = frame?;
                    let number = frame.seq;
                    match session.side.receive(frame) {
                        Ok(Some(message)) => {
                            let session = session.id;
                            let message = Box::new(message);
                            let news = LinkNews::Message { session, number, message };
                            if self.news.send(news).await.is_err() {
                                return Ok(());
                            }
                        }
                        Ok(None) => {}
                        Err(error) => {
                            self.session = None;
                            return Err(Ended::Broken(error.to_string()));
                        }
                    }
                }
            }
        }
    }

    /// Waits, and keeps what is said meanwhile for when the session is resumed. `false`: the loop is gone.
    async fn rest(&mut self, pause: Duration) -> bool {
        let sleep = tokio::time::sleep(pause);
        let mut sleep = std::pin::pin!(sleep);
        loop {
            tokio::select! {
                () = &mut sleep => return true,
                order = self.orders.recv() => {
                    let Some(order) = order else { return false };
                    if let Some(session) = self.session.as_mut()
                        && take(session, order).is_err()
                    {
                        self.session = None;
                    }
                }
            }
        }
    }
}

/// The frame to send for an order; nothing for an order of another session.
fn take(session: &mut Session, order: Order) -> Result<Option<Frame<NodeMessage>>, String> {
    match order {
        Order::Say { session: of, message } if of == session.id => {
            let frame = session.side.send(*message).map_err(|error| error.to_string())?;
            Ok(Some(session.outgoing(frame)))
        }
        Order::ActedOn { session: of, number } if of == session.id => {
            session.acted_on = session.acted_on.max(number);
            Ok(Some(session.outgoing(session.side.acknowledge())))
        }
        Order::Say { .. } | Order::ActedOn { .. } => Ok(None),
    }
}

/// Half to whole of a pause that doubles with each failure.
fn pause(failures: u32) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    // Without randomness nodes only come back a little more together.
    let share = getrandom::u32().unwrap_or(u32::MAX);
    whole / 2 + (whole / 2).mul_f64(f64::from(share) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_never_stay_away_longer() {
        for (failures, whole_ms) in [(0, 500), (1, 1_000), (6, 32_000), (7, 60_000), (4_000_000, 60_000)] {
            let pause = pause(failures).as_millis();
            assert!((whole_ms / 2..=whole_ms).contains(&pause), "{failures}: {pause}");
        }
    }
}
