//! Nodes that are away when it matters: between a closing note and its Result, for longer than a lease lives, or with more behind
//! them than one session holds.

use super::leases::{START, running};
use super::*;
use crate::floor::lease::RECEIPTS_AT_ONCE;

/// A closing note that says where the output is, as the node signs it once everything is stored.
fn last_word(
    world: &mut World,
    machine: &Machine,
    lease: &LeaseTerms,
    thawed: u64,
    cause: EndCause,
    output: Option<BlobId>,
) {
    let note = MeterNote {
        output,
        ..world.note(machine, lease, thawed, Some(cause))
    };
    world.signed(machine, &note);
}

/// What so many thawed seconds cost here.
fn due(seconds: u64) -> i64 {
    HourlyPrice(Micros(600_000)).due(Millis(seconds * 1_000)).0
}

fn awards(world: &World) -> usize {
    let awarded = |record: &&Record| matches!(record, Record::LeaseAwarded { .. });
    world.records.iter().filter(awarded).count()
}

#[test]
fn a_job_whose_closing_note_came_is_over_and_paid_once_however_long_its_node_stays_away() {
    let oom = EndCause::OutOfMemory;
    let fault = EndCause::JobFault {
        message: "no entrypoint".into(),
    };
    // The cause on the closing note, the seconds that it says, whether an output is stored, the seconds that are billed.
    let cases = [
        (EndCause::Exited { code: 0 }, 30, true, 60),
        (EndCause::Exited { code: 0 }, 90, false, 90),
        (EndCause::Exited { code: 3 }, 30, false, 60),
        (oom, 30, false, 60),
        (fault, 0, false, 60),
    ];
    for (cause, seconds, stores, billed) in cases {
        let (mut world, tenant, machine, job, lease) = running();
        let other = world.machine(300_000);
        world.run(&machine, &lease, 0, seconds.max(1));
        let output = stores.then(|| world.keep_blob(lease.lease, "output").expect("kept"));
        last_word(&mut world, &machine, &lease, seconds * 1_000, cause.clone(), output);
        // The Result is lost with the connection.
        world.disconnect(&machine);
        world.wait(200);
        let view = world.view(job);
        match (&cause, &view.state) {
            (EndCause::Exited { code: 0 }, JobState::Done) => {}
            (_, JobState::Failed { cause: told, .. }) => assert_eq!(told, &cause),
            (_, other) => panic!("{cause:?}: {other:?}"),
        }
        assert_eq!((view.output, awards(&world)), (output, 1), "{cause:?}: it runs once");
        // It comes back and says everything again.
        let mut machine = machine;
        world.reconnect(&mut machine, false);
        last_word(&mut world, &machine, &lease, seconds * 1_000, cause.clone(), output);
        world.result(&machine, &lease, cause.clone(), output);
        let paid = due(billed);
        assert_eq!(
            (world.available(tenant), world.escrow(&lease)),
            (START - paid, 0),
            "{cause:?}: the tenant pays once"
        );
        assert_eq!((world.earned(&machine), world.earned(&other)), (paid - paid / 10, 0));
        world.hold_invariants();
    }
}

#[test]
fn a_node_lost_after_its_job_was_stopped_by_no_doing_of_the_jobs_is_paid_and_the_job_goes_on_elsewhere() {
    for cause in [EndCause::OwnerInput, EndCause::Hot] {
        let (mut world, _, machine, job, lease) = running();
        world.run(&machine, &lease, 0, 30);
        world.meter(&machine, &lease, 30_000, Some(cause));
        world.wait(75);
        assert!(matches!(world.state(job), JobState::Queued { .. }));
        assert_eq!(
            (world.view(job).leases[0].billed_ms, world.escrow(&lease)),
            (Millis(30_000), 0),
            "no least time"
        );
        world.hold_invariants();
    }
}

