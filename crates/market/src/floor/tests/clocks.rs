//! The exchange's own clock is set wrong: nobody's money moves for that.

use super::leases::{START, running};
use super::*;

const WEEK: u64 = 7 * 24 * 3_600_000;

/// A lease that was lost with money held for what its node may still claim.
fn held() -> (World, TenantId, Machine, LeaseTerms) {
    let (mut world, tenant, machine, job, lease) = running();
    world.run(&machine, &lease, 0, 30);
    world.disconnect(&machine);
    world.wait(75);
    world.cancel(tenant, job).expect("cancels");
    assert!(world.escrow(&lease) > 0);
    (world, tenant, machine, lease)
}

fn jump(world: &mut World, ahead: u64) {
    world.now.utc_ms = world.now.utc_ms.plus(Millis(ahead));
}

#[test]
fn a_clock_that_jumps_ahead_takes_no_held_money_from_a_node() {
    let (mut world, tenant, mut machine, lease) = held();
    jump(&mut world, 8 * WEEK);
    world.wait(5);
    assert!(world.escrow(&lease) > 0, "while it runs");
    // Also where it was down meanwhile, and nobody can tell how long.
    jump(&mut world, 8 * WEEK);
    world.restart(1);
    world.wait(5);
    assert!(world.escrow(&lease) > 0, "over a restart");
    world.reconnect(&mut machine, false);
    world.meter(&machine, &lease, 90_000, Some(EndCause::LeaseExpired));
    let paid = HourlyPrice(Micros(600_000)).due(Millis(90_000)).0;
    assert_eq!((world.available(tenant), world.escrow(&lease)), (START - paid, 0));
    assert_eq!(world.earned(&machine), paid - paid / 10);
    world.hold_invariants();
}

#[test]
fn a_clock_that_is_set_back_keeps_no_tenants_money_for_longer() {
    let (mut world, tenant, _, lease) = held();
    world.now.utc_ms = UtcMs(world.now.utc_ms.0 - i64::try_from(52 * WEEK).expect("fits"));
    world.pass(WEEK);
    world.tick();
    assert_eq!((world.available(tenant), world.escrow(&lease)), (START, 0));
    world.hold_invariants();
}

#[test]
fn held_time_goes_on_over_restarts_and_costs_few_records() {
    let (mut world, tenant, _, lease) = held();
    let before = world.records.len();
    // An exchange that is restarted every six hours.
    for _ in 0..29 {
        for _ in 0..36 {
            world.pass(600_001);
            world.tick();
        }
        world.restart(1);
    }
    assert_eq!((world.available(tenant), world.escrow(&lease)), (START, 0));
    assert!(world.records.len() - before < 7 * 24 * 6 + 10);
    let settled = world.records.len();
    world.wait(3_600);
    assert_eq!(world.records.len(), settled, "where nothing is held nothing is marked");
}

#[test]
fn what_was_held_before_the_uptime_was_kept_gets_its_whole_time_once_more() {
    let (mut world, tenant, _, lease) = held();
    let stored = serde_json::to_string(&world.records).expect("writes");
    let mut records: serde_json::Value = serde_json::from_str(&stored).expect("reads");
    for record in records.as_array_mut().expect("a list") {
        record.as_object_mut().expect("a record").remove("held_until_uptime_ms");
    }
    world.records = serde_json::from_value(records).expect("reads");
    world.floor = Floor::restore(LAB, world.now, world.records.clone()).expect("restores");
    world.pass(WEEK - 1);
    world.tick();
    assert!(world.escrow(&lease) > 0);
    world.pass(1);
    world.tick();
    assert_eq!((world.available(tenant), world.escrow(&lease)), (START, 0));
}
