//! The command line of `cargo xtask`, as types. Words and defaults live here; what they do lives in the verbs' own modules.

use clap::{Parser, Subcommand, ValueEnum};

/// Everything that can be set up, run, tested or measured in this repository.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum Verb {
    /// Install what is missing on this machine (as root; otherwise print the one command to copy).
    Setup {
        /// Which verb to prepare for; each needs less than `test` does.
        #[arg(long = "for", value_enum, default_value_t = Purpose::Test)]
        purpose: Purpose,
    },
    /// Run the whole path on this machine: two strangers' jobs earn money on an idle card.
    Run {
        /// End with an exit code when both jobs are done and paid, instead of staying up.
        #[arg(long)]
        once: bool,
    },
    /// Run every check and every test, and end with a line `N passed, N failed`.
    Test {
        /// Only formatting, lints and unit tests: no system packages needed.
        #[arg(long)]
        quick: bool,
    },
    /// Write the window's TypeScript types anew from the protocol, to be committed.
    Bindings,
    /// Measure something, print a table and write `target/bench/NAME.json`.
    Bench {
        /// What to measure.
        #[arg(value_enum)]
        name: BenchName,
        /// Also write docs/measurements/NAME.md, to be committed.
        #[arg(long)]
        record: bool,
        /// How often the sandbox and its peers start; all else that is counted there follows from it. Fewer are quicker and say less.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..))]
        rounds: u32,
    },
    /// Try something many times, each time with another seed; a seed that fails is told with the command that shows it again.
    Soak {
        /// What to try.
        #[arg(value_enum)]
        name: SoakName,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many seeds.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
        runs: u64,
    },
    /// Feed code with what a fuzzer makes up; an input that breaks it is told with the command that shows it again.
    Fuzz {
        /// What to feed.
        #[arg(value_enum, required_unless_present = "all")]
        target: Option<FuzzTarget>,
        /// Feed all of them.
        #[arg(long, conflicts_with = "target")]
        all: bool,
        /// Seconds for each.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
}

/// What a machine is being prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// `cargo xtask test --quick`.
    QuickTest,
    /// `cargo xtask run`.
    Run,
    /// `cargo xtask run` where there is a display to open the window on.
    RunInWindow,
    /// `cargo xtask test`.
    Test,
    /// `cargo xtask bench`.
    Bench,
    /// `cargo xtask bench sandbox`, which brings its peers.
    BenchSandbox,
    /// `cargo xtask soak`.
    Soak,
    /// `cargo xtask fuzz`.
    Fuzz,
}

impl Purpose {
    /// The verb as it is typed.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Purpose::QuickTest => "test --quick",
            Purpose::Run | Purpose::RunInWindow => "run",
            Purpose::Test => "test",
            Purpose::Bench => "bench",
            Purpose::BenchSandbox => "bench sandbox",
            Purpose::Soak => "soak",
            Purpose::Fuzz => "fuzz",
        }
    }
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchName {
    /// The idle agent beside BOINC's client: memory, processor time, wake-ups.
    Agent,
    /// The desktop app with its agent: time until the window shows it, and what both cost with the window shown and closed.
    Desktop,
    /// The sandbox beside container runtimes: starts, freezes, ends, pulls, what it costs, and the whole way of a job.
    Sandbox,
}

impl BenchName {
    /// What the machine is prepared for.
    pub(crate) fn purpose(self) -> Purpose {
        match self {
            BenchName::Agent | BenchName::Desktop => Purpose::Bench,
            BenchName::Sandbox => Purpose::BenchSandbox,
        }
    }

    /// The name of the files that a measurement is written to.
    pub(crate) fn file_stem(self) -> &'static str {
        match self {
            BenchName::Agent => "agent",
            BenchName::Desktop => "desktop",
            BenchName::Sandbox => "sandbox",
        }
    }
}

/// What can be tried many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SoakName {
    /// The path: a job, and something that goes wrong at a random point of its life.
    Path,
    /// The agent, the keeper or both, killed at a named point of a job's life.
    Crash,
    /// Weekly windows, minute by minute around every change of the clock of seven years in more than forty zones. Has no seeds.
    Schedule,
}

