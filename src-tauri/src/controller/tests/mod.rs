//! The controller by tables of what happens and what is done about it: no window, no bus, no clock. What is notified of stands
//! in a file of its own.

mod notices;

use super::*;
use crate::language::Language;
use crate::words::Locale;
use sela_protocol::card::{CardDescription, Reading};
use sela_protocol::id::{GpuUuid, JobId, LeaseId, NodeId};
use sela_protocol::lease::{EndCause, LeasePhase};
use sela_protocol::local::{
    CardState, Earned, IsolationState, LOCAL_PROTOCOL, LeaseState, MarketLink, Pause, Snapshot, ThermalLimits,
    YieldMeasure,
};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::node::Isolation;
use sela_protocol::presence::{Availability, HoldReason, Observed, Signals};
use sela_protocol::units::{Bytes, Celsius, UtcMs};

/// 2026-12-01 12:00 in Jakarta.
const NOON: UtcMs = UtcMs(1_796_101_200_000);

fn at(seconds: u64) -> Now {
    Now {
        boot_ms: BootMs(1_000_000 + seconds * 1000),
        utc_ms: NOON.plus(Millis::from_secs(seconds)),
    }
}

fn new_id<T: serde::de::DeserializeOwned>(prefix: &str, number: u8) -> T {
    let text = format!("{prefix}_01936e4c-0000-7000-8000-0000000000{number:02}");
    serde_json::from_value(serde_json::Value::String(text)).expect("an id")
}

fn uuid(number: u8) -> GpuUuid {
    serde_json::from_value(format!("GPU-00000000-0000-0000-0000-0000000000{number:02}").into()).expect("a UUID")
}

fn card(number: u8) -> CardState {
    CardState {
        description: CardDescription {
            uuid: uuid(number),
            name: "NVIDIA GeForce RTX 3090 (SIMULATED)".to_owned(),
            index: u32::from(number),
            simulated: true,
            vram_total: Bytes::from_gib(24),
            driver_version: "580.95.05".to_owned(),
            power_limits: Reading::NotSupported,
        },
        reading: None,
        floor: HourlyPrice(Micros(100_000)),
        limits: ThermalLimits {
            core_hard: Celsius(83),
            resume_below: Celsius(75),
        },
        availability: Availability::OPEN,
        lease: None,
        last_yield: None,
    }
}

fn with_job(number: u8, phase: LeasePhase) -> CardState {
    CardState {
        lease: Some(LeaseState {
            lease: new_id::<LeaseId>("lease", number),
            job: new_id::<JobId>("job", number),
            name: None,
            phase,
            price: HourlyPrice(Micros(312_000)),
            thawed_ms: Millis(0),
            gross: Micros(0),
            network: None,
            transfer: None,
            wiped: None,
        }),
        ..card(number)
    }
}

fn held(reasons: Vec<HoldReason>) -> CardState {
    CardState {
        availability: Availability::Held { reasons },
        ..card(1)
    }
}

fn unknown<T>() -> Observed<T> {
    Observed::NotApplicable {
        why: "a test".to_owned(),
    }
}

fn connected() -> MarketLink {
    MarketLink::Connected {
        url: "https://exchange.example".to_owned(),
        exchange: "the exchange".to_owned(),
        node: new_id::<NodeId>("node", 1),
    }
}

fn snapshot(cards: Vec<CardState>) -> Snapshot {
    Snapshot {
        protocol: LOCAL_PROTOCOL,
        agent_version: "0.1.0".to_owned(),
        now: at(0),
        lab: false,
        market: connected(),
        isolation: IsolationState::Ready {
            level: Isolation::Native,
        },
        pause: None,
        settings_problem: None,
        signals: Signals {
            input: unknown(),
            foreign: unknown(),
            senses: Box::default(),
        },
        cards,
        earned: Earned {
            today_net: Micros(1_840_000),
            total_net: Micros(9_000_000),
            ..Earned::default()
        },
    }
}

