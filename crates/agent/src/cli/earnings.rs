//! `sela earnings`: each lease with all six decimals, as a table or as comma-separated values.

use super::end::{CliError, Outcome};
use super::output::{LAB, Output, Tone, local, span};
use sela_client::Client;
use sela_protocol::local::{EarningsLine, Page};
use sela_protocol::money::Micros;

/// Shows them, newest first.
///
/// # Errors
/// Where there is no agent.
pub(crate) async fn earnings(agent: &Client, csv: bool, output: &mut Output) -> Outcome {
    if csv {
        return all_as_csv(agent, output).await;
    }
    if output.is_json() {
        let items = all(agent).await?;
        return Ok(output.document(&Page { items, next: None })?);
    }
    let page = agent.earnings(None).await?;
    let snapshot = agent.snapshot().await?;
    let earned = snapshot.earned;
    output.line(format!(
        "Earned {} net today and {} net in all; electricity was {}.",
        earned.today_net, earned.total_net, earned.total_electricity
    ))?;
    if snapshot.lab || page.items.iter().any(|line| line.lab) {
        output.line(output.tone(Tone::Held, LAB))?;
    }
    if page.items.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.line("started              billed      net          fee          electricity  lease")?;
    for line in &page.items {
        let open = if line.end.is_none() { "  (runs)" } else { "" };
        output.line(format!(
            "{:<20} {:<11} {:<12} {:<12} {:<12} {}{open}",
            local(line.started_utc_ms),
            span(line.billed_ms).to_string(),
            line.net.to_string(),
            line.fee.to_string(),
            line.electricity.map_or_else(|| "–".to_owned(), |cost| cost.to_string()),
            line.lease,
        ))?;
    }
    if page.next.is_some() {
        output.line("… `sela earnings --csv` gives all of them")?;
    }
    Ok(())
}

/// Every page.
async fn all(agent: &Client) -> Result<Vec<EarningsLine>, CliError> {
    let (mut lines, mut cursor) = (Vec::new(), None);
    loop {
        let page = agent.earnings(cursor.as_deref()).await?;
        lines.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(lines);
        }
    }
}

async fn all_as_csv(agent: &Client, output: &Output) -> Outcome {
    output
        .line("lease,job,gpu,started_utc_ms,price,thawed_ms,billed_ms,gross,fee,net,energy_mwh,electricity,end,lab")?;
    for line in all(agent).await? {
        output.line(csv_line(&line))?;
    }
    Ok(())
}

fn csv_line(line: &EarningsLine) -> String {
    let end = line.end.as_ref().map(|cause| {
        let value = serde_json::to_value(cause).unwrap_or_default();
        value["type"].as_str().unwrap_or_default().to_owned()
    });
    [
        line.lease.to_string(),
        line.job.to_string(),
        quoted(&line.gpu.0),
        line.started_utc_ms.0.to_string(),
        line.price.to_string(),
        line.thawed_ms.0.to_string(),
        line.billed_ms.0.to_string(),
        line.gross.to_string(),
        line.fee.to_string(),
        line.net.to_string(),
        line.energy_mwh.map(|energy| energy.to_string()).unwrap_or_default(),
        line.electricity.as_ref().map(Micros::to_string).unwrap_or_default(),
        end.unwrap_or_default(),
        line.lab.to_string(),
    ]
    .join(",")
}

/// A field that may hold anything, as RFC 4180 has it.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_with_a_comma_or_a_quote_stays_one_field() {
        for (text, written) in [("GPU-1", "GPU-1"), ("a,b", "\"a,b\""), ("a\"b", "\"a\"\"b\"")] {
            assert_eq!(quoted(text), written);
        }
    }
}
