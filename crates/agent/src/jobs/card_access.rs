//! What a job gets to see of its one card: the card's device nodes and, where the card is real, the running driver's own
//! libraries. A simulated card is a device file and two variables that say so.

use super::Workshop;
use sela_gpu::{GpuError, Nvml};
use sela_protocol::id::GpuUuid;
use sela_protocol::units::Bytes;
use sela_sandbox::card::{CardAccess, Placed};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a job on a simulated card finds the card's device file.
const SIMULATED_DEVICE: &str = "SELA_SIM_DEVICE";
/// How much of its memory the job holds.
const SIMULATED_MEMORY: &str = "SELA_SIM_VRAM_MIB";

/// Asks the driver. Blocking.
///
/// # Errors
/// Where the driver does not answer for the card.
pub(super) fn of(workshop: &Workshop, gpu: &GpuUuid, vram: Bytes) -> Result<Option<CardAccess>, GpuError> {
    let driver = Nvml::start(workshop.nvml_library.as_deref())?;
    let simulation = workshop.simulation.as_deref();
    let simulated = driver
        .cards()?
        .iter()
        .any(|card| card.uuid == *gpu && card.simulated);
    let nodes = driver.device_nodes(gpu, simulation)?;
    Ok(Some(if simulated {
        simulated_card(&nodes, vram)
    } else {
        real_card(&nodes, driver.driver_version())
    }))
}

fn simulated_card(nodes: &[PathBuf], vram: Bytes) -> CardAccess {
    let devices: Vec<Placed> = nodes.iter().map(|node| in_dev(node)).collect();
    let device = devices.first().map(|node| node.inside.display().to_string());
    let mib = (vram.0 >> 20).max(1);
    let mut env = BTreeMap::new();
    env.insert(SIMULATED_DEVICE.to_owned(), device.unwrap_or_default());
    env.insert(SIMULATED_MEMORY.to_owned(), mib.to_string());
    CardAccess {
        devices,
        env,
        ..CardAccess::default()
    }
}

fn real_card(nodes: &[PathBuf], _driver_version: &str) -> CardAccess {
    CardAccess {
        devices: nodes
            .iter()
            // `nvidia-uvm-tools` is for debuggers, and not on every machine.
            .filter(|node| node.exists())
            .map(|node| in_dev(node))
            .collect(),
        ..CardAccess::default()
    }
}

fn in_dev(node: &Path) -> Placed {
    Placed {
        outside: node.to_owned(),
        inside: Path::new("/dev").join(node.file_name().unwrap_or_default()),
    }
}
