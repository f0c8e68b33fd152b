//! The real program, interrupted: what it leaves, and that it goes on exactly where it stopped.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const STEPS: &str = "150";

fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_char-transformer"));
    command
        .args(["--steps", STEPS, "--report-every", "1", "--checkpoint-every", "7"])
        .args(["--batch", "4", "--context", "16", "--width", "16", "--heads", "2"])
        .arg("--checkpoint")
        .arg(folder.join("checkpoint"))
        .arg("--out")
        .arg(folder.join("out"))
        .env_remove("SELA_SIM_DEVICE")
        .env_remove("SELA_SIM_VRAM_MIB")
        .stdout(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn metrics(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("out/metrics.json")).unwrap()).unwrap()
}

/// Starts the program, sends the signal as soon as it has said the line, and answers with its exit.
fn interrupt_at(folder: &Path, line: &str, signal: rustix::process::Signal) -> (Option<i32>, String) {
    let mut process = program(folder).spawn().unwrap();
    let mut output = String::new();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    for said in lines.by_ref() {
        let said = said.unwrap();
        output.push_str(&said);
        output.push('\n');
        if said.starts_with(line) {
            break;
        }
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&process), signal).unwrap();
    for said in lines {
        output.push_str(&said.unwrap());
        output.push('\n');
    }
    (process.wait().unwrap().code(), output)
}

#[test]
fn a_run_that_is_interrupted_twice_ends_with_the_same_bits_as_one_that_is_not() {
    let whole = tempfile::tempdir().unwrap();
    let output = program(whole.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).starts_with("char-transformer runs on: CPU, no card\n"));

    let broken = tempfile::tempdir().unwrap();
    let (code, output) = interrupt_at(broken.path(), "step 5/", rustix::process::Signal::TERM);
    assert_eq!(code, Some(143), "{output}");
    assert!(output.contains("told to go: saved at step "), "{output}");
    assert!(!broken.path().join("out/metrics.json").exists());
    // Killed without a word: goes on from the last regular checkpoint.
    let (code, output) = interrupt_at(broken.path(), "step 40/", rustix::process::Signal::KILL);
    assert_eq!(code, None, "{output}");
    assert!(output.contains("resumed at step "), "{output}");
    let last = program(broken.path()).output().unwrap();
    assert!(last.status.success(), "{}", said(&last));
    assert!(said(&last).contains("resumed at step "), "{}", said(&last));

    let (one, other) = (metrics(whole.path()), metrics(broken.path()));
    assert_eq!(one["final_loss_bits"], other["final_loss_bits"]);
    assert_eq!(one["resumed_from_step"], Value::Null);
    assert!(other["resumed_from_step"].as_u64().unwrap() >= 35);
    for file in [
        "out/model.safetensors",
        "out/sample.txt",
        "checkpoint/training.safetensors",
    ] {
        assert_eq!(
            fs::read(whole.path().join(file)).unwrap(),
            fs::read(broken.path().join(file)).unwrap(),
            "{file}"
        );
    }
}

#[test]
fn the_model_learns() {
    let folder = tempfile::tempdir().unwrap();
    let output = program(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let first: f64 = said(&output)
        .lines()
        .find_map(|line| line.strip_prefix("step 1/150 loss "))
        .unwrap()
        .parse()
        .unwrap();
    let last = metrics(folder.path())["final_loss"].as_f64().unwrap();
    assert!(last < first - 0.8, "from {first} to {last}");
    let sample = fs::read_to_string(folder.path().join("out/sample.txt")).unwrap();
    assert!(sample.starts_with("The Constitution"), "{sample}");
}

#[test]
fn a_checkpoint_of_another_run_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _) = interrupt_at(folder.path(), "step 2/", rustix::process::Signal::TERM);
    assert_eq!(code, Some(143));
    let checkpoint = folder.path().join("checkpoint/training.safetensors");
    let before = fs::read(&checkpoint).unwrap();
    let output = program(folder.path()).args(["--seed", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("other settings"), "{}", said(&output));
    assert_eq!(fs::read(&checkpoint).unwrap(), before);

    fs::write(&checkpoint, "not a checkpoint").unwrap();
    let output = program(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot be resumed"), "{}", said(&output));
}

#[test]
fn a_simulated_card_is_held_and_named_before_the_work_starts() {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("sela-sim0");
    fs::write(&node, vec![0; 1024]).unwrap();
    let on_card = |mib: &str| {
        program(folder.path())
            .args(["--steps", "1"])
            .env("SELA_SIM_DEVICE", &node)
            .env("SELA_SIM_VRAM_MIB", mib)
            .output()
            .unwrap()
    };
    let output = on_card("512");
    assert!(output.status.success(), "{}", said(&output));
    let first_line = said(&output).lines().next().unwrap().to_owned();
    assert!(
        first_line.contains("CPU, holding the lock of SIMULATED card"),
        "{first_line}"
    );
    assert!(metrics(folder.path())["ran_on"].as_str().unwrap().contains("SIMULATED"));

    let output = on_card("2048");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("card is full: 2048 MiB"), "{}", said(&output));
}

#[test]
fn memory_that_another_job_holds_is_refused_until_that_job_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("sela-sim0");
    fs::write(&node, vec![0; 1024]).unwrap();
    let on_card = |name: &str, steps: &str| {
        let mut command = program(&folder.path().join(name));
        command
            .args(["--steps", steps])
            .env("SELA_SIM_DEVICE", &node)
            .env("SELA_SIM_VRAM_MIB", "600");
        command
    };
    let mut holder = on_card("holder", "1000000").spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().unwrap().starts_with("step 1/"))
        .unwrap()
        .unwrap();

    let refused = on_card("other", "1").output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("card is full: 600 MiB"), "{}", said(&refused));
    assert!(said(&refused).contains("424"), "{}", said(&refused));

    holder.kill().unwrap();
    holder.wait().unwrap();
    let given = on_card("other", "1").output().unwrap();
    assert!(given.status.success(), "{}", said(&given));
}
