//! What becomes of jobs: why they wait, who gets them, cancels in each phase, faults of nodes, and bad requests.

use super::*;
use sela_protocol::job::Tier;

const START: i64 = 10_000_000;

#[test]
fn a_waiting_job_says_why_and_what_would_start_it() {
    type Setup = fn(&mut World);
    let cases: [(&str, JobSpec, Setup); 9] = [
        ("no card is connected", spec(), |_| ()),
        ("no card is connected", spec(), |world| {
            let machine = world.machine(300_000);
            world.disconnect(&machine);
        }),
        (
            "no card is offered: 1 card that fits is connected, and owners use or hold all of them",
            spec(),
            |world| {
                let machine = world.machine(300_000);
                world.offer(&machine, 0, 300_000, false);
            },
        ),
        (
            "2 cards are offered, none at or below your cap 0.60: the lowest floor is 0.71",
            spec(),
            |world| {
                world.machine(710_000);
                world.machine(900_000);
            },
        ),
        (
            "no card has 48.0 GB: the largest has 24.0 GB",
            JobSpec {
                vram: Bytes::from_gib(48),
                ..spec()
            },
            |world| drop(world.machine(300_000)),
        ),
        (
            "no machine with a card that fits has 64.0 GB of main memory for jobs: the most is 16.0 GB",
            JobSpec {
                memory: Bytes::from_gib(64),
                ..spec()
            },
            |world| drop(world.machine(300_000)),
        ),
        (
            "no machine with a card that fits has a disk for scratch: ask for no more of it than of memory, in which it then lies",
            JobSpec {
                scratch: Some(Bytes::from_gib(64)),
                ..spec()
            },
            |world| drop(world.machine(300_000)),
        ),
        (
            "1 card that fits is let at present: it gets the next that is free",
            spec(),
            |world| {
                world.machine(300_000);
                let tenant = world.tenant(START);
                world.submit(tenant, spec());
                world.tick();
            },
        ),
        (
            "simulated or weakly isolated, and this exchange is no lab",
            spec(),
            |world| {
                world.floor.config.lab = false;
                world.machine(300_000);
            },
        ),
    ];
    for (says, spec, setup) in cases {
        let mut world = World::new();
        let tenant = world.tenant(START);
        setup(&mut world);
        let job = world.submit(tenant, spec);
        world.tick();
        let why = world.why(job);
        assert!(why.contains(says), "\"{why}\" should say \"{says}\"");
    }
}

#[test]
fn the_lowest_floor_wins_and_is_paid_the_other_owners_floor() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let _dear = world.machine(450_000);
    let cheap = world.machine(300_000);
    let _above_the_cap = world.machine(700_000);
    let (job, lease) = world.started(&cheap, tenant, spec());
    assert_eq!(lease.price, HourlyPrice(Micros(450_000)));
    let view = world.floor.award_view(lease.lease).expect("an award");
    assert_eq!(view.row.floor, HourlyPrice(Micros(300_000)));
    assert_eq!(world.view(job).leases[0].card, "SIMULATED RTX 3090");
    world.hold_invariants();
}

#[test]
fn gold_is_matched_at_once_and_first_then_the_longest_waiting() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let first = world.submit(tenant, spec());
    world.pass(1_000);
    let second = world.submit(tenant, spec());
    world.pass(1_000);
    let machine = world.machine(300_000);
    let gold = world.submit(
        tenant,
        JobSpec {
            tier: Tier::Gold,
            ..spec()
        },
    );
    let lease = world.lease(gold);
    world.tick();
    assert!(matches!(world.state(first), JobState::Queued { .. }));
    world.accept(&machine, &lease);
    world.ended(&machine, &lease, 1_000, EndCause::Exited { code: 0 });
    world.tick();
    let lease = world.lease(first);
    world.accept(&machine, &lease);
    world.ended(&machine, &lease, 1_000, EndCause::Exited { code: 0 });
    world.tick();
    assert_eq!(world.lease(second).node, machine.node);
    world.hold_invariants();
}

#[test]
fn two_cards_of_one_node_run_two_jobs_but_are_awarded_in_two_rounds() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let mut machine = world.machine(300_000);
    machine.cards = 2;
    world.present(&machine, 300_000);
    let jobs = [world.submit(tenant, spec()), world.submit(tenant, spec())];
    world.tick();
    let leased = |world: &World| {
        let states = jobs.iter().map(|job| world.state(*job));
        states.filter(|state| matches!(state, JobState::Leased { .. })).count()
    };
    assert_eq!(leased(&world), 1);
    world.tick();
    assert_eq!(leased(&world), 2);
    assert_ne!(world.lease(jobs[0]).gpu, world.lease(jobs[1]).gpu);
    world.hold_invariants();
}

