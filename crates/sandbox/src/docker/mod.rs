//! The container backend: Docker or Podman builds the walls, the keeper guards what runs behind them as it guards a native job.
//!
//! `engine` finds an engine and says what it can promise, `image` gives it a job's image out of our own cache, `order` is what a
//! container is asked for and how that is read back, `clerk` is the one process of a job that speaks to the engine, `door` and
//! `init` are the two ends of the socket between the keeper and the container's first process, `container` is what the keeper
//! holds of all this, `sweep` removes what a crash left. Nothing here decides when a job has to end.

mod clerk;
mod container;
mod door;
mod engine;
pub mod image;
mod order;
mod seccomp;
mod sweep;
mod within;

pub(crate) use container::{Container, Step};
pub use engine::{
    EngineCgroups, EngineError, EngineFound, EngineKind, EnginePlace, EnginePlan, fits, guarantees, look, promised,
};
pub(crate) use order::LEFT;
pub use seccomp::profile as call_list;
pub(crate) use sweep::{clear_agent, clear_hierarchies};
pub use sweep::{sweep, sweep_lease};
pub(crate) use within::{Unpacking, open_network, unpack_checkpoint};

/// Labels of everything that is ours in an engine. `docs/security.md` names them to owners.
pub mod labels {
    /// The job.
    pub const JOB: &str = "sela.job";
    /// The lease.
    pub const LEASE: &str = "sela.lease";
    /// The agent: another on the same machine is not touched.
    pub const AGENT: &str = "sela.agent";
    /// The digest of the image that a job named.
    pub const IMAGE: &str = "sela.image";
}

/// Our folder in each image that an engine is given: the places of the first process and of its socket.
const OWN_FOLDER: &str = ".sela";

/// The first process of a container, as a program that runs on this machine behind every image.
const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sela-init"));
