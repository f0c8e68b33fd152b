//! Jobs that do not want to end, or to stand still, or to be counted.

use crate::control::{Plain, runs, send, soon, with_word};
use crate::ground::Ground;
use crate::job::{Job, processes_in};
use crate::outside::{Pair, all_gone};
use rustix::process::Signal;
use sela_attacks::verdict::{Held, Outcome};
use sela_protocol::lease::EndCause;
use sela_protocol::units::Millis;
use sela_sandbox::keeper::wire::{FrozenSource, JobPlan, Order};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long somebody is given to end by themselves.
const GRACE: Millis = Millis(200);

pub(crate) async fn ignored(ground: &Ground) -> Pair {
    let script = "trap '' TERM; echo up; while true; do sleep 0.05; done";
    let plan = ground.script(script);
    let mut job = ground.start(&plan);
    let (_, cgroup) = job.until_started().await;
    job.until_says("up").await;
    job.order(Order::Save {
        cause: EndCause::Displaced,
        grace_ms: GRACE,
    });
    let outcome = job.finish().await;
    let behind = if outcome.stop().cause == EndCause::Displaced && !cgroup.exists() {
        Err(Held::contained(format!(
            "gone {} after its time was up",
            outcome.stop().gone_after_us
        )))
    } else {
        Ok(format!("{:?}", outcome.stop()))
    };
    let mut plain = Plain::shell(script);
    plain.line();
    plain.signal(Signal::TERM);
    tokio::time::sleep(Duration::from_millis(GRACE.0)).await;
    let without = if plain.is_alive() {
        Ok("it runs on".to_owned())
    } else {
        Err(Held::nothing("it ended"))
    };
    Pair::new(without, behind)
}

/// A sleep that nobody else sleeps, so that it can be found by it.
fn odd_sleep(ground: &Ground, number: u32) -> String {
    let odd = u32::from_str_radix(&ground.word[8..14], 16).unwrap();
    format!("sleep {odd}.{number}")
}

/// The same as it stands in a command line.
fn as_words(sleep: &str) -> String {
    sleep.replace(' ', "\0")
}

pub(crate) async fn left_behind(ground: &Ground) -> Pair {
    let sleep = odd_sleep(ground, 1);
    let script = format!("(setsid {sleep} < /dev/null > /dev/null 2>&1 &); sleep 0.2; echo done");
    let outcome = ground.start(&ground.script(&script)).finish().await;
    assert!(outcome.out.contains("done"), "{outcome:?}");
    let behind = if all_gone(&as_words(&sleep)).await {
        Err(Held::contained("it died with the program"))
    } else {
        Ok("it lives on".to_owned())
    };
    let sleep = odd_sleep(ground, 2);
    let script = format!("(setsid {sleep} < /dev/null > /dev/null 2>&1 &); sleep 0.2");
    Plain::shell(&script).finish();
    Pair::new(found_and_ended(&as_words(&sleep)), behind)
}

/// A process that is left, and is not any more.
fn found_and_ended(word: &str) -> Outcome {
    let found = with_word(word);
    for pid in &found {
        send(*pid, Signal::KILL);
    }
    if found.is_empty() {
        Err(Held::nothing("nobody was left"))
    } else {
        Ok(format!("{} was left", found[0]))
    }
}

/// How often a job is started anew that was ended because it did not stand still in time.
const ATTEMPTS: u32 = 5;

/// A job that says that it runs, is made ready, and stands still: with its init and what it was started by.
async fn frozen(
    ground: &Ground,
    plan: impl Fn() -> JobPlan,
    says: &str,
    ready: impl AsyncFn(u32),
) -> (Job, u32, JobPlan) {
    for _ in 0..ATTEMPTS {
        let plan = plan();
        let mut job = ground.start(&plan);
        let (init, _) = job.until_started().await;
        job.until_says(says).await;
        ready(init).await;
        if job.freeze().await {
            return (job, init, plan);
        }
        drop(job.finish().await);
    }
    panic!("{ATTEMPTS} jobs were ended because they did not stand still in time");
}

