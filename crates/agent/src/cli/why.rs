//! `sela why`: the reasons that hold a card, as the core gave them, and what is seen now.

use super::end::{CliError, Outcome};
use super::output::{Output, Tone};
use sela_client::Client;
use sela_protocol::local::{CardState, Snapshot};
use sela_protocol::presence::{Availability, HoldReason, Observed};
use serde_json::json;

/// Shows them.
///
/// # Errors
/// Where there is no agent, or no such card.
pub(crate) async fn why(agent: &Client, gpu: Option<&str>, output: &mut Output) -> Outcome {
    let snapshot = agent.snapshot().await?;
    let cards = chosen(&snapshot, gpu)?;
    if output.is_json() {
        let cards: Vec<_> = cards
            .iter()
            .map(|card| json!({"gpu": card.description.uuid, "availability": card.availability}))
            .collect();
        return Ok(output.document(&json!({"cards": cards, "signals": snapshot.signals}))?);
    }
    if cards.is_empty() {
        output.line("No card was found; `sela doctor` looks for the reason.")?;
    }
    for card in cards {
        let name = super::status::marked(&card.description);
        match (&card.availability, &card.lease) {
            (Availability::Held { reasons }, _) => {
                output.line(format!("{name} is {} because", output.tone(Tone::Held, "held")))?;
                for reason in reasons {
                    output.line(format!("  {}", reason_words(reason)))?;
                }
            }
            (Availability::Available { .. }, Some(_)) => {
                output.line(format!("{name} is shared: a job is on it."))?;
            }
            (Availability::Available { until_utc_ms }, None) => {
                let until =
                    until_utc_ms.map(|until| format!(", until {} by your schedule", super::output::local(until)));
                output.line(format!(
                    "{name} is shared: nothing holds it{}.",
                    until.unwrap_or_default()
                ))?;
            }
        }
    }
    output.line("")?;
    output.line(seen("keyboard and mouse", &snapshot.signals.input, |input| {
        let idle = snapshot.now.boot_ms.since(input.last_input_boot_ms);
        format!("last used {} ago", super::output::span(idle))
    }))?;
    Ok(output.line(seen(
        "other programs on the cards",
        &snapshot.signals.foreign,
        |programs| match programs.len() {
            0 => "none".to_owned(),
            count => format!("{count}"),
        },
    ))?)
}

/// A reason as its own words have it, with moments in local time.
pub(super) fn reason_words(reason: &HoldReason) -> String {
    if let HoldReason::Paused {
        until_utc_ms: Some(until),
    } = reason
    {
        return format!(
            "you paused it until {}; `sela resume` shares again at once",
            super::output::local(*until)
        );
    }
    if let HoldReason::OutsideSchedule {
        opens_utc_ms: Some(opens),
        zone,
    } = reason
    {
        return format!(
            "your schedule is closed ({zone}); it opens {}",
            super::output::local(*opens)
        );
    }
    reason.to_string()
}

fn seen<T>(what: &str, observed: &Observed<T>, say: impl FnOnce(&T) -> String) -> String {
    match observed {
        Observed::Value { value, source, .. } => format!("{what}: {} (seen by {source})", say(value)),
        Observed::Unknown { source, why } => format!("{what}: not seen: {source}: {why}"),
        Observed::NotApplicable { why } => format!("{what}: does not apply: {why}"),
    }
}

fn chosen<'a>(snapshot: &'a Snapshot, gpu: Option<&str>) -> Result<Vec<&'a CardState>, CliError> {
    let Some(wanted) = gpu else {
        return Ok(snapshot.cards.iter().collect());
    };
    let found: Vec<&CardState> = snapshot
        .cards
        .iter()
        .filter(|card| card.description.uuid.0 == wanted || card.description.index.to_string() == wanted)
        .collect();
    if found.is_empty() {
        let known: Vec<String> = snapshot
            .cards
            .iter()
            .map(|card| format!("{} ({})", card.description.index, card.description.uuid))
            .collect();
        return Err(CliError::Usage(format!(
            "there is no card {wanted}; there are: {}",
            known.join(", ")
        )));
    }
    Ok(found)
}
