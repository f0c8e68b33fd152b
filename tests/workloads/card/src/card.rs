//! The choice of the device: a real card, a SIMULATED card, or none. Each says in words what it is, because a result that
//! was computed on a CPU must not pass for one of a GPU.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::Device;
use sela_nvml_sim::{Allocation, AllocationError};

/// Environment variable with the device node of the SIMULATED card that the job was given.
const SIMULATED_DEVICE: &str = "SELA_SIM_DEVICE";
/// Environment variable with the memory on that card which the job may use, in MiB.
const SIMULATED_MEMORY: &str = "SELA_SIM_VRAM_MIB";

/// Why no device could be chosen.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// One of the two settings of a SIMULATED card without the other.
    #[error("{present} is set but {missing} is not: a job on a SIMULATED card needs both")]
    HalfASetting {
        /// The variable that is there.
        present: &'static str,
        /// The variable that is not.
        missing: &'static str,
    },
    /// The memory is not a number.
    #[error("SELA_SIM_VRAM_MIB is {0:?}, which is not a whole number of MiB from 1 upwards")]
    BadMemory(OsString),
    /// Others hold the SIMULATED card's memory, or it has too little.
    #[error(
        "card is full: {asked_mib} MiB were asked of SIMULATED card {}, of whose {total_mib} MiB no more than {largest_mib} are free \
         in one piece; end another user of the card or ask for less",
        device.display()
    )]
    Full {
        /// The card's device node.
        device: PathBuf,
        /// What was asked for, MiB.
        asked_mib: u64,
        /// What would have been given, MiB.
        largest_mib: u64,
        /// What the card has, MiB.
        total_mib: u64,
    },
    /// The SIMULATED card's node is not there or not ours to use.
    #[error("SIMULATED card {}: {source}", device.display())]
    Simulated {
        /// The card's device node.
        device: PathBuf,
        /// What the simulation said.
        source: AllocationError,
    },
    /// The NVIDIA driver is there but its card cannot be used.
    #[error("the CUDA device cannot be used: {0}")]
    Cuda(candle_core::Error),
}

/// What the environment asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardRequest {
    /// A SIMULATED card: hold so much of its memory.
    Simulated {
        /// The card's device node.
        device: PathBuf,
        /// Memory to hold, MiB, at least 1.
        mib: u64,
    },
    /// Whatever real card is there, else the CPU.
    Whatever,
}

impl CardRequest {
    /// Reads the request from this process's environment.
    ///
    /// # Errors
    /// When the settings of a SIMULATED card are incomplete or no number.
    pub fn from_environment() -> Result<Self, CardError> {
        Self::from_settings(std::env::var_os(SIMULATED_DEVICE), std::env::var_os(SIMULATED_MEMORY))
    }

    /// Reads the request from the two settings' values.
    ///
    /// # Errors
    /// As [`CardRequest::from_environment`].
    pub fn from_settings(device: Option<OsString>, memory: Option<OsString>) -> Result<Self, CardError> {
        match (device, memory) {
            (None, None) => Ok(CardRequest::Whatever),
            (Some(_), None) => Err(CardError::HalfASetting {
                present: SIMULATED_DEVICE,
                missing: SIMULATED_MEMORY,
            }),
            (None, Some(_)) => Err(CardError::HalfASetting {
                present: SIMULATED_MEMORY,
                missing: SIMULATED_DEVICE,
            }),
            (Some(device), Some(memory)) => {
                let mib = memory.to_str().and_then(|text| text.parse().ok());
                match mib {
                    Some(mib) if mib > 0 => Ok(CardRequest::Simulated {
                        device: device.into(),
                        mib,
                    }),
                    Some(_) | None => Err(CardError::BadMemory(memory)),
                }
            }
        }
    }
}

/// The device that a workload computes on. Kept until the process ends: dropping it gives a SIMULATED card's memory back.
#[derive(Debug)]
pub enum Card {
    /// A real NVIDIA card, by CUDA.
    Cuda {
        /// The driver's name for it.
        name: String,
        /// Where tensors go.
        device: Device,
    },
    /// A SIMULATED card: its memory is held, the CPU computes.
    Simulated {
        /// The card's device node.
        node: PathBuf,
        /// Memory held, MiB.
        mib: u64,
        /// The hold itself, a kernel lock.
        held: Allocation,
    },
    /// No card.
    CpuOnly,
}

