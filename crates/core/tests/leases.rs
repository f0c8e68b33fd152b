//! Awards, restarts, reconnects, pauses and the promise that no sequence of inputs breaks what `State` promises.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks for one kind of effect among all"
)]

mod world;

use proptest::prelude::*;
use sela_core::{Effect, Input, LeaseEvent, MarketInput, OpenLease, Policy, RecoveredLease, State};
use sela_protocol::id::{GpuUuid, IdSource, LeaseId};
use sela_protocol::lease::{EndCause, FencingToken, Receipt};
use sela_protocol::local::{Command, IsolationState, MarketLink};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::node::Isolation;
use sela_protocol::presence::ForeignUse;
use sela_protocol::units::{BootMs, Bytes, Millis, Now, Percent, UtcMs};
use world::{GPU, World};

fn rejection(prepare: impl FnOnce(&mut World), price: i64) -> String {
    let mut world = World::new();
    prepare(&mut world);
    world.drain();
    world.award(price);
    let done = world.drain();
    assert_eq!(done.len(), 1, "a refused award does nothing else: {done:?}");
    done[0].clone()
}

#[test]
fn an_award_is_written_down_before_it_is_accepted() {
    let mut world = World::new();
    world.drain();
    world.award(500_000);
    assert_eq!(
        world.drain(),
        [
            "record accepted",
            "say accept",
            "fetch",
            "say offer false",
            "attention true"
        ]
    );
}

#[test]
fn an_award_that_cannot_be_taken_is_refused_with_its_reason() {
    let held = rejection(|world| world.touch(), 500_000);
    assert_eq!(
        held, "say reject: the owner holds the card",
        "the market does not learn what the owner does"
    );
    let busy = rejection(
        |world| {
            world.award(1);
        },
        500_000,
    );
    assert_eq!(busy, "say reject: the card has a job");
    let floor = rejection(
        |world| {
            let mut policy = Policy {
                job_memory: Bytes::from_gib(8),
                ..Policy::default()
            };
            policy.rest.floor = HourlyPrice(Micros(500_001));
            world.input(Input::Policy(policy));
        },
        500_000,
    );
    assert!(floor.contains("below the owner's floor 0.500001"), "{floor}");
    let memory = rejection(
        |world| {
            world.input(Input::Policy(Policy {
                job_memory: Bytes::from_gib(1),
                ..Policy::default()
            }));
        },
        500_000,
    );
    assert!(
        memory.contains("2048 MiB of memory; this machine lends 1024"),
        "{memory}"
    );
}

#[test]
fn nothing_is_offered_before_the_sweep_is_done() {
    let now = Now {
        boot_ms: BootMs(1),
        utc_ms: UtcMs(1),
    };
    let mut state = State::new(Policy::default(), now);
    let effects = state.step(now, Input::Tick);
    assert_eq!(effects, Vec::new());
}

#[test]
fn a_lease_that_was_open_when_the_agent_died_is_closed_once_with_what_the_keeper_wrote() {
    let mut world = World::new();
    let mut ids = IdSource::new(UtcMs(5), [9; 32]);
    let lease: LeaseId = ids.draw();
    let node = ids.draw();
    let recovered = RecoveredLease {
        lease: OpenLease {
            lease,
            node,
            fencing: FencingToken(3),
            job: ids.draw(),
            name: None,
            gpu: GpuUuid(GPU.into()),
            price: HourlyPrice(Micros(1)),
            accepted_utc_ms: UtcMs(5),
            lab: true,
        },
        thawed_ms: Millis(4_321),
        frozen_ms: Millis(7),
        cause: EndCause::GrantExpired,
    };
    let now = world.now;
    let mut state = State::new(Policy::default(), now);
    let started = Input::Started {
        lab: true,
        isolation: IsolationState::Ready {
            level: Isolation::LabCgroupV1,
        },
        scratch: sela_protocol::node::Scratch::EncryptedDisk,
        pause: None,
        open: vec![recovered],
        unsettled: Vec::new(),
    };
    std::mem::swap(&mut world.state, &mut state);
    world.drain();
    world.input(started);
    assert_eq!(
        world.drain(),
        ["record note 4321 7 closing GrantExpired", "record closed GrantExpired"]
    );
    let session = |node| Input::Market(MarketInput::Session { node, resumed: false });
    world.input(session(node));
    let reported = [
        "say capability",
        "say meter 4321",
        "say result GrantExpired output false",
    ];
    assert_eq!(world.drain(), reported);
    world.input(session(node));
    assert_eq!(
        world.drain(),
        reported,
        "until it is receipted it is said again in each new session"
    );
    let receipt = Receipt {
        receipt: ids.draw(),
        lease,
        job: ids.draw(),
        node: ids.draw(),
        gpu: GpuUuid(GPU.into()),
        owner: ids.draw(),
        price: HourlyPrice(Micros(1)),
        billed_ms: Millis(4_321),
        gross: Micros(0),
        fee: Micros(0),
        net: Micros(0),
        closed: Some(EndCause::GrantExpired),
        issued_utc_ms: UtcMs(6),
        lab: true,
    };
    let receipt = || Input::Market(MarketInput::Receipt(Box::new(receipt.clone())));
    world.input(session(ids.draw()));
    assert_eq!(
        world.drain(),
        ["say capability"],
        "another exchange hears nothing of it"
    );
    world.input(receipt());
    assert_eq!(world.drain(), [""; 0], "and settles nothing of it");
    world.input(session(node));
    world.drain();
    world.input(receipt());
    assert_eq!(world.drain(), ["record settled"]);
    world.input(session(node));
    assert_eq!(world.drain(), ["say capability"]);
}

