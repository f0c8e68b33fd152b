//! Where the programs under test lie, and running one of them to its end.

use crate::PATIENCE;
use anyhow::{Context, bail, ensure};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A program as cargo built it for the profile of the program that asks: beside it, or in a folder above.
///
/// # Errors
/// Where it was not built.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("{name} was not built: `cargo build` builds all programs under test"))
}

/// What a program said and how it ended.
#[derive(Debug, Clone)]
pub struct Ran {
    /// What was run, for messages.
    pub line: String,
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ran {
    /// The standard output of a program that ended with 0.
    ///
    /// # Errors
    /// Where it ended otherwise.
    pub fn good(&self) -> anyhow::Result<&str> {
        ensure!(
            self.code == Some(0),
            "`{}` ended with {:?}\n{}{}",
            self.line,
            self.code,
            self.stdout,
            self.stderr
        );
        Ok(&self.stdout)
    }

    /// The standard output of a program that ended with 0, as JSON.
    ///
    /// # Errors
    /// Where it ended otherwise or said something else.
    pub fn json<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let text = self.good()?;
        serde_json::from_str(text).with_context(|| format!("`{}` said something unexpected: {text}", self.line))
    }

    /// That it was refused with this exit code and these words, which are looked for in what it said.
    ///
    /// # Errors
    /// Where it was not.
    pub fn refused(&self, code: i32, words: &[&str]) -> anyhow::Result<()> {
        let said = format!("{}{}", self.stdout, self.stderr);
        ensure!(
            self.code == Some(code),
            "`{}` ended with {:?} instead of {code}: {said}",
            self.line,
            self.code
        );
        for word in words {
            ensure!(said.contains(word), "`{}` should say \"{word}\": {said}", self.line);
        }
        Ok(())
    }
}

/// Runs a program to its end. One that does not end is killed.
///
/// # Errors
/// Where it cannot be started or does not end.
pub fn run(command: &mut Command) -> anyhow::Result<Ran> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    let line = words.join(" ");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let (stdout, stderr) = (read_along(child.stdout.take()), read_along(child.stderr.take()));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!("`{line}` did not end within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |reader: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
    };
    Ok(Ran {
        line,
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

fn read_along(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks has said what it had to say.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}
