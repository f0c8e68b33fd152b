//! The forward pass of a Llama model (Touvron et al. 2023) with quantised weights from a GGUF file, out of candle's own
//! operations. Knows tokens as numbers, nothing of text.
//!
//! Written out here in place of `candle-transformers`: see docs/adr/0007-own-llama-forward.md.

use std::io::{Read, Seek};

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, IndexOp, Module, Result, Tensor, bail};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use candle_nn::rotary_emb::rope_i;

/// The weights of a model.
pub(crate) struct Llama {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    output: QMatMul,
    rotation: Rotation,
    sizes: Sizes,
    device: Device,
}

/// What the model has read so far: keys and values of every layer, `[1, key heads, tokens, head width]`. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    layers: Vec<(Tensor, Tensor)>,
    tokens: usize,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    heads: usize,
    key_heads: usize,
    head_width: usize,
    norm_epsilon: f32,
    context: usize,
}

struct Layer {
    attention_norm: Tensor,
    query: QMatMul,
    key: QMatMul,
    value: QMatMul,
    attention_out: QMatMul,
    feed_norm: Tensor,
    gate: QMatMul,
    up: QMatMul,
    down: QMatMul,
}

/// Cosines and sines of the rotary position encoding (Su et al. 2021), `[context, head width / 2]`.
struct Rotation {
    cosines: Tensor,
    sines: Tensor,
}

impl Memory {
    /// How many tokens were read.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Llama {
    /// Reads the weights onto the device.
    pub(crate) fn from_gguf<R: Read + Seek>(content: &Content, file: &mut R, device: &Device) -> Result<Self> {
        let sizes = Sizes::from_gguf(content)?;
        let mut weights = Weights { content, file, device };
        let layers = (0..whole_number(content, "llama.block_count")?)
            .map(|layer| Layer::read(&mut weights, layer))
            .collect::<Result<_>>()?;
        let embedding = weights.plain("token_embd.weight")?.to_dtype(DType::F16)?;
        // Small models use one table for both ends.
        let output = match content.tensor_infos.contains_key("output.weight") {
            true => weights.quantised("output.weight")?,
            false => weights.quantised("token_embd.weight")?,
        };
        Ok(Llama {
            embedding,
            layers,
            norm: weights.plain("output_norm.weight")?,
            output,
            rotation: Rotation::new(content, sizes, device)?,
            sizes,
            device: device.clone(),
        })
    }

    /// Most tokens that the model can hold.
    pub(crate) fn context(&self) -> usize {
        self.sizes.context
    }

    /// Reads `tokens` after what is in `memory`, adds them to it, and answers with the scores of the token that follows.
    pub(crate) fn read(&self, tokens: &[u32], memory: &mut Memory) -> Result<Tensor> {
        let known = memory.tokens;
        if known + tokens.len() > self.sizes.context {
            bail!("more than {} tokens", self.sizes.context);
        }
        let rotation = self.rotation.part(known, tokens.len())?;
        let mask = causal_mask(known, tokens.len(), &self.device)?;
        let input = Tensor::new(tokens, &self.device)?;
        let mut state = self
            .embedding
            .index_select(&input, 0)?
            .to_dtype(DType::F32)?
            .unsqueeze(0)?;

        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let before = memory.layers.get(index);
            let (next, known) = layer.forward(&state, before, &rotation, mask.as_ref(), self.sizes)?;
            state = next;
            layers.push(known);
        }
        memory.layers = layers;
        memory.tokens = known + tokens.len();

        let last = state.i((.., tokens.len() - 1, ..))?.contiguous()?;
        let last = rms_norm(&last, &self.norm, self.sizes.norm_epsilon)?;
        self.output.forward(&last)?.squeeze(0)
    }
}

