//! AdamW (Loshchilov & Hutter 2019, algorithm 2) with its moments in the open. candle-nn has one too, but keeps its moments
//! to itself, and a run that resumes without them does not go on where it stopped.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};

const BETA_1: f64 = 0.9;
const BETA_2: f64 = 0.999;
const EPSILON: f64 = 1e-8;
const WEIGHT_DECAY: f64 = 0.01;

/// The running means of one parameter's gradient and of its square.
#[derive(Debug, Clone)]
pub(crate) struct Moments {
    pub(crate) first: Tensor,
    pub(crate) second: Tensor,
}

/// The optimiser's state for a set of named parameters.
#[derive(Debug)]
pub(crate) struct AdamW {
    learning_rate: f64,
    moments: BTreeMap<String, Moments>,
}

impl AdamW {
    /// An optimiser that has not seen a gradient yet.
    pub(crate) fn new(parameters: &BTreeMap<String, Var>, learning_rate: f64) -> Result<Self> {
        let moments = parameters
            .iter()
            .map(|(name, parameter)| {
                let zeros = parameter.zeros_like()?;
                let moments = Moments {
                    first: zeros.clone(),
                    second: zeros,
                };
                Ok((name.clone(), moments))
            })
            .collect::<Result<_>>()?;
        Ok(AdamW { learning_rate, moments })
    }

    pub(crate) fn moments(&self) -> &BTreeMap<String, Moments> {
        &self.moments
    }

    pub(crate) fn set_moments(&mut self, name: &str, moments: Moments) {
        self.moments.insert(name.to_owned(), moments);
    }

    /// Moves the parameters against their gradients. `step` counts from 1.
    pub(crate) fn step(&mut self, step: u32, parameters: &BTreeMap<String, Var>, gradients: &GradStore) -> Result<()> {
        let first_scale = 1.0 / (1.0 - BETA_1.powf(f64::from(step)));
        let second_scale = 1.0 / (1.0 - BETA_2.powf(f64::from(step)));
        for (name, parameter) in parameters {
            let (Some(gradient), Some(moments)) = (gradients.get(parameter), self.moments.get_mut(name)) else {
                candle_core::bail!("parameter {name} has no gradient");
            };
            // Detached: the moments must not keep the step's whole computation alive.
            moments.first = ((&moments.first * BETA_1)? + (gradient * (1.0 - BETA_1))?)?.detach();
            moments.second = ((&moments.second * BETA_2)? + (gradient.sqr()? * (1.0 - BETA_2))?)?.detach();
            let direction = ((&moments.first * first_scale)? / ((&moments.second * second_scale)?.sqrt()? + EPSILON)?)?;
            let decayed = (parameter.as_tensor() * (1.0 - self.learning_rate * WEIGHT_DECAY))?;
            parameter.set(&(decayed - (direction * self.learning_rate)?)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use candle_nn::Optimizer;

    use super::*;

    /// Candle's own AdamW is the reference: other code, same algorithm and constants.
    #[test]
    fn ten_steps_agree_with_candles_adamw() {
        let start = Tensor::new(&[1.5f32, -2.0, 0.25], &Device::Cpu).unwrap();
        let ours = Var::from_tensor(&start).unwrap();
        let theirs = Var::from_tensor(&start).unwrap();
        let parameters = BTreeMap::from([("x".to_owned(), ours.clone())]);
        let mut optimiser = AdamW::new(&parameters, 0.05).unwrap();
        let mut reference = candle_nn::AdamW::new_lr(vec![theirs.clone()], 0.05).unwrap();
        let loss = |x: &Var| x.sqr().unwrap().sum_all().unwrap();
        for step in 1..=10 {
            let gradients = loss(&ours).backward().unwrap();
            optimiser.step(step, &parameters, &gradients).unwrap();
            reference.backward_step(&loss(&theirs)).unwrap();
        }
        let ours: Vec<f32> = ours.to_vec1().unwrap();
        let theirs: Vec<f32> = theirs.to_vec1().unwrap();
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert!((ours - theirs).abs() < 1e-6, "{ours} {theirs}");
        }
    }
}
