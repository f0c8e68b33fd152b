//! Whether the owner wants the card, as owners have met it with every other program of this kind: each test is a complaint, and says
//! what happens instead. Time is passed in.

mod world;

use sela_core::schedule::{CalendarUse, Meaning, Plan, Week, Window};
use sela_core::{BatteryRule, CardPolicy, Input, LeaseEvent};
use sela_protocol::id::GpuUuid;
use sela_protocol::lease::EndCause;
use sela_protocol::local::{Command, CommandReply};
use sela_protocol::presence::{ForeignUse, InputActivity, Observed};
use sela_protocol::senses::{Engagement, EngagementKind, Play, PlayKind, PowerSource, RemoteHand};
use sela_protocol::units::{BootMs, Bytes, Millis, Percent, UtcMs};
use world::{GPU, World};

/// Longer than what was seen must stay away.
const STEADY: u64 = 6_000;

fn unknown<T>() -> Observed<T> {
    Observed::Unknown {
        source: "bus".into(),
        why: "it does not answer".into(),
    }
}

fn battery(on_battery: bool, charge: Option<u8>) -> PowerSource {
    PowerSource {
        on_battery,
        charge: charge.map(Percent),
    }
}

fn program(utilisation: Option<u8>, mib: Option<u64>) -> ForeignUse {
    ForeignUse {
        gpu: GpuUuid(GPU.into()),
        pid: 42,
        name: Some("notebook".into()),
        vram_used: mib.map(Bytes::from_mib),
        utilisation: utilisation.map(Percent),
    }
}

/// A long time passes; nothing is due in between but what is asked about.
fn later(world: &mut World, span_ms: u64) {
    world.jump(span_ms);
    world.see();
}

/// Holds that the reasons are these sentences' beginnings.
fn held(world: &mut World, words: &[&str]) {
    let why = world.why();
    assert_eq!(why.len(), words.len(), "{why:?}");
    for (reason, words) in why.iter().zip(words) {
        assert!(reason.contains(words), "{reason:?} does not say {words:?}");
    }
}

#[test]
fn a_session_whose_input_nobody_can_see_is_never_taken_for_an_empty_chair() {
    let mut world = World::new();
    world.blind = true;
    world.see();
    held(&mut world, &["input cannot be seen"]);
    later(&mut world, 24 * 3_600_000);
    held(&mut world, &["input cannot be seen"]);
}

#[test]
fn playing_with_a_pad_alone_keeps_the_card() {
    let mut world = World::new();
    later(&mut world, 3_600_000);
    let activity = InputActivity {
        last_input_boot_ms: world.now.boot_ms,
    };
    world.senses.gamepad = world.seen(activity);
    world.see();
    held(
        &mut world,
        &["gamepad used 0 s ago (test); sharing resumes after 5:00 without input, in 5:00"],
    );
    later(&mut world, 299_000);
    assert!(!world.shared());
    world.pass(1_000);
    assert!(world.shared());
}

#[test]
fn a_pad_taken_up_while_a_job_runs_freezes_it_at_once() {
    let mut world = World::new();
    world.running();
    world.drain();
    let activity = InputActivity {
        last_input_boot_ms: world.now.boot_ms,
    };
    world.senses.gamepad = world.seen(activity);
    world.see();
    assert_eq!(world.drain(), ["freeze", "watch true"]);
}

#[test]
fn watching_a_film_keeps_the_card_though_nobody_touches_anything() {
    for (kind, words) in [
        (EngagementKind::KeepsAwake, "player keeps the screen on"),
        (EngagementKind::Camera, "a camera is in use (player)"),
        (EngagementKind::Microphone, "a microphone is in use (player)"),
    ] {
        let mut world = World::new();
        let film = Engagement {
            kind,
            program: "player".into(),
        };
        world.senses.engaged = world.seen(vec![film.clone()]);
        world.see();
        later(&mut world, 2 * 3_600_000);
        held(&mut world, &[words]);
        world.senses.engaged = world.seen(Vec::new());
        world.pass(STEADY + 1_000);
        assert!(world.shared(), "{:?}", world.why());
        // A film that begins while a job runs is not stuttered through, and what it is is told to nobody.
        world.running();
        world.drain();
        world.senses.engaged = world.seen(vec![film]);
        world.see();
        assert_eq!(world.drain()[0], "end OwnerProgram { name: None }");
    }
}

