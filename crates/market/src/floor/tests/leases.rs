//! How leases live and end: reservation, renewal, loss, fencing, repeats, late notes.

use super::*;
use sela_protocol::job::CheckpointSpec;

pub(super) const START: i64 = 10_000_000;

pub(super) fn running() -> (World, TenantId, Machine, JobId, LeaseTerms) {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let saving = JobSpec {
        checkpoint: Some(CheckpointSpec {
            interval_ms: Millis(10_000),
        }),
        ..spec()
    };
    let (job, lease) = world.started(&machine, tenant, saving);
    (world, tenant, machine, job, lease)
}

pub(super) fn renewed(world: &mut World, machine: &Machine) -> Vec<LeaseId> {
    let sent = world.take_sent(machine).into_iter().rev();
    let mut ends = sent.filter_map(|message| match message {
        ExchangeMessage::Renew { end, .. } => Some(end),
        _ => None,
    });
    ends.next().expect("a Renew")
}

fn checkpoint(world: &mut World, machine: &Machine, lease: &LeaseTerms, blob: BlobId) {
    let message = NodeMessage::Checkpoint {
        lease: lease.lease,
        fencing: lease.fencing,
        blob,
        thawed_ms: Millis(1),
    };
    world.say(machine, message);
}

#[test]
fn an_award_that_is_not_accepted_in_ten_seconds_is_withdrawn() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    let lease = world.lease(job);
    world.wait(9);
    assert_eq!(world.lease(job), lease);
    world.wait(1);
    assert!(
        world.why(job).contains("did not answer the award within 10 s"),
        "{}",
        world.why(job)
    );
    assert_eq!((world.available(tenant), world.escrow(&lease)), (START, 0));
    world.take_sent(&machine);
    world.accept(&machine, &lease);
    let told = world.take_sent(&machine);
    assert!(
        matches!(told[..], [ExchangeMessage::Cancel { save: false, .. }]),
        "too late: {told:?}"
    );
    world.wait(9);
    assert!(
        matches!(world.state(job), JobState::Queued { .. }),
        "the card is left alone for a while"
    );
    world.beats(&machine, vec![]);
    world.wait(1);
    assert!(world.lease(job).fencing > lease.fencing, "then it is awarded again");
    world.hold_invariants();
}

#[test]
fn a_silent_lease_is_unknown_at_thirty_seconds_and_lost_at_seventy_five() {
    let (mut world, tenant, machine, job, lease) = running();
    world.run(&machine, &lease, 0, 20);
    world.meter(&machine, &lease, 20_000, None);
    assert_eq!(
        world.state(job),
        JobState::Leased {
            phase: LeasePhase::Running
        }
    );
    world.wait(30);
    assert_eq!(
        world.state(job),
        JobState::Leased {
            phase: LeasePhase::Unknown
        }
    );
    world.wait(44);
    assert!(matches!(world.state(job), JobState::Leased { .. }));
    world.wait(1);
    assert!(world.why(job).contains("75 seconds"), "{}", world.why(job));
    // 20 s are paid; last renewal at 20 s + 60 s − 20 s are held; the rest is back.
    assert_eq!(
        (world.earned(&machine), world.escrow(&lease)),
        (3_333 - 333, 13_333 - 3_333)
    );
    assert_eq!(world.available(tenant), START - 13_333);
    world.hold_invariants();
}

