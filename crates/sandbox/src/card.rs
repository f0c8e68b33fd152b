//! What a job needs to reach its one card: device nodes, driver libraries, environment. The agent fills it from what the
//! driver says (`cdi`); nothing here touches a card.

use sela_protocol::id::GpuUuid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One file of the machine that appears at one path inside the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Where it is on this machine; absolute.
    pub outside: PathBuf,
    /// Where the job finds it; absolute.
    pub inside: PathBuf,
}

/// Everything through which a job reaches its card, and no other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardAccess {
    /// Device nodes (or, on a simulated card, its device file): readable and writable, under `/dev` inside.
    pub devices: Vec<Placed>,
    /// Driver libraries and tools: read only. A library that is looked up by several names is placed under each.
    pub files: Vec<Placed>,
    /// Added to the job's environment; the image's and the job's own values win, but for search paths, which are put first.
    pub env: BTreeMap<String, String>,
    /// How the card's memory is wiped before the job starts; a job with `None` finds what others left, where the driver lets it.
    #[serde(default)]
    pub wipe: Option<CardWipe>,
}

/// How a card's memory is wiped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardWipe {
    /// Which card.
    pub card: GpuUuid,
    /// The driver's library for computing: `libcuda.so` of the running driver, or the SIMULATED one; absolute.
    pub library: PathBuf,
    /// The folder that the SIMULATED driver lives in; `None` for a real one.
    pub lab: Option<PathBuf>,
}
