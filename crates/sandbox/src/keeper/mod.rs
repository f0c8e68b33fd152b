//! The keeper: one process that guards one job. `wire` is what it and the agent say to each other, `handle` the agent's end,
//! `set_up` and `guard` what the process does. It has one thread and no runtime, because it forks; it decides nothing but
//! when a job has to end.

mod account;
mod archive;
mod collect;
mod contain;
mod desk;
mod end;
mod grant;
mod guard;
pub mod handle;
mod log;
mod meter;
mod set_up;
mod wiping;
pub mod wire;

use desk::{Desk, Heard};
use sela_protocol::confidential::Confidential;
use sela_protocol::units::{BootUs, Microseconds};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use wire::{Fault, FaultCode, JobPlan, Order, Report};

/// How long a keeper that has nothing left to guard tries to tell the agent so.
const LAST_WORDS: Microseconds = Microseconds(2_000_000);

/// Nice value of a keeper, which uses next to nothing and must be there at once.
const NICE: i32 = -10;

/// Guards one job, from the first order to the last report. Call it first thing in a process that does nothing else: `orders` and
/// `reports` are its standard input and output. Returns failure where it could not even begin.
pub fn run(orders: impl AsFd, reports: impl AsFd) -> ExitCode {
    let begin = || -> std::io::Result<Desk> {
        // It will hold what only the job may read: if it crashes, its memory is written nowhere.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        let desk = Desk::new(own(orders)?, own(reports)?)?;
        // What standard input and output were must not be inherited by anything that is forked.
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        // A keeper that has to wait for its turn keeps nothing. Refused without the right to; then it is as good as any program.
        let _ = rustix::process::setpriority_process(None, NICE);
        Ok(desk)
    };
    let Ok(mut desk) = begin() else {
        return ExitCode::FAILURE;
    };
    serve(&mut desk);
    desk.drain(later(LAST_WORDS));
    ExitCode::SUCCESS
}

fn own(fd: impl AsFd) -> std::io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

pub(super) fn later(span: Microseconds) -> BootUs {
    sela_clock::boot_us().plus(span)
}

fn serve(desk: &mut Desk) {
    let Start { plan, confidential } = match wait_for_start(desk) {
        Ok(Some(start)) => start,
        Ok(None) => return,
        Err(fault) => return desk.report(&Report::Failed { fault }),
    };
    desk.expect_grants();
    match set_up::set_up(desk, &plan, *confidential) {
        Ok(watch) => end::end(guard::guard(watch, desk), desk),
        Err(fault) => desk.report(&Report::Failed { fault }),
    }
}

/// The first order: the job, and what of it is for nobody's eyes.
struct Start {
    plan: Box<JobPlan>,
    confidential: Box<Confidential>,
}

/// `None` where the agent went away without giving one.
fn wait_for_start(desk: &mut Desk) -> Result<Option<Start>, Fault> {
    let refuse = |message: String| Err(Fault::new(FaultCode::Orders, message));
    if !has_one_thread() {
        return refuse("a job keeper must be called before its process starts a thread".to_owned());
    }
    loop {
        desk.wait(&[], BootUs(u64::MAX))
            .map_err(|error| Fault::new(FaultCode::Orders, error.to_string()))?;
        while let Some(heard) = desk.hear() {
            match heard {
                Heard::Order(Order::Start { plan, confidential }) => return Ok(Some(Start { plan, confidential })),
                Heard::Order(Order::End { .. }) | Heard::AgentGone | Heard::Shutdown => return Ok(None),
                Heard::Order(order) => return refuse(format!("the first order must be start, not {order:?}")),
                Heard::Unreadable(why) => return refuse(format!("the agent's order could not be read: {why}")),
                Heard::GrantExpired => {}
            }
        }
    }
}

/// Everything that this process forks goes on in a copy of it: with a second thread, locks would be copied locked.
fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}
