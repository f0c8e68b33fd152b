//! Fits the thermal model's lags to recorded cards by least squares: the two fast lags to a step of load sampled every few
//! milliseconds, the slow one to days of one-minute samples. Deterministic; reads no file (that is `traces`) and is never
//! called by the driver: it uses the constants in `plan` that this printed.

use crate::thermal::Lag;

/// One moment of a recorded card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Since the start of the recording.
    pub seconds: f64,
    /// Power drawn since the sample before.
    pub watts: f64,
    /// Core temperature as reported, whole degrees.
    pub celsius: f64,
}

/// The fast lags that fit a step best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FastFit {
    /// Die and heat spreader.
    pub lags: [Lag; 2],
    /// What the recording's temperature was without the lags' rise, °C: unknown room plus whatever came before.
    pub base_celsius: f64,
    /// Root of the mean squared error, °C.
    pub rmse_celsius: f64,
}

/// The slow lag that fits days of load best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowFit {
    /// The heatsink.
    pub lag: Lag,
    /// Its rise at the first sample, kelvin: nobody recorded what the card did before.
    pub initial_rise_kelvin: f64,
    /// Root of the mean squared error, °C.
    pub rmse_celsius: f64,
}

/// Both, fitted in turns until neither moves the other: the step holds some slow rise, the days hold the fast one.
///
/// `ambient_celsius` of the slow recording is the caller's assumption: a load that never varies cannot tell room from
/// resistance. Returns `None` where a recording is too short or too flat to fit.
pub fn fit(step: &[Sample], days: &[Sample], ambient_celsius: f64) -> Option<(FastFit, SlowFit)> {
    let mut slow_lag = Lag {
        kelvin_per_watt: 0.1,
        seconds: 45.0,
    };
    let mut fitted = None;
    for _turn in 0..6 {
        let fast = fit_fast(step, slow_lag)?;
        let slow = fit_slow(days, fast.lags, ambient_celsius)?;
        slow_lag = slow.lag;
        fitted = Some((fast, slow));
    }
    fitted
}

/// The two fast lags over a step, given the slow one.
pub fn fit_fast(step: &[Sample], slow: Lag) -> Option<FastFit> {
    let without_slow: Vec<f64> = lagged(step, slow.seconds, step.first()?.watts)
        .iter()
        .zip(step)
        .map(|(watts, sample)| sample.celsius - slow.kelvin_per_watt * watts)
        .collect();
    let ones = vec![1.0; step.len()];
    let solve = |die: f64, spreader: f64| {
        let start = step[0].watts;
        let columns = [ones.clone(), lagged(step, die, start), lagged(step, spreader, start)];
        let weights = least_squares(&columns, &without_slow)?;
        let error = rmse(&columns, &weights, &without_slow);
        Some((error, (die, spreader), weights))
    };
    let mut best: Option<(f64, (f64, f64), [f64; 3])> = None;
    let mut search = |dies: &[f64], spreaders: &[f64]| {
        for &die in dies {
            for &spreader in spreaders {
                let Some(found) = solve(die, spreader) else {
                    continue;
                };
                let physical = found.2[1] >= 0.0 && found.2[2] >= 0.0;
                if physical && best.as_ref().is_none_or(|known| found.0 < known.0) {
                    best = Some(found);
                }
            }
        }
        best
    };
    let (_, (die, spreader), _) = search(&spread(0.02, 0.8, 14), &spread(1.0, 12.0, 14))?;
    let (rmse_celsius, (die, spreader), weights) = search(
        &spread(die / 1.3, die * 1.3, 14),
        &spread(spreader / 1.2, spreader * 1.2, 14),
    )?;
    Some(FastFit {
        lags: [
            Lag {
                kelvin_per_watt: weights[1],
                seconds: die,
            },
            Lag {
                kelvin_per_watt: weights[2],
                seconds: spreader,
            },
        ],
        base_celsius: weights[0],
        rmse_celsius,
    })
}