#[test]
fn a_desktop_pc_is_never_on_battery_and_neither_is_one_whose_ups_has_mains() {
    let mut world = World::new();
    world.senses.power = Observed::NotApplicable {
        why: "there is no battery".into(),
    };
    world.see();
    assert!(world.shared());
    world.senses.power = world.seen(battery(false, Some(100)));
    world.see();
    assert!(world.shared());
    world.senses.power = world.seen(battery(true, Some(80)));
    world.see();
    held(&mut world, &["this PC is on battery (80 %); sharing resumes on mains"]);
}

#[test]
fn a_battery_is_drained_no_further_than_its_owner_says() {
    let mut world = World::with(CardPolicy {
        battery: BatteryRule::From(Percent(50)),
        ..CardPolicy::default()
    });
    for (charge, shared) in [(Some(51), true), (Some(50), true), (Some(49), false), (None, false)] {
        world.senses.power = world.seen(battery(true, charge));
        world.see();
        world.pass(STEADY);
        assert_eq!(world.shared(), shared, "{charge:?}: {:?}", world.why());
    }
    world.senses.power = world.seen(battery(true, Some(60)));
    world.see();
    world.pass(STEADY);
    world.running();
    world.drain();
    world.senses.power = world.seen(battery(true, Some(49)));
    world.see();
    assert_eq!(world.drain()[0], "save OwnerRule", "nobody waits for the card");
}

#[test]
fn pausing_gives_the_memory_back_and_not_only_the_processor() {
    let mut world = World::new();
    let lease = world.running();
    world.drain();
    world.input(Input::Command {
        request: 1,
        command: Command::Pause { for_ms: None },
    });
    let done = world.drain();
    assert!(
        done.contains(&"end OwnerCommand".to_owned()) && !done.contains(&"freeze".to_owned()),
        "{done:?}"
    );
    // And the pause is not taken for done before the card is seen free.
    world.event(
        lease,
        LeaseEvent::Ended {
            cause: EndCause::OwnerCommand,
            thawed_ms: Millis(1_000),
            frozen_ms: Millis(0),
        },
    );
    assert!(!world.drain().contains(&"upload".to_owned()));
    world.card_use(lease, 0, 0);
    assert!(world.drain().contains(&"upload".to_owned()));
}

fn nights(zone: &str, hours: &str) -> CardPolicy {
    CardPolicy {
        schedule: Some(Plan {
            zone: zone.into(),
            week: Week::Windows(vec![Window {
                days: "daily".parse().expect("days"),
                hours: hours.parse().expect("hours"),
            }]),
            exceptions: Vec::new(),
            calendars: Vec::new(),
        }),
        ..CardPolicy::default()
    }
}

// The world begins at 2027-01-15T08:00 UTC, a Friday, 15:00 in Jakarta.

#[test]
fn a_window_that_opened_while_the_pc_slept_is_open_when_it_wakes() {
    let mut world = World::with(nights("Asia/Jakarta", "16:00-06:00"));
    held(&mut world, &["your schedule is closed; it opens at 1800003600000"]);
    world.input(Input::Sleep { asleep: true });
    world.jump(3 * 3_600_000);
    world.input(Input::Sleep { asleep: false });
    world.see();
    world.pass(STEADY);
    assert!(world.shared(), "{:?}", world.why());
}

#[test]
fn a_window_opens_and_closes_by_itself_to_the_second_and_a_job_may_save_at_its_end() {
    let mut world = World::with(nights("Asia/Jakarta", "16:00-17:00"));
    later(&mut world, 3_599_000);
    assert!(!world.shared());
    world.pass(1_000);
    assert!(world.shared());
    let snapshot = world.state.snapshot(world.now);
    let sela_protocol::presence::Availability::Available { until_utc_ms } = snapshot.cards[0].availability else {
        panic!("{:?}", snapshot.cards[0].availability)
    };
    assert_eq!(until_utc_ms, Some(UtcMs(1_800_007_200_000)));
    later(&mut world, 3_590_000);
    world.running();
    world.drain();
    world.pass(9_000);
    assert_eq!(world.drain()[0], "save OwnerRule");
}

