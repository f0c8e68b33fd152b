//! Who pays for what (market.md §5, §7), through the whole step.

use super::*;

const START: i64 = 10_000_000;

/// A job at 0.60 an hour runs for `seconds` and ends for `cause`; billed milliseconds as expected, and every account follows.
fn check(cause: &EndCause, seconds: u64, billed: u64) -> JobState {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let (job, lease) = world.started(&machine, tenant, spec());
    world.run(&machine, &lease, 0, seconds);
    if *cause == EndCause::TenantCancelled {
        world.cancel(tenant, job).expect("cancels");
    }
    world.ended(&machine, &lease, seconds * 1_000, cause.clone());
    let paid = HourlyPrice(Micros(600_000)).due(Millis(billed)).0;
    let name = format!("{cause:?} after {seconds} s");
    assert_eq!(world.view(job).leases[0].billed_ms, Millis(billed), "{name}");
    assert_eq!(world.available(tenant), START - paid, "{name}");
    assert_eq!(world.earned(&machine), paid - paid / 10, "{name}");
    assert_eq!(world.escrow(&lease), 0, "{name}");
    let last = world.receipts.last().expect("a receipt");
    assert_eq!(
        (last.billed_ms.0, last.closed.as_ref(), last.lab),
        (billed, Some(cause), true),
        "{name}"
    );
    world.hold_invariants();
    world.state(job)
}

#[test]
fn each_way_to_end_bills_what_it_should() {
    let fault = |message: &str| message.to_owned();
    let cases = [
        (EndCause::Exited { code: 0 }, 90, 90_000),
        (EndCause::Exited { code: 0 }, 5, 60_000),
        (EndCause::Exited { code: 3 }, 5, 60_000),
        (EndCause::OutOfMemory, 70, 70_000),
        (EndCause::TenantCancelled, 5, 60_000),
        (EndCause::TenantCancelled, 0, 0),
        (
            EndCause::JobFault {
                message: fault("no entrypoint"),
            },
            0,
            60_000,
        ),
        (
            EndCause::NodeFault {
                message: fault("disk full"),
            },
            0,
            0,
        ),
        (EndCause::OwnerInput, 5, 5_000),
        (EndCause::OwnerProgram { name: None }, 5, 5_000),
        (EndCause::OwnerCommand, 61, 61_000),
        (EndCause::Shutdown, 5, 5_000),
        (EndCause::Hot, 5, 5_000),
        (EndCause::CardLost, 5, 5_000),
        (EndCause::GrantExpired, 5, 5_000),
        (EndCause::AgentRestarted, 5, 5_000),
    ];
    for (cause, seconds, billed) in cases {
        let state = check(&cause, seconds, billed);
        let as_expected = match cause {
            EndCause::Exited { code: 0 } => state == JobState::Done,
            EndCause::TenantCancelled => state == JobState::Cancelled,
            EndCause::Exited { .. } | EndCause::OutOfMemory | EndCause::JobFault { .. } => {
                matches!(state, JobState::Failed { .. })
            }
            _ => matches!(state, JobState::Queued { .. }),
        };
        assert!(as_expected, "{cause:?} leads to {state:?}");
    }
}

#[test]
fn postings_come_every_minute_and_at_the_close() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let (_, lease) = world.started(&machine, tenant, spec());
    for second in (0..150).step_by(10) {
        world.run(&machine, &lease, second * 1_000, 10);
        world.meter(&machine, &lease, (second + 10) * 1_000, None);
    }
    let billed = |world: &World| {
        world
            .receipts
            .iter()
            .map(|receipt| receipt.billed_ms.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        billed(&world),
        [50_000, 110_000],
        "the newest note when a minute has passed"
    );
    world.ended(&machine, &lease, 151_000, EndCause::Exited { code: 0 });
    assert_eq!(billed(&world), [50_000, 110_000, 151_000]);
    world.hold_invariants();
}

