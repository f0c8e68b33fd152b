//! Reads graphics cards and sets their limits: the one place that talks to a card's driver, used by the sensors, the agent and
//! the privileged helper. What a reading means for the owner is decided in `sela-core`, never here.
//!
//! Today there is one driver, NVIDIA's, and so one struct, [`Nvml`], and no trait: a trait over one implementation would be
//! drawn after NVML and would not fit the next. Its public methods speak only words of `sela-protocol`, so when
//! amdgpu comes beside it the trait is these methods. No type of `nvml-wrapper` leaves the crate.

mod error;
mod nodes;
mod nvml;
mod reading;

pub use error::GpuError;
pub use nodes::{NodeFamily, device_nodes};
pub use nvml::Nvml;
