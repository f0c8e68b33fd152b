//! The files: prompts in, answers out, one JSON object per line. Reads everything and checks everything before the model is
//! loaded, so that a mistake in the last line costs no paid time.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, ensure};
use sela_workload_card::write_whole;
use serde::{Deserialize, Serialize};

/// One line of the prompts' file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prompt {
    /// What the model is asked.
    pub(crate) prompt: String,
    /// Longest answer, tokens; the program's own limit where it is left out.
    #[serde(default)]
    pub(crate) max_tokens: Option<usize>,
}

/// One line of the answers' file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The prompt, as it was given.
    pub(crate) prompt: String,
    /// What the model said.
    pub(crate) answer: String,
    /// Tokens of the answer.
    pub(crate) tokens: usize,
    /// Wall time from the prompt to the last token, milliseconds.
    pub(crate) ms: u64,
}

/// Reads the prompts' file.
pub(crate) fn read_prompts(path: &Path) -> anyhow::Result<Vec<Prompt>> {
    let text = fs::read_to_string(path).with_context(|| format!("could not read the prompts {}", path.display()))?;
    let prompts = parse_lines::<Prompt>(&text, path)?;
    ensure!(!prompts.is_empty(), "{} holds no prompt", path.display());
    Ok(prompts)
}

/// Reads the answers that an earlier run left, or none where there was none. They must be answers to the first of these
/// prompts, in order.
pub(crate) fn read_answers(path: &Path, prompts: &[Prompt]) -> anyhow::Result<Vec<Answer>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("could not read the checkpoint {}", path.display()));
        }
    };
    let answers = parse_lines::<Answer>(&text, path)?;
    let fits = answers.len() <= prompts.len()
        && answers
            .iter()
            .zip(prompts)
            .all(|(answer, prompt)| answer.prompt == prompt.prompt);
    ensure!(
        fits,
        "the checkpoint {} answers other prompts; start with an empty checkpoint folder to begin anew",
        path.display()
    );
    Ok(answers)
}

/// Writes all answers so far, whole or not at all.
pub(crate) fn write_answers(path: &Path, answers: &[Answer]) -> anyhow::Result<()> {
    let mut text = String::new();
    for answer in answers {
        text.push_str(&serde_json::to_string(answer)?);
        text.push('\n');
    }
    write_whole(path, |unfinished| fs::write(unfinished, text))?;
    Ok(())
}

fn parse_lines<T: for<'a> Deserialize<'a>>(text: &str, path: &Path) -> anyhow::Result<Vec<T>> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("{}, line {}", path.display(), index + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts_of(text: &str) -> anyhow::Result<Vec<Prompt>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts.jsonl");
        fs::write(&path, text).unwrap();
        read_prompts(&path)
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (text, expected) in [
            ("{\"prompt\": \"a\"}\nnonsense\n", "line 2"),
            ("{\"prompt\": \"a\", \"promt\": \"b\"}\n", "unknown field `promt`"),
            ("{\"max_tokens\": 3}\n", "missing field `prompt`"),
            ("\n\n", "holds no prompt"),
        ] {
            let error = format!("{:#}", prompts_of(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let prompts = prompts_of("{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\", \"max_tokens\": 3}").unwrap();
        assert_eq!(prompts.len(), 2);
        assert_eq!(prompts[1].max_tokens, Some(3));
    }

    #[test]
    fn answers_to_other_prompts_are_not_taken_for_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers.jsonl");
        let prompts = prompts_of("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n").unwrap();
        assert!(read_answers(&path, &prompts).unwrap().is_empty());

        let answer = |prompt: &str| Answer {
            prompt: prompt.to_owned(),
            answer: "line\nbreak".to_owned(),
            tokens: 2,
            ms: 5,
        };
        write_answers(&path, &[answer("a")]).unwrap();
        assert_eq!(read_answers(&path, &prompts).unwrap(), [answer("a")]);
        write_answers(&path, &[answer("b")]).unwrap();
        let error = read_answers(&path, &prompts).unwrap_err();
        assert!(error.to_string().contains("other prompts"), "{error}");
        write_answers(&path, &[answer("a"), answer("b"), answer("c")]).unwrap();
        assert!(read_answers(&path, &prompts).is_err());
    }
}
