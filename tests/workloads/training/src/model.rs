//! The transformer: characters in, a score for each possible next character out. Pre-norm blocks of causal self-attention
//! and a feed-forward layer, as in GPT-2 (Radford et al. 2019) but with RMSNorm (Zhang & Sennrich 2019) and no biases.
//!
//! Only operations that candle can differentiate: its fast softmax and norms have no backward pass.

use std::collections::BTreeMap;

use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::{Activation, Embedding, Linear, RmsNorm, VarBuilder, VarMap, embedding, linear_no_bias, rms_norm};
use rand::Rng;
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};

/// Small enough not to be seen next to real scores, large enough that its exponential is 0; an infinity would make the
/// backward pass multiply 0 by infinity.
const MASKED: f32 = -1e9;
const NORM_EPSILON: f64 = 1e-5;

/// The sizes of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Characters in the alphabet.
    pub(crate) alphabet: usize,
    /// Longest input, characters.
    pub(crate) context: usize,
    /// Numbers per character; a multiple of `heads`.
    pub(crate) width: usize,
    /// Attention heads.
    pub(crate) heads: usize,
    /// Blocks.
    pub(crate) layers: usize,
}

/// The model and its parameters by name, in a fixed order.
pub(crate) struct Transformer {
    shape: Shape,
    parameters: BTreeMap<String, Var>,
    characters: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    scores: Linear,
    mask: Tensor,
}

struct Block {
    attention_norm: RmsNorm,
    query_key_value: Linear,
    attention_out: Linear,
    feed_norm: RmsNorm,
    feed_in: Linear,
    feed_out: Linear,
}

impl Transformer {
    /// A model whose parameters are drawn from `random`: the same random source gives the same model.
    pub(crate) fn new(shape: Shape, random: &mut impl Rng, device: &Device) -> Result<Self> {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, device);
        let characters = embedding(shape.alphabet, shape.width, builder.pp("characters"))?;
        let positions = embedding(shape.context, shape.width, builder.pp("positions"))?;
        let blocks = (0..shape.layers)
            .map(|layer| Block::new(shape, &builder.pp(format!("block{layer}"))))
            .collect::<Result<_>>()?;
        let norm = rms_norm(shape.width, NORM_EPSILON, builder.pp("norm"))?;
        let scores = linear_no_bias(shape.width, shape.alphabet, builder.pp("scores"))?;

        let parameters: BTreeMap<String, Var> = match variables.data().lock() {
            Ok(named) => named.clone().into_iter().collect(),
            Err(_) => candle_core::bail!("a thread failed while the model was built"),
        };
        initialise(&parameters, random)?;
        Ok(Transformer {
            shape,
            parameters,
            characters,
            positions,
            blocks,
            norm,
            scores,
            mask: causal_mask(shape.context, device)?,
        })
    }

    /// All that is learned, by name.
    pub(crate) fn parameters(&self) -> &BTreeMap<String, Var> {
        &self.parameters
    }

    /// How many numbers are learned.
    pub(crate) fn parameter_count(&self) -> usize {
        self.parameters.values().map(|var| var.elem_count()).sum()
    }

    /// Scores of the next character at each position: `[windows, length]` in, `[windows, length, alphabet]` out. Length is at
    /// most the context.
    pub(crate) fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let (_, length) = inputs.dims2()?;
        let places = Tensor::arange(0, length as u32, inputs.device())?;
        let mut state = self
            .characters
            .forward(inputs)?
            .broadcast_add(&self.positions.forward(&places)?)?;
        let mask = self.mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
        for block in &self.blocks {
            state = block.forward(&state, &mask, self.shape.heads)?;
        }
        self.scores.forward(&self.norm.forward_diff(&state)?)
    }
}

impl Block {
    fn new(shape: Shape, builder: &VarBuilder) -> Result<Self> {
        let width = shape.width;
        Ok(Block {
            attention_norm: rms_norm(width, NORM_EPSILON, builder.pp("attention_norm"))?,
            query_key_value: linear_no_bias(width, 3 * width, builder.pp("query_key_value"))?,
            attention_out: linear_no_bias(width, width, builder.pp("attention_out"))?,
            feed_norm: rms_norm(width, NORM_EPSILON, builder.pp("feed_norm"))?,
            feed_in: linear_no_bias(width, 4 * width, builder.pp("feed_in"))?,
            feed_out: linear_no_bias(4 * width, width, builder.pp("feed_out"))?,
        })
    }

