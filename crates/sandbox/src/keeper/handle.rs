//! The agent's end of a keeper: starts the process, sends orders, receives reports. Dropping the orders' half closes the
//! pipe, which ends the job at once. What to order is the agent's to decide.

use super::wire::{Order, Report};
use crate::network::Door;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStdout};
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
    // Orders go by a socket: a pipe could not carry a job's listening socket back.
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    command
        .arg(SUBCOMMAND)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let missing = || failed(std::io::Error::other("no pipe"));
    // It holds the keeper's end; while any copy of that is open here, the keeper's death would not show.
    drop(command);
    let (door, orders) = ours
        .set_nonblocking(true)
        .and_then(|()| tokio::net::UnixStream::from_std(ours))
        .map_err(failed)?
        .into_split();
    let stdout = child.stdout.take().ok_or_else(missing)?;
    Ok((
        Orders {
            orders,
            door: Some(door),
        },
        Reports {
            lines: BufReader::new(stdout).lines(),
            child,
        },
    ))
}

/// Sends orders.
#[derive(Debug)]
pub struct Orders {
    orders: OwnedWriteHalf,
    door: Option<OwnedReadHalf>,
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
        Ok(self.orders.write_all(&line).await?)
    }

    /// Where the socket of a job with [`super::wire::Egress::Proxy`] arrives. There is one: `None` the second time.
    pub fn door(&mut self) -> Option<Door> {
        self.door.take().map(Door::new)
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
