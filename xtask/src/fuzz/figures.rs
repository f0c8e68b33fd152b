//! Reads what libFuzzer writes: how much was run and reached, and what was found. Only text in, figures out.

use std::fmt;

/// What a run came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Inputs that were run.
    executions: u64,
    /// Branches of our own code that were taken.
    branches: u64,
    /// The same with how often, and comparisons that came nearer.
    features: u64,
    /// Inputs that each reach something that no other does.
    corpus: u64,
    /// Most memory of the process, in MiB.
    memory_mib: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            executions,
            branches,
            features,
            corpus,
            memory_mib,
        } = self;
        write!(
            out,
            "{executions} executions, {branches} branches, {features} features, {corpus} inputs kept, {memory_mib} MiB, no finding"
        )
    }
}

/// The figures in the log of a run that came to its end; `None` where it says none.
///
/// Lines of progress read `#4096 pulse  cov: 2138 ft: 6307 corp: 2008/476Kb lim: 8192 …`, the closing ones
/// `stat::number_of_executed_units: 9565694`.
pub(super) fn read(log: &str) -> Option<Figures> {
    let closing = |name: &str| {
        let line = log.lines().rev().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().parse::<u64>().ok()
    };
    let progress = log
        .lines()
        .rev()
        .find(|line| line.starts_with('#') && line.contains(" cov: "))?;
    let after = |name: &str| {
        let (_, rest) = progress.split_once(name)?;
        let digits = rest
            .trim_start()
            .split(|letter: char| !letter.is_ascii_digit())
            .next()?;
        digits.parse::<u64>().ok()
    };
    Some(Figures {
        executions: closing("stat::number_of_executed_units")?,
        branches: after(" cov:")?,
        features: after(" ft:")?,
        corpus: after(" corp:")?,
        memory_mib: closing("stat::peak_rss_mb")?,
    })
}

/// The lines of a log that say what was found.
pub(super) fn what_was_found(log: &str) -> String {
    const LONGEST: usize = 300;
    let mut lines = log.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let says = ["panicked at", "SUMMARY:", "ERROR: libFuzzer", "Test unit written to"];
        if says.iter().any(|words| line.contains(words)) {
            found.push(line);
            if line.contains("panicked at") {
                found.extend(lines.next());
            }
        }
    }
    if found.is_empty() {
        found = log.lines().rev().take(10).collect();
        found.reverse();
    }
    let cut = |line: &str| line.chars().take(LONGEST).collect::<String>();
    found.into_iter().map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_s_figures_are_those_of_its_end() {
        let log = "INFO: Seed: 1\n#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 30Mb\n\
            #4081136\tREDUCE cov: 2138 ft: 6307 corp: 2008/476Kb lim: 8192 exec/s: 23188 rss: 31Mb L: 893/8116\n\
            Done 9565694 runs in 601 second(s)\nstat::number_of_executed_units: 9565694\nstat::peak_rss_mb:              32\n";
        let expected = Figures {
            executions: 9_565_694,
            branches: 2_138,
            features: 6_307,
            corpus: 2_008,
            memory_mib: 32,
        };
        assert_eq!(read(log), Some(expected));
        assert_eq!(read("no fuzzer ran here\n"), None);
    }

    #[test]
    fn a_finding_is_told_with_what_panicked_and_the_file_that_shows_it() {
        let log = "thread '<unnamed>' (1) panicked at a.rs:1:2:\nit does not hold\nstack backtrace:\n   0: x\n\
            SUMMARY: libFuzzer: deadly signal\nartifact_prefix='f/'; Test unit written to f/crash-1\nBase64: AA==\n";
        assert_eq!(
            what_was_found(log),
            "thread '<unnamed>' (1) panicked at a.rs:1:2:\nit does not hold\nSUMMARY: libFuzzer: deadly signal\n\
             artifact_prefix='f/'; Test unit written to f/crash-1"
        );
        assert_eq!(what_was_found("cannot start\n"), "cannot start");
    }
}