    fn forward(&self, state: &Tensor, mask: &Tensor, heads: usize) -> Result<Tensor> {
        let attended = self.attend(&self.attention_norm.forward_diff(state)?, mask, heads)?;
        let state = (state + attended)?;
        let inner = self.feed_in.forward(&self.feed_norm.forward_diff(&state)?)?;
        let fed = self.feed_out.forward(&Activation::Gelu.forward(&inner)?)?;
        state + fed
    }

    fn attend(&self, state: &Tensor, mask: &Tensor, heads: usize) -> Result<Tensor> {
        let (windows, length, width) = state.dims3()?;
        let head_width = width / heads;
        // [windows, length, 3, heads, head_width] → three of [windows, heads, length, head_width]
        let split = self
            .query_key_value
            .forward(state)?
            .reshape((windows, length, 3, heads, head_width))?;
        let part =
            |index: usize| -> Result<Tensor> { split.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous() };
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scores = (query.matmul(&key.t()?.contiguous()?)? / (head_width as f64).sqrt())?;
        let weights = candle_nn::ops::softmax(&scores.broadcast_add(mask)?, D::Minus1)?;
        let mixed = weights
            .matmul(&value)?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((windows, length, width))?;
        self.attention_out.forward(&mixed)
    }
}

/// 0 where a position may look (itself and before), [`MASKED`] where it may not.
fn causal_mask(length: usize, device: &Device) -> Result<Tensor> {
    let mask: Vec<f32> = (0..length)
        .flat_map(|from| (0..length).map(move |to| if to > from { MASKED } else { 0.0 }))
        .collect();
    Tensor::from_vec(mask, (length, length), device)
}

/// Overwrites candle's start values, which come from a random source that cannot be seeded: norms stay 1, everything else
/// is normal with the width of its input (He et al. 2015).
fn initialise(parameters: &BTreeMap<String, Var>, random: &mut impl Rng) -> Result<()> {
    for (name, variable) in parameters {
        if name.ends_with("norm.weight") {
            continue;
        }
        let scale = if name.starts_with("characters") || name.starts_with("positions") {
            0.1
        } else {
            1.0 / (variable.dim(D::Minus1)? as f32).sqrt()
        };
        let values: Vec<f32> = (0..variable.elem_count())
            .map(|_| scale * random.sample::<f32, _>(StandardNormal))
            .collect();
        variable.set(&Tensor::from_vec(values, variable.shape(), variable.device())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const SMALL: Shape = Shape {
        alphabet: 7,
        context: 6,
        width: 8,
        heads: 2,
        layers: 2,
    };

    fn model(seed: u64) -> Transformer {
        Transformer::new(SMALL, &mut ChaCha8Rng::seed_from_u64(seed), &Device::Cpu).unwrap()
    }

    fn scores(model: &Transformer, characters: &[u32]) -> Vec<Vec<f32>> {
        let inputs = Tensor::new(characters, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        model.forward(&inputs).unwrap().squeeze(0).unwrap().to_vec2().unwrap()
    }

    #[test]
    fn a_position_does_not_see_what_comes_after_it() {
        let model = model(3);
        let one = scores(&model, &[1, 2, 3, 4, 5, 6]);
        let other = scores(&model, &[1, 2, 3, 6, 5, 4]);
        assert_eq!(one[..3], other[..3]);
        assert_ne!(one[3], other[3]);
    }

    #[test]
    fn the_same_seed_gives_the_same_model() {
        let inputs = [0, 1, 2, 3];
        assert_eq!(scores(&model(3), &inputs), scores(&model(3), &inputs));
        assert_ne!(scores(&model(3), &inputs), scores(&model(4), &inputs));
    }

    #[test]
    fn every_parameter_gets_a_gradient() {
        let model = model(3);
        let inputs = Tensor::new(&[[0u32, 1, 2, 3, 4, 5]], &Device::Cpu).unwrap();
        let gradients = model
            .forward(&inputs)
            .unwrap()
            .sqr()
            .unwrap()
            .sum_all()
            .unwrap()
            .backward()
            .unwrap();
        for (name, variable) in model.parameters() {
            let gradient = gradients.get(variable).unwrap_or_else(|| panic!("{name} has none"));
            let size: f32 = gradient.sqr().unwrap().sum_all().unwrap().to_scalar().unwrap();
            assert!(size > 0.0 && size.is_finite(), "{name}: {size}");
        }
    }
}
