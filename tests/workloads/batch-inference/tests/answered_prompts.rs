//! The real program answers real files: in order, the same every time, and after an interruption only what was left.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod tiny_model;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// The file of the real model; the test that needs it says so where it is not set.
const REAL_MODEL: &str = "SELA_SMOLLM2_GGUF";

struct Job {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Job {
    fn new(prompts: &[Value]) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        tiny_model::write(&model);
        let job = Job { folder, model };
        let lines: String = prompts.iter().map(|prompt| format!("{prompt}\n")).collect();
        fs::write(job.path("prompts.jsonl"), lines).unwrap();
        job
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batch-inference"));
        command
            .arg("--model")
            .arg(&self.model)
            .arg("--prompts")
            .arg(self.path("prompts.jsonl"))
            .arg("--checkpoint")
            .arg(self.path("checkpoint"))
            .arg("--out")
            .arg(self.path("out"))
            .env_remove("SELA_SIM_DEVICE")
            .env_remove("SELA_SIM_VRAM_MIB")
            .stdout(Stdio::piped());
        command
    }

    fn run(&self) -> (Output, String) {
        let output = self.program().output().unwrap();
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        (output, said)
    }

    /// Prompt, answer and tokens of each line: everything but the time that it took.
    fn answers(&self, file: &str) -> Vec<(String, String, u64)> {
        let field = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
        read_lines(&self.path(file))
            .iter()
            .map(|line| {
                (
                    field(line, "prompt"),
                    field(line, "answer"),
                    line["tokens"].as_u64().unwrap(),
                )
            })
            .collect()
    }
}

fn read_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn four_prompts() -> Vec<Value> {
    vec![
        json!({ "prompt": "What is the time?", "max_tokens": 20 }),
        json!({ "prompt": "Was ist das? ä ß €", "max_tokens": 15 }),
        json!({ "prompt": "And then the other thing", "max_tokens": 10 }),
        json!({ "prompt": "Tell me all", "max_tokens": 3500 }),
    ]
}

#[test]
fn every_prompt_is_answered_in_order_and_the_same_every_time() {
    let prompts = &four_prompts()[..3];
    let job = Job::new(prompts);
    let (output, said) = job.run();
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("batch-inference runs on: CPU, no card\n"), "{said}");
    for line in [
        "answered 1/3",
        "answered 2/3",
        "answered 3/3",
        "done: 3 answers, 45 tokens",
    ] {
        assert!(said.contains(line), "{line} is missing in {said}");
    }
    let answers = job.answers("out/answers.jsonl");
    assert_eq!(answers.iter().map(|answer| answer.2).collect::<Vec<_>>(), [20, 15, 10]);
    for (answer, prompt) in answers.iter().zip(prompts) {
        assert_eq!(answer.0, prompt["prompt"]);
    }
    assert_ne!(answers[0].1, answers[1].1, "the answer depends on the prompt");

    let again = Job::new(prompts);
    assert!(again.run().0.status.success());
    assert_eq!(again.answers("out/answers.jsonl"), answers);
}

#[test]
fn a_job_that_is_told_to_go_keeps_its_answers_and_only_gives_the_rest_when_it_comes_back() {
    let whole = Job::new(&four_prompts());
    assert!(whole.run().0.status.success());

    let job = Job::new(&four_prompts());
    let mut process = job.program().spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    lines.find(|line| line == "answered 3/4").unwrap();
    let process_id = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(process_id, rustix::process::Signal::TERM).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest, ["told to go: 3/4 answers are saved"]);
    assert_eq!(process.wait().unwrap().code(), Some(143));
    let saved = fs::read_to_string(job.path("checkpoint/answers.jsonl")).unwrap();
    assert_eq!(saved.lines().count(), 3);
    assert!(!job.path("out/answers.jsonl").exists());

    let (output, said) = job.run();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("resumed: 3/4 were already answered\nanswered 4/4\n"),
        "{said}"
    );
    assert_eq!(job.answers("out/answers.jsonl"), whole.answers("out/answers.jsonl"));
    let all = fs::read_to_string(job.path("out/answers.jsonl")).unwrap();
    assert!(all.starts_with(&saved), "what was answered is not answered again");
}

#[test]
fn what_is_wrong_is_said_before_any_answer_and_leaves_no_result() {
    let check = |spoil: &dyn Fn(&mut Job), expected: &str| {
        let mut job = Job::new(&four_prompts()[..1]);
        spoil(&mut job);
        let (output, said) = job.run();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{expected:?} is missing in {said}");
        assert!(!job.path("out/answers.jsonl").exists());
    };
    check(&|job| job.model = job.path("elsewhere.gguf"), "elsewhere.gguf");
    check(
        &|job| fs::write(&job.model, "not a model").unwrap(),
        "could not load the model",
    );
    check(
        &|job| fs::remove_file(job.path("prompts.jsonl")).unwrap(),
        "could not read the prompts",
    );
    check(
        &|job| fs::write(job.path("prompts.jsonl"), "{\"prompt\": 1}\n").unwrap(),
        "line 1",
    );
    check(
        &|job| {
            let prompt = json!({ "prompt": "x", "max_tokens": tiny_model::CONTEXT });
            fs::write(job.path("prompts.jsonl"), prompt.to_string()).unwrap();
        },
        "more than the 4096 tokens",
    );
    check(
        &|job| {
            fs::create_dir(job.path("checkpoint")).unwrap();
            let other = json!({ "prompt": "another", "answer": "", "tokens": 0, "ms": 0 });
            fs::write(job.path("checkpoint/answers.jsonl"), other.to_string()).unwrap();
        },
        "answers other prompts",
    );
}

#[test]
fn the_real_model_knows_the_capital_of_france() {
    let Some(model) = std::env::var_os(REAL_MODEL) else {
        println!("not run: {REAL_MODEL} is not set to the model's file (cargo xtask sets it)");
        return;
    };
    let mut job = Job::new(&[json!({ "prompt": "What is the capital of France?", "max_tokens": 30 })]);
    job.model = model.into();
    let (output, said) = job.run();
    assert!(output.status.success(), "{said}");
    let answers = job.answers("out/answers.jsonl");
    assert_eq!(answers[0].1, "The capital of France is Paris.");
}