#[test]
fn setting_the_clock_back_or_forth_moves_the_card_into_the_hours_it_then_is() {
    let mut world = World::with(nights("Asia/Jakarta", "16:00-17:00"));
    for (utc, shared) in [
        (1_800_003_600_000, true),
        (1_799_996_400_000, false),
        (1_600_000_000_000, false),
        (1_800_005_000_000, true),
        (4_000_000_000_000_000, false),
    ] {
        world.now.utc_ms = UtcMs(utc);
        world.see();
        world.input(Input::Tick);
        assert_eq!(world.shared(), shared, "{utc}: {:?}", world.why());
    }
}

#[test]
fn a_calendar_that_cannot_be_read_may_close_any_hour_and_says_so() {
    let mut policy = nights("Asia/Jakarta", "00:00-24:00");
    if let Some(plan) = &mut policy.schedule {
        plan.calendars.push(CalendarUse {
            name: "work".into(),
            meaning: Meaning::Closes,
        });
    }
    let mut world = World::with(policy);
    held(
        &mut world,
        &["your schedule may be closed: calendar \"work\": it has not been read yet"],
    );
    let read = |attempt| Input::Calendar {
        name: "work".into(),
        attempt,
    };
    world.input(read(Err("the server wants a password".into())));
    held(&mut world, &["the server wants a password"]);
    world.input(read(Ok(sela_core::schedule::calendar::Calendar::default())));
    assert!(world.shared());
    world.input(read(Err("the server does not answer".into())));
    assert!(world.shared(), "what was read last stays in force: {:?}", world.why());
}

#[test]
fn a_game_vr_or_somebody_from_elsewhere_gets_the_card_at_once() {
    let mut world = World::new();
    let game = |kind| Play {
        kind,
        program: "game".into(),
        pid: None,
    };
    for kind in [
        PlayKind::GameMode,
        PlayKind::Fullscreen,
        PlayKind::Steam,
        PlayKind::Vr,
        PlayKind::Listed,
    ] {
        world.senses.playing = world.seen(vec![game(kind)]);
        world.see();
        held(&mut world, &["game"]);
        world.senses.playing = world.seen(Vec::new());
        world.see();
        world.pass(STEADY);
    }
    world.running();
    world.drain();
    world.senses.playing = world.seen(vec![game(PlayKind::Vr)]);
    world.see();
    assert_eq!(world.drain()[0], "end OwnerProgram { name: Some(\"game\") }");

    let mut world = World::new();
    world.running();
    world.drain();
    let by = || "Sunshine".to_owned();
    world.senses.remote = world.seen(vec![RemoteHand { by: by() }]);
    world.see();
    assert_eq!(world.drain()[0], "end OwnerProgram { name: None }");
    assert!(
        world.why().iter().any(|why| why.contains("from elsewhere (Sunshine)")),
        "{:?}",
        world.why()
    );
}

#[test]
fn a_second_card_may_be_shared_while_its_owner_works_on_the_first_but_not_while_something_runs_on_it() {
    let mut world = World::with(CardPolicy {
        share_while_working: true,
        ..CardPolicy::default()
    });
    world.touch();
    world.blind = true;
    world.senses.gamepad = unknown();
    world.senses.engaged = unknown();
    world.see();
    assert!(world.shared(), "{:?}", world.why());
    world.foreign = vec![program(None, Some(300))];
    world.see();
    held(
        &mut world,
        &["notebook (process 42) is using the card and holds 300 MiB"],
    );
}

#[test]
fn a_notebook_that_holds_memory_and_computes_nothing_counts_by_size_and_time() {
    let mut world = World::new();
    world.foreign = vec![program(Some(0), Some(100))];
    world.see();
    assert!(world.shared(), "little memory, no work: {:?}", world.why());
    world.foreign = vec![program(Some(0), Some(700))];
    world.see();
    held(
        &mut world,
        &["sharing resumes when it has ended, or computed nothing for 30:00 more"],
    );
    later(&mut world, 1_000_000);
    world.foreign = vec![program(Some(40), Some(700))];
    world.see();
    world.foreign = vec![program(Some(0), Some(700))];
    later(&mut world, 1_700_000);
    assert!(!world.shared(), "it computed in between");
    later(&mut world, 200_000);
    world.pass(STEADY);
    assert!(world.shared(), "{:?}", world.why());
    world.foreign = vec![program(Some(0), Some(4_000))];
    world.see();
    later(&mut world, 24 * 3_600_000);
    held(&mut world, &["sharing resumes when it has ended"]);
}