#[test]
fn a_closing_note_that_is_not_believed_or_names_what_was_never_stored_ends_no_job() {
    let never_stored = Some(BlobId::of(b"never stored"));
    for (cause, output) in [
        (EndCause::WallLimit, None),
        (EndCause::Exited { code: 0 }, never_stored),
    ] {
        let (mut world, _, machine, job, lease) = running();
        world.run(&machine, &lease, 0, 30);
        last_word(&mut world, &machine, &lease, 30_000, cause, output);
        world.wait(75);
        assert!(matches!(world.state(job), JobState::Queued { .. }));
        world.hold_invariants();
    }
}

#[test]
fn what_a_lost_node_finished_counts_while_nobody_else_has_begun_and_is_paid_once() {
    let (mut world, tenant, mut machine, job, lease) = running();
    world.run(&machine, &lease, 0, 90);
    let output = world.keep_blob(lease.lease, "output").expect("kept");
    world.disconnect(&machine);
    world.wait(80);
    assert!(matches!(world.state(job), JobState::Queued { .. }));
    world.reconnect(&mut machine, false);
    let done = EndCause::Exited { code: 0 };
    last_word(&mut world, &machine, &lease, 100_000, done.clone(), Some(output));
    world.result(&machine, &lease, done, Some(output));
    world.present(&machine, 300_000);
    world.wait(20);
    let view = world.view(job);
    assert_eq!((view.state, view.output), (JobState::Done, Some(output)));
    assert_eq!((world.available(tenant), awards(&world)), (START - due(100), 1));
    world.hold_invariants();
}

#[test]
fn what_a_lost_node_finished_does_not_touch_the_lease_that_another_has_begun() {
    let (mut world, tenant, mut machine, job, lease) = running();
    world.run(&machine, &lease, 0, 90);
    world.disconnect(&machine);
    world.wait(76);
    let other = world.machine(300_000);
    world.tick();
    let newer = world.lease(job);
    world.accept(&other, &newer);
    world.reconnect(&mut machine, false);
    let done = EndCause::Exited { code: 0 };
    last_word(&mut world, &machine, &lease, 100_000, done.clone(), None);
    world.result(&machine, &lease, done.clone(), None);
    assert_eq!(world.lease(job).lease, newer.lease);
    world.run(&other, &newer, 0, 70);
    last_word(&mut world, &other, &newer, 70_000, done.clone(), None);
    world.result(&other, &newer, done, None);
    assert_eq!(world.state(job), JobState::Done);
    assert_eq!(
        (world.available(tenant), world.earned(&machine)),
        (START - due(100) - due(70), due(100) - due(100) / 10),
        "each is paid for the time that it ran"
    );
    world.hold_invariants();
}

#[test]
fn a_node_with_more_receipts_than_a_session_holds_gets_them_with_its_heartbeats() {
    let leases = 3 * RECEIPTS_AT_ONCE + 7;
    let mut world = World::new();
    let tenant = world.tenant(START * 1_000);
    let mut machine = world.machine(300_000);
    for _ in 0..leases {
        let (_, lease) = world.started(&machine, tenant, spec());
        world.ended(&machine, &lease, 0, EndCause::Exited { code: 0 });
    }
    world.receipts.clear();
    world.disconnect(&machine);
    world.reconnect(&mut machine, false);
    let mut received = Vec::new();
    for page in 0.. {
        let page_of_receipts = std::mem::take(&mut world.receipts);
        assert!(page_of_receipts.len() <= RECEIPTS_AT_ONCE, "{}", page_of_receipts.len());
        received.extend(page_of_receipts.into_iter().map(|receipt| receipt.lease));
        if received.len() >= leases {
            break;
        }
        assert!(page < 10, "{} of {leases} came", received.len());
        world.beats(&machine, Vec::new());
    }
    let different: BTreeSet<LeaseId> = received.iter().copied().collect();
    assert_eq!((different.len(), received.len()), (leases, leases));
    world.beats(&machine, Vec::new());
    assert_eq!(world.receipts, [], "each once");
}
