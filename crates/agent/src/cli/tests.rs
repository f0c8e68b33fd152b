//! What can be said on the command line, and what cannot.

use super::*;
use clap::CommandFactory as _;

fn parse(words: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(words.split_whitespace())
}

#[test]
fn the_command_line_contradicts_itself_nowhere() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_of_the_design_is_understood() {
    let job = "job_0190a0b0-0000-7000-8000-000000000000";
    let lease = "lease_0190a0b0-0000-7000-8000-000000000000";
    for words in [
        "sela agent run",
        "sela agent run --lab --listen 127.0.0.1:7351",
        "sela status --json",
        "sela --json status",
        "sela why",
        "sela why 0",
        "sela pause",
        "sela pause --for 1h",
        "sela resume",
        "sela earnings",
        "sela earnings --csv",
        "sela jobs",
        &format!("sela end {lease}"),
        "sela doctor --json",
        "sela doctor sandbox --lab --json",
        "sela job submit job.json --exchange http://127.0.0.1:7350",
        "sela job --exchange http://127.0.0.1:7350 submit job.json",
        "sela job submit --image sha256:00 --cap 0.5 --budget 1 --wall-limit 10m --env A=1 -- run --fast",
        &format!("sela job watch {job}"),
        &format!("sela job logs -f {job}"),
        &format!("sela job cancel {job}"),
        &format!("sela job output {job} folder"),
        "sela job list",
        "sela images push image.tar",
        "sela account",
    ] {
        parse(words).unwrap_or_else(|error| panic!("{words}: {error}"));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_exit_code_two() {
    for words in [
        "sela nonsense",
        "sela pause --for soon",
        "sela end job_0190a0b0-0000-7000-8000-000000000000",
        "sela job watch 7",
        "sela job submit",
        "sela job submit job.json --image sha256:00 --cap 1 --budget 1 --wall-limit 1m",
        "sela job submit --image sha256:00",
        "sela job submit job.json --cap 1",
        "sela earnings --csv --json",
        "sela agent run --listen 7351",
    ] {
        let error = parse(words).expect_err(words);
        assert_eq!(error.exit_code(), 2, "{words}: {error}");
    }
}

#[test]
fn the_keeper_is_not_shown_to_people() {
    let help = Cli::command().render_long_help().to_string();
    assert!(!help.contains("job-keeper"), "{help}");
}

#[test]
fn the_first_line_of_status_is_a_sentence_that_says_what_is_so() {
    use sela_core::{Policy, State};
    use sela_protocol::card::{CardDescription, Reading};
    use sela_protocol::id::GpuUuid;
    use sela_protocol::local::{CardState, MarketLink, Pause, Snapshot};
    use sela_protocol::presence::{Availability, HoldReason};
    use sela_protocol::units::{Bytes, UtcMs};

    let now = sela_clock::now();
    let empty: Snapshot = State::new(Policy::default(), now).snapshot(now);
    let card = |index: u32, availability: Availability| {
        let mut state = State::new(Policy::default(), now);
        state.step(
            now,
            sela_core::Input::Cards(vec![CardDescription {
                uuid: GpuUuid(format!("GPU-{index}")),
                name: "SIMULATED RTX 3090".into(),
                index,
                simulated: true,
                vram_total: Bytes::from_gib(24),
                driver_version: "1".into(),
                power_limits: Reading::NotSupported,
            }]),
        );
        let card = state.snapshot(now).cards.remove(0);
        CardState { availability, ..card }
    };
    let held = || Availability::Held {
        reasons: vec![HoldReason::Starting],
    };
    let with = |cards: Vec<CardState>, market: MarketLink| Snapshot {
        cards,
        market,
        ..empty.clone()
    };
    let paused = Snapshot {
        pause: Some(Pause {
            since_utc_ms: UtcMs(0),
            until_utc_ms: None,
        }),
        ..with(vec![card(0, held())], MarketLink::NotConfigured)
    };
    let two = vec![card(0, held()), card(1, Availability::OPEN)];
    for (snapshot, begins) in [
        (empty.clone(), "No card was found"),
        (paused, "Paused: nothing is shared"),
        (
            with(vec![card(0, held())], MarketLink::NotConfigured),
            "Not sharing: the agent has just started",
        ),
        (
            with(two, MarketLink::NotConfigured),
            "Ready to share 1 of 2 cards, but there is no exchange",
        ),
    ] {
        let sentence = status::sentence(&snapshot);
        assert!(sentence.starts_with(begins) && sentence.ends_with('.'), "{sentence}");
    }
}

#[test]
fn exit_codes_are_those_that_are_documented() {
    let text = String::new;
    for (error, code) in [
        (CliError::Failed(text()), 1),
        (CliError::Said, 1),
        (CliError::Usage(text()), 2),
        (CliError::NotRunning(text()), 3),
        (CliError::Refused(text()), 4),
        (CliError::Unavailable(text()), 5),
    ] {
        assert_eq!(error.number(), code);
    }
}
