//! `char-transformer`: trains a small transformer to write on a text, character by character. A real training job as a
//! tenant would bring it: reads nothing but its settings, reports its loss, keeps checkpoints, saves and leaves on SIGTERM,
//! and goes on exactly where it stopped.

mod checkpoint;
mod model;
mod optimiser;
mod text;
mod training;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use candle_core::Tensor;
use clap::Parser;
use sela_workload_card::{
    Card, CardRequest, EXIT_TERMINATED, LeaveAtOnce, Termination, ThreadCount, limit_threads, say, write_whole,
};

use checkpoint::CheckpointFolder;
use model::Shape;
use text::Text;
use training::{Settings, Training};

const SAMPLE_LENGTH: usize = 400;

/// Trains a small character-level transformer.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    /// Steps until done
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Windows of text per step
    #[arg(long, default_value_t = 16, value_parser = positive)]
    batch: usize,
    /// Characters per window
    #[arg(long, default_value_t = 64, value_parser = positive)]
    context: usize,
    /// Numbers per character inside the model; a multiple of the heads
    #[arg(long, default_value_t = 64, value_parser = positive)]
    width: usize,
    /// Attention heads
    #[arg(long, default_value_t = 4, value_parser = positive)]
    heads: usize,
    /// Blocks
    #[arg(long, default_value_t = 2, value_parser = positive)]
    layers: usize,
    /// Step size of the optimiser
    #[arg(long, default_value_t = 0.003)]
    learning_rate: f64,
    /// Where chance starts: the same seed gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps between two lines of progress
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    report_every: u32,
    /// Steps between two checkpoints
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_every: u32,
    /// Folder of the checkpoint
    #[arg(long, default_value = "/checkpoint")]
    checkpoint: PathBuf,
    /// Folder of the results
    #[arg(long, default_value = "/out")]
    out: PathBuf,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "must be a whole number from 1 upwards".to_owned())
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
    say(format_args!("char-transformer runs on: {card}"));

    let text = Text::load()?;
    let settings = settings(arguments, &text)?;
    let folder = CheckpointFolder::open(&arguments.checkpoint)?;
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("could not use {} for results", arguments.out.display()))?;
    let (mut training, resumed_from) = match folder.resume(settings, card.device())? {
        Some(training) => {
            say(format_args!("resumed at step {}/{}", training.step, arguments.steps));
            let step = training.step;
            (training, Some(step))
        }
        None => (Training::new(settings, card.device())?, None),
    };

    let termination = leave_at_once.save_first();
    let told_to_go = train(arguments, &text, &folder, &mut training, &termination)?;
    let sample = if told_to_go {
        None
    } else {
        training.write_on(&text, SAMPLE_LENGTH, || termination.is_asked())?
    };
    let Some(sample) = sample else {
        say(format_args!(
            "told to go: saved at step {}/{}",
            training.step, arguments.steps
        ));
        return Ok(ExitCode::from(EXIT_TERMINATED));
    };
    write_results(arguments, &training, &card, resumed_from, &sample)?;
    say(format_args!(
        "done: loss {:.4} after {} steps; it writes: {:?}",
        training.loss,
        training.step,
        sample.chars().take(120).collect::<String>()
    ));
    Ok(ExitCode::SUCCESS)
}

fn settings(arguments: &Arguments, text: &Text) -> anyhow::Result<Settings> {
    ensure!(
        arguments.width.is_multiple_of(arguments.heads),
        "--width {} is not a multiple of --heads {}",
        arguments.width,
        arguments.heads
    );
    Ok(Settings {
        shape: Shape {
            alphabet: text.alphabet_size(),
            context: arguments.context,
            width: arguments.width,
            heads: arguments.heads,
            layers: arguments.layers,
        },
        batch: arguments.batch,
        learning_rate: arguments.learning_rate,
        seed: arguments.seed,
    })
}

/// Steps until done or told to go, with a checkpoint at the end either way. True: told to go.
fn train(
    arguments: &Arguments,
    text: &Text,
    folder: &CheckpointFolder,
    training: &mut Training,
    termination: &Termination,
) -> anyhow::Result<bool> {
    while training.step < arguments.steps && !termination.is_asked() {
        training.advance(text)?;
        let step = training.step;
        if step.is_multiple_of(arguments.report_every) || step == arguments.steps {
            say(format_args!(
                "step {step}/{} loss {:.2}",
                arguments.steps, training.loss
            ));
        }
        if step.is_multiple_of(arguments.checkpoint_every) && step < arguments.steps {
            folder.save(training)?;
        }
    }
    folder.save(training)?;
    Ok(training.step < arguments.steps)
}

fn write_results(
    arguments: &Arguments,
    training: &Training,
    card: &Card,
    resumed_from: Option<u32>,
    sample: &str,
) -> anyhow::Result<()> {
    let parameters: HashMap<String, Tensor> = training
        .model
        .parameters()
        .iter()
        .map(|(name, parameter)| (name.clone(), parameter.as_tensor().clone()))
        .collect();
    write_whole(&arguments.out.join("model.safetensors"), |unfinished| {
        candle_core::safetensors::save(&parameters, unfinished).map_err(io::Error::other)
    })?;
    write_whole(&arguments.out.join("sample.txt"), |unfinished| {
        std::fs::write(unfinished, sample)
    })?;
    let metrics = serde_json::json!({
        "ran_on": card.to_string(),
        "steps": training.step,
        "resumed_from_step": resumed_from,
        "parameters": training.model.parameter_count(),
        "final_loss": training.loss,
        "final_loss_bits": format!("{:08x}", training.loss.to_bits()),
        "settings": training.settings,
    });
    write_whole(&arguments.out.join("metrics.json"), |unfinished| {
        std::fs::write(unfinished, format!("{metrics:#}\n"))
    })?;
    Ok(())
}
