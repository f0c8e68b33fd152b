//! The language model in words: a GGUF file with weights and tokenizer, asked in the chat format that it was trained on.
//! Always the most likely token (temperature 0), so the same prompt has the same answer.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use candle_core::quantized::gguf_file;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{Device, Tensor};
use tokenizers::Tokenizer;

use crate::llama::{Llama, Memory};

/// Said to the model before every prompt; without one so small a model wanders off. These are the words it was trained with.
const SYSTEM_PROMPT: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
const END_OF_TURN: &str = "<|im_end|>";
/// Tokens of a prompt that are read in one go: few enough that a request to stop is heard within a fraction of a second
/// on one slow core.
const PREFILL_CHUNK: usize = 16;
/// A greedy small model repeats itself without this (Keskar et al. 2019, §4.1).
const REPEAT_PENALTY: f32 = 1.1;
const REPEAT_WINDOW: usize = 64;

/// A model that is ready to answer.
pub(crate) struct Model {
    weights: Llama,
    tokenizer: Tokenizer,
    end_of_turn: u32,
    /// What the model remembers after the system prompt, which all prompts share.
    instructed: Memory,
}

/// What became of a prompt.
#[derive(Debug)]
pub(crate) enum Reply {
    /// An answer, and of how many tokens.
    Said { text: String, tokens: usize },
    /// `stop` said so before the answer was whole.
    Stopped,
}

impl Model {
    /// Loads the model onto the device.
    pub(crate) fn load(path: &Path, device: &Device) -> anyhow::Result<Self> {
        Self::load_file(path, device).with_context(|| format!("could not load the model {}", path.display()))
    }

    fn load_file(path: &Path, device: &Device) -> anyhow::Result<Self> {
        let mut file = BufReader::new(File::open(path)?);
        let content = gguf_file::Content::read(&mut file)?;
        let tokenizer = Tokenizer::from_gguf(&content)?;
        let end_of_turn = tokenizer
            .token_to_id(END_OF_TURN)
            .with_context(|| format!("its tokenizer has no {END_OF_TURN}: it is no chat model"))?;
        let weights = Llama::from_gguf(&content, &mut file, device)?;
        let mut model = Model {
            weights,
            tokenizer,
            end_of_turn,
            instructed: Memory::default(),
        };
        let instruction = format!("<|im_start|>system\n{SYSTEM_PROMPT}{END_OF_TURN}\n");
        let tokens = model.tokens_of(&instruction)?;
        let mut instructed = Memory::default();
        model.weights.read(&tokens, &mut instructed)?;
        model.instructed = instructed;
        Ok(model)
    }

    /// Answers one prompt with at most `max_tokens` tokens. Looks at `stop` between any two computations.
    pub(crate) fn answer(&self, prompt: &str, max_tokens: usize, stop: impl Fn() -> bool) -> anyhow::Result<Reply> {
        let asked = self.tokens_of(&format!(
            "<|im_start|>user\n{prompt}{END_OF_TURN}\n<|im_start|>assistant\n"
        ))?;
        let mut memory = self.instructed.clone();
        ensure!(
            memory.tokens() + asked.len() + max_tokens <= self.weights.context(),
            "a prompt of {} tokens and an answer of {max_tokens} are more than the {} tokens that the model can hold",
            asked.len(),
            self.weights.context()
        );

        let mut scores = None;
        for chunk in asked.chunks(PREFILL_CHUNK) {
            if stop() {
                return Ok(Reply::Stopped);
            }
            scores = Some(self.weights.read(chunk, &mut memory)?);
        }
        let mut scores = scores.context("a prompt has at least one token")?;

        let mut said: Vec<u32> = Vec::new();
        while said.len() < max_tokens {
            let token = most_likely(&scores, &said)?;
            if token == self.end_of_turn {
                break;
            }
            said.push(token);
            if stop() {
                return Ok(Reply::Stopped);
            }
            scores = self.weights.read(&[token], &mut memory)?;
        }
        let text = self
            .tokenizer
            .decode(&said, true)
            .map_err(|error| anyhow!("could not spell the answer: {error}"))?;
        Ok(Reply::Said {
            text: text.trim().to_owned(),
            tokens: said.len(),
        })
    }

    fn tokens_of(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|error| anyhow!("could not read the prompt: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// The token with the highest score, after those that were said lately were made less likely.
fn most_likely(scores: &Tensor, said: &[u32]) -> anyhow::Result<u32> {
    let mut scores = scores.to_vec1::<f32>()?;
    let mut recent = said[said.len().saturating_sub(REPEAT_WINDOW)..].to_vec();
    recent.sort_unstable();
    recent.dedup();
    for token in recent {
        if let Some(score) = scores.get_mut(token as usize) {
            *score = if *score > 0.0 {
                *score / REPEAT_PENALTY
            } else {
                *score * REPEAT_PENALTY
            };
        }
    }
    let best = (0u32..)
        .zip(&scores)
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(token, _)| token);
    best.context("the model has at least one token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_lately_becomes_less_likely() {
        let scores = Tensor::new(&[1.0f32, 2.0, 1.95, -3.0], &Device::Cpu).unwrap();
        assert_eq!(most_likely(&scores, &[]).unwrap(), 1);
        assert_eq!(most_likely(&scores, &[1, 1, 3]).unwrap(), 2);
        let long_ago: Vec<u32> = std::iter::once(1).chain(std::iter::repeat_n(3, 64)).collect();
        assert_eq!(most_likely(&scores, &long_ago).unwrap(), 1);
    }
}