#[test]
fn a_cancel_ends_the_job_in_every_phase() {
    let cancelled = |world: &mut World, tenant, job| {
        let first = world.cancel(tenant, job);
        assert!(matches!(first, Ok(Answer::CancelTaken(_))), "{first:?}");
        let records = world.records.len();
        assert!(matches!(world.cancel(tenant, job), Ok(Answer::CancelTaken(_))));
        assert_eq!(world.records.len(), records, "a second cancel does nothing more");
    };
    for phase in ["queued", "reserved", "fetching", "running", "results being stored"] {
        let mut world = World::new();
        let tenant = world.tenant(START);
        let machine = world.machine(300_000);
        let job = world.submit(tenant, spec());
        let mut paid = 0;
        if phase == "queued" {
            cancelled(&mut world, tenant, job);
        } else {
            world.tick();
            let lease = world.lease(job);
            world.take_sent(&machine);
            if phase != "reserved" {
                world.accept(&machine, &lease);
            }
            let thawed = match phase {
                "running" | "results being stored" => 5_000,
                _ => 0,
            };
            world.run(&machine, &lease, 0, thawed / 1_000);
            if phase == "results being stored" {
                world.meter(&machine, &lease, thawed, Some(EndCause::Exited { code: 0 }));
            }
            cancelled(&mut world, tenant, job);
            let told = world.take_sent(&machine);
            let cancels = told.iter().filter(|told| {
                matches!(
                    told,
                    ExchangeMessage::Cancel {
                        cause: EndCause::TenantCancelled,
                        save: false,
                        ..
                    }
                )
            });
            assert_eq!(cancels.count(), 1, "{phase}: {told:?}");
            if phase == "results being stored" {
                // The program was through already: the tenant gets what it pays for.
                world.result(&machine, &lease, EndCause::Exited { code: 0 }, None);
                assert_eq!(world.state(job), JobState::Done);
                continue;
            }
            if phase != "reserved" {
                world.ended(&machine, &lease, thawed, EndCause::TenantCancelled);
            }
            paid = if thawed > 0 { 10_000 } else { 0 };
        }
        assert_eq!(world.state(job), JobState::Cancelled, "{phase}");
        assert_eq!(world.available(tenant), START - paid, "{phase}");
        world.tick();
        world.hold_invariants();
    }
}

#[test]
fn a_cancelled_job_whose_owner_comes_back_first_is_cancelled_and_not_requeued() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let (job, lease) = world.started(&machine, tenant, spec());
    world.run(&machine, &lease, 0, 5);
    world.cancel(tenant, job).expect("cancels");
    world.ended(&machine, &lease, 5_000, EndCause::OwnerInput);
    assert_eq!(world.state(job), JobState::Cancelled);
    assert_eq!(world.view(job).leases[0].billed_ms, Millis(5_000));
    world.hold_invariants();
}

#[test]
fn what_cannot_be_cancelled_says_why() {
    let mut world = World::new();
    let (tenant, other) = (world.tenant(START), world.tenant(START));
    let machine = world.machine(300_000);
    let (job, lease) = world.started(&machine, tenant, spec());
    assert_eq!(
        world.cancel(other, job),
        Err(Refusal::UnknownJob(job)),
        "another's job is not told of"
    );
    world.ended(&machine, &lease, 1_000, EndCause::Exited { code: 0 });
    assert_eq!(world.cancel(tenant, job), Err(Refusal::JobEnded { job, how: "done" }));
    assert_eq!(world.floor.job_view(other, job, world.now), None);
    assert_eq!(world.floor.job_page(tenant, None, world.now).0.len(), 1);
}

#[test]
fn three_nodes_that_cannot_start_a_job_end_it_with_their_words() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machines = [world.machine(300_000), world.machine(310_000), world.machine(320_000)];
    let job = world.submit(tenant, spec());
    let mut tried = BTreeSet::new();
    for number in 1..=3 {
        world.tick();
        let lease = world.lease(job);
        assert!(tried.insert(lease.node), "another node is tried first");
        let machine = machines
            .iter()
            .find(|machine| machine.node == lease.node)
            .expect("one of them");
        world.accept(machine, &lease);
        world.ended(
            machine,
            &lease,
            0,
            EndCause::NodeFault {
                message: format!("fault {number}"),
            },
        );
    }
    let JobState::Failed { message, .. } = world.state(job) else {
        panic!("{:?}", world.state(job))
    };
    for fault in ["fault 1", "fault 2", "fault 3", "3 in a row"] {
        assert!(message.contains(fault), "{message}");
    }
    assert_eq!(
        world.available(tenant),
        START,
        "starts that fail by the node's fault are free"
    );
    world.hold_invariants();
}

