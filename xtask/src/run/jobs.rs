//! The two jobs that a run's tenant brings: a language model that answers prompts, and a small transformer that is trained. Their specs, and how
//! what they made is read.

use std::collections::BTreeMap;

use anyhow::Context;
use sela_protocol::blob::BlobId;
use sela_protocol::job::JobSpec;
use serde_json::json;

/// What the language model is asked. Short, so that a run on two cores stays one of minutes.
pub(crate) const PROMPTS: [&str; 3] = [
    "What is the capital of Indonesia?",
    "Name three things that people keep in a garage.",
    "Write one sentence about the sea.",
];

/// The prompts' file, one JSON object per line.
pub(crate) fn prompts_file() -> String {
    PROMPTS
        .iter()
        .map(|prompt| format!("{}\n", json!({ "prompt": prompt, "max_tokens": 48 })))
        .collect()
}

/// The spec of the job that answers prompts.
pub(crate) fn batch_inference(image: BlobId, prompts: BlobId) -> anyhow::Result<JobSpec> {
    spec(&json!({
        "name": "batch-inference",
        "image": { "type": "archive", "blob": image },
        "inputs": [{ "blob": prompts, "path": "prompts.jsonl" }],
        "vram": 1_073_741_824_u64,
        "cap": "0.600000",
        "budget": "0.200000",
        "wall_limit_ms": 900_000,
        "memory": 1_610_612_736_u64,
        "checkpoint": { "interval_ms": 10_000 },
    }))
}

/// The spec of the job that trains.
pub(crate) fn training(image: BlobId) -> anyhow::Result<JobSpec> {
    spec(&json!({
        "name": "training",
        "image": { "type": "archive", "blob": image },
        "command": ["--steps", "120"],
        "vram": 1_073_741_824_u64,
        "cap": "0.500000",
        "budget": "0.200000",
        "wall_limit_ms": 900_000,
        "memory": 1_073_741_824_u64,
        "checkpoint": { "interval_ms": 10_000 },
    }))
}

fn spec(value: &serde_json::Value) -> anyhow::Result<JobSpec> {
    JobSpec::parse(&value.to_string()).context("a spec of ours is refused")
}

/// What the model answered to each prompt, from the job's output.
pub(crate) fn answers(output: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<Vec<(String, String)>> {
    let file = output
        .get("answers.jsonl")
        .context("the job left no answers.jsonl in /out")?;
    let text = std::str::from_utf8(file).context("answers.jsonl is not UTF-8")?;
    text.lines()
        .map(|line| {
            let answer: serde_json::Value =
                serde_json::from_str(line).with_context(|| format!("answers.jsonl holds {line}"))?;
            let part = |name: &str| {
                answer[name]
                    .as_str()
                    .map(str::to_owned)
                    .with_context(|| format!("an answer without {name}: {line}"))
            };
            Ok((part("prompt")?, part("answer")?))
        })
        .collect()
}

/// What training ended with, in one line, from the job's output.
pub(crate) fn training_result(output: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<String> {
    let file = output
        .get("metrics.json")
        .context("the job left no metrics.json in /out")?;
    let metrics: serde_json::Value = serde_json::from_slice(file).context("metrics.json is no JSON")?;
    let loss = metrics["final_loss"]
        .as_f64()
        .context("metrics.json has no final_loss")?;
    Ok(format!(
        "{} steps, {} parameters, final loss {loss:.3}, ran on: {}",
        metrics["steps"],
        metrics["parameters"],
        metrics["ran_on"].as_str().unwrap_or("it does not say"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specs_are_taken_by_the_protocol() {
        let blob = BlobId::of(b"image");
        assert_eq!(
            batch_inference(blob, BlobId::of(b"prompts")).unwrap().name.as_deref(),
            Some("batch-inference")
        );
        assert_eq!(training(blob).unwrap().command, ["--steps", "120"]);
    }

    #[test]
    fn answers_and_results_are_read_and_their_absence_is_named() {
        let output = |name: &str, text: &str| BTreeMap::from([(name.to_owned(), text.as_bytes().to_vec())]);
        let line = r#"{"prompt":"What?","answer":"That.","tokens":2,"ms":9}"#;
        assert_eq!(
            answers(&output("answers.jsonl", line)).unwrap(),
            [("What?".to_owned(), "That.".to_owned())]
        );
        assert!(
            answers(&output("answers.jsonl", "{}"))
                .unwrap_err()
                .to_string()
                .contains("without prompt")
        );
        assert!(
            answers(&BTreeMap::new())
                .unwrap_err()
                .to_string()
                .contains("no answers.jsonl")
        );
        let metrics = r#"{"steps":120,"parameters":9,"final_loss":2.5,"ran_on":"the CPU"}"#;
        assert_eq!(
            training_result(&output("metrics.json", metrics)).unwrap(),
            "120 steps, 9 parameters, final loss 2.500, ran on: the CPU"
        );
        assert!(training_result(&output("metrics.json", "{}")).is_err());
    }

    #[test]
    fn each_prompt_is_one_line_of_json() {
        let text = prompts_file();
        assert_eq!(text.lines().count(), PROMPTS.len());
        for (line, prompt) in text.lines().zip(PROMPTS) {
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(line).unwrap()["prompt"],
                prompt
            );
        }
    }
}
