//! The desktop app with its agent: how long until the window shows the agent, and what both cost with the window shown and closed.
//!
//! `sela-desktop-stages` (tests/desktop) leads the app through its stages on a display and a bus of its own and times the starts; what
//! each stage costs is read here, from /proc, over the whole tree of processes.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::bench::Measured;
use crate::bench::process::{self, Cost};
use crate::commands;
use crate::page;
use crate::places::{Places, Profile};

/// Long enough for caches to be written and timers to be at rest.
const SETTLE: Duration = Duration::from_secs(5);
/// As long as the project promises its figures for.
const MEASURE: Duration = Duration::from_secs(60);

/// Measures; the bounds are those of the window's issue.
pub(crate) fn measure(places: &Places) -> anyhow::Result<Measured> {
    let weight = page::build(places)?.context("npm is needed to build the page that is measured: install Node 20")?;
    commands::run(&mut commands::cargo(
        places,
        [
            "build",
            "--release",
            "--locked",
            "-p",
            "sela-agent",
            "-p",
            "sela-exchange",
            "-p",
            "sela-nvml-sim",
            "-p",
            "sela-desktop",
            "-p",
            "sela-desktop-tests",
        ],
    ))?;
    let mut stages = Stages::begin(places)?;
    let shown = stages.cost_of("shown")?;
    let closed = stages.cost_of("closed")?;
    let times = stages.end()?;
    let (start, reopen) = (Span::of(&times.start_ms)?, Span::of(&times.reopen_ms)?);
    Ok(Measured {
        conditions: format!(
            "Release build on a virtual X display, with an agent that shares a SIMULATED card and watches a second display. `start`: from starting \
             the program to the agent's first news being on the page; `reopen`: the same from a click on \"Open\" in the tray. The middle of {} \
             times each, the first of all among them, and `_worst`. PSS is the proportional set size in MiB of app and agent together with all \
             their children, at the end of 60 s; processor time over those 60 s is in percent of one core.",
            times.start_ms.len()
        ),
        figures: [
            ("start_ms", start.middle),
            ("start_worst_ms", start.worst),
            ("reopen_ms", reopen.middle),
            ("reopen_worst_ms", reopen.worst),
            ("shown_pss_mb", shown.pss_mb),
            ("shown_cpu_pct", shown.cpu_pct),
            ("closed_pss_mb", closed.pss_mb),
            ("closed_cpu_pct", closed.cpu_pct),
            ("closed_wakeups_per_s", closed.wakeups_per_s),
            ("js_gzip_kb", weight.js_gzip_kb),
        ]
        .into(),
        bounds: [
            ("start_ms", 1500.0),
            ("reopen_ms", 700.0),
            ("closed_pss_mb", 60.0),
            ("closed_cpu_pct", 0.3),
            ("js_gzip_kb", 250.0),
        ]
        .into(),
        ..Measured::default()
    })
}

/// The program that leads the app through its stages. It ends when its standard input does, and everything with it.
struct Stages {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

#[derive(Debug, Deserialize)]
struct Stage {
    stage: String,
    processes: Vec<u32>,
}

#[derive(Debug, Deserialize)]
struct Times {
    start_ms: Vec<f64>,
    reopen_ms: Vec<f64>,
}

impl Stages {
    fn begin(places: &Places) -> anyhow::Result<Self> {
        let program = places.program(Profile::Release, "sela-desktop-stages");
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let to = child.stdin.take().context("it has a standard input")?;
        let from = child.stdout.take().context("it has a standard output")?;
        Ok(Self {
            child,
            to,
            from: BufReader::new(from).lines(),
        })
    }

    /// Waits until this stage is reached, measures it and lets the next begin.
    fn cost_of(&mut self, name: &str) -> anyhow::Result<Cost> {
        let stage: Stage = self.next()?;
        ensure!(stage.stage == name, "the stage is {} and not {name}", stage.stage);
        println!("{name}: at rest, then measured for {} s", MEASURE.as_secs());
        std::thread::sleep(SETTLE);
        let costs = process::measure(&stage.processes, MEASURE)?;
        writeln!(self.to).context("the app's stages ended early")?;
        Ok(costs.into_iter().fold(
            Cost {
                pss_mb: 0.0,
                cpu_pct: 0.0,
                wakeups_per_s: 0.0,
            },
            |all, one| Cost {
                pss_mb: all.pss_mb + one.pss_mb,
                cpu_pct: all.cpu_pct + one.cpu_pct,
                wakeups_per_s: all.wakeups_per_s + one.wakeups_per_s,
            },
        ))
    }

    fn end(mut self) -> anyhow::Result<Times> {
        let times = self.next()?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the app's stages ended with {status}");
        Ok(times)
    }

    fn next<T: for<'a> Deserialize<'a>>(&mut self) -> anyhow::Result<T> {
        let Some(line) = self.from.next() else {
            bail!("the app's stages ended with {}; see above", self.child.wait()?);
        };
        let line = line?;
        serde_json::from_str(&line).with_context(|| format!("the app's stages said something unexpected: {line}"))
    }
}

/// Several measurements of one thing.
#[derive(Debug, PartialEq)]
struct Span {
    middle: f64,
    worst: f64,
}

impl Span {
    fn of(values: &[f64]) -> anyhow::Result<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.get(sorted.len() / 2).context("nothing was timed")?;
        let worst = sorted.last().context("nothing was timed")?;
        Ok(Self {
            middle: *middle,
            worst: *worst,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_of_the_sorted_and_the_worst_is_the_largest() {
        let span = Span::of(&[900.0, 100.0, 300.0, 200.0, 250.0]).expect("some");
        assert_eq!(
            span,
            Span {
                middle: 250.0,
                worst: 900.0
            }
        );
        assert!(Span::of(&[]).is_err());
    }
}
