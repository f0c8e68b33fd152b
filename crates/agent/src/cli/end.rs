//! How a command ends: its exit code, and one sentence where it failed.

use sela_client::ClientError;
use sela_protocol::local::Problem;
use std::process::ExitCode;

/// How a command came out.
pub(crate) type Outcome = Result<(), CliError>;

/// Why a command failed. The variants are the exit codes of conventions.md.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// 1: it was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// 1, and what there was to say is said.
    #[error("")]
    Said,
    /// 2: what was asked makes no sense.
    #[error("{0}")]
    Usage(String),
    /// 3: there is no agent.
    #[error("{0}")]
    NotRunning(String),
    /// 4: somebody may not, or a rule forbids it.
    #[error("{0}")]
    Refused(String),
    /// 5: somebody does not answer.
    #[error("{0}")]
    Unavailable(String),
}

impl CliError {
    /// The exit code.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.number())
    }

    pub(crate) const fn number(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Said => 1,
            Self::Usage(_) => 2,
            Self::NotRunning(_) => 3,
            Self::Refused(_) => 4,
            Self::Unavailable(_) => 5,
        }
    }

    /// From an error of the exchange.
    pub(crate) fn of_problem(problem: &Problem) -> Self {
        let detail = problem.detail.clone();
        match problem.status {
            400 | 415 | 422 => Self::Usage(detail),
            401..=403 | 409 | 413 | 429 => Self::Refused(detail),
            500..=599 => Self::Unavailable(detail),
            _ => Self::Failed(detail),
        }
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let text = error.to_string();
        match error {
            ClientError::NotRunning { .. } => Self::NotRunning(text),
            ClientError::NotAllowed { .. } => Self::Refused(text),
            ClientError::Refused(problem) => Self::of_problem(&problem),
            ClientError::OtherVersion { .. } | ClientError::Broken { .. } => Self::Failed(text),
        }
    }
}

impl From<anyhow::Error> for CliError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        // Whoever read our output has seen enough.
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::Said;
        }
        Self::Failed(error.to_string())
    }
}
