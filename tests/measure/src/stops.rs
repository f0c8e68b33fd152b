//! How long until a job stands still, and until it is gone, from the order on: seen in the kernel's own files, not by what
//! anybody says of himself. Idle, and with thirty processes inside that use every processor they get.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags};
use sela_sandbox::keeper::wire::Order;
use tokio::runtime::Runtime;

use crate::image::Small;
use crate::native::{self, NativeJob, Planner};
use crate::peers::{Peer, Peers, Running, said};
use crate::{clock, say, series};

/// How long a job runs between two freezes, and stands in one.
const PAUSE: Duration = Duration::from_millis(20);

/// What runs inside, and outside beside it.
struct Load {
    name: &'static str,
    inside: &'static str,
    /// Processes of the owner's own that want every processor.
    outside: usize,
}

const LOADS: [Load; 3] = [
    Load {
        name: "idle",
        inside: "echo ready; sleep 600",
        outside: 0,
    },
    Load {
        name: "loaded",
        inside: SPIN,
        outside: 0,
    },
    Load {
        name: "beside",
        inside: SPIN,
        outside: 30,
    },
];
const SPIN: &str = "i=0; while [ $i -lt 30 ]; do (while :; do :; done) & i=$((i+1)); done; echo ready; wait";

pub(crate) fn measure(runtime: &Runtime, peers: &Peers, small: &Small, rounds: usize) -> anyhow::Result<()> {
    let mut planner = Planner::new(small)?;
    for load in &LOADS {
        say(&format!("freezing and ending, {}", load.name));
        // A hundredth of less would be the single worst one.
        let frozen = freezes(runtime, &mut planner, load, rounds * 5)?;
        series(&format!("freeze_{}", load.name), "native", "ms", &frozen);
        // The last is what an owner's own programs do to us; whom they belong to beside us is nobody's business here.
        let theirs = if load.outside > 0 { &[][..] } else { &peers.all[..] };
        for peer in theirs {
            if let Some(frozen) = freezes_of(peer.as_ref(), load, rounds.div_ceil(3))? {
                series(&format!("freeze_{}", load.name), peer.name(), "ms", &frozen);
            }
        }
        ends(runtime, &mut planner, theirs, load, rounds.div_ceil(2))?;
    }
    Ok(())
}

/// Programs of the owner's that use every processor.
struct Outside(Vec<Child>);