#[test]
fn after_a_loss_the_old_holder_can_do_nothing_any_more() {
    let (mut world, _, machine, job, old) = running();
    let kept = world.keep_blob(old.lease, "checkpoint 1").expect("kept");
    checkpoint(&mut world, &machine, &old, kept);
    world.run(&machine, &old, 0, 10);
    world.wait(75);
    world.present(&machine, 300_000);
    world.tick();
    let new = world.lease(job);
    assert!(new.fencing > old.fencing);
    let sent = world.take_sent(&machine);
    let award = sent.iter().rev().find_map(|message| match message {
        ExchangeMessage::Award(award) => Some(award),
        _ => None,
    });
    let award = award.expect("an award");
    assert_eq!(
        (award.checkpoint, award.fencing),
        (Some(kept), new.fencing),
        "goes on from the checkpoint"
    );
    assert!(
        world
            .floor
            .lease_access(&award.token)
            .expect("opens")
            .readable
            .contains(&kept)
    );

    world.accept(&machine, &new);
    let before = world.floor.books.clone();
    world.beat(&machine, &old, LeasePhase::Running, 90_000);
    assert_eq!(renewed(&mut world, &machine), [old.lease], "the node is told to end it");
    assert_eq!(
        world.keep_blob(old.lease, "checkpoint 2"),
        Err(Refusal::LeaseOver(old.lease))
    );
    checkpoint(&mut world, &machine, &old, kept);
    world.say(
        &machine,
        NodeMessage::Reject {
            lease: old.lease,
            fencing: old.fencing,
            message: "no".into(),
        },
    );
    world.result(&machine, &old, EndCause::Exited { code: 0 }, None);
    assert_eq!(
        world.refusals(&machine).len(),
        2,
        "checkpoint and reject; the Result is taken for a repeat"
    );
    assert_eq!(world.floor.books, before);
    assert!(matches!(world.state(job), JobState::Leased { .. }));
    world.hold_invariants();
}

#[test]
fn a_wrong_token_or_another_nodes_lease_is_refused_in_every_message() {
    let (mut world, _, machine, _, lease) = running();
    let stranger = world.machine(900_000);
    let blob = world.keep_blob(lease.lease, "blob").expect("kept");
    let wrong = LeaseTerms {
        fencing: FencingToken(lease.fencing.0 + 1),
        ..lease.clone()
    };
    for (speaker, lease) in [(&machine, &wrong), (&stranger, &lease)] {
        let (id, fencing) = (lease.lease, lease.fencing);
        world.take_sent(speaker);
        let before = world.floor.books.clone();
        let messages = [
            NodeMessage::Accept { lease: id, fencing },
            NodeMessage::Reject {
                lease: id,
                fencing,
                message: String::new(),
            },
            NodeMessage::Progress {
                lease: id,
                fencing,
                phase: LeasePhase::Running,
            },
            NodeMessage::Checkpoint {
                lease: id,
                fencing,
                blob,
                thawed_ms: Millis(1),
            },
            NodeMessage::Result {
                lease: id,
                fencing,
                cause: EndCause::OwnerInput,
                output: None,
            },
            NodeMessage::Reclaim {
                lease: id,
                fencing,
                cause: EndCause::OwnerInput,
            },
        ];
        let count = messages.len();
        for message in messages {
            world.say(speaker, message);
        }
        world.meter(speaker, lease, 5_000, None);
        assert_eq!(world.refusals(speaker).len(), count + 1);
        world.beat(speaker, lease, LeasePhase::Running, 1);
        assert_eq!(renewed(&mut world, speaker), [id]);
        assert_eq!(world.floor.books, before, "nothing was done");
    }
    world.hold_invariants();
}

#[test]
fn a_note_that_is_not_by_the_node_is_refused() {
    let (mut world, _, machine, _, lease) = running();
    world.run(&machine, &lease, 0, 20);
    let thief = world.machine(900_000);
    let before = world.floor.books.clone();
    world.take_sent(&machine);
    let forged = Envelope::seal(&world.note(&machine, &lease, 20_000, None), &thief.key).expect("seals");
    world.say(&machine, NodeMessage::Meter(forged.clone()));
    assert!(world.refusals(&machine)[0].contains("signature"));
    world.say(&thief, NodeMessage::Meter(forged));
    assert!(world.refusals(&thief)[0].contains("does not count"));
    let foreign = MeterNote {
        node: thief.node,
        ..world.note(&machine, &lease, 20_000, None)
    };
    world.signed(&machine, &foreign);
    assert!(world.refusals(&machine)[0].contains("does not count"));
    assert_eq!(world.floor.books, before);
}

