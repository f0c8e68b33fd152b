//! Random streams of signals against a plain reading of the rules, written apart from the code: never shared while something that the
//! owner asked about holds or cannot be seen, and shared when nothing does.

mod world;

use proptest::prelude::*;
use sela_core::{BatteryRule, CardPolicy, Input};
use sela_protocol::id::GpuUuid;
use sela_protocol::presence::{ForeignUse, InputActivity, Observed};
use sela_protocol::senses::{Engagement, EngagementKind, Play, PlayKind, PowerSource, RemoteHand};
use sela_protocol::units::{BootMs, Bytes, Millis, Percent, UtcMs};
use world::{GPU, World};

/// What one signal says: nothing, the harmless, what holds, or nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Say {
    Absent,
    Calm,
    Holds,
    Unknown,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Input(Say),
    Foreign(Say),
    Pad(Say),
    Engaged(Say),
    Playing(Say),
    Remote(Say),
    Power(Say),
    Metered(Say),
    Sleeping(Say),
    Pass(u64),
    SetClock(i64),
}

fn say() -> impl Strategy<Value = Say> {
    prop_oneof![2 => Just(Say::Absent), 4 => Just(Say::Calm), 2 => Just(Say::Holds), 1 => Just(Say::Unknown)]
}

fn step() -> impl Strategy<Value = Step> {
    const SIGNALS: [fn(Say) -> Step; 9] = [
        Step::Input,
        Step::Foreign,
        Step::Pad,
        Step::Engaged,
        Step::Playing,
        Step::Remote,
        Step::Power,
        Step::Metered,
        Step::Sleeping,
    ];
    let signal = (proptest::sample::select(&SIGNALS[..]), say()).prop_map(|(signal, say)| signal(say));
    prop_oneof![
        9 => signal,
        3 => (1_u64..20_000).prop_map(Step::Pass),
        1 => (100_000_u64..400_000).prop_map(Step::Pass),
        1 => (-400_000_000_000_i64..400_000_000_000).prop_map(Step::SetClock),
    ]
}

fn observed<T>(say: Say, calm: T, holds: T) -> Observed<T> {
    let value = |value| Observed::Value {
        value,
        source: "random".into(),
        seen_boot_ms: BootMs(0),
    };
    match say {
        Say::Absent => Observed::NotApplicable { why: "absent".into() },
        Say::Calm => value(calm),
        Say::Holds => value(holds),
        Say::Unknown => Observed::Unknown {
            source: "random".into(),
            why: "unknown".into(),
        },
    }
}

/// What was said last, and the newest touches.
#[derive(Debug)]
struct Reading {
    says: [Say; 9],
    touched: BootMs,
    pad_touched: BootMs,
    /// When something that is seen was last said to hold.
    held_at: Option<BootMs>,
}

/// The rules of the design, one by one.
fn holds(reading: &Reading, policy: &CardPolicy, now: BootMs) -> bool {
    let [input, foreign, pad, engaged, playing, remote, power, metered, sleeping] = reading.says;
    let bad = |say| say == Say::Holds || say == Say::Unknown;
    let recent = |say, at: BootMs| match say {
        Say::Absent => false,
        Say::Calm | Say::Holds => now.0 < at.0 + policy.idle_after.0,
        Say::Unknown => true,
    };
    let hands = recent(input, reading.touched) || recent(pad, reading.pad_touched);
    let working = hands || policy.hold_while_engaged && bad(engaged);
    let battery = match policy.battery {
        BatteryRule::Ignore => false,
        BatteryRule::Hold | BatteryRule::From(_) => bad(power),
    };
    !policy.share_while_working && working
        || bad(foreign)
        || bad(sleeping)
        || battery
        || policy.hold_while_playing && bad(playing)
        || policy.hold_while_remote && bad(remote)
        || policy.hold_on_metered && bad(metered)
}

/// Whether something other than the passing of time holds: that must have been gone for a while.
fn sensed(reading: &Reading, policy: &CardPolicy) -> bool {
    let far = BootMs(u64::MAX / 2);
    let quiet = Reading {
        says: reading.says,
        ..*reading
    };
    holds(&quiet, policy, far)
}