fn told(snapshot: Snapshot) -> Event {
    Event::Heard(Box::new(local::Event::Snapshot(Box::new(snapshot))))
}

fn gone() -> Event {
    Event::Lost(Trouble {
        kind: Kind::NotRunning,
        message: "nobody listens".to_owned(),
    })
}

fn controller() -> Controller {
    let locale = Locale {
        language: Language::En,
        region: None,
    };
    Controller::new(Words::of(locale), TimeZone::get("Asia/Jakarta").expect("known"))
}

/// A controller with a tray, started hidden, that has heard this.
fn that_heard(snapshot: Snapshot) -> Controller {
    let mut controller = controller();
    controller.step(at(0), started(true, true));
    controller.step(at(0), told(snapshot));
    controller
}

const fn started(hidden: bool, tray: bool) -> Event {
    Event::Started {
        hidden,
        tray,
        at_login: Some(false),
    }
}

fn tray_of(effects: &[Effect]) -> Option<&TrayView> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::ShowTray(view) => Some(view),
        Effect::Notify(_)
        | Effect::OpenWindow
        | Effect::Tell(_)
        | Effect::AskSupervisor
        | Effect::SetAtLogin(_)
        | Effect::Wake(_)
        | Effect::Leave => None,
    })
}

fn notices_of(effects: &[Effect]) -> Vec<&Notice> {
    let notices = effects.iter().filter_map(|effect| match effect {
        Effect::Notify(notice) => Some(notice),
        Effect::ShowTray(_)
        | Effect::OpenWindow
        | Effect::Tell(_)
        | Effect::AskSupervisor
        | Effect::SetAtLogin(_)
        | Effect::Wake(_)
        | Effect::Leave => None,
    });
    notices.collect()
}

fn deeds_of(effects: Vec<Effect>) -> Vec<Effect> {
    let is_shown = |effect: &Effect| matches!(effect, Effect::ShowTray(_));
    effects.into_iter().filter(|effect| !is_shown(effect)).collect()
}

#[test]
fn the_sign_and_the_sentence_name_every_state() {
    let with_market = |market| Snapshot {
        market,
        ..snapshot(vec![card(1)])
    };
    let url = || "https://exchange.example".to_owned();
    let connecting = |last_error: Option<&str>| MarketLink::Connecting {
        url: url(),
        last_error: last_error.map(str::to_owned),
    };
    let paused = |until_utc_ms| Snapshot {
        pause: Some(Pause {
            since_utc_ms: NOON,
            until_utc_ms,
        }),
        ..snapshot(vec![held(vec![HoldReason::Paused { until_utc_ms }])])
    };
    let hot = HoldReason::Hot {
        temperature: Celsius(84),
        resume_below: Celsius(75),
    };
    for (given, sign, sentence) in [
        (snapshot(vec![]), Sign::Attention, "No graphics card was found."),
        (
            snapshot(vec![card(1)]),
            Sign::Sharing,
            "Sharing: your card waits for a job.",
        ),
        (
            snapshot(vec![with_job(1, LeasePhase::Running)]),
            Sign::Earning,
            "Earning on your card.",
        ),
        (
            snapshot(vec![with_job(1, LeasePhase::Running), card(2)]),
            Sign::Earning,
            "Earning on 1 of 2 cards.",
        ),
        (
            snapshot(vec![with_job(1, LeasePhase::Fetching)]),
            Sign::Earning,
            "Preparing a job.",
        ),
        (
            snapshot(vec![with_job(1, LeasePhase::Frozen)]),
            Sign::Paused,
            "Giving the card back to you.",
        ),
        (
            snapshot(vec![held(vec![hot])]),
            Sign::Paused,
            "Not sharing: your card is held.",
        ),
        (
            snapshot(vec![held(vec![HoldReason::Starting])]),
            Sign::Paused,
            "The agent is starting and cleans up first.",
        ),
        (paused(None), Sign::Paused, "Paused until you share again."),
        (paused(Some(NOON.plus(AN_HOUR))), Sign::Paused, "Paused until 1:00 PM."),
        (
            paused(Some(NOON.plus(Millis::from_secs(18 * 3600)))),
            Sign::Paused,
            "Paused until Wed 6:00 AM.",
        ),
        (
            with_market(MarketLink::NotConfigured),
            Sign::Attention,
            "Not sharing: no exchange is set.",
        ),
        (
            with_market(connecting(None)),
            Sign::Paused,
            "Not sharing yet: looking for the exchange.",
        ),
        (
            with_market(connecting(Some("refused"))),
            Sign::Attention,
            "Not sharing: the exchange does not answer.",
        ),
    ] {
        let mut controller = controller();
        controller.step(at(0), started(true, true));
        let effects = controller.step(at(0), told(given));
        let tray = tray_of(&effects).expect("it is shown");
        assert_eq!((tray.sign, tray.state.as_str()), (sign, sentence));
    }
}