#[test]
fn what_is_said_twice_counts_once() {
    let (mut world, _, machine, job, lease) = running();
    let twice = |world: &mut World, say: &dyn Fn(&mut World)| {
        say(world);
        let records = world.records.len();
        say(world);
        assert_eq!(world.records.len(), records);
    };
    twice(&mut world, &|world| world.accept(&machine, &lease));
    world.run(&machine, &lease, 0, 70);
    twice(&mut world, &|world| world.meter(&machine, &lease, 70_000, None));
    world.meter(&machine, &lease, 60_000, None);
    assert_eq!(
        world.floor.books.leases[&lease.lease].noted(),
        Millis(70_000),
        "an older note takes nothing back"
    );
    twice(&mut world, &|world| {
        assert!(world.keep_blob(lease.lease, "out").is_ok())
    });
    let closing = Some(EndCause::Exited { code: 0 });
    twice(&mut world, &|world| {
        world.meter(&machine, &lease, 70_500, closing.clone())
    });
    world.meter(&machine, &lease, 71_000, None);
    let output = Some(BlobId::of(b"out"));
    twice(&mut world, &|world| {
        world.result(&machine, &lease, EndCause::Exited { code: 0 }, output)
    });
    world.meter(&machine, &lease, 80_000, closing.clone());
    assert!(
        world
            .refusals(&machine)
            .last()
            .expect("told")
            .contains("was closed at 70500")
    );
    let view = world.view(job);
    assert_eq!(
        (view.state, view.leases[0].billed_ms, view.output),
        (JobState::Done, Millis(70_500), output)
    );
    world.hold_invariants();
}

#[test]
fn time_beyond_the_last_renewal_and_its_ttl_is_not_billed() {
    let (mut world, _, machine, job, lease) = running();
    world.run(&machine, &lease, 0, 30);
    // Silence, though the node claims that it went on running for more than the 60 s that it may.
    world.wait(70);
    world.ended(&machine, &lease, 100_000, EndCause::LeaseExpired);
    assert_eq!(world.view(job).leases[0].billed_ms, Millis(90_000));
    world.hold_invariants();
}

#[test]
fn a_late_closing_note_is_honoured_once_and_within_its_own_lease() {
    for (claimed, billed) in [(50_000, 50_000), (5_000_000, 70_000), (10_000, 10_000)] {
        let (mut world, tenant, machine, job, lease) = running();
        world.run(&machine, &lease, 0, 10);
        world.meter(&machine, &lease, 10_000, None);
        world.disconnect(&machine);
        world.wait(80);
        assert!(matches!(world.state(job), JobState::Queued { .. }));
        let mut machine = machine;
        world.reconnect(&mut machine, false);
        world.meter(&machine, &lease, claimed, Some(EndCause::Exited { code: 0 }));
        let paid = HourlyPrice(Micros(600_000)).due(Millis(billed)).0;
        let hold = |world: &World| {
            assert_eq!(
                world.view(job).leases[0].billed_ms,
                Millis(billed),
                "no least time: it was lost"
            );
            assert_eq!((world.available(tenant), world.escrow(&lease)), (START - paid, 0));
        };
        hold(&world);
        world.meter(&machine, &lease, claimed + 1_000, Some(EndCause::Exited { code: 0 }));
        world.result(&machine, &lease, EndCause::Exited { code: 0 }, None);
        hold(&world);
        assert_eq!(world.state(job), JobState::Done, "nobody else had begun");
        assert_eq!(world.receipts.last().expect("a receipt").closed, Some(EndCause::Lost));
        world.hold_invariants();
    }
}

#[test]
fn what_no_late_note_claims_goes_back_after_seven_days() {
    let (mut world, tenant, machine, job, lease) = running();
    world.run(&machine, &lease, 0, 10);
    world.meter(&machine, &lease, 10_000, None);
    world.wait(75);
    let mut machine = machine;
    world.disconnect(&machine);
    world.cancel(tenant, job).expect("cancels");
    world.reconnect(&mut machine, false);
    world.meter(&machine, &lease, 20_000, None);
    world.wait(60);
    assert_eq!(
        world.view(job).leases[0].billed_ms,
        Millis(20_000),
        "a late note that closes nothing is posted"
    );
    world.pass(7 * 24 * 3_600_000 - 61_000);
    world.tick();
    assert!(world.escrow(&lease) > 0);
    world.restart(2);
    world.tick();
    assert!(
        world.escrow(&lease) > 0,
        "time in which the exchange was down does not count"
    );
    world.pass(600_000);
    world.tick();
    assert_eq!((world.escrow(&lease), world.available(tenant)), (0, START - 3_333));
    world.reconnect(&mut machine, false);
    world.meter(&machine, &lease, 30_000, None);
    assert!(world.refusals(&machine)[0].contains("was closed"));
    world.hold_invariants();
}