fn apply(world: &mut World, reading: &mut Reading, step: Step) {
    let now = world.now.boot_ms;
    let play = || Play {
        kind: PlayKind::Steam,
        program: "game".into(),
        pid: None,
    };
    let engagement = || Engagement {
        kind: EngagementKind::Camera,
        program: "call".into(),
    };
    match step {
        Step::Input(say) => {
            reading.says[0] = say;
            if say == Say::Holds {
                reading.touched = now;
            }
            world.blind = say == Say::Unknown;
            world.last_input = (say != Say::Absent).then_some(reading.touched);
        }
        Step::Foreign(say) => {
            // A list of programs is never absent here: the simulated driver always gives one.
            let say = if say == Say::Unknown || say == Say::Absent {
                Say::Calm
            } else {
                say
            };
            reading.says[1] = say;
            let program = ForeignUse {
                gpu: GpuUuid(GPU.into()),
                pid: 7,
                name: None,
                vram_used: Some(Bytes::from_gib(2)),
                utilisation: None,
            };
            world.foreign = (say == Say::Holds).then_some(program).into_iter().collect();
        }
        Step::Pad(say) => {
            reading.says[2] = say;
            if say == Say::Holds {
                reading.pad_touched = now;
            }
            let activity = InputActivity {
                last_input_boot_ms: reading.pad_touched,
            };
            world.senses.gamepad = observed(say, activity, activity);
        }
        Step::Engaged(say) => {
            reading.says[3] = say;
            world.senses.engaged = observed(say, Vec::new(), vec![engagement()]);
        }
        Step::Playing(say) => {
            reading.says[4] = say;
            world.senses.playing = observed(say, Vec::new(), vec![play()]);
        }
        Step::Remote(say) => {
            reading.says[5] = say;
            world.senses.remote = observed(say, Vec::new(), vec![RemoteHand { by: "RDP".into() }]);
        }
        Step::Power(say) => {
            reading.says[6] = say;
            let power = |on_battery| PowerSource {
                on_battery,
                charge: Some(Percent(10)),
            };
            world.senses.power = observed(say, power(false), power(true));
        }
        Step::Metered(say) => {
            reading.says[7] = say;
            world.senses.metered = observed(say, false, true);
        }
        Step::Sleeping(say) => {
            reading.says[8] = say;
            world.senses.sleeping_cards = observed(say, Vec::new(), vec!["0000:01:00.0".into()]);
        }
        Step::Pass(span) => world.pass(span),
        Step::SetClock(by) => {
            world.now.utc_ms = UtcMs(world.now.utc_ms.0 + by);
            world.input(Input::Tick);
        }
    }
    world.see();
}

fn policy() -> impl Strategy<Value = CardPolicy> {
    let rule = prop_oneof![
        Just(BatteryRule::Hold),
        Just(BatteryRule::From(Percent(50))),
        Just(BatteryRule::Ignore)
    ];
    (any::<[bool; 5]>(), rule).prop_map(|(flags, battery)| CardPolicy {
        share_while_working: flags[0],
        hold_while_engaged: flags[1],
        hold_while_playing: flags[2],
        hold_while_remote: flags[3],
        hold_on_metered: flags[4],
        battery,
        ..CardPolicy::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_card_is_shared_only_and_always_when_no_rule_of_the_owners_holds_it(
        policy in policy(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut world = World::with(policy.clone());
        let mut reading = Reading {
            says: [Say::Absent; 9],
            touched: BootMs(world.now.boot_ms.0 - 7_200_000),
            pad_touched: BootMs(world.now.boot_ms.0 - 7_200_000),
            held_at: None,
        };
        reading.says[1] = Say::Calm;
        for step in steps {
            let before = sensed(&reading, &policy);
            if before {
                reading.held_at = Some(world.now.boot_ms);
            }
            apply(&mut world, &mut reading, step);
            let now = world.now.boot_ms;
            if before {
                // It was seen until this step's signals came, at the end of whatever time has passed.
                reading.held_at = Some(now);
            }
            let shared = world.shared();
            prop_assert!(world.state.next_wake().is_none_or(|wake| wake > now), "a wake in the past would spin");
            if holds(&reading, &policy, now) {
                prop_assert!(!shared, "shared after {step:?} though {reading:?} under {policy:?}");
            } else if reading.held_at.is_none_or(|held| now.since(held) > Millis(policy.steady_for.0)) {
                prop_assert!(shared, "held after {step:?} for {:?} though {reading:?}", world.why());
            }
        }
    }
}
