//! What can go wrong with a card or its driver, in words that say what to do, and the one translation from NVML's codes. A sensor
//! that gives no reading is no error: see `reading`.

use nvml_wrapper::error::NvmlError;
use sela_protocol::card::PowerLimits;
use sela_protocol::id::GpuUuid;
use sela_protocol::units::Milliwatts;

/// Why a card could not be read or set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// No driver, or its library cannot be loaded.
    #[error("no NVIDIA driver found ({why}): install the vendor's driver, or start without a card")]
    NoDriver {
        /// What the loader or the driver said.
        why: String,
    },
    /// The driver was upgraded under the running kernel module.
    #[error("the NVIDIA driver was upgraded and its two halves differ: restart the PC")]
    DriverMismatch,
    /// The driver is the simulated one and has no lab.
    #[error("the SIMULATED driver has no lab: set SELA_NVML_SIM_DIR to a folder that a lab was created in")]
    SimulationMissing,
    /// The driver knows no such card.
    #[error("no card {0} in this machine: it was removed, or belongs to another one")]
    UnknownCard(GpuUuid),
    /// The card fell off the bus.
    #[error("card {0} no longer answers: restart the PC; if it happens again, check its power cables and slot")]
    Lost(GpuUuid),
    /// Only root may do this.
    #[error("not permitted to {what}: only root may; install sela-helper for it")]
    NoPermission {
        /// What was tried.
        what: &'static str,
    },
    /// The card or its driver cannot do this.
    #[error("this card or its driver cannot {what}")]
    NotSupported {
        /// What was tried.
        what: &'static str,
    },
    /// A power limit that the card does not accept.
    #[error("a power limit of {asked} is outside what the card accepts: {} to {}", limits.least, limits.most)]
    LimitOutOfRange {
        /// Asked for.
        asked: Milliwatts,
        /// Accepted.
        limits: PowerLimits,
    },
    /// The driver reported success and the limit is another.
    #[error("the driver took a power limit of {asked} and has {found} in force: another program may set it too")]
    LimitNotApplied {
        /// Asked for.
        asked: Milliwatts,
        /// Read back.
        found: Milliwatts,
    },
    /// Anything else that the driver says.
    #[error("cannot {what}: the driver says \"{why}\"")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// What the driver said.
        why: String,
    },
}

impl GpuError {
    /// Why the driver did not start.
    pub(crate) fn at_start(error: &NvmlError) -> Self {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "NVML grows codes; all others mean there is no driver to use"
        )]
        match error {
            NvmlError::LibRmVersionMismatch => Self::DriverMismatch,
            // NVML itself never answers this at the start: it is how the simulated driver says that it has no lab.
            NvmlError::NoData => Self::SimulationMissing,
            other => Self::NoDriver { why: other.to_string() },
        }
    }

    /// Why `what` failed for a card.
    pub(crate) fn of(error: &NvmlError, uuid: &GpuUuid, what: &'static str) -> Self {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "NVML grows codes; its own words are the best there is for them"
        )]
        match error {
            NvmlError::GpuLost => Self::Lost(uuid.clone()),
            NvmlError::NotFound => Self::UnknownCard(uuid.clone()),
            NvmlError::NoPermission => Self::NoPermission { what },
            NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
                Self::NotSupported { what }
            }
            NvmlError::LibRmVersionMismatch => Self::DriverMismatch,
            NvmlError::DriverNotLoaded | NvmlError::Uninitialized => Self::NoDriver { why: error.to_string() },
            other => Self::Failed {
                what,
                why: other.to_string(),
            },
        }
    }
}
