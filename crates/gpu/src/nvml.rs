//! NVIDIA cards, through NVML. Reads, lists who holds the card, and sets the power limit; opens no device node and decides
//! nothing. Where the library lies is the caller's to say: no environment is read here, since the helper must not.

use crate::error::GpuError;
use crate::nodes::{NodeFamily, device_nodes};
use crate::reading::{and_then, celsius, megahertz, milliwatts, not_told, percent, reading};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_MEMORY_TEMP;
use sela_protocol::card::{CardDescription, CardProcess, CardReading, PowerLimits, Reading};
use sela_protocol::id::GpuUuid;
use sela_protocol::units::{Bytes, Celsius, Milliwatts, Percent};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How the simulated driver marks its cards: the word is part of the name that it reports.
const SIMULATED: &str = "SIMULATED";

/// Room for a process's name; longer ones are cut by the driver.
const NAME_LENGTH: usize = 256;

/// A running NVIDIA driver. Calls take microseconds to milliseconds and block: keep them off an async executor.
#[derive(Debug)]
pub struct Nvml {
    driver: nvml_wrapper::Nvml,
    driver_version: String,
    /// The cards that were left out of the last list, one bit an index: each is complained of once, not at each look.
    left_out: AtomicU64,
}

impl Nvml {
    /// Loads the driver's library, from `library` or else from where the system has it, and starts it.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::DriverMismatch`], [`GpuError::SimulationMissing`].
    pub fn start(library: Option<&Path>) -> Result<Self, GpuError> {
        let mut builder = nvml_wrapper::Nvml::builder();
        if let Some(library) = library {
            builder.lib_path(library.as_os_str());
        }
        let driver = builder.init().map_err(|error| GpuError::at_start(&error))?;
        let driver_version = driver
            .sys_driver_version()
            .map_err(|error| GpuError::at_start(&error))?;
        Ok(Self {
            driver,
            driver_version,
            left_out: AtomicU64::new(0),
        })
    }

    /// The driver's version, as it reports it.
    pub fn driver_version(&self) -> &str {
        &self.driver_version
    }

