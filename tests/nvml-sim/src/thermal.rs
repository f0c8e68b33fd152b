//! How warm a simulated card is: a chain of first-order lags over ambient, driven by power (a Foster network). Pure: no
//! clock, no file. Fitting the lags to recorded cards lives in `fit`, the cards that use them in `plan`.

use serde::{Deserialize, Serialize};

/// One first-order lag: under constant power it approaches `kelvin_per_watt × watts` with time constant `seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lag {
    /// Thermal resistance, kelvin of rise per watt; not negative.
    pub kelvin_per_watt: f64,
    /// Time constant in seconds; above 0.
    pub seconds: f64,
}

/// A card's thermal behaviour: three lags (die, heat spreader, heatsink) in a room.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThermalModel {
    /// Temperature of the air around the card, °C.
    pub ambient_celsius: f64,
    /// Fast die, heat spreader, slow heatsink.
    pub lags: [Lag; 3],
}

/// How far each lag has risen above ambient, kelvin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThermalState {
    /// One value a lag, in the model's order.
    pub rise_kelvin: [f64; 3],
}

impl ThermalModel {
    /// The state that constant power ends in.
    pub fn settled(&self, watts: f64) -> ThermalState {
        ThermalState {
            rise_kelvin: self.lags.map(|lag| lag.kelvin_per_watt * watts),
        }
    }

    /// The state after `seconds` at constant power. Exact for any gap: one long step equals many short ones. A gap that
    /// is negative or not a number changes nothing.
    pub fn step(&self, state: &ThermalState, watts: f64, seconds: f64) -> ThermalState {
        let gap = seconds.max(0.0);
        let target = self.settled(watts);
        let mut rise_kelvin = state.rise_kelvin;
        for ((rise, target), lag) in rise_kelvin.iter_mut().zip(target.rise_kelvin).zip(self.lags) {
            *rise = target + (*rise - target) * (-gap / lag.seconds).exp();
        }
        ThermalState { rise_kelvin }
    }

    /// Core temperature, °C.
    pub fn celsius(&self, state: &ThermalState) -> f64 {
        self.ambient_celsius + state.rise_kelvin.iter().sum::<f64>()
    }
}
