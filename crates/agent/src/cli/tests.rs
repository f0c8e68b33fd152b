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
