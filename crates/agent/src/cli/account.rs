//! `sela account`: what is on the tenant's account.

use super::end::Outcome;
use super::exchange::Exchange;
use super::output::{LAB, Output, Tone};
use sela_protocol::tenant::TenantAccount;

/// Shows it.
///
/// # Errors
/// Where the exchange refuses or is not reached.
pub(crate) async fn account(exchange: &Exchange, output: &mut Output) -> Outcome {
    let account: TenantAccount = exchange.get("/v1/account").await?;
    if output.is_json() {
        return Ok(output.document(&account)?);
    }
    output.line(format!(
        "{} has {} to spend; {} is set aside for running jobs.",
        account.name, account.available, account.escrow
    ))?;
    if account.lab {
        output.line(output.tone(Tone::Held, LAB))?;
    }
    Ok(output.line(format!("account {}", account.tenant))?)
}