    /// The cards that answer now, in the driver's order. One that does not is logged and left out: without its
    /// UUID there is nothing to call it by.
    ///
    /// # Errors
    /// Where the driver cannot even count them.
    pub fn cards(&self) -> Result<Vec<CardDescription>, GpuError> {
        let count = self
            .driver
            .device_count()
            .map_err(|error| GpuError::of(&error, &GpuUuid("(all)".to_owned()), "count the cards"))?;
        let mut cards = Vec::new();
        for index in 0..count {
            let bit = 1_u64.checked_shl(index).unwrap_or(0);
            match self.describe(index) {
                Ok(card) => {
                    self.left_out.fetch_and(!bit, Ordering::Relaxed);
                    cards.push(card);
                }
                Err(error) => {
                    if bit == 0 || self.left_out.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                        tracing::warn!(index, %error, "a card does not say what it is; it is left out");
                    }
                }
            }
        }
        Ok(cards)
    }

    /// What a card reports at this moment.
    ///
    /// # Errors
    /// [`GpuError::Lost`], [`GpuError::UnknownCard`], or a driver that is gone. A single sensor that fails is a
    /// [`Reading::Invalid`].
    pub fn read(&self, uuid: &GpuUuid) -> Result<CardReading, GpuError> {
        let device = self.device(uuid)?;
        Ok(CardReading {
            uuid: uuid.clone(),
            temperature: and_then(reading(device.temperature(TemperatureSensor::Gpu), uuid)?, celsius),
            memory_temperature: memory_temperature(&device, uuid)?,
            power: and_then(reading(device.power_usage(), uuid)?, milliwatts),
            power_limit: and_then(reading(device.power_management_limit(), uuid)?, milliwatts),
            utilisation: and_then(reading(device.utilization_rates(), uuid)?, |rates| percent(rates.gpu)),
            vram_used: and_then(reading(device.memory_info(), uuid)?, |memory| bytes(memory.used)),
            fan: and_then(reading(device.fan_speed(0), uuid)?, percent),
            core_clock: and_then(reading(device.clock_info(Clock::Graphics), uuid)?, megahertz),
        })
    }

    /// All processes that hold the card, computing or drawing, by id. Inside a container one's own only.
    ///
    /// # Errors
    /// As [`read`](Self::read), and where the driver lists no processes.
    pub fn processes(&self, uuid: &GpuUuid) -> Result<Vec<CardProcess>, GpuError> {
        const WHAT: &str = "list the card's processes";
        let device = self.device(uuid)?;
        let failed = |error: &NvmlError| GpuError::of(error, uuid, WHAT);
        let mut found = device.running_compute_processes().map_err(|error| failed(&error))?;
        match device.running_graphics_processes() {
            Ok(drawing) => found.extend(drawing),
            // A card without a display engine has no such list.
            Err(NvmlError::NotSupported) => {}
            Err(error) => return Err(failed(&error)),
        }
        found.sort_by_key(|process| process.pid);
        // A process that does both is in both lists, with the same memory.
        found.dedup_by_key(|process| process.pid);
        Ok(found.into_iter().map(|process| self.holder(&process)).collect())
    }

    /// The share of the card that each process has used, the highest of the driver's samples since a moment of the driver's own
    /// clock (µs; 0 is since ever), and that of the newest sample. Empty where nothing ran.
    ///
    /// # Errors
    /// [`GpuError::NotSupported`] on cards that tell no shares; else as [`read`](Self::read).
    pub fn process_shares(&self, uuid: &GpuUuid, since: u64) -> Result<(BTreeMap<u32, Percent>, u64), GpuError> {
        let samples = match self.device(uuid)?.process_utilization_stats(since) {
            Ok(samples) => samples,
            // No sample since then, in the driver's words.
            Err(NvmlError::NotFound) => Vec::new(),
            Err(error) => return Err(GpuError::of(&error, uuid, "tell its processes' shares")),
        };
        let mut shares = BTreeMap::new();
        let mut newest = since;
        for sample in samples {
            newest = newest.max(sample.timestamp);
            // Drivers have told more than a whole.
            let share = Percent(u8::try_from(sample.sm_util.min(100)).unwrap_or(100));
            let highest = shares.entry(sample.pid).or_insert(share);
            *highest = share.max(*highest);
        }
        Ok((shares, newest))
    }

    /// The range in which the card's power limit may be set.
    ///
    /// # Errors
    /// [`GpuError::NotSupported`] on cards that have none (most laptops); else as [`read`](Self::read).
    pub fn power_limits(&self, uuid: &GpuUuid) -> Result<PowerLimits, GpuError> {
        power_limits(&self.device(uuid)?).map_err(|error| GpuError::of(&error, uuid, "tell its power limits"))
    }

    /// Sets the card's power limit and reads it back. To lower it, stop a job's heat; to raise it, give back what was
    /// taken: what to set is the caller's decision.
    ///
    /// # Errors
    /// [`GpuError::LimitOutOfRange`] (nothing was tried), [`GpuError::NoPermission`], [`GpuError::NotSupported`],
    /// [`GpuError::LimitNotApplied`] where the driver took it and did not do it.
    pub fn set_power_limit(&self, uuid: &GpuUuid, limit: Milliwatts) -> Result<(), GpuError> {
        const WHAT: &str = "set a power limit";
        let failed = |error: &NvmlError| GpuError::of(error, uuid, WHAT);
        let mut device = self.device(uuid)?;
        let limits = power_limits(&device).map_err(|error| failed(&error))?;
        if limit < limits.least || limit > limits.most {
            return Err(GpuError::LimitOutOfRange { asked: limit, limits });
        }
        device
            .set_power_management_limit(limit.0)
            .map_err(|error| failed(&error))?;
        let found = device
            .power_management_limit()
            .map(Milliwatts)
            .map_err(|error| failed(&error))?;
        if found != limit {
            return Err(GpuError::LimitNotApplied { asked: limit, found });
        }
        Ok(())
    }

    /// The device nodes that a job needs for this card. `lab` is the simulated driver's folder, if that is what runs.
    ///
    /// # Errors
    /// [`GpuError::SimulationMissing`] for a simulated card without a lab; [`GpuError::NotSupported`] where cards have
    /// no nodes (Windows); else as [`read`](Self::read).
    pub fn device_nodes(&self, uuid: &GpuUuid, lab: Option<&Path>) -> Result<Vec<PathBuf>, GpuError> {
        const WHAT: &str = "name its device nodes";
        let device = self.device(uuid)?;
        let failed = |error: &NvmlError| GpuError::of(error, uuid, WHAT);
        let family = match (is_simulated(&device.name().map_err(|error| failed(&error))?), lab) {
            (false, _) => NodeFamily::Nvidia,
            (true, Some(lab)) => NodeFamily::Simulated(lab),
            (true, None) => return Err(GpuError::SimulationMissing),
        };
        let minor = minor_number(&device).map_err(|error| failed(&error))?;
        Ok(device_nodes(minor, family))
    }

    fn device(&self, uuid: &GpuUuid) -> Result<Device<'_>, GpuError> {
        self.driver
            .device_by_uuid(uuid.0.as_str())
            .map_err(|error| GpuError::of(&error, uuid, "find the card"))
    }

    fn describe(&self, index: u32) -> Result<CardDescription, GpuError> {
        let nameless = GpuUuid(format!("number {index}"));
        let failed = |error: &NvmlError| GpuError::of(error, &nameless, "describe the card");
        let device = self.driver.device_by_index(index).map_err(|error| failed(&error))?;
        let uuid = GpuUuid(device.uuid().map_err(|error| failed(&error))?);
        let name = device.name().map_err(|error| failed(&error))?;
        let memory = device.memory_info().map_err(|error| failed(&error))?;
        Ok(CardDescription {
            index,
            simulated: is_simulated(&name),
            name,
            vram_total: Bytes(memory.total),
            driver_version: self.driver_version.clone(),
            power_limits: reading(power_limits(&device), &uuid)?,
            uuid,
        })
    }

    fn holder(&self, process: &ProcessInfo) -> CardProcess {
        CardProcess {
            pid: process.pid,
            vram_used: match process.used_gpu_memory {
                UsedGpuMemory::Used(used) => bytes(used),
                UsedGpuMemory::Unavailable => not_told(),
            },
            // A process that has just ended, or one of another user, has no name for us.
            name: self.driver.sys_process_name(process.pid, NAME_LENGTH).ok(),
        }
    }
}

