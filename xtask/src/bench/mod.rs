//! `cargo xtask bench NAME`: measures, prints a table, writes `target/bench/NAME.json` and, if told to, a page under docs/measurements.
//!
//! What is measured and how is in the module of each name; this file is the frame that all of them share.

#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod desktop;
#[cfg(any(target_os = "linux", test))]
mod process;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::arguments::{BenchName, Purpose};
use crate::places::Places;
use crate::setup;

/// What one measurement found.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// One sentence: what was measured, under which conditions.
    pub(crate) conditions: String,
    /// Figure → value; the unit is the end of the figure's name.
    pub(crate) figures: BTreeMap<&'static str, f64>,
    /// Bounds that the project promises: figure → the most that it may be.
    pub(crate) bounds: BTreeMap<&'static str, f64>,
}

/// Measures `name`. Ends with a failure if a promised bound is broken.
///
/// # Errors
/// If something needed is missing or does not start; then nothing is written.
pub(crate) fn bench(places: &Places, name: BenchName, record: bool) -> anyhow::Result<ExitCode> {
    setup::ensure(places, Purpose::Bench)?;
    let measured = measure(places, name)?;
    print!("\n{}\n\n{}", measured.conditions, measured.table());
    let json = places.target.join("bench").join(format!("{}.json", name.file_stem()));
    write(
        &json,
        &format!("{}\n", serde_json::to_string_pretty(&measured.figures)?),
    )?;
    println!("\nwritten: {}", json.display());
    if record {
        let page = places
            .root
            .join("docs")
            .join("measurements")
            .join(format!("{}.md", name.file_stem()));
        write(&page, &measured.page(name, &Machine::look()))?;
        println!("written: {}", page.display());
    }
    Ok(if measured.broken().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(target_os = "linux")]
fn measure(places: &Places, name: BenchName) -> anyhow::Result<Measured> {
    match name {
        BenchName::Agent => agent::measure(places),
        BenchName::Desktop => desktop::measure(places),
    }
}

#[cfg(not(target_os = "linux"))]
fn measure(_places: &Places, name: BenchName) -> anyhow::Result<Measured> {
    anyhow::bail!("`bench {}` reads /proc and runs on Linux only", name.file_stem())
}

fn write(path: &PathBuf, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

impl Measured {
    /// The figures that are over their bound.
    fn broken(&self) -> Vec<&'static str> {
        let over = |figure: &&'static str| match (self.figures.get(*figure), self.bounds.get(*figure)) {
            (Some(value), Some(most)) => value > most,
            // A bound on what was not measured is not kept.
            (None, Some(_)) => true,
            _ => false,
        };
        self.bounds.keys().copied().filter(over).collect()
    }

    /// A table for people, which is Markdown at the same time.
    fn table(&self) -> String {
        let broken = self.broken();
        let mut table = String::from("| figure | value | at most |\n|---|---:|---:|\n");
        for (figure, value) in &self.figures {
            let most = self
                .bounds
                .get(figure)
                .map_or_else(String::new, |most| format!("{most}"));
            let mark = if broken.contains(figure) { " (over)" } else { "" };
            let _ = writeln!(table, "| `{figure}` | {value:.3} | {most}{mark} |");
        }
        table
    }

    /// The page to commit. It names no host and no path: it is read by people who have neither.
    fn page(&self, name: BenchName, machine: &Machine) -> String {
        format!(
            "# Measured: {stem}\n\n`cargo xtask bench {stem} --record` on {date}, {cores} cores, Linux {kernel}.\n\n{conditions}\n\n{table}",
            stem = name.file_stem(),
            date = machine.date,
            cores = machine.cores,
            kernel = machine.kernel,
            conditions = self.conditions,
            table = self.table(),
        )
    }
}

/// What is said about the machine that measured.
#[derive(Debug)]
struct Machine {
    date: String,
    cores: usize,
    kernel: String,
}

impl Machine {
    fn look() -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            // Only the number: what follows it may name the machine's owner.
            kernel: kernel.trim().split(['-', '+']).next().unwrap_or_default().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(figures: &[(&'static str, f64)], bounds: &[(&'static str, f64)]) -> Measured {
        Measured {
            conditions: "Idle for a minute.".into(),
            figures: figures.iter().copied().collect(),
            bounds: bounds.iter().copied().collect(),
        }
    }

    #[test]
    fn a_bound_is_broken_by_more_and_by_nothing_measured() {
        for (figures, bounds, broken) in [
            (&[("a_mb", 25.0)][..], &[("a_mb", 25.0)][..], &[][..]),
            (&[("a_mb", 25.1)], &[("a_mb", 25.0)], &["a_mb"]),
            (&[("b_mb", 1.0)], &[("a_mb", 25.0)], &["a_mb"]),
            (&[("b_mb", 1.0)], &[], &[]),
        ] {
            assert_eq!(measured(figures, bounds).broken(), broken);
        }
    }

    #[test]
    fn the_page_says_when_and_on_what_and_names_no_host() {
        let machine = Machine {
            date: "2026-12-01".into(),
            cores: 2,
            kernel: "6.18.0".into(),
        };
        let page = measured(&[("agent_pss_mb", 12.5)], &[("agent_pss_mb", 25.0)]).page(BenchName::Agent, &machine);
        assert_eq!(
            page,
            "# Measured: agent\n\n`cargo xtask bench agent --record` on 2026-12-01, 2 cores, Linux 6.18.0.\n\nIdle for a minute.\n\n\
             | figure | value | at most |\n|---|---:|---:|\n| `agent_pss_mb` | 12.500 | 25 |\n"
        );
    }
}
