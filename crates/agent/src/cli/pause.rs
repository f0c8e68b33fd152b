//! `sela pause`, `sela resume`, `sela end`: what the owner tells the agent.

use super::end::{CliError, Outcome};
use super::output::{Output, span};
use sela_client::Client;
use sela_protocol::id::LeaseId;
use sela_protocol::local::{Command, CommandReply};
use sela_protocol::units::Millis;

/// Stops sharing.
///
/// # Errors
/// Where there is no agent, or it declines.
pub(crate) async fn pause(agent: &Client, for_ms: Option<Millis>, output: &mut Output) -> Outcome {
    let said = match for_ms {
        Some(for_ms) => format!("Paused for {}; what ran is being ended.", span(for_ms)),
        None => "Paused until `sela resume`; what ran is being ended.".to_owned(),
    };
    tell(agent, &Command::Pause { for_ms }, &said, output).await
}

/// Shares again.
///
/// # Errors
/// As [`pause`].
pub(crate) async fn resume(agent: &Client, output: &mut Output) -> Outcome {
    let said = "Sharing again; `sela why` shows what still holds a card.";
    tell(agent, &Command::Resume, said, output).await
}

/// Ends one lease.
///
/// # Errors
/// As [`pause`].
pub(crate) async fn end(agent: &Client, lease: LeaseId, output: &mut Output) -> Outcome {
    let said = format!("{lease} is being ended; you are paid up to now.");
    tell(agent, &Command::EndLease { lease }, &said, output).await
}

async fn tell(agent: &Client, command: &Command, said: &str, output: &Output) -> Outcome {
    let reply = agent.command(command).await?;
    if output.is_json() {
        output.document(&reply)?;
    }
    match reply {
        CommandReply::Done if output.is_json() => Ok(()),
        CommandReply::Done => Ok(output.line(said)?),
        CommandReply::Refused { message } => Err(CliError::Refused(message)),
    }
}
