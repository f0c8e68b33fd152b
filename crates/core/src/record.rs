//! What must be in `earnings.db` before anything that depends on it is said to anybody.

use sela_protocol::id::{GpuUuid, JobId, LeaseId, NodeId};
use sela_protocol::lease::{EndCause, FencingToken, MeterNote};
use sela_protocol::local::Pause;
use sela_protocol::money::HourlyPrice;
use sela_protocol::units::{Millis, UtcMs};
use serde::{Deserialize, Serialize};

/// One entry of the store. Append only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// A lease was accepted.
    Accepted(OpenLease),
    /// A meter note was taken; the edge signs it, stores the envelope and sends it.
    Noted(MeterNote),
    /// The last of a lease.
    Closed(UnsettledLease),
    /// A closing receipt came: nothing of the lease needs to be said again.
    Settled {
        /// Which.
        lease: LeaseId,
    },
    /// The owner paused or resumed.
    Pause {
        /// The pause in force from now on.
        pause: Option<Pause>,
    },
}

/// A lease as it was accepted: what is needed to close it after a crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenLease {
    /// Which.
    pub lease: LeaseId,
    /// Who this machine is at the exchange that awarded it.
    pub node: NodeId,
    /// Its token.
    pub fencing: FencingToken,
    /// For which job.
    pub job: JobId,
    /// The job's name.
    pub name: Option<String>,
    /// On which card.
    pub gpu: GpuUuid,
    /// At which price.
    pub price: HourlyPrice,
    /// When.
    pub accepted_utc_ms: UtcMs,
    /// Whether money of a lab.
    pub lab: bool,
}

/// A lease that has ended here and is not yet receipted as closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsettledLease {
    /// The closing note.
    pub note: MeterNote,
    /// Why it ended.
    pub cause: EndCause,
    /// The stored tar of `/out`.
    pub output: Option<sela_protocol::blob::BlobId>,
    /// Energy of the card while the job was thawed, milliwatt-hours; `None` where the card does not tell its power.
    pub energy_mwh: Option<u64>,
    /// When it ended here.
    pub ended_utc_ms: UtcMs,
    /// How long the lease lasted here, from accept to end.
    pub lasted: Millis,
}
