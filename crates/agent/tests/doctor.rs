//! `sela doctor sandbox` as people run it: the real program, its exit code and what it prints, and nothing of it left.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report, skipped tests say so, and the program is what is tested"
)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn sela(folder: &Path, words: &[&str]) -> Output {
    let at = |name: &str| folder.join(name);
    Command::new(env!("CARGO_BIN_EXE_sela"))
        .args(words)
        .env("SELA_CONFIG_DIR", at("config"))
        .env("SELA_DATA_DIR", at("data"))
        .env("SELA_RUNTIME_DIR", at("runtime"))
        .output()
        .unwrap()
}

#[test]
fn the_walls_of_this_machine_are_tried_without_an_agent_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let output = sela(folder.path(), &["doctor", "sandbox", "--lab", "--json"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    if !rustix::process::geteuid().is_root() {
        assert_eq!(output.status.code(), Some(4), "{complaint}");
        assert!(complaint.contains("sudo sela doctor sandbox --lab"), "{complaint}");
        return;
    }
    if complaint.contains("jobs cannot be isolated here") {
        println!("skipped: {complaint}");
        return;
    }
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {complaint}"));
    let findings = found["findings"].as_array().unwrap();
    let bad: Vec<_> = findings.iter().filter(|finding| finding["verdict"] == "bad").collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(
        findings.iter().filter(|finding| finding["verdict"] == "good").count() > 10,
        "{found:#}"
    );
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    let left: Vec<_> = std::fs::read_dir(folder.path().join("runtime")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    println!("{} ms", found["took_ms"]);
}
