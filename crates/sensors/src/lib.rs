//! Looks: at the cards, at other programs on them, at the owner's hands. Everything seen becomes a `sela_core::Input`;
//! nothing is decided here, and nothing here knows of money or markets. One module per thing looked at; operating
//! systems differ inside of it.

mod attention;
pub mod calendar;
mod cards;
mod input;
mod machine;
mod signals;

pub use attention::Attention;
pub use machine::{Disk, Machine, MachineError};
pub use signals::Eyes;

use std::path::PathBuf;

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The driver's library; the system's where `None`.
    pub nvml_library: Option<PathBuf>,
    /// The X display of this session, as in `DISPLAY`.
    pub display: Option<String>,
    /// Whether this session runs under Wayland.
    pub wayland: bool,
    /// The address of the D-Bus system bus; the system's own where `None`.
    pub system_bus: Option<String>,
}

/// A process belongs to a job of ours if its cgroup's path contains this.
pub const JOBS_CGROUP: &str = "/sela-jobs/";
