//! What a job gets to see of its one card. A real card is described by `sela_sandbox::cdi` from the running driver; a simulated
//! one is a device file and two variables that say so.

use super::Workshop;
use sela_gpu::{GpuError, Nvml};
use sela_protocol::id::GpuUuid;
use sela_protocol::units::Bytes;
use sela_sandbox::card::{CardAccess, CardWipe, Placed};
use sela_sandbox::cdi::{self, CdiError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a job on a simulated card finds the card's device file.
const SIMULATED_DEVICE: &str = "SELA_SIM_DEVICE";
/// How much of its memory the job holds.
const SIMULATED_MEMORY: &str = "SELA_SIM_VRAM_MIB";

/// Why a job cannot reach its card.
#[derive(Debug, thiserror::Error)]
pub(super) enum CardAccessError {
    /// The driver does not answer for the card.
    #[error(transparent)]
    Driver(#[from] GpuError),
    /// The driver's files are not as they should be.
    #[error(transparent)]
    Files(#[from] CdiError),
}

/// Asks the driver. Blocking.
///
/// # Errors
/// See [`CardAccessError`].
pub(super) fn of(workshop: &Workshop, gpu: &GpuUuid, vram: Bytes) -> Result<CardAccess, CardAccessError> {
    let driver = Nvml::start(workshop.nvml_library.as_deref())?;
    let is_simulated = driver.cards()?.iter().any(|card| card.uuid == *gpu && card.simulated);
    let nodes = driver.device_nodes(gpu, workshop.simulation.as_deref())?;
    let (mut card, library) = if is_simulated {
        // One library is all of the simulated driver.
        (simulated_card(&nodes, vram), workshop.nvml_library.clone())
    } else {
        let card = cdi::nvidia(&nodes, driver.driver_version())?;
        let library = cdi::compute_library(&card);
        (card, library)
    };
    card.wipe = library.map(|library| CardWipe {
        card: gpu.clone(),
        library,
        lab: workshop.simulation.clone().filter(|_| is_simulated),
    });
    Ok(card)
}

fn simulated_card(nodes: &[PathBuf], vram: Bytes) -> CardAccess {
    let devices: Vec<Placed> = nodes
        .iter()
        .map(|node| Placed {
            outside: node.clone(),
            inside: Path::new("/dev").join(node.file_name().unwrap_or_default()),
        })
        .collect();
    let device = devices.first().map(|node| node.inside.display().to_string());
    let mib = (vram.0 >> 20).max(1);
    let env = BTreeMap::from([
        (SIMULATED_DEVICE.to_owned(), device.unwrap_or_default()),
        (SIMULATED_MEMORY.to_owned(), mib.to_string()),
    ]);
    CardAccess {
        devices,
        env,
        ..CardAccess::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_on_a_simulated_card_sees_its_one_node_and_holds_what_it_asked_for() {
        let card = simulated_card(&[PathBuf::from("/lab/dev/sela-sim1")], Bytes::from_mib(900));
        assert_eq!(card.devices[0].inside, PathBuf::from("/dev/sela-sim1"));
        assert_eq!(card.env[SIMULATED_DEVICE], "/dev/sela-sim1");
        assert_eq!(card.env[SIMULATED_MEMORY], "900");
        assert_eq!(simulated_card(&[], Bytes(0)).env[SIMULATED_MEMORY], "1");
    }
}
