//! The one task that owns the floor. It takes what has come in, steps the floor, commits all records of the turn at once,
//! and only then sends, replies and acknowledges. Nothing is decided here: decisions are the floor's.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

use crate::door::{Along, Arrival, AskError, Inside, Once, Scene};
use crate::keys;
use crate::session::table::SessionTable;
use crate::session::{Farewell, Outgoing};
use crate::store::Store;
use crate::store::confidential::Kept;
use crate::store::records::{self, Batch, Beside};
use crate::store::submissions::Submission;
use crate::vault::Vault;
use anyhow::Context;
use ed25519_dalek::SigningKey;
use sela_market::effect::{Answer, Effect};
use sela_market::floor::Floor;
use sela_market::input::{Ask, ConnectionId, Entropy, Input, RequestId};
use sela_market::record::Record;
use sela_protocol::envelope::Envelope;
use sela_protocol::id::{IdSource, JobId, TenantId};
use sela_protocol::node::{ExchangeMessage, Hello};
use sela_protocol::units::Now;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

/// How often time passes for the floor (market.md §2).
const TICK: Duration = Duration::from_millis(250);
/// Most arrivals that share one commit.
const TURN: usize = 256;

type Reply = oneshot::Sender<Result<Answer, AskError>>;

/// The loop and all that it owns.
pub(crate) struct FloorLoop {
    floor: Floor,
    sessions: SessionTable,
    store: Store,
    key: SigningKey,
    submissions: HashMap<(TenantId, String), (String, JobId)>,
    vault: Vault,
    requests: u64,
}

/// What is collected in one turn.
#[derive(Default)]
struct Turn {
    batch: Batch,
    deeds: Vec<Deed>,
    waiting: HashMap<RequestId, Reply>,
    stop: bool,
    visible: bool,
}

/// What is to be done after the turn's commit, in order.
enum Deed {
    Effect(Effect),
    Reply(Reply, Result<Answer, AskError>),
    Look(Box<dyn FnOnce(&Scene<'_>) + Send>),
}

impl FloorLoop {
    /// Takes over a floor that was restored from the store.
    pub(crate) fn new(floor: Floor, store: Store, key: SigningKey, submissions: Vec<Submission>, vault: Vault) -> Self {
        Self {
            floor,
            sessions: SessionTable::default(),
            store,
            key,
            submissions: submissions
                .into_iter()
                .map(|known| ((known.tenant, known.idempotency_key), (known.fingerprint, known.job)))
                .collect(),
            vault,
            requests: 0,
        }
    }

    /// Runs until told to stop.
    ///
    /// # Errors
    /// Where the store or the system's randomness fails. The process must then end: the floor in memory is ahead of the
    /// store. Nothing that depends on what was not committed has been said to anybody.
    pub(crate) async fn run(mut self, mut inside: Inside) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut arrivals = Vec::new();
            tokio::select! {
                _ = ticks.tick() => {}
                count = inside.arrivals.recv_many(&mut arrivals, TURN) => if count == 0 { return Ok(()) },
            }
            if self.turn(arrivals).await?.then_changed(&inside) {
                self.sessions.stop();
                return Ok(());
            }
        }
    }

    /// One turn. No arrivals: a tick.
    async fn turn(&mut self, arrivals: Vec<Arrival>) -> anyhow::Result<TurnEnd> {
        let now = sela_clock::now();
        let mut turn = Turn::default();
        for connection in self.sessions.take_broken() {
            self.step(now, Input::NodeDisconnected { connection }, &mut turn)?;
        }
        if arrivals.is_empty() {
            self.step(now, Input::Tick, &mut turn)?;
        }
        for arrival in arrivals {
            self.arrive(now, arrival, &mut turn)?;
        }
        if !turn.batch.is_empty() {
            let batch = std::mem::take(&mut turn.batch);
            self.store
                .run(move |connection| records::commit(connection, &batch, now.utc_ms))
                .await
                .context(
                    "what happened could not be stored, so nothing of it was acknowledged and the exchange stops",
                )?;
        }
        for deed in std::mem::take(&mut turn.deeds) {
            self.perform(now, deed, &mut turn)?;
        }
        self.sessions.acknowledge();
        Ok(TurnEnd {
            stop: turn.stop,
            visible: turn.visible,
        })
    }

