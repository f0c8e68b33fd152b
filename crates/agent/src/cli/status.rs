//! `sela status`: one sentence, then a card each, then money.

use super::end::Outcome;
use super::output::{LAB, Output, Tone, gib, local, short, span};
use super::why::reason_words;
use sela_client::Client;
use sela_protocol::card::CardReading;
use sela_protocol::local::{CardState, IsolationState, LeaseState, MarketLink, Snapshot, YieldMeasure};
use sela_protocol::presence::{Availability, HoldReason};

/// Shows it.
///
/// # Errors
/// Where there is no agent.
pub(crate) async fn status(agent: &Client, output: &mut Output) -> Outcome {
    let snapshot = agent.snapshot().await?;
    if output.is_json() {
        return Ok(output.document(&snapshot)?);
    }
    for line in lines(&snapshot, output) {
        output.line(line)?;
    }
    Ok(())
}

fn lines(snapshot: &Snapshot, output: &Output) -> Vec<String> {
    let mut lines = vec![sentence(snapshot)];
    if snapshot.lab {
        lines.push(output.tone(Tone::Held, LAB));
    }
    if let Some(problem) = &snapshot.settings_problem {
        lines.push(output.tone(
            Tone::Alarm,
            format!("settings: {problem}; the last good ones are in force"),
        ));
    }
    for card in &snapshot.cards {
        lines.push(String::new());
        lines.extend(card_lines(card, output));
    }
    lines.push(String::new());
    let earned = &snapshot.earned;
    lines.push(format!(
        "earned today {} net, in all {} net ({} fee, {} electricity); {} not yet receipted",
        short(earned.today_net),
        short(earned.total_net),
        short(earned.total_fee),
        short(earned.total_electricity),
        short(earned.pending_gross)
    ));
    lines.push(market_line(&snapshot.market));
    if let IsolationState::Missing { why } = &snapshot.isolation {
        lines.push(output.tone(Tone::Alarm, format!("no job can run here: {why}")));
    }
    lines
}

/// What is so, read aloud.
pub(super) fn sentence(snapshot: &Snapshot) -> String {
    let cards = snapshot.cards.len();
    let of_cards = |count: usize| match cards {
        1 => "the card".to_owned(),
        _ => format!("{count} of {cards} cards"),
    };
    if cards == 0 {
        return "No card was found; `sela doctor` looks for the reason.".to_owned();
    }
    if let Some(pause) = snapshot.pause {
        return match pause.until_utc_ms {
            Some(until) => format!(
                "Paused until {}: nothing is shared; `sela resume` shares again.",
                local(until)
            ),
            None => "Paused: nothing is shared; `sela resume` shares again.".to_owned(),
        };
    }
    let count = |wanted: fn(&CardState) -> bool| snapshot.cards.iter().filter(|card| wanted(card)).count();
    let earning = count(|card| card.lease.is_some());
    let offered = count(|card| card.lease.is_none() && card.availability.is_available());
    match (earning, offered, &snapshot.market) {
        (1.., _, _) => format!("Earning on {}.", of_cards(earning)),
        (0, 1.., MarketLink::Connected { .. }) => format!("Offering {}; no job has come yet.", of_cards(offered)),
        (0, 1.., MarketLink::NotConfigured | MarketLink::Connecting { .. } | MarketLink::Refused { .. }) => {
            format!(
                "Ready to share {}, but there is no exchange to offer to.",
                of_cards(offered)
            )
        }
        (0, 0, _) => match first_reason(snapshot) {
            Some(reason) => format!("Not sharing: {}.", reason_words(reason)),
            None => "Not sharing.".to_owned(),
        },
    }
}

fn first_reason(snapshot: &Snapshot) -> Option<&HoldReason> {
    snapshot.cards.iter().find_map(|card| match &card.availability {
        Availability::Held { reasons } => reasons.first(),
        Availability::Available { .. } => None,
    })
}

