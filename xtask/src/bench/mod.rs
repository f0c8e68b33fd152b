//! `cargo xtask bench NAME`: measures, prints a table, writes `target/bench/NAME.json` and, if told to, a page under docs/measurements.
//!
//! What is measured and how is in the module of each name; this file is the frame that all of them share.

#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod desktop;
#[cfg(any(target_os = "linux", test))]
mod process;
#[cfg(any(target_os = "linux", test))]
mod sandbox;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::arguments::BenchName;
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
    /// What the project wants to reach: said, not held.
    pub(crate) goals: Vec<Goal>,
    /// More tables and words, as Markdown.
    pub(crate) more: String,
    /// Drawings that `more` shows: the file's name, and the SVG.
    pub(crate) drawings: Vec<(&'static str, String)>,
}

/// A figure, and what it should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal {
    pub(crate) figure: &'static str,
    pub(crate) wanted: Wanted,
}

/// On which side of a value a figure should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wanted {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// As one line of a table.
    fn line(self, figures: &BTreeMap<&'static str, f64>) -> String {
        let (words, bound, is_met): (_, _, fn(f64, f64) -> bool) = match self.wanted {
            Wanted::AtMost(most) => ("at most", most, |value, most| value <= most),
            Wanted::AtLeast(least) => ("at least", least, |value, least| value >= least),
        };
        let (value, met) = match figures.get(self.figure) {
            Some(value) => (
                format!("{value:.3}"),
                if is_met(*value, bound) { "yes" } else { "**no**" },
            ),
            None => ("not measured".to_owned(), "**no**"),
        };
        format!("| `{}` | {words} {bound} | {value} | {met} |\n", self.figure)
    }
}

/// Measures `name`. Ends with a failure if a promised bound is broken.
///
/// # Errors
/// If something needed is missing or does not start; then nothing is written.
pub(crate) fn bench(places: &Places, name: BenchName, record: bool, rounds: u32) -> anyhow::Result<ExitCode> {
    setup::ensure(places, name.purpose())?;
    let measured = measure(places, name, rounds)?;
    print!("\n{}\n\n{}", measured.conditions, measured.tables());
    let json = places.target.join("bench").join(format!("{}.json", name.file_stem()));
    write(
        &json,
        &format!("{}\n", serde_json::to_string_pretty(&measured.figures)?),
    )?;
    println!("\nwritten: {}", json.display());
    if record {
        let folder = places.root.join("docs").join("measurements");
        let page = folder.join(format!("{}.md", name.file_stem()));
        write(&page, &measured.page(name, &Machine::look()))?;
        println!("written: {}", page.display());
        for (file, drawing) in &measured.drawings {
            write(&folder.join(file), drawing)?;
        }
    }
    Ok(if measured.broken().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(target_os = "linux")]
fn measure(places: &Places, name: BenchName, rounds: u32) -> anyhow::Result<Measured> {
    match name {
        BenchName::Agent => agent::measure(places),
        BenchName::Desktop => desktop::measure(places),
        BenchName::Sandbox => sandbox::measure(places, rounds),
    }
}

#[cfg(not(target_os = "linux"))]
fn measure(_places: &Places, name: BenchName, _rounds: u32) -> anyhow::Result<Measured> {
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

    /// All tables, the goals first.
    fn tables(&self) -> String {
        let mut text = String::new();
        if !self.goals.is_empty() {
            text.push_str("| goal | wanted | measured | met |\n|---|---:|---:|---|\n");
            text.extend(self.goals.iter().map(|goal| goal.line(&self.figures)));
            text.push('\n');
        }
        if self.more.is_empty() {
            text.push_str(&self.table());
        } else {
            let _ = write!(text, "{}\n## All figures\n\n{}", self.more, self.table());
        }
        text
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
            table = self.tables(),
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
            ..Measured::default()
        }
    }

    #[test]
    fn a_goal_is_said_to_be_met_or_not_and_breaks_nothing() {
        let goal = |figure, wanted| Goal { figure, wanted };
        let mut measured = measured(&[("start_ms", 12.0), ("rate", 2.0)], &[]);
        measured.goals = vec![
            goal("start_ms", Wanted::AtMost(10.0)),
            goal("rate", Wanted::AtLeast(1.5)),
            goal("other", Wanted::AtMost(1.0)),
        ];
        let tables = measured.tables();
        assert!(
            tables.contains("| `start_ms` | at most 10 | 12.000 | **no** |\n| `rate` | at least 1.5 | 2.000 | yes |\n")
        );
        assert!(
            tables.contains("| `other` | at most 1 | not measured | **no** |"),
            "{tables}"
        );
        assert!(measured.broken().is_empty());
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
