//! Published states in, stretches out: through the recorder and the real store, read as a client reads them.

use super::*;
use crate::store::Store;
use sela_protocol::card::Reading;
use sela_protocol::id::{IdSource, JobId};
use sela_protocol::lease::{EndCause, LeasePhase};
use sela_protocol::local::{LeaseState, ThermalLimits, YieldMeasure};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::units::{Bytes, Celsius};

fn description(gpu: &str) -> CardDescription {
    CardDescription {
        uuid: GpuUuid(gpu.into()),
        name: "SIMULATED card".into(),
        index: 0,
        simulated: true,
        vram_total: Bytes::from_gib(24),
        driver_version: "1".into(),
        power_limits: Reading::NotSupported,
    }
}

fn card(gpu: &str, reasons: &[HoldReason], lease: Option<(LeaseId, JobId)>) -> Event {
    Event::Card(Box::new(CardState {
        description: description(gpu),
        reading: None,
        floor: HourlyPrice(Micros(1)),
        limits: ThermalLimits {
            core_hard: Celsius(90),
            resume_below: Celsius(70),
        },
        availability: match reasons {
            [] => Availability::OPEN,
            reasons => Availability::Held {
                reasons: reasons.to_vec(),
            },
        },
        lease: lease.map(|(lease, job)| LeaseState {
            lease,
            job,
            name: Some("a job".into()),
            phase: LeasePhase::Running,
            price: HourlyPrice(Micros(200_000)),
            thawed_ms: Millis(0),
            gross: Micros(0),
            network: None,
            transfer: None,
            wiped: None,
        }),
        last_yield: None,
    }))
}

fn input(idle: u64) -> HoldReason {
    HoldReason::InputRecent {
        idle_ms: Millis(idle),
        needed_ms: Millis(300_000),
        source: "X11".into(),
    }
}

fn rest() -> HoldReason {
    HoldReason::CoolOff {
        remaining_ms: Millis(9_000),
    }
}

enum Step {
    Publish(Event),
    Live,
    Present(Vec<CardDescription>),
    Leave,
}

/// What the store tells at `asked` after these moments: each stretch as card, first moment, end, and what it was.
async fn told(steps: Vec<(i64, Step)>, asked: i64) -> Vec<(String, i64, i64, String)> {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _, _) = Store::open(folder.path(), None, || UtcMs(0)).expect("opens");
    let mut recorder = StripRecorder::default();
    for (at, step) in steps {
        store.strip(match step {
            Step::Publish(event) => recorder.published(UtcMs(at), &event),
            Step::Live => recorder.lived(UtcMs(at)),
            Step::Present(cards) => recorder.present(UtcMs(at), &cards),
            Step::Leave => recorder.left(UtcMs(at)),
        });
    }
    let reader = store.reader().expect("open");
    let record = reader
        .strip(UtcMs(0), UtcMs(i64::MAX), UtcMs(asked))
        .await
        .expect("reads");
    let show = |stretch: Stretch| {
        let word = match (&stretch.sold, &stretch.held) {
            (Some(sold), None) => sold.lease.to_string(),
            (None, Some(held)) => format!("{held:?}")
                .split([' ', '{'])
                .next()
                .unwrap_or_default()
                .to_owned(),
            (None, None) => "offered".to_owned(),
            (Some(_), Some(_)) => "sold and held".to_owned(),
        };
        (stretch.gpu.0, stretch.from_utc_ms.0, stretch.to_utc_ms.0, word)
    };
    record.stretches.into_iter().map(show).collect()
}

