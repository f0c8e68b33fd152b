//! When there is a notification, what it says, and when there is none.

use super::*;

#[test]
fn the_first_job_is_told_of_once() {
    let first = |phase| Snapshot {
        earned: Earned::default(),
        ..snapshot(vec![with_job(1, phase)])
    };
    let mut controller = controller();
    controller.step(at(0), started(true, true));
    assert!(notices_of(&controller.step(at(0), told(first(LeasePhase::Fetching)))).is_empty());
    let effects = controller.step(at(1), told(first(LeasePhase::Running)));
    let [notice] = notices_of(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(notice.title, "Your first job is running");
    assert!(
        notice.body.starts_with("RTX 3090 (SIMULATED) earns $0.31 an hour."),
        "{notice:?}"
    );
    assert!(notices_of(&controller.step(at(2), told(first(LeasePhase::Running)))).is_empty());
    // Who has earned before knows.
    let effects =
        that_heard(snapshot(vec![card(1)])).step(at(1), told(snapshot(vec![with_job(1, LeasePhase::Running)])));
    assert!(notices_of(&effects).is_empty());
}

#[test]
fn a_card_that_became_too_hot_is_told_of_once_an_hour() {
    let yielded = |cause| {
        Event::Heard(Box::new(local::Event::Yielded(YieldMeasure {
            at_utc_ms: NOON,
            gpu: uuid(1),
            cause,
            frozen_ms: None,
            quiet_ms: None,
            vram_free_ms: None,
        })))
    };
    let mut controller = that_heard(snapshot(vec![card(1)]));
    assert!(notices_of(&controller.step(at(1), yielded(EndCause::OwnerInput))).is_empty());
    let effects = controller.step(at(2), yielded(EndCause::Hot));
    let [notice] = notices_of(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert!(
        notice.body.contains("RTX 3090 (SIMULATED)") && notice.body.contains("75\u{202f}°C"),
        "{notice:?}"
    );
    assert!(notices_of(&controller.step(at(600), yielded(EndCause::Hot))).is_empty());
    assert_eq!(notices_of(&controller.step(at(3602), yielded(EndCause::Hot))).len(), 1);
}

#[test]
fn what_only_the_owner_can_mend_is_told_of_once_until_it_is_mended() {
    let refused = || Snapshot {
        market: MarketLink::Refused {
            url: "https://exchange.example".to_owned(),
            message: "ask for an invitation".to_owned(),
        },
        ..snapshot(vec![card(1)])
    };
    let mut controller = that_heard(snapshot(vec![card(1)]));
    let effects = controller.step(at(1), told(refused()));
    let [notice] = notices_of(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(
        notice.body,
        "The exchange at https://exchange.example says: ask for an invitation"
    );
    assert!(notices_of(&controller.step(at(2), told(refused()))).is_empty());
    assert!(notices_of(&controller.step(at(3), told(snapshot(vec![card(1)])))).is_empty());
    assert_eq!(notices_of(&controller.step(at(4), told(refused()))).len(), 1);
}

#[test]
fn an_agent_is_missed_only_after_half_a_minute() {
    let mut controller = that_heard(snapshot(vec![card(1)]));
    for seconds in [1, 10, 30] {
        assert!(
            notices_of(&controller.step(at(seconds), gone())).is_empty(),
            "{seconds}"
        );
    }
    controller.step(
        at(30),
        Event::SupervisorAnswered(Answer::Cannot {
            why: "it does not start".to_owned(),
            remedy: Remedy::StartUnit,
        }),
    );
    let effects = controller.step(at(31), gone());
    let [notice] = notices_of(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert!(
        notice.body.ends_with("systemctl --user start sela-agent.service"),
        "{notice:?}"
    );
    assert!(notices_of(&controller.step(at(60), gone())).is_empty());
    assert!(notices_of(&controller.step(at(61), told(snapshot(vec![card(1)])))).is_empty());
    assert!(notices_of(&controller.step(at(62), gone())).is_empty());
}

#[test]
fn a_command_that_was_not_done_is_said() {
    let mut controller = that_heard(snapshot(vec![card(1)]));
    let answer = Err(Trouble {
        kind: Kind::Broken,
        message: "the answer was cut off".to_owned(),
    });
    let command = Command::Resume;
    let effects = controller.step(at(1), Event::CommandAnswered { command, answer });
    let [notice] = notices_of(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(notice.body, "That was not done: the answer was cut off");
}