/// The slow lag over days, given the fast ones, which have settled within each sample's minute.
pub fn fit_slow(days: &[Sample], fast: [Lag; 2], ambient_celsius: f64) -> Option<SlowFit> {
    let fast_resistance: f64 = fast.iter().map(|lag| lag.kelvin_per_watt).sum();
    let slow_part: Vec<f64> = days
        .iter()
        .map(|sample| sample.celsius - ambient_celsius - fast_resistance * sample.watts)
        .collect();
    let origin = days.first()?.seconds;
    let mut best: Option<SlowFit> = None;
    for seconds in spread(5.0, 600.0, 400) {
        let initial: Vec<f64> = days
            .iter()
            .map(|sample| (-(sample.seconds - origin) / seconds).exp())
            .collect();
        let columns = [lagged(days, seconds, 0.0), initial];
        let Some(weights) = least_squares(&columns, &slow_part) else {
            continue;
        };
        let rmse_celsius = rmse(&columns, &weights, &slow_part);
        if best.as_ref().is_none_or(|known| rmse_celsius < known.rmse_celsius) {
            best = Some(SlowFit {
                lag: Lag {
                    kelvin_per_watt: weights[0],
                    seconds,
                },
                initial_rise_kelvin: weights[1],
                rmse_celsius,
            });
        }
    }
    best
}

/// Error of given lags over a recording that starts settled, with only the constant base free: (RMSE °C, base °C). This is
/// what a recording that nothing was fitted to is judged by.
pub fn error_with(samples: &[Sample], lags: [Lag; 3]) -> Option<(f64, f64)> {
    let start = samples.first()?.watts;
    let mut rise = vec![0.0; samples.len()];
    for lag in lags {
        for (rise, watts) in rise.iter_mut().zip(lagged(samples, lag.seconds, start)) {
            *rise += lag.kelvin_per_watt * watts;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a recording has far fewer than 2^52 samples")]
    let count = samples.len() as f64;
    let rests: Vec<f64> = samples
        .iter()
        .zip(&rise)
        .map(|(sample, rise)| sample.celsius - rise)
        .collect();
    let base = rests.iter().sum::<f64>() / count;
    let squares: f64 = rests.iter().map(|rest| (rest - base).powi(2)).sum();
    Some(((squares / count).sqrt(), base))
}

/// Power as a first-order lag of time constant `seconds` sees it, one value a sample.
fn lagged(samples: &[Sample], seconds: f64, start_watts: f64) -> Vec<f64> {
    let mut seen = start_watts;
    let mut before = samples.first().map_or(0.0, |sample| sample.seconds);
    samples
        .iter()
        .map(|sample| {
            seen = sample.watts + (seen - sample.watts) * (-(sample.seconds - before) / seconds).exp();
            before = sample.seconds;
            seen
        })
        .collect()
}

/// `count` values from `low` to `high`, evenly spaced in their logarithm.
fn spread(low: f64, high: f64, count: u32) -> Vec<f64> {
    let ratio = (high / low).ln() / f64::from(count.max(2) - 1);
    (0..count).map(|step| low * (ratio * f64::from(step)).exp()).collect()
}

/// Weights of the columns that come nearest to `goal`: normal equations by Gauss-Jordan with pivoting. `None` where the
/// columns do not determine them.
fn least_squares<const N: usize>(columns: &[Vec<f64>; N], goal: &[f64]) -> Option<[f64; N]> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut left = [[0.0; N]; N];
    let mut right = [0.0; N];
    for row in 0..N {
        for column in 0..N {
            left[row][column] = dot(&columns[row], &columns[column]);
        }
        right[row] = dot(&columns[row], goal);
    }
    for pivot in 0..N {
        let largest = (pivot..N).max_by(|&a, &b| left[a][pivot].abs().total_cmp(&left[b][pivot].abs()))?;
        left.swap(pivot, largest);
        right.swap(pivot, largest);
        if left[pivot][pivot].abs() < 1e-9 {
            return None;
        }
        for row in 0..N {
            if row == pivot {
                continue;
            }
            let factor = left[row][pivot] / left[pivot][pivot];
            let pivot_row = left[pivot];
            for (cell, above) in left[row].iter_mut().zip(pivot_row) {
                *cell -= factor * above;
            }
            right[row] -= factor * right[pivot];
        }
    }
    let mut weights = [0.0; N];
    for (index, weight) in weights.iter_mut().enumerate() {
        *weight = right[index] / left[index][index];
    }
    Some(weights)
}

#[expect(clippy::cast_precision_loss, reason = "a recording has far fewer than 2^52 samples")]
fn rmse<const N: usize>(columns: &[Vec<f64>; N], weights: &[f64; N], goal: &[f64]) -> f64 {
    let squares: f64 = goal
        .iter()
        .enumerate()
        .map(|(index, goal)| {
            let modelled: f64 = columns
                .iter()
                .zip(weights)
                .map(|(column, weight)| column[index] * weight)
                .sum();
            (modelled - goal).powi(2)
        })
        .sum();
    (squares / goal.len() as f64).sqrt()
}