fn card_lines(card: &CardState, output: &Output) -> Vec<String> {
    let description = &card.description;
    let state = match (&card.lease, &card.availability) {
        (Some(_), _) => output.tone(Tone::Earning, "earning"),
        (None, Availability::Available { .. }) => "offered".to_owned(),
        (None, Availability::Held { .. }) => output.tone(Tone::Held, "held"),
    };
    let mut lines = vec![format!("{}  {}  {state}", description.index, marked(description))];
    lines.extend(card.lease.as_ref().map(|lease| format!("   {}", lease_line(lease))));
    let network = card.lease.as_ref().and_then(|lease| lease.network.as_ref());
    lines.extend(network.map(|used| format!("   {}", super::jobs::network_words(used))));
    let lease = card.lease.as_ref();
    let prepared = lease.map(|lease| super::jobs::preparation_words(lease.transfer, lease.wiped));
    lines.extend(prepared.into_iter().flatten().map(|words| format!("   {words}")));
    if let Availability::Held { reasons } = &card.availability {
        lines.extend(
            reasons
                .iter()
                .map(|reason| format!("   held because {}", reason_words(reason))),
        );
    }
    lines.extend(card.reading.as_ref().map(|reading| {
        let figures = figures(reading, card);
        format!("   {}", output.tone(Tone::Dim, figures))
    }));
    lines.push(format!("   floor {} an hour", short(card.floor.0)));
    lines.extend(
        card.last_yield
            .as_ref()
            .map(|measure| format!("   {}", yield_line(measure))),
    );
    lines
}

/// A card's name; that it is simulated is never left out.
pub(super) fn marked(description: &sela_protocol::card::CardDescription) -> String {
    if description.simulated && !description.name.contains("SIMULATED") {
        return format!("{} (SIMULATED)", description.name);
    }
    description.name.clone()
}

fn lease_line(lease: &LeaseState) -> String {
    let name = lease.name.clone().unwrap_or_else(|| lease.job.to_string());
    let phase = super::jobs::phase_word(lease.phase);
    format!(
        "{name}: {phase} for {}, at {} an hour, {} so far before the fee",
        span(lease.thawed_ms),
        short(lease.price.0),
        short(lease.gross)
    )
}

fn figures(reading: &CardReading, card: &CardState) -> String {
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let temperature = or_unknown(reading.temperature.value().map(ToString::to_string));
    let power = or_unknown(
        reading
            .power
            .value()
            .map(|power| format!("{} W", power.watts_rounded())),
    );
    let limit = reading
        .power_limit
        .value()
        .map(|limit| format!(" of {} W", limit.watts_rounded()));
    let utilisation = or_unknown(reading.utilisation.value().map(ToString::to_string));
    let vram = or_unknown(reading.vram_used.value().map(|used| gib(*used)));
    format!(
        "{temperature}   {power}{}   {utilisation}   {vram} of {} GiB",
        limit.unwrap_or_default(),
        gib(card.description.vram_total)
    )
}

fn yield_line(measure: &YieldMeasure) -> String {
    let step = |name: &str, span: Option<sela_protocol::units::Millis>| span.map(|span| format!("{name} after {span}"));
    let steps: Vec<String> = [
        step("frozen", measure.frozen_ms),
        step("card quiet", measure.quiet_ms),
        step("memory free", measure.vram_free_ms),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("last given back {}: {}", local(measure.at_utc_ms), steps.join(", "))
}

fn market_line(market: &MarketLink) -> String {
    match market {
        MarketLink::NotConfigured => "exchange: none; set market.url in agent.toml".to_owned(),
        MarketLink::Connecting { url, last_error: None } => format!("exchange: connecting to {url}"),
        MarketLink::Connecting {
            url,
            last_error: Some(error),
        } => format!("exchange: {url} is not reached: {error}; it is tried again"),
        MarketLink::Connected { url, exchange, node } => format!("exchange: {exchange} ({url}), as {node}"),
        MarketLink::Refused { url, message } => format!("exchange: {url} does not take this machine: {message}"),
    }
}
