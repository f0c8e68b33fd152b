//! Lays out what only Rust can lay out for tests in other languages (the window's): a lab with one SIMULATED card, and the
//! image of the test job, both in the folder given. Prints where they are as one JSON document.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use anyhow::Context;
use sela_nvml_sim::{CardPlan, FOLDER_VARIABLE, LIBRARY_FILE, Lab};
use sela_tests::{image_of_the_test_job, program, test_job};
use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).context("usage: sela-test-lab FOLDER")?);
    let lab = Lab::create(&folder.join("lab"), &[CardPlan::rtx_3090()])?;
    let image = image_of_the_test_job(&folder.join("image"))?;
    let environment = serde_json::json!({
        "SELA_NVML_LIBRARY": program(LIBRARY_FILE)?,
        FOLDER_VARIABLE: lab.folder(),
    });
    let laid_out = serde_json::json!({
        "environment": environment,
        "archive": image.archive,
        "job": test_job(image.blob, &["--steps", "100000", "--step-ms", "100"]),
    });
    println!("{laid_out}");
    Ok(())
}