#[test]
fn share_pauses_what_is_shared_and_shares_what_is_paused() {
    let mut controller = that_heard(snapshot(vec![card(1)]));
    let effects = controller.step(at(1), Event::Chose(Choice::Share));
    // Shown again although nothing changed: the system has toggled the check by itself.
    assert!(tray_of(&effects).expect("shown").sharing);
    assert_eq!(deeds_of(effects), [Effect::Tell(Command::Pause { for_ms: None })]);
    let paused = Some(Pause {
        since_utc_ms: NOON,
        until_utc_ms: None,
    });
    let event = Box::new(local::Event::Pause { pause: paused });
    let effects = controller.step(at(2), Event::Heard(event));
    assert!(!tray_of(&effects).expect("shown").sharing);
    let effects = controller.step(at(3), Event::Chose(Choice::Share));
    assert_eq!(deeds_of(effects), [Effect::Tell(Command::Resume)]);
}

#[test]
fn pauses_from_the_tray_end_after_an_hour_or_at_six_tomorrow() {
    let mut controller = that_heard(snapshot(vec![card(1)]));
    for (choice, hours) in [(Choice::PauseHour, 1), (Choice::PauseTomorrow, 18)] {
        let for_ms = Some(Millis::from_secs(hours * 3600));
        assert_eq!(
            deeds_of(controller.step(at(0), Event::Chose(choice))),
            [Effect::Tell(Command::Pause { for_ms })]
        );
    }
}

#[test]
fn the_tray_is_drawn_only_when_something_changed() {
    let mut controller = that_heard(snapshot(vec![card(1)]));
    assert_eq!(controller.step(at(1), told(snapshot(vec![card(1)]))), []);
    let card = local::Event::Card(Box::new(with_job(1, LeasePhase::Running)));
    let effects = controller.step(at(2), Event::Heard(Box::new(card)));
    assert_eq!(tray_of(&effects).expect("shown").sign, Sign::Earning);
    let earned = Earned {
        today_net: Micros(1_850_000),
        ..Earned::default()
    };
    let effects = controller.step(at(3), Event::Heard(Box::new(local::Event::Earned(earned))));
    assert_eq!(tray_of(&effects).expect("shown").earned, "Earned today: $1.85 net");
}

#[test]
fn money_of_a_lab_says_so() {
    let lab = Snapshot {
        lab: true,
        ..snapshot(vec![card(1)])
    };
    let mut controller = controller();
    controller.step(at(0), started(true, true));
    let effects = controller.step(at(0), told(lab));
    assert_eq!(
        tray_of(&effects).expect("shown").earned,
        "Earned today: $1.84 net (LAB)"
    );
}