/// What can be fed by a fuzzer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FuzzTarget {
    /// A whole layer of an image.
    Layer,
    /// Manifests, indexes and configs of images, and names.
    Documents,
    /// Connections to the agent's local interface.
    LocalApi,
    /// What nodes say to the exchange.
    NodeFrames,
    /// Jobs as tenants write them.
    JobSpecs,
    /// Requests to a job's proxy.
    Proxy,
}

impl FuzzTarget {
    /// All of them.
    pub(crate) const ALL: &'static [Self] = &[
        Self::Layer,
        Self::NodeFrames,
        Self::LocalApi,
        Self::Documents,
        Self::JobSpecs,
        Self::Proxy,
    ];

    /// As it is typed, and as its folder is called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Documents => "documents",
            Self::LocalApi => "local-api",
            Self::NodeFrames => "node-frames",
            Self::JobSpecs => "job-specs",
            Self::Proxy => "proxy",
        }
    }

    /// Its program.
    pub(crate) fn program(self) -> String {
        format!("fuzz-{}", self.name())
    }

    /// Whether it gives files away to others, as only root can.
    pub(crate) const fn needs_root(self) -> bool {
        matches!(self, Self::Layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Verb, clap::Error> {
        Arguments::try_parse_from(std::iter::once("xtask").chain(line.split_whitespace()))
            .map(|arguments| arguments.verb)
    }

    #[test]
    fn each_verb_is_read_with_its_flags() {
        for (line, verb) in [
            ("setup", Verb::Setup { purpose: Purpose::Test }),
            (
                "setup --for bench",
                Verb::Setup {
                    purpose: Purpose::Bench,
                },
            ),
            (
                "setup --for quick-test",
                Verb::Setup {
                    purpose: Purpose::QuickTest,
                },
            ),
            ("run", Verb::Run { once: false }),
            ("run --once", Verb::Run { once: true }),
            ("test", Verb::Test { quick: false }),
            ("test --quick", Verb::Test { quick: true }),
            ("bindings", Verb::Bindings),
            (
                "bench agent",
                Verb::Bench {
                    name: BenchName::Agent,
                    record: false,
                    rounds: 50,
                },
            ),
            (
                "bench agent --record",
                Verb::Bench {
                    name: BenchName::Agent,
                    record: true,
                    rounds: 50,
                },
            ),
            (
                "bench desktop",
                Verb::Bench {
                    name: BenchName::Desktop,
                    record: false,
                    rounds: 50,
                },
            ),
            (
                "bench sandbox --rounds 5",
                Verb::Bench {
                    name: BenchName::Sandbox,
                    record: false,
                    rounds: 5,
                },
            ),
            (
                "fuzz layer --seconds 600",
                Verb::Fuzz {
                    target: Some(FuzzTarget::Layer),
                    all: false,
                    seconds: 600,
                },
            ),
            (
                "fuzz --all",
                Verb::Fuzz {
                    target: None,
                    all: true,
                    seconds: 60,
                },
            ),
            (
                "soak crash --seed 1 --runs 500",
                Verb::Soak {
                    name: SoakName::Crash,
                    seed: 1,
                    runs: 500,
                },
            ),
            (
                "soak path --seed 7 --runs 3",
                Verb::Soak {
                    name: SoakName::Path,
                    seed: 7,
                    runs: 3,
                },
            ),
        ] {
            assert_eq!(parse(line).unwrap_or_else(|error| panic!("{line}: {error}")), verb);
        }
    }

    #[test]
    fn what_does_not_exist_is_refused_as_bad_usage() {
        for line in [
            "",
            "tset",
            "test --fast",
            "bench",
            "bench nothing",
            "bench sandbox --rounds 2",
            "soak",
            "soak path --runs 0",
            "fuzz",
            "fuzz layer --all",
            "fuzz nothing",
            "setup --for everything",
        ] {
            assert_eq!(parse(line).expect_err(line).exit_code(), 2, "{line}");
        }
    }
}
