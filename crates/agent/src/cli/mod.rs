//! The command line: what can be said, and how each command ends. Every command answers with a sentence first, then
//! figures; with `--json` with exactly one JSON document (or one a line where it follows something).

mod account;
mod doctor;
mod earnings;
mod end;
mod exchange;
mod images;
mod job;
mod jobs;
mod logs;
mod output;
mod pause;
mod span;
mod status;
mod submit;
#[cfg(test)]
mod tests;
mod why;

pub(crate) use end::{CliError, Outcome};

use crate::paths::Paths;
use crate::run::{self, AgentOptions};
use clap::{Args, Parser, Subcommand};
use output::Output;
use sela_client::Client;
use sela_protocol::id::{JobId, LeaseId};
use sela_protocol::units::Millis;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Sela shares an idle graphics card with strangers' jobs, and gives it back the moment you want it.
#[derive(Debug, Parser)]
#[command(name = "sela", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the agent is not running, 4 refused, 5 unavailable";

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Answer in JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The agent that shares this machine's cards
    Agent {
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// What the cards do now and what they earned
    Status,
    /// Why a card is not shared, and what would lift that
    Why {
        /// A card's number or UUID; all cards where it is left out
        gpu: Option<String>,
    },
    /// Stop sharing and end what runs
    Pause {
        /// For how long: 30m, 1h, 2d; until `sela resume` where it is left out
        #[arg(long = "for", value_parser = span::parse)]
        span: Option<Millis>,
    },
    /// Share again
    Resume,
    /// What each lease earned
    Earnings {
        /// As comma-separated values, everything, for a spreadsheet
        #[arg(long, conflicts_with = "json")]
        csv: bool,
    },
    /// What runs on the cards, and what ran
    Jobs,
    /// End one lease now
    End {
        /// Which: see `sela jobs`
        lease: LeaseId,
    },
    /// Test everything that sharing needs: what was tried, what was found, how to mend it
    Doctor {
        #[command(subcommand)]
        command: Option<DoctorCommand>,
    },
    /// For tenants: submit jobs and follow them
    Job {
        #[command(flatten)]
        exchange: ExchangeArgs,
        #[command(subcommand)]
        command: JobCommand,
    },
    /// For tenants: images and other files at the exchange
    Images {
        #[command(flatten)]
        exchange: ExchangeArgs,
        #[command(subcommand)]
        command: ImagesCommand,
    },
    /// For tenants: what is on the account
    Account {
        #[command(flatten)]
        exchange: ExchangeArgs,
    },
    /// Guards one job; started by the agent only
    #[command(name = sela_sandbox::keeper::handle::SUBCOMMAND, hide = true)]
    JobKeeper,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Run the agent until it is told to leave
    Run {
        /// Take part in labs: simulated cards and weaker isolation are admitted, and money has no worth
        #[arg(long)]
        lab: bool,
        /// Also serve the local interface at this address of this machine, like 127.0.0.1:7351
        #[arg(long, value_name = "ADDRESS")]
        listen: Option<SocketAddr>,
    },
}

#[derive(Debug, Subcommand)]
enum DoctorCommand {
    /// Try the walls around jobs for real, without harm, in less than a minute; needs root
    Sandbox {
        /// Also where isolation is weak enough for labs only
        #[arg(long)]
        lab: bool,
    },
}

/// Which exchange, for tenants. The API key comes from `SELA_API_KEY` or `tenant.toml`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExchangeArgs {
    /// The exchange's address; else from tenant.toml
    #[arg(long, env = "SELA_EXCHANGE", value_name = "URL", global = true)]
    pub(crate) exchange: Option<String>,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Submit a job: from a file, or described by options
    Submit(Box<submit::Submit>),
    /// Follow a job until it ends
    Watch {
        /// Which
        job: JobId,
    },
    /// What a job printed
    Logs {
        /// Which
        job: JobId,
        /// Go on until the job has ended
        #[arg(short, long)]
        follow: bool,
    },
    /// Cancel a job
    Cancel {
        /// Which
        job: JobId,
    },
    /// Fetch what a job left in /out
    Output {
        /// Which
        job: JobId,
        /// Into this folder, which must be empty or not be there yet
        folder: PathBuf,
    },
    /// All jobs of the account
    List,
}

#[derive(Debug, Subcommand)]
enum ImagesCommand {
    /// Store an OCI archive (an image layout as a tar), or any other file, and print its address
    Push {
        /// The file
        archive: PathBuf,
    },
}

/// Runs what was asked for.
///
/// # Errors
/// How it failed, with its exit code.
pub(crate) async fn run(cli: Cli) -> Outcome {
    let mut output = Output::new(cli.common.json);
    match cli.command {
        Command::Agent {
            command: AgentCommand::Run { lab, listen },
        } => Ok(run::run(AgentOptions { lab, listen }).await?),
        Command::Status => status::status(&agent()?, &mut output).await,
        Command::Why { gpu } => why::why(&agent()?, gpu.as_deref(), &mut output).await,
        Command::Pause { span } => pause::pause(&agent()?, span, &mut output).await,
        Command::Resume => pause::resume(&agent()?, &mut output).await,
        Command::Earnings { csv } => earnings::earnings(&agent()?, csv, &mut output).await,
        Command::Jobs => jobs::jobs(&agent()?, &mut output).await,
        Command::End { lease } => pause::end(&agent()?, lease, &mut output).await,
        Command::Doctor { command: None } => doctor::doctor(&Paths::from_environment()?, &mut output).await,
        Command::Doctor {
            command: Some(DoctorCommand::Sandbox { lab }),
        } => doctor::sandbox::sandbox(&Paths::from_environment()?, lab, &mut output).await,
        Command::Job { exchange, command } => {
            let exchange = exchange::Exchange::of(&exchange)?;
            match command {
                JobCommand::Submit(submit) => submit::submit(&exchange, *submit, &mut output).await,
                JobCommand::Watch { job } => job::watch(&exchange, job, &mut output).await,
                JobCommand::Logs { job, follow } => logs::logs(&exchange, job, follow, &mut output).await,
                JobCommand::Cancel { job } => job::cancel(&exchange, job, &mut output).await,
                JobCommand::Output { job, folder } => job::output(&exchange, job, &folder, &mut output).await,
                JobCommand::List => job::list(&exchange, &mut output).await,
            }
        }
        Command::Images {
            exchange,
            command: ImagesCommand::Push { archive },
        } => images::push(&exchange::Exchange::of(&exchange)?, &archive, &mut output).await,
        Command::Account { exchange } => account::account(&exchange::Exchange::of(&exchange)?, &mut output).await,
        Command::JobKeeper => Err(CliError::Usage(
            "job-keeper is started by the agent, never by hand".to_owned(),
        )),
    }
}

impl Cli {
    /// Whether this is the agent, whose log goes to standard error.
    pub(crate) const fn is_agent(&self) -> bool {
        matches!(self.command, Command::Agent { .. })
    }
}

fn agent() -> Result<Client, CliError> {
    Ok(Client::at(Paths::from_environment()?.socket()))
}