#[test]
fn a_run_limit_is_never_billed_beyond() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let short = JobSpec {
        wall_limit_ms: Millis(90_000),
        ..spec()
    };
    let (job, lease) = world.started(&machine, tenant, short);
    assert_eq!((lease.run_limit_ms, world.escrow(&lease)), (Millis(90_000), 15_000));
    world.run(&machine, &lease, 0, 91);
    world.ended(&machine, &lease, 90_400, EndCause::WallLimit);
    assert_eq!(world.view(job).leases[0].billed_ms, Millis(90_000));
    assert!(
        world
            .refusals(&machine)
            .iter()
            .any(|told| told.contains("at most 90000 ms can be billed"))
    );
    let JobState::Failed { message, .. } = world.state(job) else {
        panic!("{:?}", world.state(job))
    };
    assert!(message.contains("wall_limit_ms of 90000"), "{message}");
    world.hold_invariants();
}

#[test]
fn an_escrow_covers_a_minute_even_for_a_job_of_a_second() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let tiny = JobSpec {
        wall_limit_ms: Millis(1_000),
        ..spec()
    };
    let (job, lease) = world.started(&machine, tenant, tiny);
    assert_eq!(world.escrow(&lease), 10_000);
    world.run(&machine, &lease, 0, 1);
    world.ended(&machine, &lease, 1_000, EndCause::Exited { code: 0 });
    assert_eq!(
        (world.view(job).paid, world.state(job)),
        (Micros(10_000), JobState::Done)
    );
    world.hold_invariants();
}

#[test]
fn a_used_up_budget_has_the_job_saved_and_ended() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let thrifty = JobSpec {
        budget: Micros(20_000),
        ..spec()
    };
    let (job, lease) = world.started(&machine, tenant, thrifty);
    assert_eq!((world.escrow(&lease), lease.limit_ms.0), (20_000, 120_005));
    world.run(&machine, &lease, 0, 100);
    assert!(!world.take_sent(&machine).iter().any(is_cancel));
    world.run(&machine, &lease, 100_000, 10);
    let cancels: Vec<_> = world.take_sent(&machine).into_iter().filter(is_cancel).collect();
    let expected = ExchangeMessage::Cancel {
        lease: lease.lease,
        fencing: lease.fencing,
        cause: EndCause::BudgetUsed,
        save: true,
    };
    assert_eq!(cancels, [expected], "told once, in time to save");
    world.ended(&machine, &lease, 112_000, EndCause::BudgetUsed);
    assert!(matches!(
        world.state(job),
        JobState::Failed {
            cause: EndCause::BudgetUsed,
            ..
        }
    ));
    assert_eq!(world.view(job).paid, Micros(18_666));
    assert_eq!(world.available(tenant), START - 18_666);
    world.hold_invariants();
}

fn is_cancel(message: &ExchangeMessage) -> bool {
    matches!(message, ExchangeMessage::Cancel { .. })
}

#[test]
fn a_deposit_in_time_lets_a_job_go_on() {
    let mut world = World::new();
    let tenant = world.tenant(20_000);
    let machine = world.machine(300_000);
    let (_, lease) = world.started(&machine, tenant, spec());
    assert_eq!((world.escrow(&lease), world.available(tenant)), (20_000, 0));
    world.run(&machine, &lease, 0, 90);
    world.deposit(tenant, 30_000, "second").expect("a deposit");
    world.run(&machine, &lease, 90_000, 30);
    assert!(!world.take_sent(&machine).iter().any(is_cancel));
    assert_eq!(world.escrow(&lease), 50_000);
    world.ended(&machine, &lease, 120_000, EndCause::Exited { code: 0 });
    assert_eq!(world.available(tenant), 30_000);
    world.hold_invariants();
}

