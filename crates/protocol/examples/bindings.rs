//! Writes the TypeScript types of the local interface into the folder given. `cargo xtask bindings` calls it; nothing
//! else lives here.

use sela_protocol::local::{
    Command, CommandReply, DoctorLine, EarningsLine, JobLine, NumberedEvent, Page, Problem, Sample, Snapshot,
    StripRecord,
};
use ts_rs::{Config, ExportError, TS};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: bindings FOLDER")?;
    export(&Config::new().with_large_int("number").with_out_dir(folder))?;
    Ok(())
}

/// Milliseconds, bytes and cursors stay below 2^53, so `number` holds every integer; money travels as a string.
fn export(config: &Config) -> Result<(), ExportError> {
    Snapshot::export_all(config)?;
    NumberedEvent::export_all(config)?;
    Command::export_all(config)?;
    CommandReply::export_all(config)?;
    Page::<EarningsLine>::export_all(config)?;
    EarningsLine::export_all(config)?;
    JobLine::export_all(config)?;
    Sample::export_all(config)?;
    StripRecord::export_all(config)?;
    DoctorLine::export_all(config)?;
    Problem::export_all(config)
}
