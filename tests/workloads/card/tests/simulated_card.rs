//! The memory of a SIMULATED card is what the kernel says: held by a process, seen by others, free when the process is
//! gone. The holders are other processes (this test's own program, started again), because POSIX locks of one process
//! never conflict with each other.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sela_workload_card::{CardLock, LockError};

const HOLD_DEVICE: &str = "SELA_TEST_HOLD_DEVICE";
const HOLD_MIB: &str = "SELA_TEST_HOLD_MIB";

fn card(folder: &tempfile::TempDir, mib: usize) -> PathBuf {
    let node = folder.path().join("sela-sim0");
    std::fs::write(&node, vec![0; mib]).unwrap();
    node
}

/// A process that holds memory until its standard input closes.
struct Holder {
    process: Child,
    said: String,
}

impl Holder {
    fn start(device: &Path, mib: u64) -> Holder {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holds_when_it_is_told_to", "--nocapture"])
            .env(HOLD_DEVICE, device)
            .env(HOLD_MIB, mib.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let said = lines
            .find_map(|line| {
                let line = line.unwrap();
                // The test harness may have begun the line with the test's name.
                line.find("holder: ").map(|at| line[at..].to_owned())
            })
            .expect("the holder says something");
        Holder { process, said }
    }

    fn end(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Not a check of its own: the holder's part of the tests below, which start it with the two variables set.
#[test]
fn holds_when_it_is_told_to() {
    let (Ok(device), Ok(mib)) = (std::env::var(HOLD_DEVICE), std::env::var(HOLD_MIB)) else {
        return;
    };
    let lock = CardLock::take(Path::new(&device), mib.parse().unwrap());
    match &lock {
        Ok(lock) => println!("\nholder: at {}", lock.offset_mib()),
        Err(error) => println!("\nholder: {error}"),
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(lock);
}

#[test]
fn memory_is_taken_at_the_first_gap_that_is_large_enough() {
    let folder = tempfile::tempdir().unwrap();
    let node = card(&folder, 100);
    let first = Holder::start(&node, 20);
    let second = Holder::start(&node, 30);
    let third = Holder::start(&node, 10);
    assert_eq!(
        [&first.said, &second.said, &third.said],
        ["holder: at 0", "holder: at 20", "holder: at 50"]
    );
    second.end();
    let small = Holder::start(&node, 30);
    assert_eq!(small.said, "holder: at 20", "the gap is used again");
    let large = CardLock::take(&node, 40).unwrap();
    assert_eq!(large.offset_mib(), 60);
    first.end();
    third.end();
    small.end();
}

#[test]
fn a_full_card_says_how_full_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let node = card(&folder, 100);
    let holder = Holder::start(&node, 70);
    let error = CardLock::take(&node, 31).unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("card is full: 31 MiB"), "{said}");
    assert!(said.contains("100 MiB"), "{said}");
    assert!(said.contains("30 MiB"), "{said}");
    holder.end();
    CardLock::take(&node, 31).unwrap();
}

#[test]
fn more_than_the_card_has_is_refused_although_it_is_idle() {
    let folder = tempfile::tempdir().unwrap();
    let node = card(&folder, 100);
    let error = CardLock::take(&node, 101).unwrap_err();
    assert!(
        matches!(
            error,
            LockError::Full {
                longest_free_mib: 100,
                ..
            }
        ),
        "{error}"
    );
    assert!(CardLock::take(&node, u64::MAX).is_err());
}

#[test]
fn a_card_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = CardLock::take(&folder.path().join("sela-sim7"), 1).unwrap_err();
    assert!(error.to_string().contains("sela-sim7"), "{error}");
    let empty = card(&folder, 0);
    let error = CardLock::take(&empty, 1).unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
}