#[tokio::test]
async fn a_stretch_ends_where_the_kind_of_the_first_reason_or_the_lease_changes_and_nowhere_else() {
    let mut ids = IdSource::new(UtcMs(1), [7; 32]);
    let first: (LeaseId, JobId) = (ids.draw(), ids.draw());
    let second: (LeaseId, JobId) = (ids.draw(), ids.draw());
    let published = [
        (1_000, card("A", &[HoldReason::Starting], None)),
        (2_000, card("A", &[input(5), rest()], None)),
        (3_000, card("A", &[input(6)], None)),
        (4_000, card("B", &[], None)),
        (5_000, card("A", &[rest(), input(7)], None)),
        (6_000, card("A", &[], None)),
        (7_000, card("A", &[], Some(first))),
        (8_000, card("A", &[input(0)], Some(first))),
        (9_000, card("A", &[], Some(second))),
        (10_000, card("A", &[rest()], None)),
    ];
    let steps = published.map(|(at, event)| (at, Step::Publish(event)));
    let expected = [
        ("A", 1_000, 2_000, "Starting".to_owned()),
        ("A", 2_000, 5_000, "InputRecent".to_owned()),
        ("B", 4_000, 11_000, "offered".to_owned()),
        ("A", 5_000, 6_000, "CoolOff".to_owned()),
        ("A", 6_000, 7_000, "offered".to_owned()),
        ("A", 7_000, 9_000, first.0.to_string()),
        ("A", 9_000, 10_000, second.0.to_string()),
        ("A", 10_000, 11_000, "CoolOff".to_owned()),
    ];
    let expected = expected.map(|(gpu, from, to, word)| (gpu.to_owned(), from, to, word));
    assert_eq!(told(steps.into(), 11_000).await, expected);
}

#[tokio::test]
async fn nothing_is_claimed_of_time_in_which_nobody_lived_or_no_card_was_there() {
    let offered = || Step::Publish(card("A", &[], None));
    let asleep = || Step::Publish(card("A", &[HoldReason::Asleep], None));
    let hour = 3_600_000;
    for (steps, expected) in [
        // It slept without saying so.
        (
            vec![(0, offered()), (60_000, Step::Live), (hour, Step::Live)],
            vec![(0, 60_000, "offered"), (hour, hour + 1, "offered")],
        ),
        // It said so.
        (vec![(0, asleep()), (hour, Step::Live)], vec![(0, hour + 1, "Asleep")]),
        // The clock was set back.
        (
            vec![(hour, offered()), (hour + 9, Step::Live), (hour - 9, Step::Live)],
            vec![(hour - 9, hour, "offered"), (hour, hour + 9, "offered")],
        ),
        // The card was taken out.
        (
            vec![(0, offered()), (70, Step::Present(vec![description("B")]))],
            vec![(0, 70, "offered")],
        ),
        (
            vec![(0, offered()), (70, Step::Present(vec![description("A")]))],
            vec![(0, hour + 1, "offered")],
        ),
        // The agent left.
        (vec![(0, offered()), (80, Step::Leave)], vec![(0, 80, "offered")]),
    ] {
        let found = told(steps, hour + 1).await;
        let found: Vec<_> = found
            .iter()
            .map(|(_, from, to, word)| (*from, *to, word.as_str()))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn an_idle_agent_keeps_one_entry_a_minute_and_none_without_cards() {
    let mut recorder = StripRecorder::default();
    assert_eq!(recorder.lived(UtcMs(0)), []);
    assert_eq!(recorder.published(UtcMs(0), &card("A", &[], None)).len(), 1);
    let kept: Vec<StripEntry> = (0..600)
        .flat_map(|second| recorder.lived(UtcMs(second * 1_000)))
        .collect();
    assert_eq!(kept.len(), 10, "{kept:?}");
    assert_eq!(recorder.published(UtcMs(600_000), &card("A", &[], None)), []);
}

#[test]
fn each_yield_is_kept() {
    let measure = YieldMeasure {
        at_utc_ms: UtcMs(5),
        gpu: GpuUuid("A".into()),
        cause: EndCause::OwnerInput,
        frozen_ms: Some(Millis(3)),
        quiet_ms: None,
        vram_free_ms: None,
    };
    let entries = StripRecorder::default().published(UtcMs(9), &Event::Yielded(measure.clone()));
    assert_eq!(entries, [StripEntry::Yielded(measure)]);
}
