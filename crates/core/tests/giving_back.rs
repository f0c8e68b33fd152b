//! How a card is given back: what must be done, in which order, for each cause (provider.md §2).

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks for one kind of effect among all"
)]

mod world;

use sela_core::{CardPolicy, Effect, Input, LeaseEvent, MarketInput};
use sela_protocol::id::GpuUuid;
use sela_protocol::lease::EndCause;
use sela_protocol::local::Command;
use sela_protocol::presence::ForeignUse;
use sela_protocol::units::{Bytes, Millis, Percent};
use world::{GPU, World};

fn game() -> ForeignUse {
    ForeignUse {
        gpu: GpuUuid(GPU.into()),
        pid: 4711,
        name: Some("game.x86_64".into()),
        vram_used: Some(Bytes::from_gib(4)),
        utilisation: Some(Percent(90)),
    }
}

/// A running job, then one cause; the words that must follow, grants and heartbeats aside.
fn check(cause: impl FnOnce(&mut World), expected: &[&str]) {
    let mut world = World::new();
    world.running();
    world.drain();
    cause(&mut world);
    assert_eq!(world.drain(), expected);
}

#[test]
fn input_freezes_at_once_and_saves_after_three_seconds() {
    check(
        |world| {
            let lease = world.state.snapshot(world.now).cards[0]
                .lease
                .as_ref()
                .expect("runs")
                .lease;
            world.pass(100_000);
            world.drain();
            world.touch();
            assert_eq!(world.drain(), ["freeze", "watch true"]);
            world.event(lease, LeaseEvent::Frozen);
            world.card_use(lease, 0, 900);
            world.pass(1_500);
            world.touch();
            world.pass(1_499);
            assert_eq!(world.drain(), ["say Frozen"]);
            world.pass(1);
        },
        &["save OwnerInput", "say Saving", "say reclaim OwnerInput"],
    );
}

#[test]
fn a_single_bump_after_long_quiet_is_forgiven() {
    check(
        |world| {
            let lease = world.state.snapshot(world.now).cards[0]
                .lease
                .as_ref()
                .expect("runs")
                .lease;
            world.pass(16 * 60_000);
            world.drain();
            world.touch();
            world.event(lease, LeaseEvent::Frozen);
            world.card_use(lease, 0, 900);
            world.pass(900);
            world.touch();
            world.drain();
            world.pass(2_100);
        },
        &["thaw", "watch false", "say Running"],
    );
}

#[test]
fn input_after_a_forgiven_bump_freezes_again() {
    let mut world = World::new();
    let lease = world.running();
    world.pass(16 * 60_000);
    world.touch();
    world.event(lease, LeaseEvent::Frozen);
    world.card_use(lease, 0, 900);
    world.pass(4_000);
    world.drain();
    world.touch();
    assert_eq!(world.drain(), ["freeze", "watch true"]);
}

#[test]
fn a_job_that_cannot_be_frozen_in_time_is_ended() {
    check(
        |world| {
            world.touch();
            world.drain();
            world.pass(250);
        },
        &["end OwnerInput", "watch true", "say Ending", "say reclaim OwnerInput"],
    );
}

#[test]
fn a_frozen_job_whose_kernels_run_on_is_ended_after_a_second() {
    check(
        |world| {
            let lease = world.state.snapshot(world.now).cards[0]
                .lease
                .as_ref()
                .expect("runs")
                .lease;
            world.touch();
            world.event(lease, LeaseEvent::Frozen);
            world.card_use(lease, 80, 900);
            world.pass(999);
            world.drain();
            world.pass(1);
        },
        &["end OwnerInput", "watch true", "say Ending", "say reclaim OwnerInput"],
    );
}

#[test]
fn every_other_cause_ends_at_once() {
    type Cause = fn(&mut World);
    let cases: [(&str, Cause); 7] = [
        ("Shutdown", |world| {
            world.input(Input::Sleep { asleep: true });
        }),
        ("OwnerProgram { name: Some(\"game.x86_64\") }", |world| {
            world.foreign = vec![game()];
            world.see();
        }),
        ("Hot", |world| {
            world.temperature = 83;
            world.see();
        }),
        ("OwnerCommand", |world| {
            world.input(Input::Command {
                request: 1,
                command: Command::Pause { for_ms: None },
            });
        }),
        ("CardLost", |world| {
            world.input(Input::CardUnreadable {
                gpu: None,
                why: "GPU is lost".into(),
            });
        }),
        ("Shutdown", |world| {
            world.input(Input::Shutdown);
        }),
        ("CardLost", |world| {
            world.input(Input::Cards(Vec::new()));
        }),
    ];
    for (cause, happen) in cases {
        let mut world = World::new();
        world.running();
        world.drain();
        happen(&mut world);
        let done = world.drain();
        assert_eq!(
            done[0],
            format!("end {cause}"),
            "the first thing done for {cause}: {done:?}"
        );
    }
}