#[test]
fn what_keeps_a_job_from_starting_need_not_end_one() {
    let mut world = World::with(CardPolicy {
        foreign_evict_vram: Bytes::from_gib(2),
        foreign_evict_utilisation: Percent(30),
        ..CardPolicy::default()
    });
    world.running();
    world.drain();
    world.foreign = vec![program(Some(12), Some(600))];
    world.see();
    assert_eq!(world.drain(), Vec::<String>::new());
    assert!(!world.shared(), "nothing new would start");
    world.foreign = vec![program(Some(30), Some(600))];
    world.see();
    assert_eq!(world.drain()[0], "end OwnerProgram { name: Some(\"notebook\") }");
}

#[test]
fn a_line_that_costs_and_a_card_that_sleeps_hold_and_say_so() {
    let mut world = World::new();
    world.senses.metered = world.seen(true);
    world.see();
    held(&mut world, &["the network costs by volume"]);
    world.senses.metered = world.seen(false);
    world.senses.sleeping_cards = world.seen(vec!["0000:01:00.0".into()]);
    world.see();
    // The driver stays closed: no reading comes, and that is no second reason.
    world.jump(60_000);
    let signals = world.senses.clone();
    world.senses = signals;
    world.temperature = 511;
    world.see();
    held(&mut world, &["the card sleeps to save power"]);
}

#[test]
fn a_source_that_comes_and_goes_ten_times_a_second_offers_nothing_and_keeps_nobody_busy() {
    let mut world = World::new();
    world.drain();
    let before = world.effects.len();
    for turn in 0..600 {
        world.senses.playing = if turn % 2 == 0 {
            unknown()
        } else {
            world.seen(Vec::new())
        };
        world.jump(100);
        world.see();
        assert!(!world.shared(), "turn {turn}");
        assert!(world.state.next_wake().is_none_or(|wake| wake > world.now.boot_ms));
    }
    assert_eq!(world.drain(), ["say offer false"], "the market hears of it once");
    let effects = world.effects.len() - before;
    assert!(effects < 600 * 4, "{effects} effects in a minute");
    world.senses.playing = world.seen(Vec::new());
    world.pass(STEADY);
    assert!(world.shared());
}

#[test]
fn a_pause_lasts_as_long_as_it_was_asked_for() {
    let mut world = World::new();
    let pause = |world: &mut World, command| {
        world.input(Input::Command { request: 1, command });
        world.drain();
    };
    pause(
        &mut world,
        Command::Pause {
            for_ms: Some(Millis::from_secs(3_600)),
        },
    );
    later(&mut world, 3_599_000);
    assert!(!world.shared());
    world.pass(1_000);
    assert!(world.shared());
    // 16:00 in Jakarta: until six the next morning.
    pause(
        &mut world,
        Command::PauseUntilTomorrow {
            zone: "Asia/Jakarta".into(),
        },
    );
    later(&mut world, 14 * 3_600_000 - 1_000);
    assert!(!world.shared());
    world.pass(1_000);
    assert!(world.shared());
    pause(&mut world, Command::Pause { for_ms: None });
    later(&mut world, 40 * 24 * 3_600_000);
    held(&mut world, &["you paused it"]);
    let effects = world.input(Input::Command {
        request: 2,
        command: Command::PauseUntilTomorrow { zone: "Mars".into() },
    });
    let refused = effects.iter().any(|effect| {
        matches!(effect, sela_core::Effect::Reply { reply: CommandReply::Refused { message }, .. } if message.contains("no time zone \"Mars\""))
    });
    assert!(refused, "{effects:?}");
}

#[test]
fn an_input_that_claims_to_be_of_the_future_is_no_long_quiet() {
    let mut world = World::new();
    world.last_input = Some(BootMs(world.now.boot_ms.0 + 1_000_000));
    world.see();
    held(&mut world, &["keyboard or mouse used 0 s ago"]);
    later(&mut world, 1_000_000);
    assert!(!world.shared());
}
