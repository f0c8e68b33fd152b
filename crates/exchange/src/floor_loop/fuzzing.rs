//! The nodes' side of the exchange for `tests/fuzz`: what a socket hands over, taken by the real checks, the real table of sessions and
//! the real floor, without socket and disk. Compiled with the feature `fuzzing` alone; decides nothing.

use super::{Deed, FloorLoop, Turn};
use crate::door::Arrival;
use crate::session::Outgoing;
use crate::session::socket::{check_hello, read_frame};
use crate::session::table::OUTBOX;
use crate::store::{Store, StoreThread};
use crate::vault::{Vault, VaultKey};
use anyhow::bail;
use ed25519_dalek::SigningKey;
use sela_market::effect::{Answer, Effect};
use sela_market::floor::{Floor, FloorConfig};
use sela_market::input::{Ask, ConnectionId, Entropy, Input, RequestId};
use sela_market::ledger::check;
use sela_market::record::Record;
use sela_protocol::confidential::SealingKey;
use sela_protocol::envelope::PublicKey;
use sela_protocol::job::JobSpec;
use sela_protocol::money::Micros;
use sela_protocol::node::RefusalCode;
use sela_protocol::units::{BootMs, Now, UtcMs};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use tokio::sync::mpsc;

const CONFIG: FloorConfig = FloorConfig {
    fee_basis_points: 1_000,
    lab: true,
};
const BEGIN: Now = Now {
    utc_ms: UtcMs(1_700_000_000_000),
    boot_ms: BootMs(1_000_000),
};

/// An exchange with a tenant's jobs in its queue and an invitation for one node, from which desks are opened.
pub struct Lab {
    floor: Floor,
    records: Vec<Record>,
    invitation: String,
    // What a floor's loop must have; nothing is ever stored.
    store: Store,
    _thread: StoreThread,
}

/// One such exchange, to which nodes speak.
pub struct Desk {
    floor_loop: FloorLoop,
    records: Vec<Record>,
    now: Now,
    connections: BTreeMap<ConnectionId, mpsc::Receiver<Outgoing>>,
    known: u64,
}

impl Lab {
    /// Opens one; `folder` takes the store's file.
    ///
    /// # Errors
    /// Where the store cannot be opened, or the market refuses one of the jobs.
    pub fn open(folder: &Path, jobs: &[JobSpec]) -> anyhow::Result<Self> {
        let (store, thread) = Store::open(folder, true)?;
        let mut lab = Self {
            floor: Floor::new(CONFIG),
            records: Vec::new(),
            invitation: String::new(),
            store,
            _thread: thread,
        };
        let name = || "somebody".to_owned();
        let Answer::TenantCreated(created) = lab.ask(Ask::CreateTenant { name: name() })? else {
            bail!("a tenant was asked for");
        };
        let tenant = created.tenant;
        let deposit = Ask::Deposit {
            tenant,
            amount: Micros::from_units(100),
            idempotency_key: "first".to_owned(),
        };
        lab.ask(deposit)?;
        for spec in jobs {
            let spec = Box::new(spec.clone());
            lab.ask(Ask::SubmitJob { tenant, spec })?;
        }
        let Answer::OwnerInvited(invited) = lab.ask(Ask::InviteOwner { name: name() })? else {
            bail!("an owner was asked for");
        };
        lab.invitation = invited.invitation;
        Ok(lab)
    }

    fn ask(&mut self, ask: Ask) -> anyhow::Result<Answer> {
        // Each step draws ids from another randomness.
        let entropy = Entropy([self.records.len() as u8; 32]);
        let request = RequestId(1);
        for effect in self.floor.step(BEGIN, entropy, Input::Request { request, ask }) {
            if let Effect::Commit(records) = effect {
                self.records.extend(records);
            } else if let Effect::Reply { answer, .. } = effect {
                return Ok(answer?);
            }
        }
        bail!("every request is answered")
    }

    /// The invitation that one node may come with.
    pub fn invitation(&self) -> &str {
        &self.invitation
    }

    /// A fresh copy of this exchange.
    pub fn desk(&self) -> Desk {
        let key = signing_key();
        let vault = Vault::new(VaultKey::new(SealingKey::from_bytes([8; 32])), HashMap::new());
        Desk {
            floor_loop: FloorLoop::new(self.floor.clone(), self.store.clone(), key, Vec::new(), vault),
            records: self.records.clone(),
            now: BEGIN,
            connections: BTreeMap::new(),
            known: 0,
        }
    }
}