#[test]
fn a_result_without_a_closing_note_frees_the_card_and_keeps_the_money_for_the_note() {
    let (mut world, tenant, machine, job, lease) = running();
    world.run(&machine, &lease, 0, 70);
    world.result(&machine, &lease, EndCause::Exited { code: 0 }, None);
    assert_eq!(world.state(job), JobState::Done);
    assert!(world.escrow(&lease) > 0);
    world.meter(&machine, &lease, 70_000, Some(EndCause::Exited { code: 0 }));
    assert_eq!((world.escrow(&lease), world.available(tenant)), (0, START - 11_666));
    world.hold_invariants();
}

#[test]
fn only_what_was_stored_becomes_a_checkpoint_or_a_result() {
    let (mut world, _, machine, job, lease) = running();
    let never_stored = BlobId::of(b"never stored");
    checkpoint(&mut world, &machine, &lease, never_stored);
    world.meter(&machine, &lease, 1_000, Some(EndCause::Exited { code: 0 }));
    world.result(&machine, &lease, EndCause::Exited { code: 0 }, Some(never_stored));
    let told = world.refusals(&machine);
    assert!(
        told.len() == 2 && told.iter().all(|told| told.contains("has not been stored")),
        "{told:?}"
    );
    assert_eq!(world.view(job).checkpoint, None);
    let stored = world.keep_blob(lease.lease, "stored").expect("kept");
    world.result(&machine, &lease, EndCause::Exited { code: 0 }, Some(stored));
    assert_eq!(
        (world.state(job), world.view(job).output),
        (JobState::Done, Some(stored))
    );
    world.hold_invariants();
}

#[test]
fn a_node_that_ignores_a_cancel_is_not_renewed_for_ever() {
    let (mut world, tenant, machine, job, lease) = running();
    world.run(&machine, &lease, 0, 10);
    world.cancel(tenant, job).expect("cancels");
    world.run(&machine, &lease, 10_000, 60);
    assert_eq!(renewed(&mut world, &machine), []);
    world.run(&machine, &lease, 70_000, 10);
    assert_eq!(renewed(&mut world, &machine), [lease.lease]);
    world.run(&machine, &lease, 80_000, 70);
    assert_eq!(world.state(job), JobState::Cancelled);
    world.ended(&machine, &lease, 150_000, EndCause::TenantCancelled);
    assert_eq!(
        world.view(job).leases[0].billed_ms,
        Millis(130_000),
        "renewed until 70 s"
    );
    world.hold_invariants();
}

/// Time that a node claims beyond what its renewals cover is not billed; nor may it end the job by the job's own limits.
#[test]
fn a_node_cannot_use_up_a_jobs_limits_by_claiming_time_that_it_cannot_have_run() {
    for (thawed, cause) in [
        (u64::MAX, EndCause::WallLimit),
        (3_600_000, EndCause::WallLimit),
        (u64::MAX, EndCause::OwnerInput),
    ] {
        let (mut world, _, machine, job, lease) = running();
        world.run(&machine, &lease, 0, 5);
        world.ended(&machine, &lease, thawed, cause.clone());
        assert!(matches!(world.state(job), JobState::Queued { .. }), "{cause:?}");
        world.wait(11);
        let newest = world.floor.books.jobs[&job].leases[1..].last();
        let newest = newest.unwrap_or_else(|| panic!("{cause:?}: it does not go on"));
        let left = world.floor.books.leases[newest].terms.run_limit_ms.0;
        assert!(left >= 3_600_000 - 65_000, "{cause:?}: {left} ms are left");
        world.hold_invariants();
    }
    // The unsigned time in heartbeats ends no job for want of money either.
    let mut world = World::new();
    let tenant = world.tenant(400_000);
    let machine = world.machine(300_000);
    let (_, lease) = world.started(&machine, tenant, spec());
    assert!(lease.limit_ms < lease.run_limit_ms, "cut to what the account has");
    world.pass(1_000);
    world.beat(&machine, &lease, LeasePhase::Running, u64::MAX);
    world.tick();
    assert_eq!(world.floor.books.leases[&lease.lease].cancel, None);
}