#[test]
fn the_window_opens_at_a_start_unless_it_is_hidden_and_there_is_a_tray() {
    for (hidden, tray, opens) in [
        (false, true, true),
        (true, true, false),
        (true, false, true),
        (false, false, true),
    ] {
        let effects = controller().step(at(0), started(hidden, tray));
        assert_eq!(effects.contains(&Effect::OpenWindow), opens, "{hidden} {tray}");
    }
    let mut controller = that_heard(snapshot(vec![card(1)]));
    assert_eq!(controller.step(at(1), Event::WindowWanted), [Effect::OpenWindow]);
}

#[test]
fn closing_the_window_keeps_the_tray_and_ends_only_what_has_none() {
    let mut with_tray = that_heard(snapshot(vec![card(1)]));
    assert_eq!(with_tray.step(at(1), Event::WindowClosed), []);
    let mut without = controller();
    without.step(at(0), started(false, false));
    assert_eq!(without.step(at(1), Event::WindowClosed), [Effect::Leave]);
}

#[test]
fn a_tray_that_comes_or_goes_later_is_counted_with() {
    let mut controller = controller();
    controller.step(at(0), started(false, false));
    assert!(tray_of(&controller.step(at(0), told(snapshot(vec![card(1)])))).is_none());
    let effects = controller.step(at(1), Event::Tray { there: true });
    assert_eq!(tray_of(&effects).expect("shown").sign, Sign::Sharing);
    assert_eq!(controller.step(at(2), Event::WindowClosed), []);
    assert_eq!(
        controller.step(at(3), Event::Tray { there: false }),
        [],
        "it goes on unseen"
    );
    controller.step(at(4), Event::WindowWanted);
    assert_eq!(controller.step(at(5), Event::WindowClosed), [Effect::Leave]);
}

#[test]
fn a_window_that_cannot_be_had_is_told_of() {
    for (tray, leaves) in [(true, false), (false, true)] {
        let mut controller = controller();
        controller.step(at(0), started(false, tray));
        let effects = controller.step(at(1), Event::NoWindow("it is not there".to_owned()));
        let [notice] = notices_of(&effects)[..] else {
            panic!("{effects:?}");
        };
        assert!(notice.body.contains("it is not there"), "{notice:?}");
        assert_eq!(effects.contains(&Effect::Leave), leaves);
    }
}

#[test]
fn an_agent_that_was_never_there_is_asked_for_and_one_that_left_stays_away() {
    let mut controller = controller();
    controller.step(at(0), started(true, true));
    let effects = controller.step(at(0), gone());
    assert_eq!(tray_of(&effects).expect("shown").state, "The agent is not running.");
    assert_eq!(deeds_of(effects), [Effect::AskSupervisor]);
    assert_eq!(controller.step(at(1), gone()), []);

    let mut controller = that_heard(snapshot(vec![card(1)]));
    let effects = controller.step(at(1), gone());
    assert_eq!(tray_of(&effects).expect("shown").sign, Sign::Attention);
    assert_eq!(deeds_of(effects), [], "somebody stopped it");
    // Whoever opens the window or wants to share wants it back.
    assert_eq!(
        controller.step(at(2), Event::Chose(Choice::Share)).first(),
        Some(&Effect::AskSupervisor)
    );
    let opened = controller.step(at(3), Event::Chose(Choice::Open));
    assert_eq!(deeds_of(opened), [Effect::OpenWindow], "it was asked for a second ago");
    let opened = controller.step(at(20), Event::Chose(Choice::Open));
    assert_eq!(deeds_of(opened), [Effect::OpenWindow, Effect::AskSupervisor]);
}

