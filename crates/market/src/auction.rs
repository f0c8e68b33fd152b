//! Who gets a job and at what price: the reverse auction with second score (market.md §2), as integer arithmetic. Who is
//! eligible is asked by the floor; nothing here knows of connections or money in accounts.

use sela_protocol::id::{AwardId, GpuUuid, JobId, NodeId, OwnerId};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::units::Millis;
use serde::{Deserialize, Serialize};

/// The version of these rules, written into every award.
pub const RULES_VERSION: u32 = 1;

/// One eligible card as it was scored: `A = floor · duration + other`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwardRow {
    /// Whose.
    pub owner: OwnerId,
    /// On which node.
    pub node: NodeId,
    /// Which.
    pub gpu: GpuUuid,
    /// b: what the owner asks for an hour.
    pub floor: HourlyPrice,
    /// τ: how long the work takes on it. At present the expected work for every card: throughput is not measured yet.
    pub duration_ms: Millis,
    /// C: all terms without b. At present 0: transfer, loss and reliability are not measured yet.
    pub other: Micros,
}

/// How an award came about: enough to compute it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwardTable {
    /// [`RULES_VERSION`] then.
    pub rules: u32,
    /// The award; also what breaks ties.
    pub award: AwardId,
    /// The job.
    pub job: JobId,
    /// Most that an hour may cost.
    pub cap: HourlyPrice,
    /// All eligible cards.
    pub rows: Vec<AwardRow>,
}
