//! What a simulated card is made of: its name, memory, power range and thermal model, as `cards.toml` in the lab's folder
//! says it, and presets of cards that people own. What a card does at a moment lives in `card`.

use crate::thermal::{Lag, ThermalModel};
use serde::{Deserialize, Serialize};

/// The word that every simulated card carries in its name, so that it shows wherever the name shows.
pub const SIMULATED: &str = "SIMULATED";

/// The room that `salad_node_a.txt` is taken to have been recorded in, °C. An assumption: nobody recorded it, and a load that
/// never varies cannot tell a warmer room from a better heatsink.
pub const ASSUMED_ROOM_CELSIUS: f64 = 25.0;

/// An RTX 3090-class card. Die and spreader: least squares over `rtx3090_step.csv` (JimZeyuYang/GPU_Power_Benchmark);
/// heatsink: over `salad_node_a.txt` (SaladTechnologies/performance-reliability-test-2025, an RTX 3080 Ti) at the assumed
/// room. Printed by `examples/thermal_fit.rs`; errors in `docs/measurements/thermal-model.md`.
pub const RTX_3090_LAGS: [Lag; 3] = [
    Lag {
        kelvin_per_watt: 0.024_97,
        seconds: 0.029,
    },
    Lag {
        kelvin_per_watt: 0.019_06,
        seconds: 1.80,
    },
    Lag {
        kelvin_per_watt: 0.095_14,
        seconds: 123.0,
    },
];

/// One card of a lab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardPlan {
    /// The vendor's UUID, "GPU-…". Unique in the machine: two labs with the same one would share a lock.
    pub uuid: String,
    /// The model; must contain [`SIMULATED`].
    pub name: String,
    /// Memory in all, MiB.
    pub vram_mib: u64,
    /// Memory that the driver keeps for itself, MiB; less than `vram_mib`.
    pub driver_reserved_mib: u64,
    /// Power.
    pub power: PowerPlan,
    /// Clocks.
    pub clocks: ClockPlan,
    /// Thermal behaviour.
    pub thermal: ThermalModel,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
}

/// Power of a card, milliwatts: the unit that NVML speaks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerPlan {
    /// Drawn without work.
    pub idle_mw: u32,
    /// What full work would draw without a limit.
    pub full_mw: u32,
    /// The factory's limit.
    pub limit_factory_mw: u32,
    /// Least limit that is accepted.
    pub limit_least_mw: u32,
    /// Most limit that is accepted.
    pub limit_most_mw: u32,
}

/// Clocks of a card, MHz.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockPlan {
    /// Core without work.
    pub core_idle_mhz: u32,
    /// Core at full work below the limit.
    pub core_boost_mhz: u32,
    /// Memory.
    pub memory_mhz: u32,
}

/// Why a card cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("card {uuid}: {what}")]
pub struct PlanError {
    uuid: String,
    what: &'static str,
}

impl CardPlan {
    /// GeForce RTX 3090, 24 GB, 350 W (the vendor's figures), with a fresh UUID.
    pub fn rtx_3090() -> Self {
        Self {
            uuid: fresh_uuid(),
            name: format!("NVIDIA GeForce RTX 3090 ({SIMULATED})"),
            vram_mib: 24_576,
            driver_reserved_mib: 316,
            power: PowerPlan {
                idle_mw: 25_000,
                full_mw: 380_000,
                limit_factory_mw: 350_000,
                limit_least_mw: 100_000,
                limit_most_mw: 400_000,
            },
            clocks: ClockPlan {
                core_idle_mhz: 210,
                core_boost_mhz: 1_935,
                memory_mhz: 9_751,
            },
            thermal: ThermalModel {
                ambient_celsius: 24.0,
                lags: RTX_3090_LAGS,
            },
            compute_capability: (8, 6),
        }
    }

    /// GeForce RTX 4070, 12 GB, 200 W (the vendor's figures), with a fresh UUID. No recording of one is at hand: it has the 3090's
    /// time constants, and its resistances × 1.6, since its smaller cooler settles near 69 °C at its limit.
    pub fn rtx_4070() -> Self {
        Self {
            uuid: fresh_uuid(),
            name: format!("NVIDIA GeForce RTX 4070 ({SIMULATED})"),
            vram_mib: 12_288,
            driver_reserved_mib: 236,
            power: PowerPlan {
                idle_mw: 11_000,
                full_mw: 215_000,
                limit_factory_mw: 200_000,
                limit_least_mw: 100_000,
                limit_most_mw: 215_000,
            },
            clocks: ClockPlan {
                core_idle_mhz: 210,
                core_boost_mhz: 2_715,
                memory_mhz: 10_501,
            },
            thermal: ThermalModel {
                ambient_celsius: 24.0,
                lags: RTX_3090_LAGS.map(|lag| Lag {
                    kelvin_per_watt: lag.kelvin_per_watt * 1.6,
                    ..lag
                }),
            },
            compute_capability: (8, 9),
        }
    }

    /// Memory that processes can allocate, MiB.
    pub const fn allocatable_mib(&self) -> u64 {
        self.vram_mib.saturating_sub(self.driver_reserved_mib)
    }

    /// Refuses a card that contradicts itself or hides that it is simulated.
    pub fn check(&self) -> Result<(), PlanError> {
        let power = &self.power;
        let lags_hold = self
            .thermal
            .lags
            .iter()
            .all(|lag| lag.seconds > 0.0 && lag.seconds.is_finite() && lag.kelvin_per_watt >= 0.0);
        let problems = [
            (!self.name.contains(SIMULATED), "its name must contain SIMULATED"),
            (
                !self.uuid.starts_with("GPU-") || self.uuid.contains('/') || self.uuid.len() > 79,
                "its uuid must read GPU-… as NVIDIA's do",
            ),
            (
                self.name.len() > 95,
                "its name is longer than NVML can return (95 bytes)",
            ),
            (
                self.driver_reserved_mib >= self.vram_mib,
                "driver_reserved_mib must be less than vram_mib",
            ),
            (
                power.limit_least_mw > power.limit_factory_mw || power.limit_factory_mw > power.limit_most_mw,
                "power limits must rise from least by factory to most",
            ),
            (
                power.idle_mw >= power.limit_least_mw || power.full_mw < power.idle_mw,
                "idle power must be below the least limit and below full power",
            ),
            (
                !lags_hold || !self.thermal.ambient_celsius.is_finite(),
                "thermal lags need seconds above 0 and kelvin_per_watt not below 0",
            ),
        ];
        match problems.iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(PlanError {
                uuid: self.uuid.clone(),
                what,
            }),
            None => Ok(()),
        }
    }
}

/// A UUID that no other lab has, so that two labs on one machine never contend for one card's lock.
fn fresh_uuid() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .expect("Linux hands out random UUIDs in /proc wherever this driver can run");
    format!("GPU-{}", uuid.trim())
}