#[test]
fn a_pause_for_an_hour_ends_by_itself_and_survives_in_the_store() {
    let mut world = World::new();
    world.drain();
    let pause = Command::Pause {
        for_ms: Some(Millis(3_600_000)),
    };
    world.input(Input::Command {
        request: 1,
        command: pause,
    });
    assert_eq!(world.drain(), ["record pause", "reply Done", "say offer false"]);
    world.pass(3_599_999);
    assert_eq!(world.drain(), Vec::<String>::new());
    world.pass(1);
    assert_eq!(world.drain(), ["record pause", "say offer true"]);
}

#[test]
fn in_a_new_session_an_open_lease_is_told_whole() {
    let mut world = World::new();
    world.running();
    world.drain();
    let node = world.node;
    world.input(Input::Market(MarketInput::Session { node, resumed: false }));
    assert_eq!(
        world.drain(),
        [
            "say capability",
            "say accept",
            "say Running",
            "say meter 0",
            "say offer false"
        ]
    );
    let node = world.node;
    world.input(Input::Market(MarketInput::Session { node, resumed: true }));
    assert_eq!(
        world.drain(),
        Vec::<String>::new(),
        "a resumed session has lost nothing"
    );
}

#[test]
fn a_refused_message_ends_no_job() {
    let mut world = World::new();
    let lease = world.running();
    world.drain();
    let refused = MarketInput::Refused {
        lease: Some(lease),
        message: "the checkpoint was not stored".into(),
    };
    world.input(Input::Market(refused));
    assert_eq!(world.drain(), Vec::<String>::new());
    world.input(Input::Market(MarketInput::Renew {
        beat: 1,
        end: vec![lease],
    }));
    assert_eq!(
        world.drain()[0],
        "end LeaseExpired",
        "what the exchange does not count as ours any more ends"
    );
}

#[test]
fn a_job_whose_output_cannot_be_stored_is_not_done_and_is_billed_on_the_account_of_whose_fault_it_is() {
    let faults = [
        EndCause::NodeFault {
            message: "the exchange takes nothing".into(),
        },
        EndCause::JobFault {
            message: "/out holds more than it may".into(),
        },
    ];
    for fault in faults {
        let mut world = World::new();
        let lease = world.running();
        let exited = EndCause::Exited { code: 0 };
        world.event(
            lease,
            LeaseEvent::Ended {
                cause: exited,
                thawed_ms: Millis(9),
                frozen_ms: Millis(0),
            },
        );
        world.card_use(lease, 0, 0);
        world.drain();
        world.event(
            lease,
            LeaseEvent::Uploaded {
                output: None,
                problem: Some(fault.clone()),
            },
        );
        let expected = [
            format!("record closed {fault:?}"),
            format!("record note 9 0 closing {fault:?}"),
            "say meter 9".to_owned(),
            format!("say result {fault:?} output false"),
        ];
        assert_eq!(world.drain(), expected);
    }
}

#[test]
fn quitting_ends_the_job_first() {
    let mut world = World::new();
    let lease = world.running();
    world.drain();
    world.input(Input::Command {
        request: 1,
        command: Command::Quit,
    });
    let done = world.drain();
    assert_eq!(done[0], "end Shutdown");
    assert!(!done.contains(&"exit".to_owned()));
    world.event(
        lease,
        LeaseEvent::Ended {
            cause: EndCause::Shutdown,
            thawed_ms: Millis(9),
            frozen_ms: Millis(0),
        },
    );
    world.card_use(lease, 0, 0);
    world.drain();
    world.event(
        lease,
        LeaseEvent::Uploaded {
            output: None,
            problem: None,
        },
    );
    assert!(world.drain().contains(&"exit".to_owned()));
}

