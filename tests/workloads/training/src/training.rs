//! One training run: model, optimiser, position in the random sequence. `advance` does one step; everything that the next
//! step depends on is in here and goes into a checkpoint.

use anyhow::Context;
use candle_core::{D, Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::model::{Shape, Transformer};
use crate::optimiser::AdamW;
use crate::text::Text;

/// What a run is, apart from how long it goes on. Two runs of equal settings are equal step by step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) shape: Shape,
    /// Windows of text per step.
    pub(crate) batch: usize,
    pub(crate) learning_rate: f64,
    pub(crate) seed: u64,
}

pub(crate) struct Training {
    pub(crate) settings: Settings,
    pub(crate) model: Transformer,
    pub(crate) optimiser: AdamW,
    pub(crate) random: ChaCha8Rng,
    /// Steps done.
    pub(crate) step: u32,
    /// Mean cross entropy of the last step's batch before it was learned from, nats per character; NaN before the first.
    pub(crate) loss: f32,
    pub(crate) device: Device,
}

impl Training {
    /// A run that has not begun.
    pub(crate) fn new(settings: Settings, device: &Device) -> anyhow::Result<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
        let model = Transformer::new(settings.shape, &mut random, device).context("could not build the model")?;
        let optimiser = AdamW::new(model.parameters(), settings.learning_rate)?;
        Ok(Training {
            settings,
            model,
            optimiser,
            random,
            step: 0,
            loss: f32::NAN,
            device: device.clone(),
        })
    }

    /// Learns from one batch.
    pub(crate) fn advance(&mut self, text: &Text) -> anyhow::Result<()> {
        let windows = self.settings.batch;
        let length = self.settings.shape.context;
        let batch = text.draw(&mut self.random, windows, length)?;
        let inputs = Tensor::from_vec(batch.inputs, (windows, length), &self.device)?;
        let targets = Tensor::from_vec(batch.targets, windows * length, &self.device)?;

        let scores = self.model.forward(&inputs)?.flatten_to(1)?;
        let loss = candle_nn::loss::cross_entropy(&scores, &targets)?;
        let gradients = loss.backward()?;
        self.step += 1;
        self.optimiser.step(self.step, self.model.parameters(), &gradients)?;
        self.loss = loss.to_scalar()?;
        Ok(())
    }

    /// Lets the model write on from the text's opening. Stops and answers `None` as soon as `stop` says so.
    pub(crate) fn write_on(
        &self,
        text: &Text,
        length: usize,
        stop: impl Fn() -> bool,
    ) -> anyhow::Result<Option<String>> {
        // A source of its own: what is written must not depend on how many batches were drawn.
        let mut random = ChaCha8Rng::seed_from_u64(self.settings.seed.wrapping_add(1));
        let context = self.settings.shape.context;
        let mut characters = text.opening(context.min(20)).to_vec();
        for _ in 0..length {
            if stop() {
                return Ok(None);
            }
            let seen = &characters[characters.len().saturating_sub(context)..];
            let inputs = Tensor::new(seen, &self.device)?.unsqueeze(0)?;
            let scores = self.model.forward(&inputs)?;
            let last = scores.narrow(1, seen.len() - 1, 1)?.flatten_all()?;
            let weights = candle_nn::ops::softmax(&(last / 0.8)?, D::Minus1)?;
            characters.push(pick(&weights.to_vec1()?, random.random()));
        }
        Ok(Some(text.spell(&characters)))
    }
}

/// The entry at which the running sum of `weights` (which sum to 1) passes `point` (0 to 1).
fn pick(weights: &[f32], point: f32) -> u32 {
    let mut sum = 0.0;
    for (number, weight) in (0u32..).zip(weights) {
        sum += weight;
        if point < sum {
            return number;
        }
    }
    // Rounding left the sum just below 1.
    weights.len().saturating_sub(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picking_follows_the_weights() {
        let weights = [0.25, 0.5, 0.25];
        for (point, expected) in [(0.0, 0), (0.24, 0), (0.25, 1), (0.74, 1), (0.75, 2), (0.9999999, 2)] {
            assert_eq!(pick(&weights, point), expected, "{point}");
        }
        assert_eq!(pick(&[0.5, 0.4], 0.95), 1);
    }
}