fn is_simulated(name: &str) -> bool {
    name.contains(SIMULATED)
}

fn bytes(count: u64) -> Reading<Bytes> {
    if count == u64::MAX {
        return not_told();
    }
    Reading::of(Bytes(count))
}

fn power_limits(device: &Device<'_>) -> Result<PowerLimits, NvmlError> {
    let range = device.power_management_limit_constraints()?;
    Ok(PowerLimits {
        least: Milliwatts(range.min_limit),
        most: Milliwatts(range.max_limit),
        factory: Milliwatts(device.power_management_limit_default()?),
    })
}

/// Has no call of its own: it is a field, which cards without the sensor answer with an error in the field.
fn memory_temperature(device: &Device<'_>, uuid: &GpuUuid) -> Result<Reading<Celsius>, GpuError> {
    let sample = device
        .field_values_for(&[FieldId(NVML_FI_DEV_MEMORY_TEMP)])
        .and_then(|mut samples| samples.pop().unwrap_or(Err(NvmlError::NotSupported)))
        .and_then(|sample| sample.value);
    Ok(and_then(reading(sample, uuid)?, |value| match value {
        // A card without the sensor may answer success and 0 rather than say so.
        SampleValue::U32(0) | SampleValue::U64(0) => Reading::NotSupported,
        SampleValue::U32(degrees) => celsius(degrees),
        SampleValue::U64(degrees) => celsius(u32::try_from(degrees).unwrap_or(u32::MAX)),
        SampleValue::F64(_) | SampleValue::I64(_) => Reading::invalid("a temperature that is no whole number"),
    }))
}

#[cfg(target_os = "linux")]
fn minor_number(device: &Device<'_>) -> Result<u32, NvmlError> {
    device.minor_number()
}

#[cfg(not(target_os = "linux"))]
fn minor_number(_device: &Device<'_>) -> Result<u32, NvmlError> {
    Err(NvmlError::NotSupported)
}
