//! A simulated NVIDIA driver. Built as `libsela_nvml_sim.so` it exports NVML's C interface and of CUDA's as much as memory needs
//! (there is nothing that could run a kernel), so that the very code that talks to a real card talks to it; built as a Rust
//! library it lays out the lab that the driver reads, and allocates simulated memory.
//!
//! **A simulated allocation is a kernel lock held by a real process on the simulated device node.** The driver lists the
//! holders from the kernel's lock table; memory returns only when the kernel releases the lock, and a frozen holder keeps it.
//! So "memory free" can only be measured, never set. Utilisation is the holders' real processor time: one full core is 100 %.
//!
//! Everything here is test equipment: no program of the product links it, and every card says SIMULATED in its name.

mod card;
mod cuda;
mod cuda_exports;
mod driver;
mod exports;
pub mod faults;
pub mod fit;
pub mod lab;
pub mod node;
pub mod plan;
mod pool;
mod processor;
mod state;
pub mod thermal;
pub mod traces;

pub use cuda::{CONTEXT_MIB, CudaUse};
pub use faults::{CardFaults, CudaFault, DriverFault, Faults, Sensor};
pub use lab::{FOLDER_VARIABLE, Lab, LabError};
pub use node::{Allocation, AllocationError};
pub use plan::CardPlan;

use std::path::PathBuf;

/// File name of the driver's library.
pub const LIBRARY_FILE: &str = "libsela_nvml_sim.so";

/// The driver's library as cargo built it for the running program: beside it or in the folder above. `None` where it was not
/// built: `cargo build -p sela-nvml-sim` does (`cargo xtask test` and every test that depends on this package do it by themselves).
pub fn find_library() -> Option<PathBuf> {
    find_built(LIBRARY_FILE)
}

/// The program `sela-sim-hold` as cargo built it, searched for likewise; built by `cargo build -p sela-nvml-sim`.
pub fn find_holder() -> Option<PathBuf> {
    find_built("sela-sim-hold")
}

fn find_built(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
