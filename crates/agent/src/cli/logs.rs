//! `sela job logs`: what a job printed, its standard output to ours and its standard error to ours.

use super::end::{CliError, Outcome};
use super::exchange::Exchange;
use super::output::Output;
use reqwest::Method;
use sela_protocol::id::JobId;
use sela_protocol::plain::Printed;
use sela_protocol::tenant::{LOG_COMPLETE_HEADER, LOG_NEXT_HEADER};
use serde_json::json;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

/// How long the exchange may wait for more before it answers.
const WAIT_MS: u64 = 20_000;
/// How often an exchange that does not answer is asked again, and after which pause.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);

/// Prints them; with `follow` until the job has ended.
///
/// # Errors
/// Where the exchange refuses or is not reached.
pub(crate) async fn logs(exchange: &Exchange, job: JobId, follow: bool, output: &mut Output) -> Outcome {
    let (out, err) = tokio::join!(
        stream(exchange, job, "stdout", follow, output),
        stream(exchange, job, "stderr", follow, output)
    );
    out.and(err)
}

async fn stream(exchange: &Exchange, job: JobId, name: &str, follow: bool, output: &Output) -> Outcome {
    let mut screen = Screen::of(name);
    let wait = if follow { WAIT_MS } else { 0 };
    let (mut from, mut tries) = (0_u64, 0);
    loop {
        let path = format!("/v1/jobs/{job}/logs?stream={name}&from={from}&wait_ms={wait}");
        let response = match exchange.send(exchange.request(Method::GET, &path)).await {
            Err(CliError::Unavailable(_)) if follow && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            result => result?,
        };
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        let next: u64 = header(LOG_NEXT_HEADER)
            .and_then(|text| text.parse().ok())
            .unwrap_or(from);
        let complete = header(LOG_COMPLETE_HEADER).as_deref() == Some("true");
        let bytes = match response.bytes().await {
            Ok(bytes) => bytes,
            Err(_) if follow && tries < TRIES => {
                tries += 1;
                continue;
            }
            Err(error) => return Err(exchange.not_reached(&error)),
        };
        tries = 0;
        show(name, &bytes, output, screen.as_mut())?;
        if complete || (!follow && bytes.is_empty()) {
            return screen.map_or(Ok(()), |screen| write(name, screen.0.end().as_bytes(), output));
        }
        from = next.max(from);
    }
}

/// Where a job's words come to a terminal: there a stranger's program must not move the cursor, set the title or read the keyboard. To a
/// file or a pipe go the bytes as they are.
struct Screen(Printed);

impl Screen {
    fn of(name: &str) -> Option<Self> {
        let is_terminal = match name {
            "stdout" => std::io::stdout().is_terminal(),
            _ => std::io::stderr().is_terminal(),
        };
        is_terminal.then(|| Self(Printed::default()))
    }
}

fn show(name: &str, bytes: &[u8], output: &Output, screen: Option<&mut Screen>) -> Outcome {
    if bytes.is_empty() {
        return Ok(());
    }
    if output.is_json() {
        let text = String::from_utf8_lossy(bytes);
        return Ok(output.json_line(&json!({"stream": name, "text": text}))?);
    }
    match screen {
        Some(screen) => write(name, screen.0.show(bytes).as_bytes(), output),
        None => write(name, bytes, output),
    }
}

fn write(name: &str, bytes: &[u8], output: &Output) -> Outcome {
    if name == "stdout" {
        return Ok(output.bytes(bytes)?);
    }
    Ok(std::io::stderr().lock().write_all(bytes)?)
}
