//! `sela doctor`: asks the agent for its self-test, or does it itself where none runs, and looks at the way to the exchange.

pub(crate) mod sandbox;
mod senses;

use super::end::{CliError, Outcome};
use super::exchange;
use super::output::{Output, Tone};
use crate::doctor;
use crate::paths::Paths;
use crate::settings::SettingsFile;
use sela_client::{Client, ClientError};
use sela_protocol::local::{DoctorLine, MarketLink, Snapshot, Verdict};
use sela_protocol::tenant::MarketView;

/// A clock that is off by more than this makes receipts and schedules wrong.
const SKEW_SECONDS: i64 = 5;

/// Shows it; fails where something does not work.
///
/// # Errors
/// [`CliError::Said`] where a line is bad.
pub(crate) async fn doctor(paths: &Paths, output: &mut Output) -> Outcome {
    let client = Client::at(paths.socket());
    let mut lines = match client.snapshot().await {
        Ok(snapshot) => {
            let mut lines = vec![running(&snapshot)];
            lines.extend(senses::lines(&snapshot));
            lines.push(link(&snapshot.market));
            lines.extend(client.doctor().await?);
            lines
        }
        Err(error) => {
            let mut lines = vec![not_running(&error)];
            let here = paths.clone();
            let looked = tokio::task::spawn_blocking(move || doctor::look(&here, false)).await;
            lines.extend(looked.map_err(|error| CliError::Failed(error.to_string()))?);
            lines
        }
    };
    lines.extend(network(paths).await);
    if output.is_json() {
        output.document(&lines)?;
    } else {
        show(&lines, output)?;
    }
    if lines.iter().any(|line| line.verdict == Verdict::Bad) {
        return Err(CliError::Said);
    }
    Ok(())
}

fn show(lines: &[DoctorLine], output: &Output) -> Outcome {
    let bad = lines.iter().filter(|line| line.verdict == Verdict::Bad).count();
    output.line(match bad {
        0 => "Everything that sharing needs works here.".to_owned(),
        1 => "One thing does not work.".to_owned(),
        count => format!("{count} things do not work."),
    })?;
    for line in lines {
        let mark = match line.verdict {
            Verdict::Good => "good   ".to_owned(),
            Verdict::Limited => output.tone(Tone::Held, "limited"),
            Verdict::Bad => output.tone(Tone::Alarm, "BAD    "),
            Verdict::NotApplicable => output.tone(Tone::Dim, "–      "),
        };
        output.line(format!("{mark}  {}: {}", line.subject, line.found))?;
        if let Some(remedy) = &line.remedy {
            output.line(format!("         {remedy}"))?;
        }
    }
    Ok(())
}

fn running(snapshot: &Snapshot) -> DoctorLine {
    let lab = if snapshot.lab { ", as a LAB" } else { "" };
    doctor::line(
        "agent",
        Verdict::Good,
        format!("version {} runs{lab}", snapshot.agent_version),
        None,
    )
}

fn not_running(error: &ClientError) -> DoctorLine {
    match error {
        ClientError::NotRunning { .. } => doctor::line(
            "agent",
            Verdict::Bad,
            "it is not running; the rest was looked at without it".to_owned(),
            Some("start it with `sela agent run`"),
        ),
        ClientError::NotAllowed { .. }
        | ClientError::Refused(_)
        | ClientError::OtherVersion { .. }
        | ClientError::Broken { .. } => doctor::line("agent", Verdict::Bad, error.to_string(), None),
    }
}

fn link(market: &MarketLink) -> DoctorLine {
    match market {
        MarketLink::NotConfigured => doctor::line(
            "exchange",
            Verdict::Limited,
            "none is set, so nothing is offered".to_owned(),
            Some("set market.url in agent.toml"),
        ),
        MarketLink::Connected { url, exchange, node } => doctor::line(
            "exchange",
            Verdict::Good,
            format!("{exchange} ({url}), as {node}"),
            None,
        ),
        MarketLink::Connecting { url, last_error } => doctor::line(
            "exchange",
            Verdict::Bad,
            format!("{url}: {}", last_error.as_deref().unwrap_or("connecting")),
            Some("it is tried again by itself; check market.url in agent.toml and the network"),
        ),
        MarketLink::Refused { url, message } => doctor::line(
            "exchange",
            Verdict::Bad,
            format!("{url}: {message}"),
            Some("ask the exchange's operator"),
        ),
    }
}

/// Whether the exchange answers over HTTP, and what its clock says.
async fn network(paths: &Paths) -> Vec<DoctorLine> {
    let Ok(settings) = SettingsFile::at(paths.settings()).read() else {
        // The settings have a line of their own.
        return Vec::new();
    };
    let Some(market) = settings.market else {
        return Vec::new();
    };
    let asked = async {
        let response = exchange::client()?.get(market.url.http("/v1/market")).send().await;
        let response = response.map_err(|error| CliError::Unavailable(error.without_url().to_string()))?;
        let date = response
            .headers()
            .get(reqwest::header::DATE)
            .and_then(|date| date.to_str().ok())
            .map(str::to_owned);
        let view: MarketView = response
            .json()
            .await
            .map_err(|error| CliError::Failed(format!("the answer is not an exchange's: {}", error.without_url())))?;
        Ok::<_, CliError>((view, date))
    };
    match asked.await {
        Ok((view, date)) => {
            let lab = if view.lab {
                ", a LAB: its money has no worth"
            } else {
                ""
            };
            let found = format!(
                "{} answers{lab}; {} nodes, {} offers",
                view.name, view.nodes, view.offers
            );
            let mut lines = vec![doctor::line("network", Verdict::Good, found, None)];
            lines.extend(date.and_then(|date| clock(&date)));
            lines
        }
        Err(error) => vec![doctor::line(
            "network",
            Verdict::Bad,
            format!("{} does not answer: {error}", market.url),
            Some("check market.url in agent.toml, the network, and whether the exchange is up"),
        )],
    }
}

fn clock(date: &str) -> Option<DoctorLine> {
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let off = sela_clock::now().utc_ms.0 / 1000 - theirs;
    Some(if off.abs() <= SKEW_SECONDS {
        doctor::line("clock", Verdict::Good, "agrees with the exchange's".to_owned(), None)
    } else {
        doctor::line(
            "clock",
            Verdict::Limited,
            format!("is {off} s away from the exchange's"),
            Some("let the system set it (NTP)"),
        )
    })
}
