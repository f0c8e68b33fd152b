//! Scratch on the owner's disk: encrypted, gone with the job, and nothing of it anywhere in the clear.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use sela_protocol::lease::EndCause;
use sela_protocol::sealed::{self, Purpose};
use sela_protocol::units::Bytes;
use sela_sandbox::keeper::wire::{Collected, LogStream, Order};
use sela_sandbox::probe::{Machine, ScratchKind, probe};
use sela_sandbox::sweep::sweep;
use std::fs;
use std::path::{Path, PathBuf};
use support::{KEY, Stage, Watched, assert_nothing_left, is_root, run};

/// Root, and a kernel that can: where nothing may be skipped, it must.
fn can(test: &str) -> bool {
    let can = probe(&Machine::this(), true).scratch == ScratchKind::EncryptedDisk;
    if !can {
        println!("{test}: skipped: this machine has no disk that it could encrypt");
    }
    is_root(test) && can
}

/// The loop devices whose file lies, or lay, in a folder.
fn devices_of(folder: &Path) -> Vec<PathBuf> {
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block").unwrap().flatten() {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if backing.starts_with(folder.to_str().unwrap()) {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    devices
}

fn holds(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|part| part == needle.as_bytes())
}

/// The files in or below a folder that hold this.
fn files_with(folder: &Path, needle: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with(&path, needle));
        } else if kind.is_file() && holds(&fs::read(&path).unwrap(), needle) {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn what_is_written_to_a_disk_is_found_nowhere_in_the_clear() {
    if !can("what_is_written_to_a_disk_is_found_nowhere_in_the_clear") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script(
        "m=$(cat /proc/sys/kernel/random/uuid); for place in /tmp /out /checkpoint; do \
         for n in 0 1 2 3 4 5 6 7; do echo $m$m$m$m; done > $place/$m; ln -s $m $place/link; mkdir $place/folder-$m; done; \
         sync; echo $m; stat -f -c %T /tmp /out /checkpoint; ls /; echo written; sleep 60",
    );
    plan.limits.disk = Some(Bytes::from_mib(32));
    (plan.program.user, plan.program.group) = (1234, 77);
    let mut job = Watched::start(&plan).await;
    job.until_says("written").await;
    let said = job.output(LogStream::Out);
    let marker = said.lines().next().unwrap().to_owned();
    assert_eq!(marker.len(), 36, "{said}");
    assert_eq!(said.matches("ext2/ext3").count(), 3, "{said}");
    let [device] = &devices_of(stage.path())[..] else {
        panic!("{:?}", devices_of(stage.path()))
    };
    // Empty, it holds some 6 500 bytes that are not zero; what the job wrote makes it 21 000.
    // The whole device as it lies there: there is a file system, and in it nothing of what was written, nor a name.
    let raw = fs::read(device).unwrap();
    assert_eq!((raw.len(), &raw[1080..1082]), (32 << 20, &[0x53, 0xef][..]));
    assert!(
        raw.iter().filter(|byte| **byte != 0).count() > 15_000,
        "nothing was written"
    );
    assert!(!holds(&raw, &marker) && !holds(&raw, "folder-"));
    assert_eq!(files_with(stage.path(), &marker), [] as [PathBuf; 0]);
    // Its file has no name: a crash leaves none.
    assert_eq!(
        fs::read_dir(&plan.scratch)
            .unwrap()
            .filter(|entry| { entry.as_ref().unwrap().path().is_file() })
            .count(),
        0
    );
    job.order(Order::End {
        cause: EndCause::OwnerInput,
    })
    .await;
    let outcome = job.finish().await;
    let Collected::Archived { archive } = outcome.ended().1 else {
        panic!("{:?}", outcome.ended())
    };
    let opened = sealed::open(&KEY, Purpose::Output, &fs::read(&archive.path).unwrap()).unwrap();
    assert!(holds(&opened, &marker), "what the job wrote there leaves through /out");
    assert_eq!(files_with(stage.path(), &marker), [] as [PathBuf; 0]);
    assert_eq!(devices_of(stage.path()), [] as [PathBuf; 0]);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_disk_holds_more_than_memory_and_not_more_than_was_asked_for() {
    if !can("a_disk_holds_more_than_memory_and_not_more_than_was_asked_for") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script(
        "dd if=/dev/zero of=/tmp/much bs=1M count=40 2>&1 && echo fits; \
         dd if=/dev/zero of=/out/more bs=1M count=40 2>&1 || echo full; rm /out/more; df -k /dev/shm | tail -1 | awk '{print $2}'",
    );
    plan.limits.memory = Bytes::from_mib(24);
    plan.limits.disk = Some(Bytes::from_mib(64));
    plan.limits.shm_size = Bytes(0);
    let outcome = run(&plan).await;
    outcome.exited(0);
    assert!(
        outcome.out.contains("fits") && outcome.out.contains("full"),
        "{}",
        outcome.out
    );
    assert!(outcome.out.contains("No space left"), "{}", outcome.out);
    // No shared memory asked for is next to none, not as much as there is.
    assert!(outcome.out.ends_with("4\n"), "{}", outcome.out);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn no_attribute_is_set_where_it_would_lie_in_the_clear() {
    if !can("no_attribute_is_set_where_it_would_lie_in_the_clear") {
        return;
    }
    let stage = Stage::new();
    for (disk, said) in [(Some(Bytes::from_mib(16)), "Operation not supported"), (None, "")] {
        let mut plan = stage.plan(&["/bin/inside", "attribute", "/tmp"]);
        plan.limits.disk = disk;
        let outcome = run(&plan).await;
        assert!(outcome.out.contains(said), "{disk:?}: {} {}", outcome.out, outcome.err);
        assert_eq!(outcome.out.contains("set"), disk.is_none(), "{disk:?}: {}", outcome.out);
    }
}

#[tokio::test]
async fn of_a_keeper_that_was_killed_no_disk_is_left() {
    if !can("of_a_keeper_that_was_killed_no_disk_is_left") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("echo up; sleep 60");
    plan.limits.disk = Some(Bytes::from_mib(16));
    let mut job = Watched::start(&plan).await;
    job.until_says("up").await;
    assert_eq!(devices_of(stage.path()).len(), 1);
    let keeper = rustix::process::Pid::from_raw(i32::try_from(job.keeper).unwrap()).unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
    job.finish().await;
    let swept = sweep(&plan.cgroups, &stage.scratch).unwrap();
    assert_eq!(devices_of(stage.path()), [] as [PathBuf; 0], "{swept:?}");
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_disk_that_does_not_fit_is_refused_before_anything_is_written() {
    if !can("a_disk_that_does_not_fit_is_refused_before_anything_is_written") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("echo ran");
    plan.limits.disk = Some(Bytes::from_gib(1 << 20));
    let outcome = run(&plan).await;
    assert!(matches!(outcome.fault().end_cause(), EndCause::NodeFault { .. }));
    assert!(outcome.fault().message.contains("of scratch"), "{:?}", outcome.fault());
    assert_nothing_left(&plan);
    assert_eq!(fs::read_dir(&plan.scratch).unwrap().count(), 0);
}
