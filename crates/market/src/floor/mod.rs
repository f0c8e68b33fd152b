//! The whole exchange without sockets, disk, clock and randomness: one state, one [`Floor::step`]. The server, the simulator
//! and the tests run this very code.
//!
//! What lasts is `books::Books`, changed by records only; what is learned anew after a restart is [`live::Live`]. The inputs are
//! taken apart by subject: `ask` (people), `node` (connections), `lease` (one run of a job), `job` (what becomes of it), `tick`
//! (time), `matching` (who gets what). `view` only reads.

mod ask;
mod job;
mod lease;
mod live;
mod matching;
mod money;
mod node;
#[cfg(test)]
mod tests;
mod tick;
mod view;

use crate::books::Books;
use crate::effect::{Answer, Effect, Refusal};
use crate::input::{Entropy, Input, RequestId};
use crate::record::Record;
use crate::secret::{SecretKind, draw_secret};
use live::Live;
use sela_protocol::id::{IdSource, NodeId};
use sela_protocol::node::ExchangeMessage;
use sela_protocol::units::Now;
pub use view::{AwardView, LeaseAccess};

/// What an exchange is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloorConfig {
    /// The exchange's share of what is due, in hundredths of a percent, 0 to 10 000; more counts as 10 000. Applies to leases
    /// awarded from now on.
    pub fee_basis_points: u32,
    /// Whether simulated cards and weakly isolating nodes are admitted. Money of a lab is not money.
    pub lab: bool,
}

/// The market. Every change comes in by [`Floor::step`]; everything else only reads.
///
/// One task owns it. For each input it calls `step` and performs the effects in order. If a [`Effect::Commit`] cannot be made
/// durable, that task ends the process: [`Floor::restore`] then brings back the state that the store has.
#[derive(Debug, Clone)]
pub struct Floor {
    config: FloorConfig,
    books: Books,
    live: Live,
}

/// Why records do not rebuild a floor: the store was changed by something else, or is of a newer program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {number} does not follow from those before it: {problem}; the store was changed by something else, so restore it from a copy"
)]
pub struct RestoreError {
    /// Its place in the list, from 0.
    pub number: u64,
    /// What is wrong.
    pub problem: String,
}

impl Floor {
    /// A market in which nothing has happened yet.
    pub fn new(config: FloorConfig) -> Self {
        Self {
            config,
            books: Books::default(),
            live: Live::default(),
        }
    }

    /// The market as it was after the last of these records. Open leases live on: `now` counts as if each node had just been
    /// heard, so nobody is lost by the exchange's own absence, while the time that nodes may bill is only what renewals
    /// cover ([`crate::lease::Coverage`]). Nodes are not connected, and nothing is offered until they say so again.
    ///
    /// # Errors
    /// Where a record does not follow from those before it.
    pub fn restore(
        config: FloorConfig,
        now: Now,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RestoreError> {
        let mut books = Books::default();
        for (number, record) in (0..).zip(records) {
            books.apply(&record).map_err(|error| RestoreError {
                number,
                problem: error.to_string(),
            })?;
        }
        let live = Live::restored(&books, now);
        Ok(Self { config, books, live })
    }

    /// Takes one input and says what is to be done, in order. Total: no input panics, each unacceptable one is answered.
    /// Deterministic: the same state, time, randomness and input give the same effects.
    pub fn step(&mut self, now: Now, entropy: Entropy, input: Input) -> Vec<Effect> {
        let mut turn = Turn::new(now, entropy);
        self.live.is_up(now.boot_ms);
        match input {
            Input::Request { request, ask } => {
                let answer = self.ask(&mut turn, ask);
                turn.reply(request, answer);
            }
            Input::NodeHello {
                connection,
                key,
                invitation,
                name,
                resumed,
            } => self.hello(&mut turn, connection, key, invitation, &name, resumed),
            Input::NodeDisconnected { connection } => self.live.disconnect(connection),
            Input::NodeMessage { connection, message } => self.node_message(&mut turn, connection, message),
            Input::Tick => self.tick(&mut turn),
        }
        turn.into_effects()
    }

    /// Takes a record into the books and has it committed. `false` where the books refuse it, which is a defect of this crate:
    /// the books stay as they are, the operator is told, and the caller leaves off.
    #[must_use]
    fn record(&mut self, turn: &mut Turn, record: Record) -> bool {
        match self.books.apply(&record) {
            Ok(()) => {
                turn.records.push(record);
                true
            }
            Err(error) => {
                turn.effects.push(Effect::Defect {
                    message: format!("{error}, so this was not done: {record:?}"),
                });
                false
            }
        }
    }
}

/// One step's time and randomness, and what it has decided so far.
struct Turn {
    now: Now,
    ids: IdSource,
    entropy: Entropy,
    secrets: u64,
    records: Vec<Record>,
    effects: Vec<Effect>,
}

impl Turn {
    const fn new(now: Now, entropy: Entropy) -> Self {
        Self {
            now,
            ids: IdSource::new(now.utc_ms, entropy.0),
            entropy,
            secrets: 0,
            records: Vec::new(),
            effects: Vec::new(),
        }
    }

    fn secret(&mut self, kind: SecretKind) -> String {
        self.secrets += 1;
        draw_secret(self.entropy, kind, self.secrets)
    }

    fn send(&mut self, node: NodeId, message: ExchangeMessage) {
        self.effects.push(Effect::Send { node, message });
    }

    fn reply(&mut self, request: RequestId, answer: Result<Answer, Refusal>) {
        self.effects.push(Effect::Reply { request, answer });
    }

    fn into_effects(self) -> Vec<Effect> {
        let Self {
            records, mut effects, ..
        } = self;
        if !records.is_empty() {
            effects.insert(0, Effect::Commit(records));
        }
        effects
    }
}