impl Card {
    /// Takes the device that the environment asks for, before any work starts.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what to do; nothing is held then.
    pub fn take(request: &CardRequest) -> Result<Self, CardError> {
        match request {
            CardRequest::Simulated { device, mib } => hold_simulated(device, *mib),
            CardRequest::Whatever => real_card().map(|card| card.unwrap_or(Card::CpuOnly)),
        }
    }

    /// Where tensors go.
    pub fn device(&self) -> &Device {
        match self {
            Card::Cuda { device, .. } => device,
            Card::Simulated { .. } | Card::CpuOnly => &Device::Cpu,
        }
    }
}

impl fmt::Display for Card {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Card::Cuda { name, .. } => write!(out, "CUDA device {name}"),
            Card::Simulated { node, mib, .. } => write!(
                out,
                "CPU, holding the lock of SIMULATED card {}, {mib} MiB",
                node.display()
            ),
            Card::CpuOnly => write!(out, "CPU, no card"),
        }
    }
}

fn hold_simulated(device: &Path, mib: u64) -> Result<Card, CardError> {
    match Allocation::take(device, mib) {
        Ok(held) => Ok(Card::Simulated {
            node: device.to_owned(),
            mib,
            held,
        }),
        Err(AllocationError::OutOfMemory {
            asked_mib,
            largest_mib,
            total_mib,
        }) => Err(CardError::Full {
            device: device.to_owned(),
            asked_mib,
            largest_mib,
            total_mib,
        }),
        Err(source @ (AllocationError::Node(_) | AllocationError::Nothing)) => Err(CardError::Simulated {
            device: device.to_owned(),
            source,
        }),
    }
}

/// The first CUDA device, or none where the driver reports no device at all.
#[cfg(feature = "cuda")]
fn real_card() -> Result<Option<Card>, CardError> {
    // The device node is what a job is given; without it the driver's library would fail with a less clear word.
    if !Path::new("/dev/nvidiactl").exists() {
        return Ok(None);
    }
    let cuda = candle_core::CudaDevice::new_with_stream(0).map_err(CardError::Cuda)?;
    let name = cuda
        .cuda_stream()
        .context()
        .name()
        .map_err(|error| CardError::Cuda(candle_core::Error::wrap(error)))?;
    Ok(Some(Card::Cuda {
        name,
        device: Device::Cuda(cuda),
    }))
}

#[cfg(not(feature = "cuda"))]
fn real_card() -> Result<Option<Card>, CardError> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(device: Option<&str>, memory: Option<&str>, expected: &str) {
        let answer = CardRequest::from_settings(device.map(Into::into), memory.map(Into::into));
        let said = match answer {
            Ok(request) => format!("{request:?}"),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(expected), "{device:?} {memory:?}: {said}");
    }

    #[test]
    fn a_simulated_card_needs_a_device_and_a_whole_number_of_mib() {
        check(None, None, "Whatever");
        check(Some("/dev/x"), Some("2048"), "mib: 2048");
        check(Some("/dev/x"), None, "SELA_SIM_VRAM_MIB is not");
        check(None, Some("2048"), "SELA_SIM_DEVICE is not");
        check(Some("/dev/x"), Some("0"), "not a whole number");
        check(Some("/dev/x"), Some("2 GB"), "not a whole number");
        check(Some("/dev/x"), Some("-1"), "not a whole number");
    }

    #[test]
    fn what_it_ran_on_is_said_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("sela-sim0");
        std::fs::write(&node, vec![0; 4096]).unwrap();
        let card = Card::take(&CardRequest::Simulated { device: node, mib: 512 }).unwrap();
        let said = card.to_string();
        assert!(said.starts_with("CPU, holding the lock of SIMULATED card "), "{said}");
        assert!(said.ends_with("512 MiB"), "{said}");
        assert_eq!(Card::CpuOnly.to_string(), "CPU, no card");
    }

    #[test]
    fn a_card_that_cannot_give_its_memory_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("sela-sim0");
        let take = |mib| {
            let device = node.clone();
            let answer = Card::take(&CardRequest::Simulated { device, mib });
            answer.unwrap_err().to_string()
        };
        let said = take(1);
        assert!(said.contains("sela-sim0"), "{said}");
        std::fs::write(&node, vec![0; 100]).unwrap();
        let said = take(101);
        assert!(said.starts_with("card is full: 101 MiB"), "{said}");
        assert!(said.contains("100 MiB"), "{said}");
    }
}
