//! The sandbox beside its peers, and the whole way of a job: runs `sela-measure-sandbox` (tests/measure), which measures, and makes
//! figures, tables and drawings of what it found. What is measured and how is said there.

mod drawing;
mod figures;
mod found;

#[cfg(target_os = "linux")]
pub(crate) use running::measure;

#[cfg(target_os = "linux")]
mod running {
    //! Starts the program that measures.

    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use anyhow::{Context, ensure};

    use super::figures;
    use super::found::Found;
    use crate::bench::Measured;
    use crate::commands;
    use crate::places::{Places, Profile};

    /// Size of the image that is pulled.
    const IMAGE_MIB: u32 = 1024;

    /// Measures; the goals are those of the sandbox's issue.
    pub(crate) fn measure(places: &Places, rounds: u32) -> anyhow::Result<Measured> {
        commands::run(&mut commands::cargo(
            places,
            [
                "build",
                "--release",
                "--locked",
                "-p",
                "sela-measure",
                "-p",
                "sela-agent",
                "-p",
                "sela-exchange",
                "-p",
                "sela-nvml-sim",
            ],
        ))?;
        let program = places.program(Profile::Release, "sela-measure-sandbox");
        let mut measuring = Command::new(&program)
            .args([rounds.to_string(), IMAGE_MIB.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut found = Found::default();
        let output = measuring.stdout.take().context("it has a standard output")?;
        for line in BufReader::new(output).lines() {
            found.take(&line?)?;
        }
        let status = measuring.wait()?;
        ensure!(status.success(), "the measurement ended with {status}; see above");
        figures::measured(&found, rounds)
    }
}