/// The exchange's own.
fn signing_key() -> SigningKey {
    SigningKey::from_bytes(&[9; 32])
}

impl Desk {
    /// The exchange's key, which a Hello must name.
    pub fn key(&self) -> PublicKey {
        PublicKey::of(&signing_key())
    }

    /// What comes first on a new connection that was greeted with `nonce`: its number where the Hello was taken to the floor.
    ///
    /// # Errors
    /// As the node is told.
    ///
    /// # Panics
    /// If the exchange calls what came of it a defect of its own.
    pub fn hello(&mut self, text: &str, nonce: &str) -> Result<u64, (RefusalCode, String)> {
        let hello = check_hello(text, nonce, self.key()).map_err(|refused| (refused.code, refused.message))?;
        self.known += 1;
        let connection = ConnectionId(self.known);
        let (outgoing, outbox) = mpsc::channel(OUTBOX);
        self.connections.insert(connection, outbox);
        self.take(Arrival::Hello {
            connection,
            hello: Box::new(hello),
            outgoing,
        });
        Ok(self.known)
    }

    /// A text of a connection.
    ///
    /// # Errors
    /// Why the connection is closed, as the node is told.
    ///
    /// # Panics
    /// As [`Desk::hello`].
    pub fn frame(&mut self, connection: u64, text: &str) -> Result<(), String> {
        let frame = Box::new(read_frame(text).map_err(|farewell| farewell.reason())?);
        let connection = ConnectionId(connection);
        self.take(Arrival::Frame { connection, frame });
        Ok(())
    }

    /// The connection is gone.
    ///
    /// # Panics
    /// As [`Desk::hello`].
    pub fn gone(&mut self, connection: u64) {
        let connection = ConnectionId(connection);
        self.connections.remove(&connection);
        self.take(Arrival::Gone { connection });
    }

    /// Time passes.
    ///
    /// # Panics
    /// As [`Desk::hello`].
    pub fn pass(&mut self, millis: u32) {
        self.now.boot_ms.0 += u64::from(millis);
        self.now.utc_ms.0 += i64::from(millis);
        let mut turn = Turn::default();
        let stepped = self.floor_loop.step(self.now, Input::Tick, &mut turn);
        stepped.expect("the system has randomness");
        self.finish(turn);
    }

    /// What was said to a connection since it was last asked.
    pub fn heard(&mut self, connection: u64) -> Vec<String> {
        let Some(outbox) = self.connections.get_mut(&ConnectionId(connection)) else {
            return Vec::new();
        };
        std::iter::from_fn(|| outbox.try_recv().ok())
            .map(|outgoing| match outgoing {
                Outgoing::Admitted(text) | Outgoing::Text(text) => text,
                Outgoing::Close(farewell) => farewell.reason(),
            })
            .collect()
    }

    /// Holds the books against all that was committed: money neither came nor went, and a restart would bring back a floor.
    ///
    /// # Panics
    /// If they are wrong.
    pub fn check_the_books(&self) {
        let ledger = check(self.records.iter().filter_map(Record::transfer));
        assert!(
            ledger.postings_sum == Micros::ZERO && ledger.unbalanced.is_empty() && ledger.overdrawn.is_empty(),
            "{ledger:#?}"
        );
        if let Err(error) = Floor::restore(CONFIG, self.now, self.records.iter().cloned()) {
            panic!("{error}");
        }
    }

    fn take(&mut self, arrival: Arrival) {
        let mut turn = Turn::default();
        let arrived = self.floor_loop.arrive(self.now, arrival, &mut turn);
        arrived.expect("the system has randomness");
        self.finish(turn);
    }

    /// As the loop's turn ends, with a commit that always succeeds.
    fn finish(&mut self, mut turn: Turn) {
        for connection in self.floor_loop.sessions.take_broken() {
            let gone = Input::NodeDisconnected { connection };
            let stepped = self.floor_loop.step(self.now, gone, &mut turn);
            stepped.expect("the system has randomness");
        }
        self.records.append(&mut turn.batch.records);
        for deed in std::mem::take(&mut turn.deeds) {
            if let Deed::Effect(Effect::Defect { message }) = &deed {
                panic!("a defect: {message}");
            }
            let performed = self.floor_loop.perform(self.now, deed, &mut turn);
            performed.expect("what is said is written");
        }
        self.floor_loop.sessions.acknowledge();
    }
}
