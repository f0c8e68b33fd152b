//! How a job reaches its card: the device and the driver's files that its plan names, and nothing else of the machine's.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use rustix::fs::{FlockOperation, flock};
use sela_protocol::lease::EndCause;
use sela_sandbox::card::{CardAccess, Placed};
use sela_sandbox::keeper::wire::{FaultCode, Order, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use support::{Stage, Watched, assert_nothing_left, is_root, run};

fn placed(outside: &Path, inside: &str) -> Placed {
    Placed {
        outside: outside.to_owned(),
        inside: PathBuf::from(inside),
    }
}

/// A plain file in a folder that only root may enter, as a simulated card's node is.
fn device_file(stage: &Stage) -> PathBuf {
    let path = stage.path().join("sela-sim0");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    path
}

fn is_free(device: &Path) -> bool {
    let file = OpenOptions::new().read(true).write(true).open(device).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[tokio::test]
async fn a_lock_on_the_device_is_kept_while_frozen_and_gone_with_the_job() {
    if !is_root("a_lock_on_the_device_is_kept_while_frozen_and_gone_with_the_job") {
        return;
    }
    let stage = Stage::new();
    let device = device_file(&stage);
    let mut plan = stage.script("exec inside $SELA_SIM_DEVICE");
    plan.program.user = 1000;
    plan.card = Some(CardAccess {
        devices: vec![placed(&device, "/dev/sela-sim0")],
        env: BTreeMap::from([("SELA_SIM_DEVICE".to_owned(), "/dev/sela-sim0".to_owned())]),
        ..CardAccess::default()
    });
    let mut job = Watched::start(&plan).await;
    job.until_started().await;
    job.until_says("held /dev/sela-sim0").await;
    assert!(!is_free(&device));
    job.order(Order::Freeze {
        cause: EndCause::OwnerInput,
    })
    .await;
    job.until(|report| matches!(report, Report::Frozen { .. })).await;
    assert!(!is_free(&device), "a frozen holder keeps it");
    job.order(Order::End {
        cause: EndCause::OwnerInput,
    })
    .await;
    job.until(|report| matches!(report, Report::Stopped { .. })).await;
    assert!(is_free(&device), "free when the keeper says that the job stopped");
    job.finish().await;
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn the_drivers_files_are_there_read_only_and_first_in_the_search_paths() {
    if !is_root("the_drivers_files_are_there_read_only_and_first_in_the_search_paths") {
        return;
    }
    let stage = Stage::new();
    let library = stage.path().join("libcuda.so.595.1");
    fs::write(&library, "library").unwrap();
    let mut plan = stage.script(
        "cat /usr/local/nvidia/lib64/libcuda.so.1; echo; echo x > /usr/local/nvidia/lib64/libcuda.so.1; \
         echo $LD_LIBRARY_PATH $PATH $EXTRA; ls /dev; head -c 4 /dev/zero | wc -c; ls /usr/lib",
    );
    plan.program
        .environment
        .push(("LD_LIBRARY_PATH".to_owned(), "/opt/lib".to_owned()));
    plan.program
        .environment
        .push(("EXTRA".to_owned(), "the job's".to_owned()));
    plan.card = Some(CardAccess {
        devices: vec![placed(Path::new("/dev/zero"), "/dev/nvidia0")],
        files: ["libcuda.so.1", "libcuda.so"]
            .map(|name| placed(&library, &format!("/usr/local/nvidia/lib64/{name}")))
            .to_vec(),
        env: BTreeMap::from(
            [
                ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64"),
                ("PATH", "/usr/local/nvidia/bin"),
                ("EXTRA", "the card's"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        wipe: None,
    });
    let outcome = run(&plan).await;
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert_eq!(lines[0], "library");
    assert_eq!(
        lines[1],
        "/usr/local/nvidia/lib64:/opt/lib /usr/local/nvidia/bin:/bin the job's"
    );
    assert!(lines.contains(&"nvidia0"), "{lines:?}");
    assert!(outcome.err.contains("Read-only file system"), "{}", outcome.err);
    assert_eq!(fs::read_to_string(&library).unwrap(), "library");
}

/// A character device of this machine's /dev, gone with this value: an engine that maps ids finds it by its name only.
struct Node(PathBuf);

impl Node {
    /// Of the kernel's memory devices the one with this minor number.
    fn make(name: &str, minor: u32) -> Self {
        let path = PathBuf::from(format!("/dev/sela-test-{}-{name}", std::process::id()));
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, rustix::fs::makedev(1, minor)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        Self(path)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

#[tokio::test]
async fn a_job_has_its_cards_nodes_and_not_one_more() {
    if !is_root("a_job_has_its_cards_nodes_and_not_one_more") {
        return;
    }
    let stage = Stage::new();
    // Any two nodes that may be opened; called the same outside and inside, as a card's are.
    let given = [Node::make("nvidia1", 5), Node::make("nvidiactl", 7)];
    let list = "for node in $(find /dev -type c -o -type b); do echo $node $(stat -c '%t:%T' $node); done";
    let mut listed = Vec::new();
    for devices in [&given[..0], &given[..]] {
        let mut plan = stage.script(list);
        plan.scratch = stage.path().join(plan.lease.to_string());
        fs::create_dir(&plan.scratch).unwrap();
        let devices = devices.iter().map(|node| placed(&node.0, node.0.to_str().unwrap()));
        plan.card = Some(CardAccess {
            devices: devices.collect(),
            ..CardAccess::default()
        });
        let outcome = run(&plan).await;
        outcome.exited(0);
        listed.push(outcome.out.lines().map(str::to_owned).collect::<BTreeSet<String>>());
    }
    let [without, with] = [&listed[0], &listed[1]];
    let more: Vec<&str> = with.difference(without).map(String::as_str).collect();
    let expected = [(&given[0], 5), (&given[1], 7)].map(|(node, minor)| format!("{} 1:{minor}", node.0.display()));
    assert_eq!(more, expected);
    assert_eq!(without.difference(with).count(), 0);
    let cards: Vec<&String> = without
        .iter()
        .filter(|node| node.contains("nvidia") || node.contains("dri/"))
        .collect();
    assert!(cards.is_empty(), "without a card: {cards:?}");
}

#[tokio::test]
async fn a_missing_device_or_library_stops_the_start() {
    if !is_root("a_missing_device_or_library_stops_the_start") {
        return;
    }
    let stage = Stage::new();
    let missing = stage.path().join("missing");
    for (devices, files) in [
        (vec![placed(&missing, "/dev/nvidia0")], Vec::new()),
        (
            Vec::new(),
            vec![placed(&missing, "/usr/local/nvidia/lib64/libcuda.so.1")],
        ),
    ] {
        let mut plan = stage.script("echo ran");
        plan.scratch = stage.path().join(plan.lease.to_string());
        fs::create_dir(&plan.scratch).unwrap();
        plan.card = Some(CardAccess {
            devices,
            files,
            ..CardAccess::default()
        });
        let outcome = run(&plan).await;
        assert_eq!(outcome.fault().code, FaultCode::Card);
        assert!(
            outcome.fault().message.contains("missing"),
            "{}",
            outcome.fault().message
        );
        assert!(matches!(outcome.fault().end_cause(), EndCause::NodeFault { .. }));
        assert_nothing_left(&plan);
    }
}

#[tokio::test]
async fn a_device_node_of_the_images_own_cannot_be_opened() {
    if !is_root("a_device_node_of_the_images_own_cannot_be_opened") {
        return;
    }
    let stage = Stage::new();
    let node = stage.layer.join("bin/zero");
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &node, kind, mode, rustix::fs::makedev(1, 5)).unwrap();
    support::give(&node);
    assert!(
        File::open(&node).is_ok(),
        "outside it works, or this would show nothing"
    );
    let outcome = run(&stage.script("head -c 1 /bin/zero; mknod /tmp/zero c 1 5; head -c 1 /tmp/zero")).await;
    assert_eq!(outcome.out, "");
    assert!(
        outcome.err.contains("Permission denied") && outcome.err.contains("Operation not permitted"),
        "{}",
        outcome.err
    );
}
