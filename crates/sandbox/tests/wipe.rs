//! A card's memory is wiped before each job, by a process that may fail: what was left there is gone, or the job is not started. On
//! a SIMULATED card, whose driver keeps what lies in its memory and counts what was done to it.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use sela_nvml_sim::{Allocation, CONTEXT_MIB, CardFaults, CardPlan, CudaFault, CudaUse, Faults, Lab};
use sela_protocol::id::GpuUuid;
use sela_protocol::lease::EndCause;
use sela_protocol::units::Bytes;
use sela_sandbox::card::{CardAccess, CardWipe, Placed};
use sela_sandbox::keeper::wire::{FaultCode, JobPlan, Order, Report};
use std::path::PathBuf;
use support::{Stage, Watched, assert_nothing_left, is_root, processes_of_jobs, run};

const CARD_MIB: u64 = 256;

/// Memory of which the owner had the first half and the last tenant a part of that.
fn used_card(stage: &Stage) -> Lab {
    let card = CardPlan {
        vram_mib: CARD_MIB,
        driver_reserved_mib: 0,
        ..CardPlan::rtx_3090()
    };
    let lab = Lab::create(&stage.path().join("lab"), &[card]).unwrap();
    for (mib, mark) in [(48, b'O'), (16, b'T')] {
        Allocation::take(&lab.device_node(0), mib).unwrap().fill(mark).unwrap();
    }
    lab
}

fn content(lab: &Lab) -> Vec<u8> {
    std::fs::read(lab.device_node(0)).unwrap()
}

fn plan(stage: &Stage, lab: &Lab, script: &str) -> JobPlan {
    let mut plan = stage.script(script);
    plan.card = Some(CardAccess {
        devices: vec![Placed {
            outside: lab.device_node(0),
            inside: PathBuf::from("/dev/sela-sim0"),
        }],
        wipe: Some(CardWipe {
            card: GpuUuid(lab.cards()[0].uuid.clone()),
            library: sela_nvml_sim::find_library().expect("cargo builds the library with this test"),
            lab: Some(lab.folder().to_owned()),
        }),
        ..CardAccess::default()
    });
    plan
}

/// What a job finds in each MiB of its card.
const LOOK: &str = "tr -d '\\000' < /dev/sela-sim0 | wc -c";

