//! Tries the walls on the owner's own machine, bounded and without harm: a few short jobs of our own under the real keeper ask the kernel
//! for what a job must not have (`questions`), and are looked at from outside (`rounds`); what came is held against what is promised
//! (`judge`). The image is one program of ours (`ask`, `inside`); nothing is fetched, nothing written outside of one folder, and a
//! job whose time is over is ended by its keeper, whatever became of whoever asked.

mod ask;
mod judge;
mod looks;
mod questions;
mod rounds;
mod run;
#[cfg(test)]
mod tests;

use crate::docker::EngineFound;
use crate::ids::IdRange;
use crate::keeper::wire::CgroupPlace;
use crate::probe::Guarantee;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// How long all of it may take on an owner's machine; what has not come by then is said to be missing.
pub const LIMIT: Duration = Duration::from_secs(50);

/// What a job leaves in `/out`, to be looked for where it must not be.
const MARK: &str = "sela-checkup-mark-7c1d5b02";
/// What a job is given as a secret.
const SECRET: &str = "sela-checkup-secret-90e4a6fd";

/// Where and as what the walls are tried.
#[derive(Debug)]
pub struct Ground {
    /// The program whose subcommand `job-keeper` is a keeper.
    pub keeper: PathBuf,
    /// An empty folder, 0700, of this checkup's own. Everything is written here; the caller removes it.
    pub folder: PathBuf,
    /// Where cgroups are made, under a name that no agent has.
    pub cgroups: CgroupPlace,
    /// The ids that jobs' are mapped to.
    pub ids: IdRange,
    /// The container engine, where one walls jobs in.
    pub engine: Option<EngineFound>,
    /// Whether jobs are offered an encrypted disk here.
    pub disk: bool,
    /// What is promised here.
    pub promised: Vec<Guarantee>,
    /// How long all of it may take: [`LIMIT`]. One job may take a third of it: jobs run only when nobody else wants to.
    pub limit: Duration,
}

/// What came of one guarantee.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// In the words of `docs/security.md`.
    pub guarantee: &'static str,
    /// What a job, or whoever looked at it, did.
    pub tried: &'static str,
    /// What came of it.
    pub came: String,
    /// How that stands to what is promised.
    pub verdict: FindingVerdict,
    /// What to do, where there is anything.
    pub remedy: Option<&'static str>,
}

/// How what came stands to what is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingVerdict {
    /// Promised, and kept.
    Good,
    /// Promised in part here, and that is kept.
    Weaker,
    /// Not promised here.
    Absent,
    /// Promised and not kept, or not seen to be.
    Bad,
}

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum CheckupError {
    /// The folder could not be furnished.
    #[error("could not prepare {path}: {source}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The engine did not take the image of the checkup.
    #[error("{0}")]
    Engine(String),
}

/// Tries everything that `ground` promises: a finding for each, in their order. Takes seconds where the machine is idle, and never much longer than the limit.
///
/// # Errors
/// [`CheckupError`] where not even the first job could be prepared.
pub async fn check(ground: &Ground) -> Result<Vec<Finding>, CheckupError> {
    let evidence = rounds::all(ground).await?;
    Ok(judge::judge(&evidence, &ground.promised))
}
