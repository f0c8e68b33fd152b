//! What a graphics card is and what it reports at one moment. A value that the card does not report is absent with a
//! reason, never 0. What to do about a reading is decided in `sela-core`.

use crate::id::GpuUuid;
use crate::units::{Bytes, Celsius, Megahertz, Milliwatts, Percent};
use serde::{Deserialize, Serialize};

/// A value, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reading<T> {
    /// What the card reported.
    Value {
        /// The value.
        value: T,
    },
    /// The card has no such sensor; it never will have.
    NotSupported,
    /// The card has it and answered with no reading: an error, 511 °C, the all-ones value.
    Invalid {
        /// What came instead.
        why: String,
    },
}

impl<T> Reading<T> {
    /// A value that was reported.
    pub const fn of(value: T) -> Self {
        Self::Value { value }
    }

    /// The value where there is one.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Value { value } => Some(value),
            Self::NotSupported | Self::Invalid { .. } => None,
        }
    }

    /// A reading that came back as an error or as a value that is none.
    pub fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid { why: why.into() }
    }
}

/// What does not change while the driver runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct CardDescription {
    /// The card's identity.
    pub uuid: GpuUuid,
    /// The vendor's name for the model; says SIMULATED where it is.
    pub name: String,
    /// Position in the driver's list at this start. For display only.
    pub index: u32,
    /// Whether the card is simulated: never paid for outside a lab.
    pub simulated: bool,
    /// Memory in all.
    pub vram_total: Bytes,
    /// Version of the driver.
    pub driver_version: String,
    /// Power limits that the card accepts.
    pub power_limits: Reading<PowerLimits>,
}

/// The range in which a power limit may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct PowerLimits {
    /// Least.
    pub least: Milliwatts,
    /// Most.
    pub most: Milliwatts,
    /// The factory's.
    pub factory: Milliwatts,
}

/// What a card reports at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct CardReading {
    /// Which card.
    pub uuid: GpuUuid,
    /// Core temperature.
    pub temperature: Reading<Celsius>,
    /// Temperature of the memory junction; GeForce cards mostly do not report it.
    pub memory_temperature: Reading<Celsius>,
    /// Power drawn now.
    pub power: Reading<Milliwatts>,
    /// The limit in force now.
    pub power_limit: Reading<Milliwatts>,
    /// Share of the last sample period in which a kernel ran.
    pub utilisation: Reading<Percent>,
    /// Memory in use, by whomever.
    pub vram_used: Reading<Bytes>,
    /// Fan, share of its full speed.
    pub fan: Reading<Percent>,
    /// Core clock.
    pub core_clock: Reading<Megahertz>,
}

/// A process that holds the card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardProcess {
    /// Its id in the machine's own PID namespace.
    pub pid: u32,
    /// Memory that it holds; WDDM does not tell.
    pub vram_used: Reading<Bytes>,
    /// Its name, where it can be read.
    pub name: Option<String>,
}
