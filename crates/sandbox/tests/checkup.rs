//! The checkup on this machine: with the real keeper every guarantee comes to what is promised here; with one that builds no walls each
//! is found missing.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use sela_sandbox::checkup::{Finding, FindingVerdict, Ground, check};
use sela_sandbox::docker::{self, EngineKind};
use sela_sandbox::keeper::wire::CgroupPlace;
use sela_sandbox::probe::{Machine, ScratchKind, Strength, probe};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use support::engines::Engine;
use support::{IDS, example};

/// A folder of a checkup's own, and everything else that it takes on this machine; `None` where it was said by name what is missing.
fn ground(test: &str, keeper: &str) -> Option<(tempfile::TempDir, Ground)> {
    let machine = Machine::this();
    let found = probe(&machine, true);
    let Some(layout) = found.layout else {
        println!("{test}: skipped: {:?}", found.state);
        return None;
    };
    let folder = tempfile::Builder::new().prefix("sela-checkup-").tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let agent = format!("test-{}", name.trim_start_matches("sela-checkup-"));
    let ground = Ground {
        keeper: example(keeper),
        folder: folder.path().to_owned(),
        cgroups: CgroupPlace {
            layout,
            root: machine.cgroups,
            agent,
        },
        ids: *IDS,
        engine: None,
        disk: found.scratch == ScratchKind::EncryptedDisk,
        promised: found.guarantees,
        // A machine that tests run on is busy, and jobs come last.
        limit: Duration::from_secs(200),
    };
    Some((folder, ground))
}

/// Every guarantee is tried, and is what is promised.
fn assert_as_promised(findings: &[Finding], ground: &Ground) {
    assert_eq!(findings.len(), ground.promised.len());
    let wrong: Vec<_> = findings
        .iter()
        .zip(&ground.promised)
        .filter(|(finding, guarantee)| {
            let expected = match guarantee.strength {
                // What takes a card cannot be tried without one.
                Strength::Enforced if finding.tried.starts_with("nothing") => FindingVerdict::Weaker,
                Strength::Enforced => FindingVerdict::Good,
                Strength::Weaker { .. } => FindingVerdict::Weaker,
                Strength::Absent { .. } => FindingVerdict::Absent,
            };
            finding.guarantee != guarantee.name || finding.verdict != expected
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for hierarchy in ["", "unified", "memory", "pids", "cpu"] {
        let agent = ground.cgroups.root.join(hierarchy).join("sela-jobs");
        let agent = agent.join(&ground.cgroups.agent);
        assert!(!agent.exists(), "{} is left", agent.display());
    }
}

#[tokio::test]
async fn a_checkup_of_native_jobs_finds_what_is_promised() {
    let Some((_folder, ground)) = ground("a_checkup_of_native_jobs_finds_what_is_promised", "keeper") else {
        return;
    };
    assert_as_promised(&check(&ground).await.unwrap(), &ground);
}

#[tokio::test]
async fn a_checkup_of_a_keeper_without_walls_finds_each_of_them_missing() {
    let test = "a_checkup_of_a_keeper_without_walls_finds_each_of_them_missing";
    let Some((_folder, ground)) = ground(test, "no-walls") else {
        return;
    };
    let findings = check(&ground).await.unwrap();
    for (finding, guarantee) in findings.iter().zip(&ground.promised) {
        let expected = match guarantee.strength {
            _ if finding.tried.starts_with("nothing") => continue,
            Strength::Enforced | Strength::Weaker { .. } => FindingVerdict::Bad,
            Strength::Absent { .. } => FindingVerdict::Absent,
        };
        assert_eq!(finding.verdict, expected, "{finding:#?}");
    }
}

#[tokio::test]
#[ignore = "takes ten seconds with Podman: see docs/untested.md"]
async fn a_checkup_of_an_engines_jobs_finds_what_is_promised_and_leaves_it_no_image() {
    let test = "a_checkup_of_an_engines_jobs_finds_what_is_promised_and_leaves_it_no_image";
    let Some((_folder, mut ground)) = ground(test, "keeper") else {
        return;
    };
    let Some(engine) = Engine::start(EngineKind::Podman).await else {
        return;
    };
    let found = docker::look(&engine.place).await.unwrap();
    ground.promised = docker::promised(&found, ground.promised);
    ground.engine = Some(found);
    ground.disk = false;
    assert_as_promised(&check(&ground).await.unwrap(), &ground);
}
