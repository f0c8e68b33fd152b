//! What goes into a job and comes out of it: `/out`, `/checkpoint`, and the archives of them.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use sela_protocol::blob::BlobId;
use sela_protocol::confidential::{Confidential, SecretName, SecretValue};
use sela_protocol::lease::EndCause;
use sela_protocol::sealed::{self, Purpose};
use sela_protocol::units::{Bytes, Millis};
use sela_sandbox::keeper::wire::{Archive, Collected, FaultCode, Order, Report};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use support::engines::is_in_engine;
use support::{KEY, Stage, Watched, assert_nothing_left, confidential, is_root, run};

/// What is in an archive, its hash and size checked.
fn contents(archive: &Archive, purpose: Purpose) -> BTreeMap<String, String> {
    let bytes = fs::read(&archive.path).unwrap();
    assert_eq!((archive.size.0, archive.blob), (bytes.len() as u64, BlobId::of(&bytes)));
    let status = fs::metadata(&archive.path).unwrap();
    assert_eq!((status.uid(), status.mode() & 0o777), (0, 0o600));
    let mut contents = BTreeMap::new();
    let bytes = sealed::open(&KEY, purpose, &bytes).unwrap();
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        contents.insert(entry.path().unwrap().display().to_string(), text);
    }
    contents
}