impl Layer {
    fn read<R: Read + Seek>(weights: &mut Weights<'_, R>, layer: usize) -> Result<Self> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        Ok(Layer {
            attention_norm: weights.plain(&name("attn_norm"))?,
            query: weights.quantised(&name("attn_q"))?,
            key: weights.quantised(&name("attn_k"))?,
            value: weights.quantised(&name("attn_v"))?,
            attention_out: weights.quantised(&name("attn_output"))?,
            feed_norm: weights.plain(&name("ffn_norm"))?,
            gate: weights.quantised(&name("ffn_gate"))?,
            up: weights.quantised(&name("ffn_up"))?,
            down: weights.quantised(&name("ffn_down"))?,
        })
    }

    fn forward(
        &self,
        state: &Tensor,
        before: Option<&(Tensor, Tensor)>,
        rotation: &Rotation,
        mask: Option<&Tensor>,
        sizes: Sizes,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        let normed = rms_norm(state, &self.attention_norm, sizes.norm_epsilon)?;
        let query = rotation.apply(&split_heads(&self.query.forward(&normed)?, sizes.heads)?)?;
        let key = rotation.apply(&split_heads(&self.key.forward(&normed)?, sizes.key_heads)?)?;
        let value = split_heads(&self.value.forward(&normed)?, sizes.key_heads)?;
        let (key, value) = match before {
            None => (key, value),
            Some((keys, values)) => (Tensor::cat(&[keys, &key], 2)?, Tensor::cat(&[values, &value], 2)?),
        };
        let attended = attend(&query, &key, &value, mask, sizes)?;
        let state = (state + self.attention_out.forward(&attended)?)?;

        let normed = rms_norm(&state, &self.feed_norm, sizes.norm_epsilon)?;
        let gated = (silu(&self.gate.forward(&normed)?)? * self.up.forward(&normed)?)?;
        let state = (state + self.down.forward(&gated)?)?;
        Ok((state, (key, value)))
    }
}

/// `[1, tokens, heads × width]` → `[1, heads, tokens, width]`.
fn split_heads(state: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, tokens, width) = state.dims3()?;
    state
        .reshape((batch, tokens, heads, width / heads))?
        .transpose(1, 2)?
        .contiguous()
}

/// Grouped-query attention (Ainslie et al. 2023): neighbouring query heads share a key head, so they are stacked as rows of
/// one product instead of copying the keys.
fn attend(query: &Tensor, key: &Tensor, value: &Tensor, mask: Option<&Tensor>, sizes: Sizes) -> Result<Tensor> {
    let tokens = query.dim(2)?;
    let group = sizes.heads / sizes.key_heads;
    let rows = query.reshape((1, sizes.key_heads, group * tokens, sizes.head_width))?;
    let scores = (rows.matmul(&key.t()?)? / (sizes.head_width as f64).sqrt())?;
    let scores = match mask {
        None => scores,
        Some(mask) => {
            let known = key.dim(2)?;
            scores
                .reshape((sizes.key_heads, group, tokens, known))?
                .broadcast_add(mask)?
                .reshape((1, sizes.key_heads, group * tokens, known))?
        }
    };
    softmax_last_dim(&scores)?
        .matmul(value)?
        .reshape((1, sizes.heads, tokens, sizes.head_width))?
        .transpose(1, 2)?
        .reshape((1, tokens, sizes.heads * sizes.head_width))
}

/// What may not be seen, as minus infinity: `[tokens, known + tokens]`. None where everything may.
fn causal_mask(known: usize, tokens: usize, device: &Device) -> Result<Option<Tensor>> {
    if tokens == 1 {
        return Ok(None);
    }
    let mask: Vec<f32> = (0..tokens)
        .flat_map(|from| (0..known + tokens).map(move |to| if to > known + from { f32::NEG_INFINITY } else { 0.0 }))
        .collect();
    Tensor::from_vec(mask, (tokens, known + tokens), device).map(Some)
}

impl Rotation {
    fn new(content: &Content, sizes: Sizes, device: &Device) -> Result<Self> {
        let base = match content.metadata.get("llama.rope.freq_base") {
            Some(base) => base.to_f32()?,
            None => 10_000.0,
        };
        let half = sizes.head_width / 2;
        let angles: Vec<f32> = (0..sizes.context)
            .flat_map(|position| {
                (0..half).map(move |pair| position as f32 / base.powf(2.0 * pair as f32 / sizes.head_width as f32))
            })
            .collect();
        let angles = Tensor::from_vec(angles, (sizes.context, half), device)?;
        Ok(Rotation {
            cosines: angles.cos()?,
            sines: angles.sin()?,
        })
    }

    fn part(&self, start: usize, length: usize) -> Result<Self> {
        Ok(Rotation {
            cosines: self.cosines.narrow(0, start, length)?,
            sines: self.sines.narrow(0, start, length)?,
        })
    }

    fn apply(&self, heads: &Tensor) -> Result<Tensor> {
        rope_i(heads, &self.cosines, &self.sines)
    }
}

