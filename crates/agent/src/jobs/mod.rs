//! Carries out what the core decides about leases: one task a lease, from fetching its image to storing its results. Orders go
//! in, `sela_core::LeaseEvent`s come out; nothing is decided here but how.

mod card_access;
mod fetch;
mod lease;
mod network;
mod plan;
mod results;

use crate::market::Blobs;
use crate::settings::url_of_market::MarketUrl;
use lease::LeaseTask;
use sela_core::Input;
use sela_protocol::id::LeaseId;
use sela_protocol::lease::EndCause;
use sela_protocol::network::NetworkShare;
use sela_protocol::node::Award;
use sela_protocol::units::{Bytes, Millis};
use sela_sandbox::docker::image::EngineImages;
use sela_sandbox::ids::IdRange;
use sela_sandbox::image::Cache;
use sela_sandbox::keeper::wire::CgroupPlace;
use sela_sandbox::network::OwnersLine;
use sela_sandbox::probe::ScratchKind;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What all leases share.
#[derive(Clone)]
pub(crate) struct Workshop {
    /// The images' cache.
    pub(crate) cache: Cache,
    /// The container engine that walls jobs in, with its images; where there is none, the keeper does.
    pub(crate) engine: Option<EngineImages>,
    /// What the owner lends of the network, all jobs together.
    pub(crate) line: OwnersLine,
    /// For transfers.
    pub(crate) http: reqwest::Client,
    /// What is fetched leaves this free on the owner's disk.
    pub(crate) free_floor: Bytes,
    /// The folder of all scratch folders.
    pub(crate) scratch: PathBuf,
    /// The folder of keepers' accounts.
    pub(crate) accounts: PathBuf,
    /// Whom jobs' ids are mapped to.
    pub(crate) ids: IdRange,
    /// Where cgroups are made.
    pub(crate) cgroups: CgroupPlace,
    /// Where a job's scratch can lie.
    pub(crate) scratch_kind: ScratchKind,
    /// The program that is started as a keeper: this one.
    pub(crate) program: PathBuf,
    /// The driver's library, where it is not the system's.
    pub(crate) nvml_library: Option<PathBuf>,
    /// The folder of a simulated driver.
    pub(crate) simulation: Option<PathBuf>,
}

/// An order to one lease's task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseOrder {
    /// Start the fetched job.
    Start,
    /// Freeze it.
    Freeze,
    /// Let it run again.
    Thaw,
    /// Let it save, then end it.
    Save {
        /// How long it may take.
        grace: Millis,
        /// Why.
        cause: EndCause,
    },
    /// End it.
    End {
        /// Why.
        cause: EndCause,
    },
    /// The loop lives.
    Grant,
    /// Store what it left.
    Upload,
}

/// All leases' tasks. Dropping it ends every job at once: each keeper's pipe closes.
pub(crate) struct Jobs {
    workshop: Arc<Workshop>,
    inputs: mpsc::Sender<Input>,
    leases: HashMap<LeaseId, mpsc::UnboundedSender<LeaseOrder>>,
    /// Orders for leases whose fetching waits until their acceptance is on the disk.
    expected: HashMap<LeaseId, mpsc::UnboundedReceiver<LeaseOrder>>,
}

impl Jobs {
    pub(crate) fn new(workshop: Workshop, inputs: mpsc::Sender<Input>) -> Self {
        Self {
            workshop: Arc::new(workshop),
            inputs,
            leases: HashMap::new(),
            expected: HashMap::new(),
        }
    }

    /// The owner lends another share of the network: holds for running jobs, too.
    pub(crate) fn lend(&self, share: NetworkShare) {
        self.workshop.line.set(share);
    }

    /// A lease was decided on: from here on it takes orders, though its fetching may begin later. The owner may want the card
    /// back before the disk has written that it was lent.
    pub(crate) fn expect(&mut self, lease: LeaseId) {
        self.leases.retain(|_, orders| !orders.is_closed());
        // Unbounded so that an order never waits; the core gives few, and each is taken at once.
        let (orders, received) = mpsc::unbounded_channel();
        self.leases.insert(lease, orders);
        self.expected.insert(lease, received);
    }

    /// Begins to fetch what an award needs, from the exchange at `url`. [`Self::expect`] comes first.
    pub(crate) fn fetch(&mut self, award: Box<Award>, url: &MarketUrl) {
        let Some(orders) = self.expected.remove(&award.lease) else {
            tracing::error!(lease = %award.lease, "a lease that nobody expected is not fetched");
            return;
        };
        let blobs = Blobs::new(self.workshop.http.clone(), url.clone(), award.token.clone());
        let blobs = blobs.leaving_free(self.workshop.free_floor);
        let task = LeaseTask::new(Arc::clone(&self.workshop), award, blobs, orders, self.inputs.clone());
        tokio::spawn(task.run());
    }

    /// Gives an order. One to a lease that is over, or whose task is gone, does nothing.
    pub(crate) fn order(&self, lease: LeaseId, order: LeaseOrder) {
        match self.leases.get(&lease) {
            Some(orders) => drop(orders.send(order)),
            None => tracing::warn!(%lease, ?order, "an order to a lease that is not here"),
        }
    }
}