#[test]
fn budget_and_wall_limit_are_what_earlier_leases_left() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let bounded = JobSpec {
        budget: Micros(50_000),
        wall_limit_ms: Millis(200_000),
        ..spec()
    };
    let (job, first) = world.started(&machine, tenant, bounded);
    assert_eq!((first.run_limit_ms.0, world.escrow(&first)), (200_000, 33_333));
    world.run(&machine, &first, 0, 90);
    world.ended(&machine, &first, 90_000, EndCause::OwnerInput);
    world.tick();
    let second = world.lease(job);
    assert_eq!((second.run_limit_ms.0, world.escrow(&second)), (110_000, 18_333));
    assert!(second.fencing > first.fencing);
    world.accept(&machine, &second);
    world.run(&machine, &second, 0, 109);
    world.ended(&machine, &second, 109_500, EndCause::OwnerInput);
    world.tick();
    assert!(
        matches!(
            world.state(job),
            JobState::Failed {
                cause: EndCause::WallLimit,
                ..
            }
        ),
        "half a second is no run"
    );
    world.hold_invariants();
}

#[test]
fn a_budget_that_covers_no_minute_more_ends_the_job_instead_of_letting_it_wait_for_ever() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let thrifty = JobSpec {
        budget: Micros(15_000),
        ..spec()
    };
    let (job, lease) = world.started(&machine, tenant, thrifty);
    world.run(&machine, &lease, 0, 40);
    world.ended(&machine, &lease, 40_000, EndCause::OwnerInput);
    world.tick();
    assert!(matches!(
        world.state(job),
        JobState::Failed {
            cause: EndCause::BudgetUsed,
            ..
        }
    ));
    assert_eq!(world.available(tenant), START - 6_666);
    world.hold_invariants();
}

#[test]
fn an_account_that_covers_no_minute_has_the_job_wait_and_says_what_is_missing() {
    let mut world = World::new();
    let tenant = world.tenant(4_000);
    let _machine = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    assert!(
        world
            .why(job)
            .contains("needs 0.01 for 60 seconds at 0.60 an hour, and the account has 0.004: deposit"),
        "{}",
        world.why(job)
    );
    world.deposit(tenant, 6_000, "second").expect("a deposit");
    world.tick();
    assert_eq!(world.escrow(&world.lease(job)), 10_000);
    world.hold_invariants();
}

#[test]
fn a_deposit_is_booked_once_per_key() {
    let mut world = World::new();
    let tenant = world.tenant(0);
    let other = world.tenant(0);
    let first = world.deposit(tenant, 500, "key");
    assert_eq!(world.deposit(tenant, 500, "key"), first, "the same answer");
    assert_eq!(
        world.deposit(tenant, 501, "key"),
        Err(Refusal::IdempotencyKeyUsed {
            booked: Micros(500),
            asked: Micros(501)
        })
    );
    world.deposit(other, 501, "key").expect("keys are the tenant's own");
    assert_eq!((world.available(tenant), world.available(other)), (500, 501));
    for (amount, key, code) in [
        (0, "a", "bad_amount"),
        (-1, "a", "bad_amount"),
        (i64::MAX, "a", "bad_amount"),
        (5, "", "bad_idempotency_key"),
    ] {
        assert_eq!(
            world.deposit(tenant, amount, key).map_err(|refusal| refusal.code()),
            Err(code),
            "{amount}"
        );
    }
    world.hold_invariants();
}

#[test]
fn a_free_card_is_let_for_nothing_and_still_receipted() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let cheap = world.machine(0);
    let _rival = world.machine(0);
    let job = world.submit(tenant, spec());
    world.tick();
    let lease = world.lease(job);
    assert_eq!(lease.price, HourlyPrice::default());
    if lease.node == cheap.node {
        world.accept(&cheap, &lease);
        world.run(&cheap, &lease, 0, 70);
        world.ended(&cheap, &lease, 70_000, EndCause::Exited { code: 0 });
        assert_eq!(world.receipts.last().expect("a receipt").billed_ms, Millis(70_000));
    }
    assert_eq!(world.available(tenant), START);
    world.hold_invariants();
}
