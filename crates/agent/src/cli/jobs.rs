//! `sela jobs`: what runs on the owner's cards, and what ran.

use super::end::Outcome;
use super::output::{Output, gib, local, span, transferred};
use sela_client::Client;
use sela_protocol::lease::{EndCause, LeasePhase};
use sela_protocol::local::{CardWiped, ImageTransfer, JobLine, Page};
use sela_protocol::network::NetworkUse;

/// Shows the newest page.
///
/// # Errors
/// Where there is no agent.
pub(crate) async fn jobs(agent: &Client, output: &mut Output) -> Outcome {
    let page: Page<JobLine> = agent.jobs(None).await?;
    if output.is_json() {
        return Ok(output.document(&page)?);
    }
    let running = page.items.iter().filter(|line| line.end.is_none()).count();
    output.line(match (running, page.items.len()) {
        (_, 0) => "No job has run here yet.".to_owned(),
        (0, _) => "No job runs now.".to_owned(),
        (1, _) => "One job runs.".to_owned(),
        (count, _) => format!("{count} jobs run."),
    })?;
    for line in &page.items {
        let state = match (&line.end, line.phase) {
            (Some(cause), _) => end_words(cause),
            (None, Some(phase)) => phase_word(phase).to_owned(),
            (None, None) => "being closed".to_owned(),
        };
        output.line(format!(
            "{}  {}  {}  {}  {state}",
            local(line.started_utc_ms),
            line.lease,
            line.name.as_deref().unwrap_or("(no name)"),
            span(line.thawed_ms),
        ))?;
        if let Some(network) = &line.network {
            output.line(format!("    {}", network_words(network)))?;
        }
        for words in preparation_words(line.transfer, line.wiped) {
            output.line(format!("    {words}"))?;
        }
    }
    Ok(())
}

/// What was and is done for a job before it runs, as people say it.
pub(super) fn preparation_words(transfer: Option<ImageTransfer>, wiped: Option<CardWiped>) -> Vec<String> {
    let image = transfer.map(|image| {
        let bytes = match image.total {
            Some(total) => format!("{} of {}", transferred(image.done), transferred(total)),
            None => format!("{} so far", transferred(image.done)),
        };
        match image.layers {
            Some(layers) => format!("image: {bytes}, {} of {layers} layers", image.layers_done),
            None => format!("image: {bytes}"),
        }
    });
    let card = wiped.map(|card| {
        format!(
            "{} GiB of the card's memory wiped before it started, in {} ms",
            gib(card.wiped),
            card.took_ms.0
        )
    });
    image.into_iter().chain(card).collect()
}

/// What a job uses of the network, as people say it.
pub(super) fn network_words(used: &NetworkUse) -> String {
    let hosts = match used.hosts.as_slice() {
        [one] => one.clone(),
        hosts => format!("{} hosts ({})", hosts.len(), hosts.join(", ")),
    };
    let passed = format!(
        "network: {} from and {} to {hosts}",
        transferred(used.down),
        transferred(used.up)
    );
    match (used.refused, &used.last_refusal) {
        (0, _) => passed,
        (count, Some(last)) => format!("{passed}; {count} refused, last: {last}"),
        (count, None) => format!("{passed}; {count} refused"),
    }
}

/// How far a lease is, as people say it.
pub(super) const fn phase_word(phase: LeasePhase) -> &'static str {
    match phase {
        LeasePhase::Fetching => "fetching",
        LeasePhase::Starting => "starting",
        LeasePhase::Running => "running",
        LeasePhase::Frozen => "frozen: you are here",
        LeasePhase::Saving => "saving, then it goes",
        LeasePhase::Ending => "ending",
        LeasePhase::Uploading => "gone; its results are being stored",
        LeasePhase::Unknown => "in a phase that this version does not know",
    }
}

/// Why a lease ended, as people say it.
pub(super) fn end_words(cause: &EndCause) -> String {
    match cause {
        EndCause::Exited { code: 0 } => "ended by itself".to_owned(),
        EndCause::Exited { code } => format!("ended by itself with exit code {code}"),
        EndCause::OutOfMemory => "used more memory than it asked for".to_owned(),
        EndCause::WallLimit => "reached its time limit".to_owned(),
        EndCause::TenantCancelled => "cancelled by its tenant".to_owned(),
        EndCause::BudgetUsed => "its budget is used up".to_owned(),
        EndCause::Displaced => "displaced by a job of a higher tier".to_owned(),
        EndCause::OwnerInput => "given back: keyboard or mouse was used".to_owned(),
        EndCause::OwnerProgram { name } => {
            format!("given back: {} wanted the card", name.as_deref().unwrap_or("a program"))
        }
        EndCause::OwnerCommand => "given back: the owner said so".to_owned(),
        EndCause::OwnerRule => "given back: your schedule, battery or network rule said so".to_owned(),
        EndCause::Shutdown => "the machine or the agent was stopped".to_owned(),
        EndCause::Hot => "the card became too hot".to_owned(),
        EndCause::SensorSilent { what } => format!("{what} went silent"),
        EndCause::CardLost => "the driver lost the card".to_owned(),
        EndCause::GrantExpired => "the agent fell silent".to_owned(),
        EndCause::LeaseExpired => "the exchange fell silent".to_owned(),
        EndCause::Lost => "the node was lost".to_owned(),
        EndCause::AgentRestarted => "the agent was restarted".to_owned(),
        EndCause::JobFault { message } => format!("could not be run: {message}"),
        EndCause::NodeFault { message } => format!("this machine could not run it: {message}"),
        EndCause::Unknown => "for a reason that this version does not know".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::units::{Bytes, Millis};

    #[test]
    fn how_far_an_image_is_and_that_the_card_was_wiped_are_said_in_words() {
        let image = |total, layers| ImageTransfer {
            done: Bytes(812_000_000),
            total,
            layers_done: 3,
            layers,
        };
        let wiped = CardWiped {
            wiped: Bytes::from_gib(24),
            took_ms: Millis(640),
        };
        for (transfer, wiped, words) in [
            (None, None, vec![]),
            (
                Some(image(Some(Bytes(4_000_000_000)), Some(9))),
                None,
                vec!["image: 812.0 MB of 4.0 GB, 3 of 9 layers"],
            ),
            (Some(image(None, None)), None, vec!["image: 812.0 MB so far"]),
            (
                None,
                Some(wiped),
                vec!["24.0 GiB of the card's memory wiped before it started, in 640 ms"],
            ),
        ] {
            assert_eq!(preparation_words(transfer, wiped), words);
        }
    }
}