#[tokio::test]
async fn nothing_of_owner_and_last_tenant_is_left_when_a_job_starts() {
    if !is_root("nothing_of_owner_and_last_tenant_is_left_when_a_job_starts") {
        return;
    }
    let stage = Stage::new();
    let lab = used_card(&stage);
    let mut without = plan(&stage, &lab, LOOK);
    without.card.as_mut().unwrap().wipe = None;
    let outcome = run(&without).await;
    assert_eq!(
        outcome.out.trim(),
        "48",
        "without it both are found, or this would show nothing"
    );

    let plan = plan(&stage, &lab, LOOK);
    let outcome = run(&plan).await;
    assert_eq!(outcome.out.trim(), "0");
    let wiped = Bytes::from_mib(CARD_MIB - CONTEXT_MIB);
    let position = |found: fn(&Report) -> bool| outcome.seen.iter().position(found).unwrap();
    let report = position(|report| matches!(report, Report::CardWiped { .. }));
    assert!(matches!(outcome.seen[report], Report::CardWiped { wiped: all, .. } if all == wiped));
    assert!(report < position(|report| matches!(report, Report::Started { .. })));
    let used = lab.cuda_use(&lab.cards()[0]).unwrap();
    let all = CARD_MIB - CONTEXT_MIB;
    assert_eq!(used.len(), 2, "two contexts, each wipes what the other takes: {used:?}");
    assert!(
        used.iter().all(|CudaUse { zeroed_mib, .. }| *zeroed_mib == all),
        "{used:?}"
    );
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn what_another_program_holds_stays_and_everything_else_is_wiped() {
    if !is_root("what_another_program_holds_stays_and_everything_else_is_wiped") {
        return;
    }
    let stage = Stage::new();
    let lab = used_card(&stage);
    let owners = Allocation::take(&lab.device_node(0), 8).unwrap();
    owners.fill(b'D').unwrap();
    assert_eq!(run(&plan(&stage, &lab, LOOK)).await.out.trim(), "8");
    assert!(content(&lab).iter().all(|byte| matches!(byte, 0 | b'D')));
}

#[tokio::test]
async fn a_card_that_cannot_be_wiped_whole_starts_no_job() {
    if !is_root("a_card_that_cannot_be_wiped_whole_starts_no_job") {
        return;
    }
    for (fault, says) in [
        (CudaFault::NoContext, "cuCtxCreate_v2 answered 999"),
        (CudaFault::Crashes, "ended it"),
        (CudaFault::Withholds, "cannot be wiped"),
        (CudaFault::SetsNothing, "is not zero"),
    ] {
        let stage = Stage::new();
        let lab = used_card(&stage);
        let mut faults = Faults::default();
        let card = CardFaults {
            cuda: Some(fault),
            ..CardFaults::default()
        };
        faults.card.insert(lab.cards()[0].uuid.clone(), card);
        lab.set_faults(&faults).unwrap();
        refused(&plan(&stage, &lab, "echo ran"), says).await;
    }
    let stage = Stage::new();
    let lab = used_card(&stage);
    let mut other = plan(&stage, &lab, "echo ran");
    other.card.as_mut().unwrap().wipe.as_mut().unwrap().card = GpuUuid("GPU-0".to_owned());
    refused(&other, "answered 100").await;
    let mut broken = plan(&stage, &lab, "echo ran");
    broken.card.as_mut().unwrap().wipe.as_mut().unwrap().library = stage.path().join("libcuda.so.1");
    refused(&broken, "library").await;
}

async fn refused(plan: &JobPlan, says: &str) {
    std::fs::create_dir_all(&plan.scratch).unwrap();
    let outcome = run(plan).await;
    let fault = outcome.fault();
    assert_eq!(fault.code, FaultCode::CardNotWiped, "{fault:?}");
    assert!(fault.message.contains(says), "{} for {says}", fault.message);
    assert!(matches!(fault.end_cause(), EndCause::NodeFault { .. }));
    assert_eq!(outcome.out, "");
    assert_nothing_left(plan);
}

#[tokio::test]
async fn an_owner_who_comes_back_does_not_wait_for_a_driver_that_hangs() {
    if !is_root("an_owner_who_comes_back_does_not_wait_for_a_driver_that_hangs") {
        return;
    }
    let stage = Stage::new();
    let lab = used_card(&stage);
    let mut faults = Faults::default();
    let card = CardFaults {
        cuda: Some(CudaFault::Hangs),
        ..CardFaults::default()
    };
    faults.card.insert(lab.cards()[0].uuid.clone(), card);
    lab.set_faults(&faults).unwrap();
    let plan = plan(&stage, &lab, "echo ran");
    let mut job = Watched::start(&plan).await;
    let place = plan
        .cgroups
        .root
        .join("unified")
        .join("sela-jobs")
        .join(&plan.cgroups.agent);
    let place = if place.parent().unwrap().parent().unwrap().exists() {
        place
    } else {
        plan.cgroups.root.join("sela-jobs").join(&plan.cgroups.agent)
    };
    let members =
        || std::fs::read_to_string(place.join(plan.lease.to_string()).join("cgroup.procs")).unwrap_or_default();
    // The process is a job's for whoever asks, and has a job's ids.
    while members().is_empty() || processes_of_jobs().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    job.order(Order::End {
        cause: EndCause::OwnerInput,
    })
    .await;
    let outcome = job.finish().await;
    assert_eq!(outcome.fault().code, FaultCode::Stopped);
    assert_eq!(members(), "");
    assert_nothing_left(&plan);
}
