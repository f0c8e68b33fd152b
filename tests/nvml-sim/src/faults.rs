//! Faults that a test can ask for, as `faults.toml` in the lab's folder says them. What each does to an answer lives in `card`
//! and `driver`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All faults asked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// What is wrong when the driver is initialised; a process that has initialised it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverFault>,
    /// What is wrong with a card, by UUID.
    #[serde(default)]
    pub card: BTreeMap<String, CardFaults>,
}

/// Why initialising fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverFault {
    /// The kernel module is not loaded: `NVML_ERROR_DRIVER_NOT_LOADED`.
    NotLoaded,
    /// Library and kernel module differ, as after an upgrade without a restart: `NVML_ERROR_LIB_RM_VERSION_MISMATCH`.
    VersionMismatch,
}

/// What is wrong with one card.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CardFaults {
    /// The card fell off the bus: everything but finding it answers `NVML_ERROR_GPU_IS_LOST`.
    pub lost: bool,
    /// Sensors whose reading fails with `NVML_ERROR_UNKNOWN`.
    pub failing: Vec<Sensor>,
    /// The temperature reads this whatever happens, °C; 511 is what a card without a reading reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_reads: Option<u32>,
    /// The temperature reads what it was when this was first seen, whatever happens.
    pub temperature_stuck: bool,
    /// The power draw reads the all-ones value.
    pub power_reads_all_ones: bool,
    /// Setting a limit answers success and changes nothing.
    pub limit_ignored: bool,
    /// Setting a limit answers `NVML_ERROR_NO_PERMISSION`, as it does to everybody but root.
    pub limit_refused: bool,
    /// The card has no settable limit (laptops): `NVML_ERROR_NOT_SUPPORTED`.
    pub limit_unsupported: bool,
    /// Memory that a process holds is not told: the all-ones value, as under Windows' WDDM.
    pub process_memory_hidden: bool,
    /// What goes wrong for programs that compute on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaFault>,
}

/// What goes wrong for a CUDA program on one card. What each does to a call lives in `cuda`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CudaFault {
    /// No context can be made: `CUDA_ERROR_UNKNOWN`.
    NoContext,
    /// Making a context never returns.
    Hangs,
    /// Making a context ends the process, as a fault in the driver's library does.
    Crashes,
    /// A quarter of the memory is called free and never handed out.
    Withholds,
    /// Setting memory answers success and changes nothing.
    SetsNothing,
}

/// A sensor of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sensor {
    /// Core temperature.
    Temperature,
    /// Power draw.
    Power,
    /// Utilisation.
    Utilisation,
    /// Memory in use.
    Memory,
    /// Fan.
    Fan,
    /// Clocks.
    Clock,
    /// The process lists.
    Processes,
}
