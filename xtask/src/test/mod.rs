//! `cargo xtask test`: every check and every test, one after another; all of them even after one has failed, so that one run shows everything.
//!
//! The stages are lists in `stages` and `pages`; counting is in `tally`; reading what test runners print is in `runners`.

mod pages;
mod runners;
mod stages;
mod tally;

use std::process::ExitCode;
use std::time::Instant;

use crate::arguments::Purpose;
use crate::places::Places;
use crate::setup;
use tally::{Ran, Report, Tally};

/// Runs all stages (`quick`: those that need no system package), prints the counts, the last line being `N passed, N failed` alone.
///
/// # Errors
/// If the machine lacks packages that may not be installed here. That a test failed is in the code.
pub(crate) fn test(places: &Places, quick: bool) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let purpose = if quick { Purpose::QuickTest } else { Purpose::Test };
    let tools = setup::ensure(places, purpose)?;
    println!("set up in {}", tally::minutes(begun.elapsed()));
    let around = stages::Around { places, tools: &tools };
    let mut report = Report::default();
    let stages = stages::all();
    for stage in stages.iter().filter(|stage| stage.quick || !quick) {
        println!("\n== {} ==", stage.name);
        let stage_begun = Instant::now();
        let tally = (stage.run)(&around).unwrap_or_else(|error| {
            println!("{error:#}");
            Tally::FAILED
        });
        report.add(Ran {
            name: stage.name,
            kind: stage.kind,
            tally,
            took: stage_begun.elapsed(),
        });
    }
    println!("\nall in {}\n\n{report}", tally::minutes(begun.elapsed()));
    Ok(if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
