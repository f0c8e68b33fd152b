//! What could be done over and over by one of the parties, each time for a few records that stay for ever, is done less and less often.

use super::leases::START;
use super::*;
use crate::floor::live::SUBMISSIONS_AT_ONCE;

fn awards(world: &World) -> usize {
    let awarded = |record: &&Record| matches!(record, Record::LeaseAwarded { .. });
    world.records.iter().filter(awarded).count()
}

fn reject(world: &mut World, machine: &Machine, lease: &LeaseTerms) {
    let (lease, fencing) = (lease.lease, lease.fencing);
    let message = "no".into();
    world.say(
        machine,
        NodeMessage::Reject {
            lease,
            fencing,
            message,
        },
    );
}

/// Seconds until the job is awarded once more, the node being heard of all the while.
fn seconds_to_the_next_award(world: &mut World, machine: &Machine, job: JobId) -> u64 {
    let before = awards(world);
    for second in 0..4_000 {
        if awards(world) > before {
            let lease = world.lease(job);
            reject(world, machine, &lease);
            return second;
        }
        world.beats(machine, Vec::new());
        world.wait(1);
    }
    panic!("no award in an hour")
}

#[test]
fn a_node_that_takes_nothing_is_asked_less_and_less_often_down_to_once_an_hour() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    let lease = world.lease(job);
    reject(&mut world, &machine, &lease);
    for expected in [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600] {
        assert_eq!(seconds_to_the_next_award(&mut world, &machine, job), expected);
    }
    world.hold_invariants();
}

#[test]
fn a_new_session_or_another_card_is_no_way_around_the_pause_and_taking_a_job_ends_it() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let mut machine = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    for pause in [10, 20, 40] {
        let lease = world.lease(job);
        reject(&mut world, &machine, &lease);
        for _ in 0..pause {
            world.beats(&machine, Vec::new());
            world.wait(1);
        }
    }
    let lease = world.lease(job);
    reject(&mut world, &machine, &lease);
    let so_far = awards(&world);
    world.disconnect(&machine);
    world.reconnect(&mut machine, false);
    machine.cards = 4;
    world.present(&machine, 300_000);
    for _ in 0..79 {
        world.beats(&machine, Vec::new());
        world.wait(1);
    }
    assert_eq!(awards(&world), so_far);
    world.wait(1);
    let lease = world.lease(job);
    world.accept(&machine, &lease);
    world.ended(&machine, &lease, 0, EndCause::OwnerInput);
    world.tick();
    let lease = world.lease(job);
    reject(&mut world, &machine, &lease);
    assert_eq!(
        seconds_to_the_next_award(&mut world, &machine, job),
        1,
        "its other cards are asked at once"
    );
}

#[test]
fn an_award_that_is_never_answered_counts_like_one_that_is_refused() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    world.submit(tenant, spec());
    for _ in 0..3_600 {
        world.beats(&machine, Vec::new());
        world.wait(1);
    }
    let awards = awards(&world);
    assert!((8..12).contains(&awards), "{awards} in an hour");
}

#[test]
fn a_tenant_that_submits_and_cancels_for_ever_is_slowed_to_a_job_a_second() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let other = world.tenant(START);
    let submit = |world: &mut World, tenant| {
        let spec = Box::new(spec());
        world.ask(Ask::SubmitJob { tenant, spec })
    };
    for _ in 0..SUBMISSIONS_AT_ONCE {
        let job = world.submit(tenant, spec());
        world.cancel(tenant, job).expect("cancels");
    }
    let records = world.records.len();
    let refused = submit(&mut world, tenant).expect_err("too fast");
    assert_eq!(
        (refused.code(), &refused),
        ("too_fast", &Refusal::TooFast { seconds: 1 })
    );
    assert!(refused.to_string().contains("wait 1 s"), "{refused}");
    assert_eq!(world.records.len(), records, "nothing of it is left");
    submit(&mut world, other).expect("another tenant is not slowed");
    for _ in 0..20 {
        world.pass(500);
        drop(submit(&mut world, tenant));
    }
    let submitted = world.floor.books.tenants[&tenant].jobs.len() as u64;
    assert_eq!(submitted, SUBMISSIONS_AT_ONCE + 10, "one a second");
    world.pass(3_600_000);
    for _ in 0..SUBMISSIONS_AT_ONCE {
        submit(&mut world, tenant).expect("after a rest as many at once as before");
    }
    submit(&mut world, tenant).expect_err("and no more");
}