#[test]
fn quitting_waits_for_results_while_the_exchange_is_there_and_seconds_while_it_is_away() {
    let mut world = World::new();
    let lease = world.running();
    let ended = LeaseEvent::Ended {
        cause: EndCause::Exited { code: 0 },
        thawed_ms: Millis(4_321),
        frozen_ms: Millis(0),
    };
    world.event(lease, ended);
    world.card_use(lease, 0, 0);
    world.input(Input::Shutdown);
    world.drain();
    world.pass(60_000);
    assert_eq!(world.drain(), [""; 0], "they are on their way");
    let away = MarketLink::Connecting {
        url: "ws://127.0.0.1:7350".into(),
        last_error: None,
    };
    world.input(Input::Market(MarketInput::Link(away)));
    world.pass(4_999);
    assert_eq!(world.drain(), [""; 0]);
    world.pass(1);
    let done = world.drain();
    assert!(
        done[0].starts_with("record closed NodeFault") && done[1].starts_with("record note 4321 0 closing NodeFault"),
        "the account is written: {done:?}"
    );
    assert_eq!(done.last().map(String::as_str), Some("exit"));
}

#[test]
fn a_job_that_ended_by_itself_is_closed_only_when_what_it_made_is_stored() {
    let mut world = World::new();
    let lease = world.running();
    world.drain();
    world.event(
        lease,
        LeaseEvent::Ended {
            cause: EndCause::Exited { code: 0 },
            thawed_ms: Millis(4_321),
            frozen_ms: Millis(0),
        },
    );
    world.card_use(lease, 0, 0);
    let done = world.drain();
    assert!(!done.iter().any(|word| word.contains("closed")), "{done:?}");
    let output = Some(sela_protocol::blob::BlobId::of(b"output"));
    world.event(lease, LeaseEvent::Uploaded { output, problem: None });
    assert_eq!(
        world.drain(),
        [
            "record closed Exited { code: 0 }",
            "record note 4321 0 closing Exited { code: 0 }",
            "say meter 4321",
            "say result Exited { code: 0 } output true",
        ]
    );
    let last_word = world.effects.iter().rev().find_map(|effect| match effect {
        Effect::SendMeter(note) => Some((note.closing.clone(), note.output)),
        _ => None,
    });
    assert_eq!(
        last_word,
        Some((Some(EndCause::Exited { code: 0 }), output)),
        "the signed note alone says what the job made"
    );
}

#[test]
fn a_checkpoint_that_is_stored_after_the_job_is_gone_is_still_told() {
    let mut world = World::new();
    let lease = world.running();
    world.event(
        lease,
        LeaseEvent::Ended {
            cause: EndCause::OwnerInput,
            thawed_ms: Millis(9),
            frozen_ms: Millis(0),
        },
    );
    world.card_use(lease, 0, 0);
    world.drain();
    let blob = sela_protocol::blob::BlobId::of(b"saved");
    let thawed_ms = Millis(9);
    world.event(lease, LeaseEvent::CheckpointStored { blob, thawed_ms });
    let done = world.drain();
    assert!(
        done.iter().any(|done| done.to_lowercase().contains("checkpoint")),
        "{done:?}"
    );
}

/// One random thing that happens.
#[derive(Debug, Clone)]
enum Happening {
    Pass(u64),
    Touch,
    Award,
    Event(u8),
    Use(u8, u8),
    Game(bool),
    Temperature(i32),
    Command(u8),
    Session(bool),
    Deaf(bool),
    Jump(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (1_u64..20_000).prop_map(Happening::Pass),
        Just(Happening::Touch),
        Just(Happening::Award),
        (0_u8..9).prop_map(Happening::Event),
        (0_u8..2, 0_u8..2).prop_map(|(busy, memory)| Happening::Use(busy, memory)),
        any::<bool>().prop_map(Happening::Game),
        prop_oneof![Just(50), Just(90), Just(511)].prop_map(Happening::Temperature),
        (0_u8..3).prop_map(Happening::Command),
        any::<bool>().prop_map(Happening::Session),
        any::<bool>().prop_map(Happening::Deaf),
        (1_u64..200_000).prop_map(Happening::Jump),
    ]
}

