//! What the probes are told: where the owner's things are that they are to reach, and by which names. One value, made by the
//! suite, handed to the probe program in its environment. The same for a job and for its control, but for the places that differ.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The variable that holds an [`Arena`] as JSON.
pub const ARENA_VARIABLE: &str = "SELA_ARENA";

/// What every decoy of the owner's says to whoever reaches it.
pub const GREETING: &str = "you reached the owner";

/// Who attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// A tenant's job, behind the walls of a backend.
    Job,
    /// The same program as root, without walls: it shows that the attack can go through on this machine.
    Control,
}

/// The owner's things, all of them made for the occasion.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Arena {
    /// Who attacks.
    pub side: Side,
    /// Text that stands in the owner's file, in the environment of the owner's program, and nowhere else.
    pub secret: String,
    /// A file of the owner's.
    pub secret_file: PathBuf,
    /// The folder that everything of the owner's lies in.
    pub owner_folder: PathBuf,
    /// A word in the command line of the owner's program.
    pub owner_word: String,
    /// The owner's program, as the machine counts.
    pub owner_pid: u32,
    /// A program of the owner's that may be killed.
    pub spare_pid: u32,
    /// Whom an attacker finds first: the job's own init, or in the control the owner's program.
    pub first_pid: u32,
    /// Where the owner's services listen on loopback.
    pub owner_port: u16,
    /// Sockets of the owner's by path: agent, bus, compositor, display.
    pub owner_sockets: OwnerSockets,
    /// Another tenant's job: its init as the machine counts, and a file in its scratch as that job sees it.
    pub other_job_pid: u32,
    /// See [`Self::other_job_pid`].
    pub other_job_file: PathBuf,
    /// A file that the agent keeps for another job.
    pub other_scratch_file: PathBuf,
    /// Folders to look for what an earlier tenant left in, and what that was.
    pub left_in: Vec<PathBuf>,
    /// See [`Self::left_in`].
    pub left_word: String,
    /// Key of the shared memory that the earlier tenant left.
    pub left_key: i32,
    /// A folder that the attacker may write.
    pub writable: PathBuf,
    /// Nodes of the machine that a job is not given.
    pub machine_nodes: Vec<PathBuf>,
    /// Another card's node.
    pub other_card: PathBuf,
    /// The attacker's own card, simulated.
    pub own_card: PathBuf,
    /// The image's folder, which a control may enter.
    pub image: PathBuf,
    /// The network that a control may enter: private ranges with somebody in each.
    pub network: Option<PathBuf>,
    /// A kernel module that may be loaded; only where the machine is emulated.
    pub module: Option<PathBuf>,
    /// A block device that may be swapped to; only where the machine is emulated.
    pub swap_device: Option<PathBuf>,
    /// What a job may have of open files and shared memory.
    pub open_files: u64,
    /// Bytes.
    pub shm_size: u64,
}

/// Where the owner's programs listen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnerSockets {
    /// The agent's local API.
    pub agent: PathBuf,
    /// The session bus.
    pub bus: PathBuf,
    /// The compositor.
    pub wayland: PathBuf,
    /// The display's abstract name, without the zero byte.
    pub display: String,
    /// A name of a bus of the older kind, abstract too.
    pub abstract_bus: String,
}
