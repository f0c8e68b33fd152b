//! `batch-inference`: a small language model answers a file of prompts. A real inference job as a tenant would bring it:
//! reads `/in`, writes `/out`, keeps every finished answer in `/checkpoint`, leaves on SIGTERM and skips what was answered
//! when it is started again.

mod llama;
mod model;
mod prompts;
#[cfg(test)]
#[path = "../tests/tiny_model/mod.rs"]
mod tiny_model;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use sela_workload_card::{Card, CardRequest, EXIT_TERMINATED, LeaveAtOnce, ThreadCount, limit_threads, say};

use model::{Model, Reply};
use prompts::{Answer, read_answers, read_prompts, write_answers};

/// Answers a file of prompts with a small language model.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    /// The model and its tokenizer, a GGUF file of the Llama kind
    #[arg(long, default_value = "/model/model.gguf")]
    model: PathBuf,
    /// The prompts, one JSON object per line: {"prompt": "…", "max_tokens": 100}
    #[arg(long, default_value = "/in/prompts.jsonl")]
    prompts: PathBuf,
    /// Longest answer where a prompt does not say
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// Folder that finished answers are kept in
    #[arg(long, default_value = "/checkpoint")]
    checkpoint: PathBuf,
    /// Folder of the results
    #[arg(long, default_value = "/out")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let threads = ThreadCount::from_environment().map_err(anyhow::Error::msg)?;
    // SAFETY: nothing has started a thread yet.
    unsafe { limit_threads(threads) };
    let leave_at_once = LeaveAtOnce::listen().context("could not listen for SIGTERM")?;
    let card = Card::take(&CardRequest::from_environment()?)?;
    say(format_args!("batch-inference runs on: {card}"));

    let prompts = read_prompts(&arguments.prompts)?;
    for folder in [&arguments.checkpoint, &arguments.out] {
        std::fs::create_dir_all(folder).with_context(|| format!("could not use the folder {}", folder.display()))?;
    }
    let checkpoint = arguments.checkpoint.join("answers.jsonl");
    let mut answers = read_answers(&checkpoint, &prompts)?;
    if !answers.is_empty() {
        say(format_args!(
            "resumed: {}/{} were already answered",
            answers.len(),
            prompts.len()
        ));
    }

    let model = Model::load(&arguments.model, card.device())?;
    let termination = leave_at_once.save_first();
    for prompt in &prompts[answers.len()..] {
        let begun = Instant::now();
        let max_tokens = prompt.max_tokens.unwrap_or(arguments.max_tokens);
        let reply = model
            .answer(&prompt.prompt, max_tokens, || termination.is_asked())
            .with_context(|| format!("prompt {} of {}", answers.len() + 1, prompts.len()))?;
        match reply {
            Reply::Said { text, tokens } => answers.push(Answer {
                prompt: prompt.prompt.clone(),
                answer: text,
                tokens,
                ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            }),
            Reply::Stopped => {
                say(format_args!(
                    "told to go: {}/{} answers are saved",
                    answers.len(),
                    prompts.len()
                ));
                return Ok(ExitCode::from(EXIT_TERMINATED));
            }
        }
        write_answers(&checkpoint, &answers)?;
        say(format_args!("answered {}/{}", answers.len(), prompts.len()));
    }

    write_answers(&arguments.out.join("answers.jsonl"), &answers)?;
    let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
    let ms: u64 = answers.iter().map(|answer| answer.ms).sum();
    say(format_args!(
        "done: {} answers, {tokens} tokens, {:.1} tokens/s",
        answers.len(),
        tokens as f64 * 1000.0 / ms.max(1) as f64
    ));
    Ok(ExitCode::SUCCESS)
}