fn counted_by(init: u32) -> PathBuf {
    Path::new("/proc").join(init.to_string()).join("root/tmp/counted")
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

pub(crate) async fn outrun(ground: &Ground) -> Pair {
    let plan = || ground.plan(&["/bin/sela-probe", "do", "count", "/tmp/counted"]);
    let counts = async |init: u32| {
        let counted = counted_by(init);
        assert!(soon(|| !read(&counted).is_empty()).await, "nobody counts");
    };
    let (mut job, init, _) = frozen(ground, plan, "counting", counts).await;
    let counted = counted_by(init);
    let before = read(&counted);
    job.until_usage().await;
    let behind = if read(&counted) == before {
        Err(Held::contained(format!("it stood still at {before}")))
    } else {
        Ok("it counted on".to_owned())
    };
    job.end();
    job.finish().await;

    let file = ground.fresh("count").join("counted");
    let mut plain = Plain::probe(&["do", "count", file.to_str().unwrap()]);
    plain.line();
    assert!(soon(|| !read(&file).is_empty()).await, "nobody counts");
    plain.signal(Signal::STOP);
    let before = read(&file);
    let without = if soon(|| read(&file) != before).await {
        Ok("its grandchild counts on".to_owned())
    } else {
        Err(Held::contained("it stood still"))
    };
    // The grandchild is nobody's any more.
    for pid in with_word(file.to_str().unwrap()) {
        send(pid, Signal::KILL);
    }
    Pair::new(without, behind)
}

pub(crate) async fn unseen(ground: &Ground) -> Pair {
    let plan = ground.script("echo up; exec 0<&- 1>&- 2>&-; sleep 0.3; exit 5");
    let outcome = ground.start(&plan).finish().await;
    let behind = if outcome.stop().cause == (EndCause::Exited { code: 5 }) {
        Err(Held::contained("it was guarded to its own end"))
    } else {
        Ok(format!("{:?}", outcome.stop().cause))
    };
    let mut plain = Plain::shell("exec 0<&- 1>&- 2>&-; sleep 60");
    // Whoever takes the end of the output for the end of the program is wrong.
    let said = std::io::Read::read_to_end(plain.0.stdout.as_mut().unwrap(), &mut Vec::new());
    let without = if said.is_ok() && plain.is_alive() {
        Ok("its output has ended, and it has not".to_owned())
    } else {
        Err(Held::nothing("it ended with its output"))
    };
    Pair::new(without, behind)
}

pub(crate) async fn without_keeper(ground: &Ground) -> Pair {
    let sleep = odd_sleep(ground, 3);
    let plan = ground.script(&format!("(setsid {sleep} &); echo up; {sleep}"));
    let mut job = ground.start(&plan);
    let (_, cgroup) = job.until_started().await;
    job.until_says("up").await;
    send(job.keeper, Signal::KILL);
    let gone = soon(|| processes_in(&cgroup).is_empty()).await && all_gone(&as_words(&sleep)).await;
    let behind = if gone {
        Err(Held::contained("it died with its keeper"))
    } else {
        Ok("it runs on".to_owned())
    };
    drop(job.finish().await);
    sweep(ground, &plan).await;

    let sleep = odd_sleep(ground, 4);
    let plain = Plain::shell(&format!("{sleep} & echo up; wait"));
    assert!(soon(|| !with_word(&as_words(&sleep)).is_empty()).await);
    plain.signal(Signal::KILL);
    drop(plain);
    Pair::new(found_and_ended(&as_words(&sleep)), behind)
}

/// What is left of a job whose keeper died, as the agent removes it.
async fn sweep(ground: &Ground, plan: &JobPlan) {
    if let Some(place) = ground.here.place() {
        sela_sandbox::docker::sweep_lease(place, plan.lease).await.unwrap();
    }
    sela_sandbox::sweep::sweep_lease(&plan.cgroups, plan.lease).unwrap();
}

/// What a plain program is granted: nothing, and it runs on.
fn ungranted(script: &str) -> Outcome {
    let mut plain = Plain::shell(script);
    plain.line();
    if plain.is_alive() {
        Ok("it needs nobody's word".to_owned())
    } else {
        Err(Held::nothing("it ended"))
    }
}

/// The agent is there, and says nothing any more; the job does not care to be told to end.
pub(crate) async fn ungranted_job(ground: &Ground) -> Pair {
    let script = "trap '' TERM; echo up; while true; do sleep 0.05; done";
    let mut job = ground.start(&ground.script(script));
    let (_, cgroup) = job.until_started().await;
    job.until_says("up").await;
    job.fall_silent();
    let outcome = job.finish().await;
    let behind = if outcome.stop().cause == EndCause::GrantExpired && !cgroup.exists() {
        Err(Held::contained("it was ended when nobody granted it more"))
    } else {
        Ok(format!("{:?}", outcome.stop()))
    };
    Pair::new(ungranted(script), behind)
}

/// All that guard a job die at once, while it stands frozen and can do nothing about it.
pub(crate) async fn frozen_alone(ground: &Ground) -> Pair {
    let script = "echo up; while true; do sleep 0.05; done";
    let (job, init, plan) = frozen(ground, || ground.script(script), "up", async |_| ()).await;
    let keeper = job.keeper;
    // What a keeper has for children: a native job's init, which is the job; or whoever speaks to the engine for it.
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let clerks = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
    for pid in clerks.filter(|pid| *pid != init).chain([keeper]) {
        send(pid, Signal::KILL);
    }
    drop(job.finish().await);
    let behind = if soon(|| !runs(init)).await {
        Err(Held::contained("it died with them"))
    } else {
        Ok("it stands where it stood".to_owned())
    };
    sweep(ground, &plan).await;
    assert!(!runs(init), "the sweep left it");
    Pair::new(ungranted(script), behind)
}

pub(crate) async fn billed(ground: &Ground) -> Pair {
    let plan = || ground.script("echo up; while true; do :; done");
    let (mut job, ..) = frozen(ground, plan, "up", async |_| ()).await;
    job.until_usage().await;
    job.end();
    let outcome = job.finish().await;
    let stop = outcome.stop();
    let whole = stop.ended_boot_us.since(stop.started_boot_us);
    let is_exact = stop.thawed_ms == Millis(whole.0.saturating_sub(stop.frozen_us.0) / 1000);
    let words = format!("{} of {} were frozen and not billed", stop.frozen_us, whole);
    let behind = match (is_exact && stop.frozen_us.0 > 0, stop.frozen_source) {
        (true, FrozenSource::Kernel) => Err(Held::nothing(words)),
        (true, FrozenSource::Keeper) => Err(Held::contained(format!("{words}, by the keeper's own clock"))),
        (false, _) => Ok(format!("billed {} of {whole}", stop.thawed_ms)),
    };
    // A clock on the wall bills a program that stands still.
    let begun = std::time::Instant::now();
    let plain = Plain::shell("while true; do :; done");
    plain.signal(Signal::STOP);
    assert!(soon(|| !runs_now(plain.pid())).await, "it does not stop");
    let without = if begun.elapsed() > Duration::ZERO && runs(plain.pid()) {
        Ok("the wall's clock runs on".to_owned())
    } else {
        Err(Held::nothing("time stood still"))
    };
    Pair::new(without, behind)
}

/// Whether a process is in state T, stopped.
fn runs_now(pid: u32) -> bool {
    !fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap()
        .contains(") T ")
}
