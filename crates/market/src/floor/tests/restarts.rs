//! The exchange is killed and comes back: leases live on, nothing is posted twice, nothing earned is lost.

use super::leases::{START, renewed, running};
use super::*;

#[test]
fn the_exchange_killed_mid_job_loses_and_doubles_nothing() {
    // Away for so long, and how the node fares: it goes on if it could renew within 60 s.
    for away in [1, 25, 50] {
        let (mut world, tenant, mut machine, job, lease) = running();
        world.run(&machine, &lease, 0, 65);
        world.meter(&machine, &lease, 65_000, None);
        world.tick();
        world.run(&machine, &lease, 65_000, 18);
        world.restart(away);
        assert!(world.floor.node_by_key(&PublicKey::of(&machine.key)).is_some());
        world.reconnect(&mut machine, false);
        world.present(&machine, 300_000);
        let thawed = 83_000 + away * 1_000;
        world.run(&machine, &lease, thawed, 30);
        assert_eq!(renewed(&mut world, &machine), [], "away {away} s: the lease lives on");
        world.ended(&machine, &lease, thawed + 30_000, EndCause::Exited { code: 0 });
        let paid = HourlyPrice(Micros(600_000)).due(Millis(thawed + 30_000)).0;
        assert_eq!(
            (world.available(tenant), world.earned(&machine)),
            (START - paid, paid - paid / 10)
        );
        assert_eq!(world.state(job), JobState::Done);
        world.hold_invariants();
    }
}

#[test]
fn a_long_absence_of_the_exchange_costs_nobody_earned_time_and_grants_none() {
    for (claimed, billed) in [(143_000, 143_000), (600_000, 150_000)] {
        let (mut world, _, mut machine, job, lease) = running();
        world.run(&machine, &lease, 0, 83);
        world.restart(600);
        world.reconnect(&mut machine, false);
        world.ended(&machine, &lease, claimed, EndCause::LeaseExpired);
        // Renewed at 83 s, last marked at 60 s: at most 60 + 30 + 60 s.
        assert_eq!(
            world.view(job).leases[0].billed_ms,
            Millis(billed),
            "83 s + 60 s were renewed"
        );
        world.hold_invariants();
    }
}

#[test]
fn a_node_that_does_not_come_back_after_a_restart_is_lost_seventy_five_seconds_later() {
    let (mut world, _, machine, job, lease) = running();
    world.run(&machine, &lease, 0, 10);
    world.restart(5);
    world.wait(74);
    assert!(matches!(world.state(job), JobState::Leased { .. }));
    world.wait(1);
    assert!(matches!(world.state(job), JobState::Queued { .. }));
    world.hold_invariants();
}

#[test]
fn an_accept_lost_in_a_restart_is_made_good_by_the_heartbeat() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let mut machine = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    let lease = world.lease(job);
    world.restart(3);
    world.reconnect(&mut machine, false);
    world.beat(&machine, &lease, LeasePhase::Fetching, 0);
    assert_eq!(renewed(&mut world, &machine), []);
    world.run(&machine, &lease, 0, 20);
    world.ended(&machine, &lease, 20_000, EndCause::Exited { code: 0 });
    assert_eq!(world.state(job), JobState::Done);
    world.hold_invariants();
}

#[test]
fn an_accept_lost_in_a_restart_is_made_good_by_the_first_note_too() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let mut machine = world.machine(300_000);
    let job = world.submit(tenant, spec());
    world.tick();
    let lease = world.lease(job);
    world.restart(7);
    world.reconnect(&mut machine, false);
    world.ended(&machine, &lease, 5_000, EndCause::OwnerInput);
    assert_eq!(world.view(job).leases[0].billed_ms, Millis(5_000));
    world.hold_invariants();
}