impl Sizes {
    fn from_gguf(content: &Content) -> Result<Self> {
        match content.metadata.get("general.architecture").map(Value::to_string) {
            Some(Ok(architecture)) if architecture == "llama" => {}
            _ => bail!("its architecture is not llama"),
        }
        let heads = whole_number(content, "llama.attention.head_count")?;
        let key_heads = whole_number(content, "llama.attention.head_count_kv")?;
        let width = whole_number(content, "llama.embedding_length")?;
        if heads == 0 || key_heads == 0 || width % heads != 0 || heads % key_heads != 0 {
            bail!("{heads} heads, {key_heads} key heads and a width of {width} do not fit together");
        }
        let norm_epsilon = match content.metadata.get("llama.attention.layer_norm_rms_epsilon") {
            Some(epsilon) => epsilon.to_f32()?,
            None => bail!("it does not say llama.attention.layer_norm_rms_epsilon"),
        };
        Ok(Sizes {
            heads,
            key_heads,
            head_width: width / heads,
            norm_epsilon,
            context: whole_number(content, "llama.context_length")?,
        })
    }
}

fn whole_number(content: &Content, name: &str) -> Result<usize> {
    match content.metadata.get(name) {
        Some(number) => Ok(number.to_u32()? as usize),
        None => bail!("it does not say {name}"),
    }
}

/// Tensors of the file by name.
struct Weights<'a, R> {
    content: &'a Content,
    file: &'a mut R,
    device: &'a Device,
}

impl<R: Read + Seek> Weights<'_, R> {
    fn plain(&mut self, name: &str) -> Result<Tensor> {
        self.content
            .tensor(self.file, name, self.device)?
            .dequantize(self.device)
    }

    fn quantised(&mut self, name: &str) -> Result<QMatMul> {
        let tensor = self.content.tensor(self.file, name, self.device)?;
        QMatMul::from_qtensor(fast_on(self.device, tensor)?)
    }
}

/// Candle multiplies some 4- and 5-bit formats number by number on the CPU, eight times slower than its 8-bit one. Eight
/// bits hold what four or five said, so these are widened once when they are read.
fn fast_on(device: &Device, tensor: QTensor) -> Result<QTensor> {
    let slow = matches!(tensor.dtype(), GgmlDType::Q4_1 | GgmlDType::Q5_0 | GgmlDType::Q5_1);
    if device.is_cpu() && slow {
        QTensor::quantize(&tensor.dequantize(device)?, GgmlDType::Q8_0)
    } else {
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::tiny_model;

    fn tiny() -> Llama {
        let file = tempfile::NamedTempFile::new().unwrap();
        tiny_model::write(file.path());
        let mut file = File::open(file.path()).unwrap();
        let content = Content::read(&mut file).unwrap();
        Llama::from_gguf(&content, &mut file, &Device::Cpu).unwrap()
    }

    fn scores(model: &Llama, parts: &[&[u32]]) -> Vec<f32> {
        let mut memory = Memory::default();
        let mut scores = None;
        for part in parts {
            scores = Some(model.read(part, &mut memory).unwrap());
        }
        scores.unwrap().to_vec1().unwrap()
    }

    fn furthest(one: &[f32], other: &[f32]) -> f32 {
        one.iter()
            .zip(other)
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f32::max)
    }

    #[test]
    fn reading_in_parts_is_reading_at_once() {
        let model = tiny();
        let whole = scores(&model, &[&[5, 6, 7, 8, 9, 10, 11]]);
        for parts in [
            &[&[5, 6, 7][..], &[8, 9, 10, 11]][..],
            &[&[5][..], &[6], &[7], &[8], &[9], &[10], &[11]],
            &[&[5, 6, 7, 8, 9, 10][..], &[11]],
        ] {
            let difference = furthest(&whole, &scores(&model, parts));
            assert!(difference < 1e-3, "{parts:?}: {difference}");
        }
    }

    #[test]
    fn order_and_every_earlier_token_matter() {
        let model = tiny();
        let scores = |tokens: &[u32]| scores(&model, &[tokens]);
        let one = scores(&[5, 6, 7, 8]);
        assert!(furthest(&one, &scores(&[6, 5, 7, 8])) > 1e-3);
        assert!(furthest(&one, &scores(&[9, 6, 7, 8])) > 1e-3);
    }

    #[test]
    fn a_copy_of_the_memory_does_not_see_what_the_original_reads_later() {
        let model = tiny();
        let mut memory = Memory::default();
        model.read(&[5, 6], &mut memory).unwrap();
        let kept = memory.clone();
        model.read(&[7, 8], &mut memory).unwrap();
        assert_eq!((kept.tokens(), memory.tokens()), (2, 4));
        let mut again = kept.clone();
        let after_copy: Vec<f32> = model.read(&[9], &mut again).unwrap().to_vec1().unwrap();
        assert_eq!(after_copy, scores(&model, &[&[5, 6], &[9]]));
    }
}
