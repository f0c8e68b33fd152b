//! Counting: what passed, what failed, by kind and in time; and the closing lines of a test run. Runs nothing.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// How many checks or tests ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Those that held.
    pub(crate) passed: u64,
    /// Those that did not, however they ended.
    pub(crate) failed: u64,
    /// Those that were not run, by their own word.
    pub(crate) skipped: u64,
    /// Those among the passed that failed first and passed when they were tried again.
    pub(crate) again: u64,
}

impl Tally {
    /// One check that held.
    pub(crate) const PASSED: Self = Self {
        passed: 1,
        failed: 0,
        skipped: 0,
        again: 0,
    };
    /// One check that did not hold.
    pub(crate) const FAILED: Self = Self {
        passed: 0,
        failed: 1,
        skipped: 0,
        again: 0,
    };
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.again += other.again;
    }
}

/// What sort of check a stage is. The summary is by these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Formatting, lints, spelling, licences, unused dependencies.
    Check,
    /// The programs compile.
    Build,
    /// Tests inside the crates.
    Unit,
    /// Tests that start the real programs.
    BlackBox,
    /// Examples in the documentation.
    DocTest,
    /// Tests of the work that tenants bring, optimised.
    Workload,
    /// What a fuzzer makes up, for some seconds.
    Fuzz,
    /// Random moments of death, a small fixed slice.
    Soak,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Check,
        Self::Build,
        Self::Unit,
        Self::BlackBox,
        Self::DocTest,
        Self::Workload,
        Self::Fuzz,
        Self::Soak,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Check => "checks",
            Self::Build => "builds",
            Self::Unit => "unit tests",
            Self::BlackBox => "black-box tests",
            Self::DocTest => "doc tests",
            Self::Workload => "workload tests",
            Self::Fuzz => "fuzz targets",
            Self::Soak => "soak runs",
        })
    }
}

/// A stage that was run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) tally: Tally,
    pub(crate) took: Duration,
}

/// All stages that were run, in order.
#[derive(Debug, Default)]
pub(crate) struct Report {
    stages: Vec<Ran>,
}

impl Report {
    pub(crate) fn add(&mut self, stage: Ran) {
        self.stages.push(stage);
    }

    /// Everything together.
    pub(crate) fn total(&self) -> Tally {
        let mut total = Tally::default();
        for stage in &self.stages {
            total += stage.tally;
        }
        total
    }

    /// Whether the whole run counts as good: nothing failed, and something passed.
    pub(crate) fn is_good(&self) -> bool {
        let total = self.total();
        total.failed == 0 && total.passed > 0
    }
}

impl fmt::Display for Report {
    /// A table by stage, a table by kind, and alone on the last line `N passed, N failed`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{:<34} {:>7} {:>7} {:>7} {:>9}",
            "stage", "passed", "failed", "skipped", "time"
        )?;
        for stage in &self.stages {
            row(out, stage.name, stage.tally, stage.took)?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "{:<34} {:>7} {:>7} {:>7} {:>9}",
            "kind", "passed", "failed", "skipped", "time"
        )?;
        for kind in Kind::ALL {
            let mut tally = Tally::default();
            let mut took = Duration::ZERO;
            let mut any = false;
            for stage in self.stages.iter().filter(|stage| stage.kind == kind) {
                tally += stage.tally;
                took += stage.took;
                any = true;
            }
            if any {
                row(out, &kind.to_string(), tally, took)?;
            }
        }
        for stage in self.stages.iter().filter(|stage| stage.tally.failed > 0) {
            writeln!(
                out,
                "\nfailed: {} ({} of {})",
                stage.name,
                stage.tally.failed,
                stage.tally.failed + stage.tally.passed
            )?;
        }
        for stage in self.stages.iter().filter(|stage| stage.tally.again > 0) {
            writeln!(
                out,
                "\npassed only when tried again, which is a fault to be mended: {} of {}; look for FLAKY above",
                stage.tally.again, stage.name
            )?;
        }
        let total = self.total();
        write!(out, "\n{} passed, {} failed", total.passed, total.failed)?;
        if total.skipped > 0 {
            write!(out, ", {} skipped", total.skipped)?;
        }
        writeln!(out)
    }
}

fn row(out: &mut fmt::Formatter<'_>, name: &str, tally: Tally, took: Duration) -> fmt::Result {
    writeln!(
        out,
        "{name:<34} {:>7} {:>7} {:>7} {:>9}",
        tally.passed,
        tally.failed,
        tally.skipped,
        minutes(took)
    )
}

/// `3:07` for three minutes and seven seconds, rounded to the nearest second.
pub(crate) fn minutes(time: Duration) -> String {
    let seconds = (time.as_millis() + 500) / 1000;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(kind: Kind, passed: u64, failed: u64, skipped: u64) -> Ran {
        Ran {
            name: "stage",
            kind,
            tally: Tally {
                passed,
                failed,
                skipped,
                ..Tally::default()
            },
            took: Duration::from_millis(61_600),
        }
    }

    #[test]
    fn the_last_line_sums_everything_and_stands_alone() {
        for (stages, last, good) in [
            (
                vec![ran(Kind::Check, 1, 0, 0), ran(Kind::Unit, 40, 0, 0)],
                "41 passed, 0 failed",
                true,
            ),
            (
                vec![ran(Kind::Check, 0, 1, 0), ran(Kind::BlackBox, 40, 2, 0)],
                "40 passed, 3 failed",
                false,
            ),
            (vec![ran(Kind::Unit, 3, 0, 2)], "3 passed, 0 failed, 2 skipped", true),
            (vec![], "0 passed, 0 failed", false),
        ] {
            let mut report = Report::default();
            stages.into_iter().for_each(|stage| report.add(stage));
            assert_eq!(report.to_string().lines().last(), Some(last));
            assert_eq!(report.is_good(), good, "{last}");
        }
    }

    #[test]
    fn each_kind_that_ran_is_summed_once() {
        let mut report = Report::default();
        report.add(ran(Kind::Check, 1, 0, 0));
        report.add(ran(Kind::Check, 0, 1, 0));
        let text = report.to_string();
        let row: Vec<_> = text.lines().filter(|line| line.starts_with("checks")).collect();
        assert_eq!(row.len(), 1);
        assert_eq!(
            row[0].split_whitespace().collect::<Vec<_>>(),
            ["checks", "1", "1", "0", "2:03"]
        );
        assert!(!text.contains("soak runs"));
        assert!(text.contains("failed: stage (1 of 1)"));
    }

    #[test]
    fn what_passed_only_when_tried_again_is_told_and_is_no_failure() {
        let mut report = Report::default();
        let mut stage = ran(Kind::BlackBox, 40, 0, 0);
        stage.tally.again = 2;
        report.add(stage);
        report.add(ran(Kind::Unit, 3, 0, 0));
        let text = report.to_string();
        assert!(
            text.contains("tried again, which is a fault to be mended: 2 of stage;"),
            "{text}"
        );
        assert_eq!(text.lines().last(), Some("43 passed, 0 failed"));
        assert!(report.is_good());
    }

    #[test]
    fn time_is_shown_in_minutes_and_seconds() {
        for (milliseconds, text) in [
            (0, "0:00"),
            (499, "0:00"),
            (59_600, "1:00"),
            (187_000, "3:07"),
            (3_600_000, "60:00"),
        ] {
            assert_eq!(minutes(Duration::from_millis(milliseconds)), text);
        }
    }
}
