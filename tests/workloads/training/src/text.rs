//! The text that is learned and its alphabet. Knows characters and numbers, nothing of models.

use anyhow::{Context, bail};
use rand::Rng;

/// What the workload learns: see `text/README.md` for where it is from.
const TEXT: &str = include_str!("../text/us-constitution.txt");

/// The text as numbers, one for each character.
#[derive(Debug)]
pub(crate) struct Text {
    alphabet: Vec<char>,
    characters: Vec<u32>,
}

/// So many windows of the text, one after the other, and for each position the character that follows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) inputs: Vec<u32>,
    pub(crate) targets: Vec<u32>,
}

impl Text {
    pub(crate) fn load() -> anyhow::Result<Self> {
        Self::from_text(TEXT)
    }

    fn from_text(text: &str) -> anyhow::Result<Self> {
        let mut alphabet: Vec<char> = text.chars().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let characters = text
            .chars()
            .map(|character| {
                let number = alphabet
                    .binary_search(&character)
                    .ok()
                    .context("every character of the text is in its alphabet")?;
                Ok(u32::try_from(number)?)
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Text { alphabet, characters })
    }

    /// How many different characters there are.
    pub(crate) fn alphabet_size(&self) -> usize {
        self.alphabet.len()
    }

    /// The first `length` characters, as a start for writing on.
    pub(crate) fn opening(&self, length: usize) -> &[u32] {
        &self.characters[..length.min(self.characters.len())]
    }

    /// The characters behind the numbers.
    pub(crate) fn spell(&self, numbers: &[u32]) -> String {
        numbers
            .iter()
            .filter_map(|number| self.alphabet.get(*number as usize))
            .collect()
    }

    /// Draws `windows` windows of `length` characters.
    pub(crate) fn draw(&self, random: &mut impl Rng, windows: usize, length: usize) -> anyhow::Result<Batch> {
        let Some(last_start) = self.characters.len().checked_sub(length + 1) else {
            bail!(
                "a context of {length} characters is longer than the text ({} characters)",
                self.characters.len()
            );
        };
        let mut batch = Batch {
            inputs: Vec::with_capacity(windows * length),
            targets: Vec::with_capacity(windows * length),
        };
        for _ in 0..windows {
            let start = random.random_range(0..=last_start);
            batch.inputs.extend_from_slice(&self.characters[start..start + length]);
            batch
                .targets
                .extend_from_slice(&self.characters[start + 1..start + length + 1]);
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn a_target_is_the_character_after_its_input() {
        let text = Text::from_text("abcabcabc").unwrap();
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let batch = text.draw(&mut random, 20, 4).unwrap();
        assert_eq!(batch.inputs.len(), 80);
        for (input, target) in batch.inputs.iter().zip(&batch.targets) {
            assert_eq!((input + 1) % 3, *target);
        }
    }

    #[test]
    fn a_context_longer_than_the_text_is_refused() {
        let text = Text::from_text("abc").unwrap();
        let mut random = ChaCha8Rng::seed_from_u64(1);
        assert!(text.draw(&mut random, 1, 2).is_ok());
        let error = text.draw(&mut random, 1, 3).unwrap_err();
        assert!(error.to_string().contains("longer than the text"), "{error}");
    }

    #[test]
    fn the_text_survives_being_numbered() {
        let text = Text::load().unwrap();
        assert_eq!(text.spell(text.opening(usize::MAX)), TEXT);
    }
}
