//! The points of a job's life, and what may go wrong at them: how each is done to real processes, and how it is mended.

use crate::{Part, World, job_pids, keeper_of, program};
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use sela_protocol::id::JobId;
use std::fmt;
use std::process::Command;

/// A point of a job's life, in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// The card was awarded and the node has not answered yet.
    Award,
    /// The image is being fetched.
    Fetch,
    /// The sandbox is being set up.
    Start,
    /// The job runs.
    Running,
    /// The owner has moved the mouse this moment.
    Freezing,
    /// The job stands frozen.
    Frozen,
    /// The job saves.
    Saving,
    /// The owner has ended it this moment.
    Ending,
    /// The job has ended by itself; its results are not stored yet.
    Uploading,
    /// All is over.
    Settled,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Award,
        Self::Fetch,
        Self::Start,
        Self::Running,
        Self::Freezing,
        Self::Frozen,
        Self::Saving,
        Self::Ending,
        Self::Uploading,
        Self::Settled,
    ];

    /// Whether it is over within a few milliseconds.
    pub const fn is_short(self) -> bool {
        matches!(
            self,
            Self::Award | Self::Start | Self::Freezing | Self::Ending | Self::Uploading
        )
    }
}

impl fmt::Display for Point {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Award => "award",
            Self::Fetch => "fetch",
            Self::Start => "start",
            Self::Running => "running",
            Self::Freezing => "freezing",
            Self::Frozen => "frozen",
            Self::Saving => "saving",
            Self::Ending => "ending",
            Self::Uploading => "uploading",
            Self::Settled => "settled",
        })
    }
}

/// What goes wrong, or what the owner does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// `kill -9` of the agent.
    KillAgent,
    /// SIGSTOP of the agent, then SIGCONT.
    StopAgent,
    /// `kill -9` of the keeper.
    KillKeeper,
    /// SIGSTOP of the keeper, then SIGCONT.
    StopKeeper,
    /// `kill -9` of the exchange.
    KillExchange,
    /// SIGSTOP of the exchange, then SIGCONT.
    StopExchange,
    /// `kill -9` of the job's program.
    KillJob,
    /// SIGSTOP of the job's program, then SIGCONT.
    StopJob,
    /// The mouse moves.
    MoveMouse,
    /// A game takes memory of the card, then ends.
    StartGame,
    /// `sela pause`, then `sela resume`.
    Pause,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::KillAgent,
        Self::StopAgent,
        Self::KillKeeper,
        Self::StopKeeper,
        Self::KillExchange,
        Self::StopExchange,
        Self::KillJob,
        Self::StopJob,
        Self::MoveMouse,
        Self::StartGame,
        Self::Pause,
    ];

    /// Whether it is worth seeing what happens when a grant runs out meanwhile.
    pub const fn may_outlast_a_grant(self) -> bool {
        matches!(self, Self::StopAgent | Self::StopKeeper | Self::StopExchange)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::KillAgent => "kill -9 agent",
            Self::StopAgent => "SIGSTOP agent",
            Self::KillKeeper => "kill -9 keeper",
            Self::StopKeeper => "SIGSTOP keeper",
            Self::KillExchange => "kill -9 exchange",
            Self::StopExchange => "SIGSTOP exchange",
            Self::KillJob => "kill -9 job",
            Self::StopJob => "SIGSTOP job",
            Self::MoveMouse => "mouse",
            Self::StartGame => "game",
            Self::Pause => "pause",
        })
    }
}

/// Trouble that was made, and what it takes to mend it.
#[derive(Debug)]
pub(super) enum Trouble {
    AgentGone,
    AgentStopped,
    ExchangeGone,
    ExchangeStopped,
    Stopped(Vec<u32>),
    Game(Part),
    Paused,
    /// Nothing to mend.
    Passed,
}

impl Trouble {
    pub(super) fn make(world: &mut World, job: JobId, action: Action) -> anyhow::Result<Self> {
        Ok(match action {
            Action::KillAgent => {
                world.owner.agent.kill()?;
                Self::AgentGone
            }
            Action::StopAgent => {
                world.owner.agent.signal(Signal::STOP)?;
                Self::AgentStopped
            }
            Action::KillKeeper => {
                if let Some(keeper) = keeper_of(world.owner.agent.pid()?) {
                    signal(keeper, Signal::KILL);
                }
                Self::Passed
            }
            Action::StopKeeper => {
                let keepers: Vec<u32> = keeper_of(world.owner.agent.pid()?).into_iter().collect();
                keepers.iter().for_each(|pid| signal(*pid, Signal::STOP));
                Self::Stopped(keepers)
            }
            Action::KillExchange => {
                world.exchange.part.kill()?;
                Self::ExchangeGone
            }
            Action::StopExchange => {
                world.exchange.part.signal(Signal::STOP)?;
                Self::ExchangeStopped
            }
            Action::KillJob => {
                programs_of(world, job)
                    .into_iter()
                    .for_each(|pid| signal(pid, Signal::KILL));
                Self::Passed
            }
            Action::StopJob => {
                let programs = programs_of(world, job);
                programs.iter().for_each(|pid| signal(*pid, Signal::STOP));
                Self::Stopped(programs)
            }
            Action::MoveMouse => {
                world.display.as_ref().context("no display")?.move_mouse()?;
                Self::Passed
            }
            Action::StartGame => {
                let mut game = Part::new("game", world.folder().join("logs/game.log"));
                let mut command = Command::new(program("sela-sim-hold")?);
                command.arg("--device").arg(world.device_node()).args(["--mib", "2048"]);
                game.start(&mut command)?;
                Self::Game(game)
            }
            Action::Pause => {
                world.owner.sela(&["pause"])?.good()?;
                Self::Paused
            }
        })
    }

    /// Whether time has to pass before it is mended.
    pub(super) const fn lasts(&self) -> bool {
        !matches!(self, Self::Passed)
    }

    pub(super) fn mend(self, world: &mut World) -> anyhow::Result<()> {
        match self {
            Self::AgentGone => world.owner.start_agent(),
            Self::AgentStopped => world.owner.agent.signal(Signal::CONT),
            Self::ExchangeGone => world.exchange.start_again(),
            Self::ExchangeStopped => world.exchange.part.signal(Signal::CONT),
            Self::Stopped(programs) => {
                programs.into_iter().for_each(|pid| signal(pid, Signal::CONT));
                Ok(())
            }
            Self::Game(mut game) => game.kill(),
            Self::Paused => world.owner.sela(&["resume"])?.good().map(drop),
            Self::Passed => Ok(()),
        }
    }
}

/// The job's processes but its init, which is the sandbox's.
fn programs_of(world: &World, job: JobId) -> Vec<u32> {
    let lease = world.lease_of(job);
    let pids = lease.map(job_pids).unwrap_or_default();
    pids.into_iter().skip(1).collect()
}

/// One that is gone already needs no signal.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