    fn arrive(&mut self, now: Now, arrival: Arrival, turn: &mut Turn) -> anyhow::Result<()> {
        match arrival {
            Arrival::Ask { ask, along, reply } => self.ask(now, ask, along, reply, turn),
            Arrival::Look(look) => {
                turn.deeds.push(Deed::Look(look));
                Ok(())
            }
            Arrival::Hello {
                connection,
                hello,
                outgoing,
            } => self.hello(now, connection, *hello, outgoing, turn),
            Arrival::Frame { connection, frame } => match self.sessions.receive(connection, *frame) {
                Some(message) => self.step(now, Input::NodeMessage { connection, message }, turn),
                None => Ok(()),
            },
            Arrival::Gone { connection } => {
                if self.sessions.forget(connection) {
                    self.step(now, Input::NodeDisconnected { connection }, turn)?;
                }
                Ok(())
            }
            Arrival::Stop => {
                turn.stop = true;
                Ok(())
            }
        }
    }

    fn ask(&mut self, now: Now, ask: Ask, along: Option<Along>, reply: Reply, turn: &mut Turn) -> anyhow::Result<()> {
        if let Some(Along::Submission {
            tenant,
            once: Some(once),
            ..
        }) = &along
            && let Some((known, job)) = self.submissions.get(&(*tenant, once.idempotency_key.clone()))
        {
            let answer = if *known == once.fingerprint {
                Ok(Answer::Submitted(sela_protocol::tenant::Submitted { job: *job }))
            } else {
                Err(AskError::KeyUsed)
            };
            turn.deeds.push(Deed::Reply(reply, answer));
            return Ok(());
        }
        self.requests += 1;
        let request = RequestId(self.requests);
        let first_of_step = turn.deeds.len();
        self.step(now, Input::Request { request, ask }, turn)?;
        let granted = turn.deeds[first_of_step..]
            .iter()
            .find_map(|deed| granted(deed, request));
        if let (Some(answer), Some(along)) = (granted, along) {
            let beside = self.beside(answer.clone(), along)?;
            turn.batch.beside.extend(beside);
        }
        turn.waiting.insert(request, reply);
        Ok(())
    }

    /// What is committed along with a granted request.
    fn beside(&mut self, answer: Answer, along: Along) -> anyhow::Result<Vec<Beside>> {
        match (along, answer) {
            (
                Along::Submission {
                    tenant,
                    once,
                    confidential,
                },
                Answer::Submitted(submitted),
            ) => {
                let job = submitted.job;
                let sealed = self.vault.take(job, *confidential)?;
                let mut beside = vec![Beside::Confidential(Kept { job, sealed })];
                beside.extend(once.map(|once| self.remember(tenant, job, once)));
                Ok(beside)
            }
            (Along::BlobOwner(owner), _) => Ok(vec![Beside::BlobOwner(owner)]),
            (Along::Submission { .. }, _) => Ok(Vec::new()),
        }
    }

    fn remember(&mut self, tenant: TenantId, job: JobId, once: Once) -> Beside {
        let Once {
            idempotency_key,
            fingerprint,
        } = once;
        self.submissions
            .insert((tenant, idempotency_key.clone()), (fingerprint.clone(), job));
        Beside::Submission(Submission {
            tenant,
            idempotency_key,
            fingerprint,
            job,
        })
    }

    /// Jobs that end in these records need their secrets no more.
    fn forget(&mut self, records: &[Record], turn: &mut Turn) -> anyhow::Result<()> {
        for record in records {
            if let Record::JobEnded { job, .. } = record
                && let Some(sealed) = self.vault.end(*job)?
            {
                let kept = Kept { job: *job, sealed };
                turn.batch.beside.push(Beside::Confidential(kept));
            }
        }
        Ok(())
    }

    fn hello(
        &mut self,
        now: Now,
        connection: ConnectionId,
        hello: Hello,
        outgoing: mpsc::Sender<Outgoing>,
        turn: &mut Turn,
    ) -> anyhow::Result<()> {
        let node = self.floor.node_by_key(&hello.key);
        let resumed = self
            .sessions
            .greet(connection, outgoing, hello.name.clone(), hello.resume, node);
        let input = Input::NodeHello {
            connection,
            key: hello.key,
            invitation: hello.invitation,
            name: hello.name,
            resumed,
        };
        self.step(now, input, turn)
    }

