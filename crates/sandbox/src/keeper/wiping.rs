//! A card's memory is wiped before its job is set up: asked for and waited for here, done by `wipe`. While that goes on the keeper
//! listens as ever, and every reason to end a job ends it. The process is in the job's own cgroup, so that whoever asks who
//! holds the card sees that it is the job's; with limits of its own, since the job's are for the job.

use super::desk::Desk;
use super::later;
use super::set_up::{remove_cgroups, stop_at, tidy};
use super::wire::{Fault, FaultCode, JobPlan, Limits, Report};
use crate::card::CardWipe;
use crate::cgroup::Cgroup;
use crate::error::OrFault as _;
use crate::wipe::{Wiped, Wiper};
use rustix::event::PollFlags;
use sela_protocol::confidential::Confidential;
use sela_protocol::units::{Bytes, Microseconds};

/// How long it may take. The largest cards of today need about two seconds, most of them for the driver's own start.
const PATIENCE: Microseconds = Microseconds(30_000_000);
/// What the driver's library may take of the machine's memory.
const MEMORY: Bytes = Bytes::from_gib(4);
/// Threads that it may start.
const PIDS: u32 = 512;

/// Wipes, where the plan says how, and reports it. Nothing of it is left when this returns but, in what is returned, its number: hold it
/// until the job is up.
pub(super) fn wipe(desk: &mut Desk, plan: &JobPlan, confidential: &mut Confidential) -> Result<Option<Wiper>, Fault> {
    let Some(wipe) = plan.card.as_ref().and_then(|card| card.wipe.as_ref()) else {
        return Ok(None);
    };
    let wiped = in_its_cgroup(desk, plan, wipe, confidential);
    if wiped.is_err() {
        tidy(desk, plan);
    }
    wiped.map(Some)
}

fn in_its_cgroup(
    desk: &mut Desk,
    plan: &JobPlan,
    wipe: &CardWipe,
    confidential: &mut Confidential,
) -> Result<Wiper, Fault> {
    let began = sela_clock::boot_us();
    let limits = Limits {
        memory: MEMORY,
        pids: PIDS,
        ..plan.limits.clone()
    };
    let made = Cgroup::create(&plan.cgroups, plan.lease, &limits);
    let cgroup = made.map_err(|error| Fault::new(FaultCode::Cgroup, error.to_string()))?;
    // While it holds all of the card's memory nobody else can have any: the sooner it is done the better.
    cgroup.set_hurry(true);
    // SAFETY: `run` has seen that this process has one thread, and nothing here starts another.
    let begun = unsafe { Wiper::begin(wipe, plan.ids, confidential) };
    let led = begun.and_then(|mut wiper| {
        let led = lead(desk, &cgroup, &mut wiper);
        // Whatever came of it: the card must be free of it before anything else happens.
        let dead = wiper.end();
        match led {
            Ok(_) if !dead => Err(fault("it does not end: the driver may hang; restart the PC")),
            Ok(wiped) => Ok((wiper, wiped)),
            Err(fault) => Err(fault),
        }
    });
    // The groups above are other jobs', too.
    cgroup.set_hurry(false);
    drop(cgroup.kill());
    remove_cgroups(desk, &cgroup);
    let (wiper, Wiped { wiped, .. }) = led?;
    desk.report(&Report::CardWiped {
        wiped,
        took_us: sela_clock::boot_us().since(began),
    });
    Ok(wiper)
}

fn lead(desk: &mut Desk, cgroup: &Cgroup, wiper: &mut Wiper) -> Result<Wiped, Fault> {
    cgroup.add(wiper.pid()).or_fault(
        FaultCode::Cgroup,
        "put the wiping of the card's memory into its cgroups",
    )?;
    wiper.go_on()?;
    let patience = later(PATIENCE);
    loop {
        match wiper.outcome() {
            Some(Ok(wiped)) => return Ok(wiped),
            Some(Err(why)) => return Err(fault(&why)),
            None if sela_clock::boot_us() >= patience => return Err(fault("it took more than thirty seconds")),
            None => {}
        }
        desk.wait(&[(wiper.answer(), PollFlags::IN)], patience)
            .or_fault(FaultCode::Isolation, "wait for the wiping of the card's memory")?;
        while let Some(heard) = desk.hear() {
            stop_at(heard)?;
        }
    }
}

fn fault(why: &str) -> Fault {
    Fault::new(
        FaultCode::CardNotWiped,
        format!("the card's memory could not be wiped before the job, so it was not started: {why}"),
    )
}
