//! What the workloads share: which card they compute on, how they hear that they must go, how they leave a file whole, and
//! how many threads they use. Nothing here knows what a workload computes, nor anything of Sela beyond the environment
//! that a job on a SIMULATED card is started with.

mod card;
mod progress;
mod termination;
mod threads;
mod whole_file;

pub use card::{Card, CardError, CardRequest};
pub use progress::say;
pub use termination::{EXIT_TERMINATED, LeaveAtOnce, Termination};
pub use threads::{ThreadCount, limit_threads};
pub use whole_file::write_whole;