fn happen(world: &mut World, lease: &mut Option<LeaseId>, what: &Happening) {
    match what {
        Happening::Pass(span) => world.pass(*span),
        Happening::Touch => world.touch(),
        Happening::Award => *lease = Some(world.award(500_000)),
        Happening::Event(kind) => {
            if let Some(lease) = *lease {
                world.event(lease, event(*kind));
            }
        }
        Happening::Use(busy, memory) => {
            if let Some(lease) = *lease {
                world.card_use(lease, busy * 50, u64::from(*memory) * 100);
            }
        }
        Happening::Game(there) => {
            world.foreign = if *there {
                vec![ForeignUse {
                    gpu: GpuUuid(GPU.into()),
                    pid: 1,
                    name: None,
                    vram_used: None,
                    utilisation: Some(Percent(99)),
                }]
            } else {
                Vec::new()
            };
            world.see();
        }
        Happening::Temperature(value) => world.temperature = *value,
        Happening::Command(kind) => {
            let command = match kind {
                0 => Command::Pause {
                    for_ms: Some(Millis(5_000)),
                },
                1 => Command::Resume,
                _ => Command::Pause { for_ms: None },
            };
            world.input(Input::Command { request: 0, command });
        }
        Happening::Session(resumed) => {
            let node = world.ids.clone().draw();
            world.input(Input::Market(MarketInput::Session {
                node,
                resumed: *resumed,
            }));
        }
        Happening::Deaf(deaf) => world.deaf = *deaf,
        Happening::Jump(span) => {
            world.jump(*span);
            world.input(Input::Tick);
        }
    }
}

fn event(kind: u8) -> LeaseEvent {
    match kind {
        0 => LeaseEvent::Fetched,
        1 | 2 => LeaseEvent::Started,
        3 => LeaseEvent::Frozen,
        4 => LeaseEvent::FreezeFailed,
        5 => LeaseEvent::Usage {
            thawed_ms: Millis(1_000),
            frozen_ms: Millis(10),
        },
        6 => LeaseEvent::Failed {
            cause: EndCause::NodeFault {
                message: "disk full".into(),
            },
        },
        7 => LeaseEvent::Ended {
            cause: EndCause::Exited { code: 0 },
            thawed_ms: Millis(2_000),
            frozen_ms: Millis(10),
        },
        _ => LeaseEvent::Uploaded {
            output: None,
            problem: None,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens: a held card is not offered, a job that must stop is told so within its bound, notes never go
    /// back, no lease is closed twice, and the same inputs give the same effects.
    #[test]
    fn no_sequence_of_inputs_breaks_a_promise(happenings in prop::collection::vec(happening(), 1..60)) {
        let (mut world, mut twin) = (World::new(), World::new());
        let (mut lease, mut twin_lease) = (None, None);
        for what in &happenings {
            happen(&mut world, &mut lease, what);
            happen(&mut twin, &mut twin_lease, what);
            check_offer(&mut world);
            check_stop(&mut world);
        }
        prop_assert_eq!(&world.effects, &twin.effects);
        check_notes(&world.effects);
    }
}

fn check_offer(world: &mut World) {
    let card = world.state.snapshot(world.now).cards[0].clone();
    let offered = world.effects.iter().rev().find_map(|effect| match effect {
        Effect::Send(sela_protocol::node::NodeMessage::Offer(offer)) => Some(offer.available),
        _ => None,
    });
    if card.lease.is_some() {
        assert_ne!(offered, Some(true), "a card with a lease is not offered");
    }
}

/// A card held for any reason but input and rest has no job that runs unmolested.
fn check_stop(world: &mut World) {
    use sela_protocol::lease::LeasePhase;
    use sela_protocol::presence::{Availability, HoldReason};
    let card = world.state.snapshot(world.now).cards[0].clone();
    let (Some(lease), Availability::Held { reasons }) = (card.lease, card.availability) else {
        return;
    };
    let must_end = reasons
        .iter()
        .any(|reason| !matches!(reason, HoldReason::InputRecent { .. } | HoldReason::CoolOff { .. }));
    assert!(
        !must_end || matches!(lease.phase, LeasePhase::Ending),
        "{:?} although held for {reasons:?}",
        lease.phase
    );
}

fn check_notes(effects: &[Effect]) {
    use sela_core::Record;
    let mut closed: Vec<LeaseId> = Vec::new();
    let mut thawed: std::collections::BTreeMap<LeaseId, Millis> = std::collections::BTreeMap::new();
    for effect in effects {
        match effect {
            Effect::Append(Record::Noted(note)) => {
                let before = thawed.insert(note.lease, note.thawed_ms).unwrap_or_default();
                assert!(note.thawed_ms >= before, "a note went back");
            }
            Effect::Append(Record::Closed(ended)) => {
                assert!(!closed.contains(&ended.note.lease), "closed twice");
                closed.push(ended.note.lease);
            }
            _ => {}
        }
    }
}
