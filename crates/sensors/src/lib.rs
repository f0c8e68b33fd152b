//! Looks: at the cards, at other programs on them, at the owner's hands. Everything seen becomes a `sela_core::Input`;
//! nothing is decided here, and nothing here knows of money or markets. One module per thing looked at; operating
//! systems differ inside of it.

mod answers;
mod asleep;
mod attention;
mod bus;
pub mod calendar;
mod cards;
pub mod fdinfo;
mod files;
mod gamepad;
mod input;
mod login;
mod look;
mod machine;
mod play;
mod signals;
mod watchers;

pub use attention::Attention;
pub use files::Roots;
pub use machine::{Disk, Machine, MachineError};
pub use signals::Eyes;

use std::path::PathBuf;

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The driver's library; the system's where `None`.
    pub nvml_library: Option<PathBuf>,
    /// The X display of this session, as in `DISPLAY`; under Wayland that of XWayland.
    pub display: Option<String>,
    /// The socket of this session's Wayland compositor.
    pub wayland: Option<PathBuf>,
    /// Where sockets of this user's sessions appear, as in `XDG_RUNTIME_DIR`.
    pub runtime_folder: Option<PathBuf>,
    /// The address of the D-Bus system bus; the system's own where `None`.
    pub system_bus: Option<String>,
    /// The address of this session's bus; there is none where `None`.
    pub session_bus: Option<String>,
    /// The owner's home, where Steam may be.
    pub home: Option<PathBuf>,
    /// Programs that the owner wants treated as games, by name.
    pub programs: Vec<String>,
    /// Where the kernel's files are.
    pub roots: Roots,
}

/// A process belongs to a job of ours if its cgroup's path contains this.
pub const JOBS_CGROUP: &str = "/sela-jobs/";