    fn step(&mut self, now: Now, input: Input, turn: &mut Turn) -> anyhow::Result<()> {
        turn.visible |= input != Input::Tick;
        let entropy = Entropy(keys::random_bytes()?);
        for effect in self.floor.step(now, entropy, input) {
            turn.visible = true;
            if let Effect::Close { connection } = &effect {
                // Not only once the turn is committed: the floor hears nothing more of this connection, so nothing more may count as
                // received on it.
                self.sessions.silence(*connection);
            }
            if let Effect::Commit(records) = effect {
                self.forget(&records, turn)?;
                turn.batch.records.extend(records);
            } else {
                turn.deeds.push(Deed::Effect(effect));
            }
        }
        Ok(())
    }

    fn perform(&mut self, now: Now, deed: Deed, turn: &mut Turn) -> anyhow::Result<()> {
        let effect = match deed {
            Deed::Effect(effect) => effect,
            Deed::Reply(reply, answer) => {
                // Nobody waits any more: what was asked is done all the same.
                let _ = reply.send(answer);
                return Ok(());
            }
            Deed::Look(look) => {
                look(&Scene {
                    floor: &self.floor,
                    sessions: &self.sessions,
                    now,
                });
                return Ok(());
            }
        };
        match effect {
            // Taken into the batch by `step`.
            Effect::Commit(_) => {}
            Effect::Send { node, message } => {
                let message = self.with_confidential(message);
                self.sessions.send(node, message);
            }
            Effect::SendReceipt { node, receipt } => match Envelope::seal(&receipt, &self.key) {
                Ok(signed) => self.sessions.send(node, ExchangeMessage::Receipt(signed)),
                Err(error) => tracing::error!(%error, lease = %receipt.lease, "a receipt could not be signed"),
            },
            Effect::Admit {
                connection,
                node,
                owner,
            } => {
                let fresh = IdSource::new(now.utc_ms, keys::random_bytes()?).draw();
                tracing::info!(%node, %owner, "node connected");
                self.sessions.admit(connection, node, owner, fresh);
            }
            Effect::Refuse {
                connection,
                code,
                message,
            } => {
                tracing::warn!(?code, message, "node refused");
                self.sessions.refuse(connection, code, message);
            }
            Effect::Close { connection } => self.sessions.close(connection, Farewell::Replaced),
            Effect::Reply { request, answer } => {
                if let Some(reply) = turn.waiting.remove(&request) {
                    let _ = reply.send(answer.map_err(AskError::Refused));
                }
            }
            Effect::Defect { message } => tracing::error!(message, "defect: the books were not changed; report this"),
        }
        Ok(())
    }
}

impl FloorLoop {
    /// What the market's rules need not know goes into an award on its way out.
    fn with_confidential(&self, message: ExchangeMessage) -> ExchangeMessage {
        match message {
            ExchangeMessage::Award(mut award) => {
                award.confidential = self.vault.of(award.job);
                ExchangeMessage::Award(award)
            }
            other @ (ExchangeMessage::Renew { .. }
            | ExchangeMessage::Cancel { .. }
            | ExchangeMessage::Receipt(_)
            | ExchangeMessage::Refused { .. }
            | ExchangeMessage::Time { .. }
            | ExchangeMessage::Unknown) => other,
        }
    }
}

fn granted(deed: &Deed, request: RequestId) -> Option<&Answer> {
    match deed {
        Deed::Effect(Effect::Reply {
            request: answered,
            answer,
        }) if *answered == request => answer.as_ref().ok(),
        Deed::Effect(_) | Deed::Reply(..) | Deed::Look(_) => None,
    }
}

/// How a turn ended.
struct TurnEnd {
    stop: bool,
    visible: bool,
}

impl TurnEnd {
    /// Tells who watches, and whether the loop is to stop.
    fn then_changed(self, inside: &Inside) -> bool {
        if self.visible {
            inside.changed.send_modify(|version| *version += 1);
        }
        self.stop
    }
}
