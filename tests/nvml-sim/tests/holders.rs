//! Who holds a card's memory, asked while the rest of the machine takes and drops locks: nobody is missed and nobody is counted
//! twice. What the driver makes of the holders is tested in `driver.rs`.

use sela_nvml_sim::node::{Allocation, Holder, holders};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Enough that the machine's lock table is longer than the page that the kernel hands out at a time.
const LOCKS_OF_OTHERS: usize = 400;

fn node(folder: &Path, mib: u64) -> std::path::PathBuf {
    let path = folder.join("node");
    File::create(&path).and_then(|node| node.set_len(mib)).expect("a node");
    path
}

fn this_process(mib: u64, graphics: bool) -> Holder {
    Holder {
        pid: std::process::id(),
        mib,
        graphics,
    }
}

#[test]
fn a_holder_is_seen_whole_whatever_others_lock_and_unlock_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = node(folder.path(), 1000);
    let files: Vec<File> = (0..LOCKS_OF_OTHERS)
        .map(|number| File::create(folder.path().join(number.to_string())).expect("another file"))
        .collect();
    let allocation = Allocation::take(&path, 600).expect("memory");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                files.iter().for_each(|file| file.lock().expect("a lock"));
                files.iter().for_each(|file| file.unlock().expect("no lock"));
            }
        });
        let seen: Vec<_> = (0..20_000).map(|_| holders(&path).expect("holders")).collect();
        over.store(true, Ordering::Relaxed);
        for (round, seen) in seen.iter().enumerate() {
            assert_eq!(*seen, [this_process(600, false)], "round {round}");
        }
    });
    drop(allocation);
    assert_eq!(holders(&path).expect("holders"), []);
}

#[test]
fn asking_drops_nothing_that_the_asker_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = node(folder.path(), 100);
    let allocation = Allocation::take(&path, 60).expect("memory");
    for _ in 0..3 {
        assert_eq!(holders(&path).expect("holders"), [this_process(60, false)]);
    }
    allocation.mark_graphics().expect("a mark");
    assert_eq!(holders(&path).expect("holders"), [this_process(60, true)]);
}

#[test]
fn locks_that_are_no_memory_hold_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = node(folder.path(), 100);
    let whole = File::open(&path).expect("the node");
    whole.lock().expect("a lock of another kind");
    assert_eq!(holders(&path).expect("holders"), []);
    let missing = holders(&folder.path().join("missing")).expect_err("no node");
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}