impl Outside {
    fn begin(count: usize) -> anyhow::Result<Self> {
        let mut started = Self(Vec::new());
        for _ in 0..count {
            started.0.push(
                Command::new("busybox")
                    .args(["sh", "-c", "while :; do :; done"])
                    .spawn()?,
            );
        }
        Ok(started)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn started(
    planner: &mut Planner<'_>,
    load: &Load,
) -> anyhow::Result<(NativeJob, sela_sandbox::keeper::wire::JobPlan)> {
    let plan = planner.plan(&["/bin/busybox", "sh", "-c", load.inside])?;
    let mut job = planner.start(&plan).await?;
    job.first_output().await?;
    Ok((job, plan))
}

/// One job, frozen again and again.
fn freezes(runtime: &Runtime, planner: &mut Planner<'_>, load: &Load, times: usize) -> anyhow::Result<Vec<f64>> {
    runtime.block_on(async {
        let (mut job, plan) = started(planner, load).await?;
        // Only now: beside them a job that yields to everybody would need minutes to begin.
        let outside = Outside::begin(load.outside)?;
        let (_, cgroup) = job.started()?;
        let cgroup = cgroup.to_owned();
        let mut took = Vec::new();
        for _ in 0..times {
            job.rest(PAUSE).await?;
            let begun = Instant::now();
            job.order(&native::freeze()).await?;
            native::until_says(&cgroup, "frozen 1")?;
            took.push(clock::ms_since(begun));
            job.rest(PAUSE).await?;
            job.order(&Order::Thaw).await?;
            native::until_says(&cgroup, "frozen 0")?;
        }
        drop(outside);
        job.end().await?;
        planner.forget(&plan)?;
        Ok(took)
    })
}

/// `None` where it cannot freeze.
fn freezes_of(peer: &dyn Peer, load: &Load, times: usize) -> anyhow::Result<Option<Vec<f64>>> {
    let name = format!("sela-freeze-{}", load.name);
    if peer.freeze(&name).is_none() {
        return Ok(None);
    }
    let running = Running::start(&mut peer.run(&name, &["/bin/busybox", "sh", "-c", load.inside])?)?;
    let freezer = Freezer::of(peer.first_process(&name)?)?;
    let mut took = Vec::new();
    for _ in 0..times {
        std::thread::sleep(PAUSE);
        let (Some(mut freeze), Some(mut thaw)) = (peer.freeze(&name), peer.thaw(&name)) else {
            return Ok(None);
        };
        let begun = Instant::now();
        let mut asked = freeze.stdout(std::process::Stdio::null()).spawn()?;
        clock::until("a peer's freeze", || Ok(freezer.is_frozen()))?;
        took.push(clock::ms_since(begun));
        asked.wait()?;
        said(&mut thaw)?;
    }
    said(&mut peer.kill(&name, &running))?;
    running.wait()?;
    Ok(Some(took))
}

/// Where the kernel says that a container of a peer's stands still.
struct Freezer {
    file: PathBuf,
    line: &'static str,
}

impl Freezer {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let table = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let groups: Vec<(&str, &str)> = table
            .lines()
            .filter_map(|line| line.split_once(':')?.1.split_once(':'))
            .collect();
        let of = |controller: &str| {
            groups
                .iter()
                .find(|(names, _)| names.split(',').any(|name| name == controller))
        };
        if let Some((_, path)) = of("freezer") {
            return Ok(Self {
                file: PathBuf::from(format!("/sys/fs/cgroup/freezer{path}/freezer.state")),
                line: "FROZEN",
            });
        }
        let (_, path) = of("").context("a process is in a cgroup")?;
        Ok(Self {
            file: PathBuf::from(format!("/sys/fs/cgroup{path}/cgroup.events")),
            line: "frozen 1",
        })
    }

    fn is_frozen(&self) -> bool {
        clock::has_line(&self.file, self.line)
    }
}

/// Each time another job: from the order to its last process being gone.
fn ends(
    runtime: &Runtime,
    planner: &mut Planner<'_>,
    peers: &[Box<dyn Peer>],
    load: &Load,
    times: usize,
) -> anyhow::Result<()> {
    let mut native = Vec::new();
    let mut theirs = vec![Vec::new(); peers.len()];
    for round in 0..times {
        native.push(our_end(runtime, planner, load)?);
        for (peer, took) in peers.iter().zip(&mut theirs) {
            took.push(end_of(peer.as_ref(), load, round)?);
        }
    }
    series(&format!("end_{}", load.name), "native", "ms", &native);
    for (peer, took) in peers.iter().zip(&theirs) {
        series(&format!("end_{}", load.name), peer.name(), "ms", took);
    }
    Ok(())
}

fn our_end(runtime: &Runtime, planner: &mut Planner<'_>, load: &Load) -> anyhow::Result<f64> {
    runtime.block_on(async {
        let (mut job, plan) = started(planner, load).await?;
        // Only now: beside them a job that yields to everybody would need minutes to begin.
        let outside = Outside::begin(load.outside)?;
        let (pid, cgroup) = job.started()?;
        let cgroup = cgroup.to_owned();
        let process = Process::open(pid)?;
        let begun = Instant::now();
        job.order(&native::end()).await?;
        process.wait()?;
        native::until_says(&cgroup, "populated 0")?;
        let took = clock::ms_since(begun);
        drop(outside);
        job.gone().await?;
        planner.forget(&plan)?;
        Ok(took)
    })
}

/// The first process of a PID namespace is gone only after all others in it.
fn end_of(peer: &dyn Peer, load: &Load, round: usize) -> anyhow::Result<f64> {
    let name = format!("sela-end-{}-{round}", load.name);
    let running = Running::start(&mut peer.run(&name, &["/bin/busybox", "sh", "-c", load.inside])?)?;
    let process = Process::open(peer.first_process(&name)?)?;
    let mut kill = peer.kill(&name, &running);
    let begun = Instant::now();
    let mut asked = kill.stdout(std::process::Stdio::null()).spawn()?;
    process.wait()?;
    let took = clock::ms_since(begun);
    asked.wait()?;
    running.wait()?;
    Ok(took)
}

/// A process that is held on to, so that its id cannot become another's.
struct Process(std::os::fd::OwnedFd);

impl Process {
    fn open(pid: u32) -> anyhow::Result<Self> {
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
        Ok(Self(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
    }

    fn wait(&self) -> anyhow::Result<()> {
        let mut fds = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None)?;
        Ok(())
    }
}
