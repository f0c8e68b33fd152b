//! As much of the probe as the SIMULATED driver can carry out: what is left in a card's memory is found, and what is not there is not.

use sela_nvml_sim::{CardPlan, FOLDER_VARIABLE, Lab};
use std::path::Path;
use std::process::Command;

/// What the probe prints, and whether it was right.
fn probe(lab: &Lab, folder: &Path, words: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_sela-cuda-probe"))
        .args(words)
        .env("LD_LIBRARY_PATH", folder)
        .env(FOLDER_VARIABLE, lab.folder())
        .output()
        .expect("it runs");
    (
        String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        output.status.code(),
    )
}

#[test]
fn what_one_program_leaves_in_a_card_the_next_one_finds_if_nobody_wipes() {
    let folder = tempfile::tempdir().expect("a folder");
    let card = CardPlan {
        vram_mib: 64,
        driver_reserved_mib: 0,
        ..CardPlan::rtx_3090()
    };
    let lab = Lab::create(&folder.path().join("lab"), &[card]).expect("a lab");
    let library = sela_nvml_sim::find_library().expect("cargo builds the library with this test");
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).expect("under the driver's name");
    let ask = |words: &[&str]| probe(&lab, folder.path(), words);

    let found = |mib: u64| format!(r#"{{"byte":84,"found_mib":{mib},"looked_at_mib":56}}"#);
    assert_eq!(ask(&["look", "84"]), (found(0), Some(0)));
    assert_eq!(ask(&["again", "84"]), (found(56), Some(0)));
    assert_eq!(ask(&["look", "84"]), (found(56), Some(1)), "it was left there");
    assert_eq!(ask(&["fill", "0"]).1, Some(0));
    assert_eq!(ask(&["look", "84"]), (found(0), Some(0)));
    assert_eq!(ask(&["look", "nothing"]).1, Some(2));
}