#[test]
fn quit_ends_the_agent_and_leaves_when_it_is_gone() {
    let mut controller = that_heard(snapshot(vec![with_job(1, LeasePhase::Running)]));
    let effects = controller.step(at(1), Event::Chose(Choice::Quit));
    let tray = tray_of(&effects).expect("it says so");
    assert_eq!(tray.state, "The agent is stopping.");
    assert!(!tray.can_share && !tray.can_pause);
    assert_eq!(
        deeds_of(effects),
        [Effect::Tell(Command::Quit), Effect::Wake(QUIT_PATIENCE)]
    );
    let done = Event::CommandAnswered {
        command: Command::Quit,
        answer: Ok(CommandReply::Done),
    };
    assert_eq!(controller.step(at(1), done), []);
    assert_eq!(deeds_of(controller.step(at(5), gone())), [Effect::Leave]);
}

#[test]
fn quit_without_an_agent_leaves_at_once_and_a_second_quit_does_not_wait() {
    let mut controller = controller();
    controller.step(at(0), started(true, true));
    controller.step(at(0), gone());
    assert_eq!(
        deeds_of(controller.step(at(1), Event::Chose(Choice::Quit))),
        [Effect::Leave]
    );

    let mut controller = that_heard(snapshot(vec![card(1)]));
    controller.step(at(1), Event::Chose(Choice::Quit));
    assert_eq!(
        deeds_of(controller.step(at(2), Event::Chose(Choice::Quit))),
        [Effect::Leave]
    );
}

#[test]
fn an_agent_that_cannot_be_stopped_is_told_of_and_the_tray_stays() {
    let refused = || Event::CommandAnswered {
        command: Command::Quit,
        answer: Ok(CommandReply::Refused {
            message: "a backup runs".to_owned(),
        }),
    };
    let late = || Event::Woken;
    for (why, event) in [("a backup runs", refused()), ("is stopping", late())] {
        let mut controller = that_heard(snapshot(vec![card(1)]));
        controller.step(at(1), Event::Chose(Choice::Quit));
        let effects = controller.step(at(1 + QUIT_PATIENCE.0 / 1000), event);
        let [notice] = notices_of(&effects)[..] else {
            panic!("{effects:?}");
        };
        assert!(notice.urgent && notice.body.contains(why), "{notice:?}");
        assert!(notice.body.contains("sela pause"), "{notice:?}");
        assert!(!effects.contains(&Effect::Leave));
        assert_eq!(tray_of(&effects).expect("shown").sign, Sign::Sharing, "it goes on");
        let effects = controller.step(at(200), Event::Chose(Choice::Quit));
        assert_eq!(deeds_of(effects), [Effect::Leave]);
    }
}

#[test]
fn another_version_of_the_agent_is_shown_and_not_guessed_at() {
    let other = Snapshot {
        protocol: LOCAL_PROTOCOL + 1,
        agent_version: "9.0.0".to_owned(),
        ..snapshot(vec![card(1)])
    };
    let mut controller = controller();
    controller.step(at(0), started(true, true));
    let effects = controller.step(at(0), told(other));
    let tray = tray_of(&effects).expect("shown");
    assert_eq!(tray.state, "The window and the agent are of different versions.");
    assert!(!tray.can_share && !tray.can_pause && !tray.sharing);
    let [notice] = notices_of(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert!(notice.body.contains("(9.0.0) is newer"), "{notice:?}");
    // It may still be told to end.
    let effects = controller.step(at(1), Event::Chose(Choice::Quit));
    assert!(effects.contains(&Effect::Tell(Command::Quit)));
}

#[test]
fn start_at_login_follows_what_is_really_there() {
    let mut controller = that_heard(snapshot(vec![card(1)]));
    let effects = controller.step(at(1), Event::Chose(Choice::StartAtLogin));
    assert_eq!(tray_of(&effects).expect("shown").at_login, Some(false));
    assert_eq!(deeds_of(effects), [Effect::SetAtLogin(true)]);
    let effects = controller.step(at(1), Event::AtLogin(Some(true)));
    assert_eq!(tray_of(&effects).expect("shown").at_login, Some(true));
    let effects = controller.step(at(2), Event::Chose(Choice::StartAtLogin));
    assert_eq!(deeds_of(effects), [Effect::SetAtLogin(false)]);
}