#[test]
fn the_only_node_is_tried_again_after_a_while_and_a_run_forgives_its_faults() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let fault = || EndCause::NodeFault {
        message: "driver busy".into(),
    };
    let job = world.submit(tenant, spec());
    for round in 0..4 {
        world.beats(&machine, vec![]);
        world.tick();
        let lease = world.lease(job);
        world.accept(&machine, &lease);
        if round == 1 {
            world.run(&machine, &lease, 0, 60);
            world.ended(&machine, &lease, 60_000, EndCause::OwnerInput);
            assert!(world.why(job).contains("the owner came back"), "{}", world.why(job));
            continue;
        }
        world.ended(&machine, &lease, 0, fault());
        world.tick();
        assert!(
            world
                .why(job)
                .contains("it is tried again in a few seconds (its last lease ended: driver busy)"),
            "{}",
            world.why(job)
        );
        world.wait(9);
        assert!(matches!(world.state(job), JobState::Queued { .. }));
        world.wait(1);
    }
    assert!(!world.state(job).is_final(), "two faults, a run, two faults");
    world.hold_invariants();
}

#[test]
fn a_rejected_award_costs_nothing_and_goes_elsewhere() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let _dear = world.machine(450_000);
    let cheap = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    let lease = world.lease(job);
    assert_eq!(lease.node, cheap.node);
    world.say(
        &cheap,
        NodeMessage::Reject {
            lease: lease.lease,
            fencing: lease.fencing,
            message: "just used".into(),
        },
    );
    assert_eq!(world.available(tenant), START);
    assert!(world.why(job).contains("just used"), "{}", world.why(job));
    world.tick();
    assert_ne!(world.lease(job).node, cheap.node);
    world.hold_invariants();
}

#[test]
fn a_reclaimed_card_gets_no_job_until_it_is_offered_anew() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let (job, lease) = world.started(&machine, tenant, spec());
    world.run(&machine, &lease, 0, 20);
    let (id, fencing) = (lease.lease, lease.fencing);
    world.say(
        &machine,
        NodeMessage::Reclaim {
            lease: id,
            fencing,
            cause: EndCause::OwnerInput,
        },
    );
    world.ended(&machine, &lease, 20_000, EndCause::OwnerInput);
    world.tick();
    assert!(world.why(job).contains("no card is offered"), "{}", world.why(job));
    world.offer(&machine, 0, 300_000, true);
    world.tick();
    assert!(world.lease(job).fencing > fencing);
    world.hold_invariants();
}

#[test]
fn bad_requests_change_nothing_and_say_what_to_do() {
    let mut world = World::new();
    let nobody = world.tenant(0);
    let mut empty = World::new();
    let unknown = |world: &mut World, ask: Ask| world.ask(ask).expect_err("refused");
    let spec = Box::new(spec());
    let long = "x".repeat(201);
    for (ask, code) in [
        (Ask::CreateTenant { name: " ".into() }, "bad_name"),
        (Ask::InviteOwner { name: long.clone() }, "bad_name"),
        (Ask::SubmitJob { tenant: nobody, spec }, "unknown_tenant"),
        (
            Ask::Deposit {
                tenant: nobody,
                amount: Micros(1),
                idempotency_key: "a".into(),
            },
            "unknown_tenant",
        ),
        (
            Ask::Deposit {
                tenant: nobody,
                amount: Micros(1),
                idempotency_key: long,
            },
            "bad_idempotency_key",
        ),
    ] {
        let refusal = unknown(&mut empty, ask);
        assert_eq!(refusal.code(), code, "{refusal}");
    }
    assert!(empty.records.is_empty());
}

#[test]
fn scratch_that_fits_into_memory_needs_no_disk_and_more_goes_where_there_is_one() {
    use sela_protocol::node::Scratch;
    let memory = Bytes::from_gib(2);
    for (scratch, asked, holds) in [
        (Scratch::Memory, memory, true),
        (Scratch::Memory, Bytes(memory.0 + 1), false),
        (Scratch::Unknown, Bytes(memory.0 + 1), false),
        (Scratch::EncryptedDisk, Bytes::from_gib(64), true),
    ] {
        assert_eq!(scratch.holds(asked, memory), holds, "{scratch:?} {asked}");
    }
}