/// The tenant cancels while the job saves because its money is used up: the node ends it for either, and is paid for either.
#[test]
fn a_cancel_after_the_money_is_used_up_makes_neither_cause_the_nodes_fault() {
    for cause in [EndCause::BudgetUsed, EndCause::TenantCancelled] {
        let mut world = World::new();
        let tenant = world.tenant(10_000);
        let machine = world.machine(300_000);
        let (job, lease) = world.started(&machine, tenant, spec());
        world.run(&machine, &lease, 0, 46);
        assert_eq!(
            world.floor.books.leases[&lease.lease].cancel,
            Some(EndCause::BudgetUsed)
        );
        world.cancel(tenant, job).expect("cancels");
        world.ended(&machine, &lease, 47_000, cause.clone());
        assert_eq!(world.state(job), JobState::Cancelled);
        let view = &world.view(job).leases[0];
        assert_eq!((view.billed_ms, view.end.as_ref()), (Millis(60_000), Some(&cause)));
        world.hold_invariants();
    }
}

#[test]
fn causes_that_the_exchange_knows_better_are_not_taken_at_the_nodes_word() {
    for (claim, seconds) in [
        (EndCause::TenantCancelled, 5),
        (EndCause::BudgetUsed, 5),
        (EndCause::Displaced, 5),
        (EndCause::WallLimit, 3_590),
    ] {
        let (mut world, _, machine, job, lease) = running();
        world.run(&machine, &lease, 0, seconds);
        world.ended(&machine, &lease, seconds * 1_000, claim.clone());
        assert!(matches!(world.state(job), JobState::Queued { .. }), "{claim:?}");
        assert_eq!(
            world.view(job).leases[0].billed_ms,
            Millis(seconds * 1_000),
            "{claim:?} earns no least time"
        );
        world.hold_invariants();
    }
}

#[test]
fn a_node_that_speaks_of_a_closed_lease_gets_its_closing_receipt_again() {
    // A lease that was withdrawn before the node's Accept came, and one that has ended well.
    for withdrawn in [true, false] {
        let mut world = World::new();
        let tenant = world.tenant(START);
        let machine = world.machine(300_000);
        let job = world.submit(tenant, spec());
        world.tick();
        let lease = world.lease(job);
        if withdrawn {
            world.wait(10);
            assert_eq!(world.receipts, [], "nobody took it, nobody waits for a receipt");
        } else {
            world.accept(&machine, &lease);
            world.run(&machine, &lease, 0, 61);
            world.ended(&machine, &lease, 61_000, EndCause::Exited { code: 0 });
        }
        let records = world.records.len();
        world.receipts.clear();
        world.accept(&machine, &lease);
        world.ended(&machine, &lease, 61_000, EndCause::LeaseExpired);
        let billed = if withdrawn { 0 } else { 61_000 };
        let again: Vec<_> = world
            .receipts
            .iter()
            .map(|receipt| (receipt.billed_ms.0, receipt.closed.is_some()))
            .collect();
        assert_eq!(again, [(billed, true), (billed, true)]);
        assert_eq!(world.records.len(), records);
        world.hold_invariants();
    }
}

#[test]
fn a_lease_that_never_ran_keeps_no_money_waiting_for_notes() {
    let (mut world, tenant, machine, job, lease) = running();
    world.beat(&machine, &lease, LeasePhase::Fetching, 0);
    let message = "no space left on the disk".to_owned();
    world.result(&machine, &lease, EndCause::NodeFault { message }, None);
    assert_eq!((world.escrow(&lease), world.available(tenant)), (0, START));
    assert!(world.why(job).contains("no space left"));
    world.hold_invariants();
}

#[test]
fn a_token_opens_its_jobs_blobs_until_the_lease_is_over() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    let sent = world.take_sent(&machine);
    let [ExchangeMessage::Award(award)] = &sent[..] else {
        panic!("{sent:?}")
    };
    let lease = world.lease(job);
    let access = world.floor.lease_access(&award.token).expect("opens");
    assert_eq!((access.lease, access.job, access.tenant), (lease.lease, job, tenant));
    assert_eq!(access.readable, BTreeSet::from([BlobId::of(b"image")]));
    assert_eq!(world.floor.lease_access("sela_lease_0"), None);
    world.accept(&machine, &lease);
    world.ended(&machine, &lease, 1_000, EndCause::Exited { code: 0 });
    assert_eq!(world.floor.lease_access(&award.token), None);
    let stored = serde_json::to_string(&world.records).expect("writes");
    assert!(!stored.contains(&award.token), "no record has a secret in it");
}
