//! The driver as one process sees it: initialised a counted number of times, with the lab that `SELA_NVML_SIM_DIR` named at the
//! first. Finds cards and hands calls to them; the C interface is `exports`.

use crate::card::{Answer, Card};
use crate::faults::DriverFault;
use crate::lab::{FOLDER_VARIABLE, Lab};
use crate::state::{self, Record};
use nvml_wrapper_sys::bindings as c;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// Version that the driver reports. Below 580.82, so that nvml-wrapper numbers fields as NVML 12 did.
pub(crate) const DRIVER_VERSION: &str = "570.86.15-SIMULATED";

/// Version that the library reports.
pub(crate) const LIBRARY_VERSION: &str = "12.570.86.15-SIMULATED";

/// CUDA version that the driver supports, 1000 × major + 10 × minor.
pub(crate) const CUDA_VERSION: i32 = 12_080;

/// What initialising answers where the lab's folder is missing or broken. No real driver answers it there, so a caller can tell.
pub(crate) const NO_LAB: c::nvmlReturn_t = c::nvmlReturn_enum_NVML_ERROR_NO_DATA;

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

struct Driver {
    initialised: u32,
    lab: Lab,
    boot_id: String,
    remembered: Vec<Option<Record>>,
}

/// Initialises once more.
pub(crate) fn initialise() -> Answer<()> {
    let mut driver = lock();
    if let Some(driver) = driver.as_mut() {
        driver.initialised += 1;
        return Ok(());
    }
    let folder = std::env::var_os(FOLDER_VARIABLE).ok_or(NO_LAB)?;
    let lab = Lab::open(Path::new(&folder)).map_err(|_| NO_LAB)?;
    match lab.faults().map_err(|_| NO_LAB)?.driver {
        Some(DriverFault::NotLoaded) => return Err(c::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED),
        Some(DriverFault::VersionMismatch) => {
            return Err(c::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH);
        }
        None => {}
    }
    *driver = Some(Driver {
        initialised: 1,
        remembered: vec![None; lab.cards().len()],
        boot_id: state::boot_id(),
        lab,
    });
    Ok(())
}

/// Undoes one initialisation.
pub(crate) fn shut_down() -> Answer<()> {
    let mut guard = lock();
    let driver = guard.as_mut().ok_or(c::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED)?;
    driver.initialised -= 1;
    if driver.initialised == 0 {
        *guard = None;
    }
    Ok(())
}

/// Calls `ask` with the lab, if the driver is initialised.
pub(crate) fn with_lab<T>(ask: impl FnOnce(&Lab) -> Answer<T>) -> Answer<T> {
    let guard = lock();
    let driver = guard.as_ref().ok_or(c::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED)?;
    ask(&driver.lab)
}

/// Calls `ask` with the card of that index and the faults of this moment.
pub(crate) fn with_card<T>(index: usize, ask: impl FnOnce(&mut Card<'_>) -> Answer<T>) -> Answer<T> {
    let mut guard = lock();
    let driver = guard.as_mut().ok_or(c::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED)?;
    let (Some(plan), Some(remembered)) = (driver.lab.cards().get(index), driver.remembered.get_mut(index)) else {
        return Err(c::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    };
    let faults = driver
        .lab
        .faults()
        .map_err(|_| c::nvmlReturn_enum_NVML_ERROR_UNKNOWN)?
        .card
        .remove(&plan.uuid)
        .unwrap_or_default();
    ask(&mut Card {
        lab: &driver.lab,
        plan,
        index,
        boot_id: &driver.boot_id,
        faults,
        remembered,
    })
}

fn lock() -> MutexGuard<'static, Option<Driver>> {
    // A call that panicked left nothing half-done that the next one could trip over.
    DRIVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