fn archived(collected: &Collected) -> &Archive {
    match collected {
        Collected::Archived { archive } => archive,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn results_leave_through_out_whatever_user_wrote_them() {
    if !is_root("results_leave_through_out_whatever_user_wrote_them") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script(
        "umask 077; mkdir /out/a; echo answer > /out/a/answers.txt; echo {} > /out/report.json; \
         ln -s /etc/passwd /out/link; mkfifo /out/pipe; ln -s / /out/root; chmod 000 /out/report.json; exit 4",
    );
    plan.program.user = 1234;
    plan.program.group = 1234;
    let outcome = run(&plan).await;
    outcome.exited(4);
    let (_, outputs, checkpoint) = outcome.ended();
    let archive = archived(outputs);
    assert_eq!((archive.files, archive.skipped), (2, 3));
    let contents = contents(archive, Purpose::Output);
    assert_eq!(
        contents.keys().collect::<Vec<_>>(),
        ["a", "a/answers.txt", "report.json"]
    );
    assert_eq!(contents["a/answers.txt"], "answer\n");
    assert_eq!(checkpoint, &Collected::Nothing);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_huge_sparse_result_is_refused_and_nothing_of_it_kept() {
    if !is_root("a_huge_sparse_result_is_refused_and_nothing_of_it_kept") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("truncate -s 100M /out/sparse; echo small > /out/small");
    let outcome = run(&plan).await;
    outcome.exited(0);
    let Collected::Refused { why } = outcome.ended().1 else {
        panic!("{:?}", outcome.ended())
    };
    assert!(why.contains("output_limit"), "{why}");
    assert_eq!(fs::read_dir(&plan.scratch).unwrap().count(), 0);
}

#[tokio::test]
async fn a_checkpoint_goes_round_by_way_of_another_run() {
    if !is_root("a_checkpoint_goes_round_by_way_of_another_run") {
        return;
    }
    let stage = Stage::new();
    let script = "mkdir -p /checkpoint/state; cat /checkpoint/state/step 2>/dev/null; \
                  echo step 2 > /checkpoint/state/part; mv /checkpoint/state/part /checkpoint/state/step; id -u; \
                  stat -c %u /checkpoint/state/step";
    let mut plan = stage.script(script);
    plan.program.user = 77;
    let first = run(&plan).await;
    assert_eq!(first.out, "77\n77\n");
    let archive = archived(first.ended().2).clone();
    assert_eq!(contents(&archive, Purpose::Checkpoint)["state/step"], "step 2\n");

    let kept = stage.path().join("kept.sealed");
    fs::rename(&archive.path, &kept).unwrap();
    let mut again = stage.script(script);
    again.program.user = 77;
    again.resume_from = Some(kept);
    let second = run(&again).await;
    assert_eq!(second.out, "step 2\n77\n77\n", "{}", second.err);
    assert_nothing_left(&again);
}

#[tokio::test]
async fn a_changed_checkpoint_is_taken_while_the_job_runs() {
    if !is_root("a_changed_checkpoint_is_taken_while_the_job_runs") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("echo one > /checkpoint/step; sleep 60");
    plan.checkpoint_every_ms = Some(Millis(200));
    let mut job = Watched::start(&plan).await;
    job.until_started().await;
    let is_checkpoint = |report: &Report| matches!(report, Report::CheckpointReady { .. });
    let Report::CheckpointReady { archive } = job.until(is_checkpoint).await else {
        panic!()
    };
    assert_eq!(contents(&archive, Purpose::Checkpoint)["step"], "one\n");
    // Unchanged since: no second one is taken, now or at the end.
    job.until(|report| matches!(report, Report::Usage { .. })).await;
    job.until(|report| matches!(report, Report::Usage { .. })).await;
    job.order(Order::End {
        cause: EndCause::OwnerInput,
    })
    .await;
    let outcome = job.finish().await;
    assert_eq!(outcome.seen.iter().filter(|report| is_checkpoint(report)).count(), 1);
    assert_eq!(outcome.ended().2, &Collected::Nothing);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn checkpoints_that_nobody_takes_do_not_fill_the_disk() {
    if !is_root("checkpoints_that_nobody_takes_do_not_fill_the_disk") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("while true; do date > /checkpoint/part; cat /proc/uptime >> /checkpoint/part; mv /checkpoint/part /checkpoint/step; sleep 0.05; done");
    plan.checkpoint_every_ms = Some(Millis(100));
    plan.limits.wall_ms = Millis(2_500);
    let outcome = run(&plan).await;
    let taken = outcome
        .seen
        .iter()
        .filter(|report| matches!(report, Report::CheckpointReady { .. }))
        .count();
    assert_eq!(taken, 2);
    assert!(
        matches!(outcome.ended().2, Collected::Archived { .. }),
        "the last one always is: {:?}",
        outcome.ended().2
    );
}

#[tokio::test]
async fn a_hostile_checkpoint_stops_the_start_and_leaves_nothing() {
    if !is_root("a_hostile_checkpoint_stops_the_start_and_leaves_nothing") {
        return;
    }
    let stage = Stage::new();
    let seal = |name: &str, purpose: Purpose, bytes: &[u8]| {
        let path = stage.path().join(name);
        fs::write(&path, sealed::seal(&KEY, purpose, &[5; 19], bytes).unwrap()).unwrap();
        path
    };
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "state", "/etc").unwrap();
    let hostile = seal("hostile", Purpose::Checkpoint, &builder.into_inner().unwrap());
    let no_tar = seal("no tar", Purpose::Checkpoint, &[b'x'; 700]);
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(200_000);
    header.set_mode(0o644);
    builder
        .append_data(&mut header, "state", std::io::repeat(7).take(200_000))
        .unwrap();
    let good = builder.into_inner().unwrap();
    let output = seal("output", Purpose::Output, &good);
    // Behind the end of the tar in it, where a reader of tar looks no more.
    let longer = seal(
        "longer",
        Purpose::Checkpoint,
        &[good.as_slice(), &[0; 100_000]].concat(),
    );
    let bytes = fs::read(&longer).unwrap();
    fs::write(&longer, &bytes[..bytes.len() - 1]).unwrap();
    let clear = stage.path().join("clear");
    fs::write(&clear, &good).unwrap();
    let missing = stage.path().join("missing");
    for archive in [hostile, no_tar, output, longer, clear, missing] {
        let mut plan = stage.script("echo ran");
        plan.resume_from = Some(archive);
        let outcome = run(&plan).await;
        assert_eq!(outcome.fault().code, FaultCode::BadCheckpoint, "{:?}", outcome.fault());
        assert!(matches!(outcome.fault().end_cause(), EndCause::JobFault { .. }));
        assert_nothing_left(&plan);
    }
}

#[tokio::test]
async fn a_checkpoint_that_does_not_fit_into_memory_says_so() {
    if !is_root("a_checkpoint_that_does_not_fit_into_memory_says_so") {
        return;
    }
    let stage = Stage::new();
    let large = stage.path().join("large");
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(30 << 20);
    header.set_mode(0o644);
    builder
        .append_data(&mut header, "state", std::io::repeat(7).take(30 << 20))
        .unwrap();
    let bytes = builder.into_inner().unwrap();
    fs::write(
        &large,
        sealed::seal(&KEY, Purpose::Checkpoint, &[5; 19], &bytes).unwrap(),
    )
    .unwrap();
    let mut plan = stage.script("echo ran");
    plan.resume_from = Some(large);
    plan.limits.memory = Bytes::from_mib(24);
    let outcome = run(&plan).await;
    let message = &outcome.fault().message;
    assert!(
        message.contains("memory limit") || message.contains("No space left"),
        "{message}"
    );
    assert_nothing_left(&plan);
}

/// The files in or below a folder that hold these bytes.
fn files_with(folder: &std::path::Path, needle: &[u8]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with(&path, needle));
        } else if kind.is_file()
            && fs::read(&path)
                .unwrap()
                .windows(needle.len())
                .any(|part| part == needle)
        {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn what_a_job_makes_lies_on_the_disk_sealed_only() {
    if !is_root("what_a_job_makes_lies_on_the_disk_sealed_only") {
        return;
    }
    let stage = Stage::new();
    // Drawn by the job, so that nobody here can have written it anywhere.
    let mut plan = stage.script(
        "cat /proc/sys/kernel/random/uuid > /checkpoint/part; cp /checkpoint/part /out/result; cp /out/result /tmp/copy; \
         mv /checkpoint/part /checkpoint/state; cat /tmp/copy; echo written; sleep 60",
    );
    plan.checkpoint_every_ms = Some(Millis(200));
    let mut job = Watched::start(&plan).await;
    job.until_says("written").await;
    let marker = job
        .output(sela_sandbox::keeper::wire::LogStream::Out)
        .lines()
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(marker.len(), 36, "{marker}");
    // One was taken meanwhile, or is now.
    let is_checkpoint = |report: &Report| matches!(report, Report::CheckpointReady { .. });
    if !job.seen.iter().any(is_checkpoint) {
        job.until(is_checkpoint).await;
    }
    assert_eq!(
        files_with(stage.path(), marker.as_bytes()),
        [] as [std::path::PathBuf; 0]
    );
    job.order(Order::End {
        cause: EndCause::OwnerInput,
    })
    .await;
    let outcome = job.finish().await;
    assert_eq!(
        files_with(stage.path(), marker.as_bytes()),
        [] as [std::path::PathBuf; 0]
    );
    // It is in both, for who has the key; and the search finds what lies open.
    let mut taken = None;
    for report in &outcome.seen {
        if let Report::CheckpointReady { archive } = report {
            taken = Some(archive);
        }
    }
    let last = if let Collected::Archived { archive } = outcome.ended().2 {
        archive
    } else {
        taken.expect("one was taken while the job ran")
    };
    assert!(contents(last, Purpose::Checkpoint)["state"].contains(&marker));
    assert!(contents(archived(outcome.ended().1), Purpose::Output)["result"].contains(&marker));
    let open = stage.path().join("control");
    fs::write(&open, format!("before {marker} after")).unwrap();
    assert_eq!(files_with(stage.path(), marker.as_bytes()), [open]);
}

#[tokio::test]
async fn secrets_are_files_in_memory_for_the_jobs_user_alone() {
    if !is_root("secrets_are_files_in_memory_for_the_jobs_user_alone") {
        return;
    }
    const SECRET: &str = "a secret of 4b1d";
    let stage = Stage::new();
    let mut plan = stage.script(
        "cd /run/secrets; ls; stat -c '%a %u %g' .  TOKEN; cat TOKEN | tr 'a-z' 'b-za'; echo; grep ' /run/secrets ' /proc/mounts; \
         touch /run/secrets/x 2>&1; chmod 600 TOKEN 2>&1; echo y > TOKEN; cat /proc/1/environ 2>&1; env; sleep 60",
    );
    (plan.program.user, plan.program.group) = (1234, 77);
    let name = |name: &str| SecretName::try_from(name.to_owned()).unwrap();
    let secrets = [("TOKEN", SECRET), ("empty", "")];
    let confidential = Confidential {
        secrets: secrets
            .map(|(key, value)| (name(key), SecretValue::new(value.to_owned())))
            .into(),
        ..confidential()
    };
    let mut job = Watched::start_with(&plan, confidential).await;
    job.until_says("PATH=").await;
    let keeper = job.keeper;
    assert_eq!(
        files_with(stage.path(), SECRET.as_bytes()),
        [] as [std::path::PathBuf; 0]
    );
    for file in ["cmdline", "environ"] {
        let text = fs::read(format!("/proc/{keeper}/{file}")).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains(SECRET), "{file}");
    }
    job.order(Order::End {
        cause: EndCause::OwnerInput,
    })
    .await;
    let outcome = job.finish().await;
    let said = &outcome.out;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines[..5],
        ["TOKEN", "empty", "500 1234 77", "400 1234 77", "b tfdsfu pg 4c1e"],
        "{said}"
    );
    let mount = lines[5];
    // In an engine the job could change its own copies: the place is in memory of its own there, too.
    let options = if is_in_engine() { "rw" } else { "ro" };
    assert!(
        mount.contains(&format!(" tmpfs {options},nosuid,nodev,noexec")),
        "{mount}"
    );
    assert!(
        is_in_engine() || said.matches("Read-only file system").count() == 2,
        "{said}"
    );
    assert!(is_in_engine() || outcome.err.contains("TOKEN: "), "{}", outcome.err);
    // Neither the job's environment, nor its log, nor what is left, holds it.
    assert!(!format!("{outcome:?}").contains(SECRET));
    assert_eq!(
        files_with(stage.path(), SECRET.as_bytes()),
        [] as [std::path::PathBuf; 0]
    );
    assert_nothing_left(&plan);
}