#[test]
fn sensors_that_fall_silent_end_the_job() {
    check(
        |world| {
            world.deaf = true;
            world.pass(2_600);
            world.drain();
            world.pass(1_000);
        },
        &[
            "end SensorSilent { what: \"all signals\" }",
            "watch true",
            "say Ending",
            "say reclaim SensorSilent { what: \"all signals\" }",
        ],
    );
}

#[test]
fn after_a_suspend_the_job_is_ended_before_anything_is_looked_at() {
    let mut world = World::new();
    world.running();
    world.drain();
    world.jump(3_600_000);
    world.input(Input::Tick);
    assert_eq!(world.drain()[0], "end LeaseExpired");
}

#[test]
fn a_lease_ends_sixty_seconds_after_the_last_acknowledged_heartbeat_was_sent() {
    let mut world = World::new();
    world.running();
    world.mute = true;
    world.drain();
    world.pass(49_000);
    assert!(
        !world.drain().iter().any(|word| word.starts_with("end")),
        "the lease still holds"
    );
    world.pass(11_000);
    assert!(world.drain().contains(&"end LeaseExpired".to_owned()));
}

#[test]
fn urgent_effects_come_before_records() {
    let mut world = World::new();
    world.running();
    let effects = world.input(Input::Command {
        request: 7,
        command: Command::Pause { for_ms: None },
    });
    let end = effects.iter().position(|effect| matches!(effect, Effect::End { .. }));
    let append = effects.iter().position(|effect| matches!(effect, Effect::Append(_)));
    assert!(end < append && end.is_some(), "{effects:?}");
}

#[test]
fn a_card_is_offered_again_only_when_job_and_memory_are_gone_and_it_has_rested() {
    let mut world = World::new();
    let lease = world.running();
    world.foreign = vec![game()];
    world.see();
    world.event(
        lease,
        LeaseEvent::Ended {
            cause: EndCause::OwnerProgram { name: None },
            thawed_ms: Millis(1_234),
            frozen_ms: Millis(0),
        },
    );
    world.foreign.clear();
    world.see();
    world.drain();
    world.card_use(lease, 0, 12);
    world.pass(1_000);
    assert_eq!(
        world.drain(),
        Vec::<String>::new(),
        "memory is still held: nothing is offered, nothing uploaded"
    );
    world.card_use(lease, 0, 0);
    assert_eq!(world.drain(), ["watch false", "upload", "attention false"]);
    world.event(
        lease,
        LeaseEvent::Uploaded {
            output: None,
            problem: None,
        },
    );
    assert_eq!(
        world.drain(),
        [
            "record closed OwnerProgram { name: None }",
            "say result OwnerProgram { name: None } output false"
        ]
    );
    assert!(world.why()[0].contains("rests for 5:00"), "{:?}", world.why());
    world.pass(CardPolicy::default().cool_off.0);
    assert_eq!(world.drain(), ["say offer true"]);
    let measure = world.state.snapshot(world.now).cards[0]
        .last_yield
        .clone()
        .expect("measured");
    assert_eq!(measure.vram_free_ms, Some(Millis(1_000)));
}

#[test]
fn a_job_on_a_card_that_is_lost_goes_back_to_its_tenant_though_the_memory_can_not_be_seen() {
    let mut world = World::new();
    let lease = world.running();
    world.drain();
    let why = || "GPU is lost".to_owned();
    world.input(Input::CardUnreadable { gpu: None, why: why() });
    world.event(
        lease,
        LeaseEvent::Ended {
            cause: EndCause::CardLost,
            thawed_ms: Millis(1_234),
            frozen_ms: Millis(0),
        },
    );
    let done = world.drain();
    assert!(done.contains(&"upload".to_owned()), "{done:?}");
    assert!(!done.contains(&"say offer true".to_owned()), "{done:?}");
    assert!(world.why()[0].contains("GPU is lost"), "{:?}", world.why());
}

#[test]
fn a_hot_card_is_shared_again_only_after_enough_valid_cool_readings_in_a_row() {
    let mut world = World::new();
    world.temperature = 90;
    world.see();
    assert!(world.why()[0].contains("90 °C"), "{:?}", world.why());
    for temperature in [60, 60, 511, 60, 70, 60, 60, 60, 60] {
        world.temperature = temperature;
        world.see();
        assert!(!world.why().is_empty(), "after {temperature}");
    }
    world.temperature = 60;
    world.see();
    assert_eq!(world.why(), Vec::<String>::new());
}

#[test]
fn what_the_exchange_cancels_may_save_or_not_as_it_says() {
    for (save, expected) in [(true, "save BudgetUsed"), (false, "end BudgetUsed")] {
        let mut world = World::new();
        let lease = world.running();
        world.drain();
        let cancel = |fencing| {
            Input::Market(MarketInput::Cancel {
                lease,
                fencing: sela_protocol::lease::FencingToken(fencing),
                cause: EndCause::BudgetUsed,
                save,
            })
        };
        world.input(cancel(0));
        assert_eq!(world.drain(), Vec::<String>::new(), "an old token can do nothing");
        world.input(cancel(1));
        assert_eq!(world.drain()[0], expected);
    }
}
