//! The agent's end of a keeper: starts the process, sends orders, receives reports. Dropping the orders' half closes the
//! pipe, which ends the job at once. What to order is the agent's to decide.

use super::wire::{Order, Report};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use zeroize::Zeroizing;

/// The subcommand under which a binary calls [`super::run`].
pub const SUBCOMMAND: &str = "job-keeper";

/// What can go wrong between agent and keeper.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// The keeper's program did not start.
    #[error("could not start the job keeper {program}: {source}")]
    Start {
        /// Which program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// The pipe to or from it broke: it is gone, and the job with it.
    #[error("the job keeper is gone: {0}")]
    Pipe(#[from] std::io::Error),
    /// It said something that is no report.
    #[error("the job keeper of another version answered: {0}")]
    Report(#[from] serde_json::Error),
}

/// Starts a keeper: `program job-keeper`. `program` is `std::env::current_exe()` but for tests. Its standard error is the agent's.
///
/// # Errors
/// [`HandleError::Start`].
pub fn spawn(program: &Path) -> Result<(Orders, Reports), HandleError> {
    let failed = |source| HandleError::Start {
        program: program.display().to_string(),
        source,
    };
    #[expect(clippy::disallowed_methods, reason = "this crate is where processes are started")]
    let mut command = tokio::process::Command::new(program);
    // A process group of its own: Ctrl-C in a terminal reaches the agent, which then ends its jobs in order.
    command
        .arg(SUBCOMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let missing = || failed(std::io::Error::other("no pipe"));
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    Ok((
        Orders { stdin },
        Reports {
            lines: BufReader::new(stdout).lines(),
            child,
        },
    ))
}

/// Sends orders.
#[derive(Debug)]
pub struct Orders {
    stdin: ChildStdin,
}

impl Orders {
    /// Writes one order. Orders are far smaller than the pipe: this waits only for a keeper that reads nothing any more.
    ///
    /// # Errors
    /// [`HandleError::Pipe`] where the keeper is gone.
    pub async fn send(&mut self, order: &Order) -> Result<(), HandleError> {
        // An order to start holds what only the job may read.
        let mut line = Zeroizing::new(serde_json::to_vec(order)?);
        line.push(b'\n');
        self.stdin.write_all(&line).await?;
        Ok(self.stdin.flush().await?)
    }
}

/// Receives reports.
#[derive(Debug)]
pub struct Reports {
    lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl Reports {
    /// The next report; `None` once the keeper has closed its output. Safe to drop half-way (`select!`).
    ///
    /// # Errors
    /// [`HandleError::Pipe`], [`HandleError::Report`].
    pub async fn next(&mut self) -> Result<Option<Report>, HandleError> {
        match self.lines.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }

    /// The keeper's own process id, while it has not been waited for.
    pub fn keeper_pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the keeper's end. Call it after `next` gave `None`, so that no zombie stays.
    ///
    /// # Errors
    /// [`HandleError::Pipe`].
    pub async fn wait(mut self) -> Result<ExitStatus, HandleError> {
        Ok(self.child.wait().await?)
    }
}
