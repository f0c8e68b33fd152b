//! A Llama model of a few thousand arbitrary numbers, as a GGUF file with a tokenizer that spells bytes. It says nonsense,
//! but the same nonsense every time, in as many tokens as it may, and needs no download.

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

pub(crate) const CONTEXT: usize = 4096;
const WIDTH: usize = 32;
const HEADS: usize = 2;
const KEY_HEADS: usize = 1;
const FEED: usize = 64;
const LAYERS: usize = 2;

/// Writes the model to `path`.
pub(crate) fn write(path: &Path) {
    let tokens = tokens();
    let metadata = metadata(&tokens);
    let tensors = tensors(tokens.len());
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// The end of a turn first, so that its number is 0; then GPT-2's spelling of the 256 bytes, and one pair.
fn tokens() -> Vec<String> {
    let mut tokens: Vec<String> = ["<|im_end|>", "<|im_start|>"].map(str::to_owned).to_vec();
    let mut beyond = 0x100;
    for byte in 0..=255u8 {
        let is_itself = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if is_itself {
            u32::from(byte)
        } else {
            beyond += 1;
            beyond - 1
        };
        tokens.push(char::from_u32(code).unwrap().to_string());
    }
    tokens.push("th".to_owned());
    tokens
}

fn metadata(tokens: &[String]) -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let number = |number: usize| Value::U32(number as u32);
    let kinds = (0..tokens.len()).map(|token| Value::I32(if token < 2 { 3 } else { 1 }));
    vec![
        ("general.architecture", text("llama")),
        ("llama.block_count", number(LAYERS)),
        ("llama.context_length", number(CONTEXT)),
        ("llama.embedding_length", number(WIDTH)),
        ("llama.attention.head_count", number(HEADS)),
        ("llama.attention.head_count_kv", number(KEY_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("tokenizer.ggml.model", text("gpt2")),
        (
            "tokenizer.ggml.tokens",
            Value::Array(tokens.iter().map(|token| text(token)).collect()),
        ),
        ("tokenizer.ggml.token_type", Value::Array(kinds.collect())),
        ("tokenizer.ggml.merges", Value::Array(vec![text("t h")])),
        ("tokenizer.ggml.eos_token_id", Value::U32(0)),
    ]
}

fn tensors(alphabet: usize) -> Vec<(String, QTensor)> {
    let mut numbers = Numbers(1);
    let norm = || {
        quantised(
            Tensor::ones(WIDTH, candle_core::DType::F32, &Device::Cpu).unwrap(),
            GgmlDType::F32,
        )
    };
    let mut matrix = |rows: usize, columns: usize, silent_rows: usize| {
        let scale = 2.0 / (columns as f32).sqrt();
        let values: Vec<f32> = (0..rows * columns)
            .map(|at| {
                if at < silent_rows * columns {
                    0.0
                } else {
                    scale * numbers.next()
                }
            })
            .collect();
        quantised(
            Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap(),
            GgmlDType::Q4_1,
        )
    };
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), matrix(alphabet, WIDTH, 0)),
        // The end of a turn scores 0 always, and some other token more: the model never falls silent by itself.
        ("output.weight".to_owned(), matrix(alphabet, WIDTH, 1)),
        ("output_norm.weight".to_owned(), norm()),
    ];
    let head_width = WIDTH / HEADS;
    for layer in 0..LAYERS {
        let mut add = |part: &str, tensor: QTensor| tensors.push((format!("blk.{layer}.{part}.weight"), tensor));
        add("attn_norm", norm());
        add("ffn_norm", norm());
        add("attn_q", matrix(WIDTH, WIDTH, 0));
        add("attn_k", matrix(KEY_HEADS * head_width, WIDTH, 0));
        add("attn_v", matrix(KEY_HEADS * head_width, WIDTH, 0));
        add("attn_output", matrix(WIDTH, WIDTH, 0));
        add("ffn_gate", matrix(FEED, WIDTH, 0));
        add("ffn_up", matrix(FEED, WIDTH, 0));
        add("ffn_down", matrix(WIDTH, FEED, 0));
    }
    tensors
}

fn quantised(tensor: Tensor, kind: GgmlDType) -> QTensor {
    QTensor::quantize(&tensor, kind).unwrap()
}

/// Arbitrary numbers between -1 and 1 (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}
