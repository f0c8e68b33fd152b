//! Death at a named moment of a job's life: each seed is one world, one job, one moment and who is killed there, `kill -9`, as no program
//! can prepare for. What only lasts for microseconds is held by the kernel until the kill ([`Gate`]); what lasts longer is seen from
//! outside. Afterwards the job is done, the books agree and nothing is left anywhere.

use super::trouble::signal;
use super::{Point, STEP_MS, STEPS, check_the_end, wait_for_the_point};
use crate::{Gate, Plan, Settings, World, keeper_of, wait_for};
use anyhow::{Context, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use sela_protocol::id::JobId;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// When.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// The image is being fetched.
    Fetch,
    /// A layer is being unpacked.
    Unpack,
    /// The keeper builds the job's walls.
    SetUp,
    /// The sandbox is told to start.
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
    /// The keeper has said that the job is gone, and is about to collect what it made.
    Collecting,
    /// The agent is about to read what is to be uploaded.
    Uploading,
    /// All is over.
    Settled,
    /// The agent was killed before, is back, and sweeps what its last run left.
    Sweep,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Fetch,
        Self::Unpack,
        Self::SetUp,
        Self::Start,
        Self::Running,
        Self::Freezing,
        Self::Frozen,
        Self::Saving,
        Self::Ending,
        Self::Collecting,
        Self::Uploading,
        Self::Settled,
        Self::Sweep,
    ];

    /// Who can die then.
    const fn victims(self) -> &'static [Victim] {
        match self {
            Self::Fetch | Self::Unpack | Self::Uploading | Self::Settled | Self::Sweep => &[Victim::Agent],
            Self::SetUp
            | Self::Start
            | Self::Running
            | Self::Freezing
            | Self::Frozen
            | Self::Saving
            | Self::Ending
            | Self::Collecting => &[Victim::Agent, Victim::Keeper, Victim::Both],
        }
    }

    /// Where the tenant sees its job then, where that is all there is to see.
    const fn point(self) -> Option<Point> {
        match self {
            Self::Fetch => Some(Point::Fetch),
            Self::Start => Some(Point::Start),
            Self::Running => Some(Point::Running),
            Self::Freezing => Some(Point::Freezing),
            Self::Frozen => Some(Point::Frozen),
            Self::Saving => Some(Point::Saving),
            Self::Ending => Some(Point::Ending),
            Self::Settled => Some(Point::Settled),
            Self::Unpack | Self::SetUp | Self::Collecting | Self::Uploading | Self::Sweep => None,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Fetch => "fetch",
            Self::Unpack => "unpack",
            Self::SetUp => "set-up",
            Self::Start => "start",
            Self::Running => "running",
            Self::Freezing => "freezing",
            Self::Frozen => "frozen",
            Self::Saving => "saving",
            Self::Ending => "ending",
            Self::Collecting => "collecting",
            Self::Uploading => "uploading",
            Self::Settled => "settled",
            Self::Sweep => "sweep",
        })
    }
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The agent.
    Agent,
    /// The job's keeper.
    Keeper,
    /// The agent, and the keeper with it.
    Both,
}

impl fmt::Display for Victim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Agent => "agent",
            Self::Keeper => "keeper",
            Self::Both => "agent and keeper",
        })
    }
}

/// What one seed does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// When.
    pub moment: Moment,
    /// Who.
    pub victim: Victim,
    /// How long after the moment was seen; nothing where the kernel holds it.
    pub after: Duration,
}

impl Crash {
    /// The crash of a seed: always the same.
    pub fn of(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Moments take turns, so that a few seeds see all of them.
        let moment = Moment::ALL[usize::try_from(seed % Moment::ALL.len() as u64).unwrap_or(0)];
        let victims = moment.victims();
        let victim = victims[random.random_range(0..victims.len())];
        let jitter = match moment {
            Moment::Running => 150,
            Moment::Frozen | Moment::Saving => 50,
            Moment::Fetch
            | Moment::Unpack
            | Moment::SetUp
            | Moment::Start
            | Moment::Freezing
            | Moment::Ending
            | Moment::Collecting
            | Moment::Uploading
            | Moment::Settled
            | Moment::Sweep => 3,
        };
        let after = Duration::from_millis(random.random_range(0..jitter));
        Self { moment, victim, after }
    }
}

/// What came of one seed.
#[derive(Debug, Clone)]
pub struct Crashed {
    /// The seed.
    pub seed: u64,
    /// What it did.
    pub crash: Crash,
    /// Whether the job was really there when the blow fell: a short moment may be over before it is seen.
    pub hit: bool,
    /// How many leases the job took.
    pub leases: usize,
    /// How long all of it took.
    pub took: Duration,
}

impl fmt::Display for Crashed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            crash: Crash { moment, victim, .. },
            hit,
            leases,
            took,
        } = self;
        let missed = if *hit { "" } else { " (over before it was seen)" };
        let took = took.as_secs_f64();
        write!(
            out,
            "seed {seed}: kill -9 {victim} at {moment}{missed}: done after {leases} leases, {took:.1} s"
        )
    }
}

/// Runs one seed in a world of its own.
///
/// # Errors
/// What was not as it must be, with the logs of all parts.
pub fn run(seed: u64) -> anyhow::Result<Crashed> {
    let begun = Instant::now();
    let crash = Crash::of(seed);
    let plan = Plan {
        display: true,
        settings: Settings {
            save_grace_s: 3,
            ..Settings::default()
        },
        ..Plan::default()
    };
    let mut world = World::begin(&plan)?;
    let lived = live_through(&mut world, crash).and_then(|lived| {
        world.close()?;
        nothing_stays(&world)?;
        Ok(lived)
    });
    let (hit, leases) = lived.with_context(|| format!("{crash:?}\n{}", world.logs()))?;
    Ok(Crashed {
        seed,
        crash,
        hit,
        leases,
        took: begun.elapsed(),
    })
}

fn live_through(world: &mut World, crash: Crash) -> anyhow::Result<(bool, usize)> {
    let steps = STEPS.to_string();
    let job = world.submit(&["--steps", &steps, "--step-ms", STEP_MS, "--save-ms", "100"])?;
    let hit = match crash.moment {
        Moment::Collecting | Moment::Uploading => at_the_archive(world, job, crash)?,
        Moment::Sweep => in_the_sweep(world, job)?,
        Moment::Unpack => at_what_shows(world, job, crash, |world| {
            let unfinished = std::fs::read_dir(world.owner.data().join("images/unfinished"));
            Ok(unfinished.is_ok_and(|mut entries| entries.next().is_some()))
        })?,
        Moment::SetUp => at_what_shows(world, job, crash, |world| {
            Ok(keeper_of(world.owner.agent.pid()?).is_some())
        })?,
        Moment::Fetch
        | Moment::Start
        | Moment::Running
        | Moment::Freezing
        | Moment::Frozen
        | Moment::Saving
        | Moment::Ending
        | Moment::Settled => {
            let point = crash.moment.point().context("a point of the tenant's")?;
            let seen = wait_for_the_point(world, job, point)?;
            strike(world, crash)?;
            seen == point
        }
    };
    if !world.owner.agent.is_up()? {
        world.owner.start_agent()?;
    }
    let view = world.tenant.wait_for_end(job)?;
    check_the_end(world, job, &view, None)?;
    ensure!(
        view.leases.iter().all(|lease| lease.end.is_some()),
        "a lease of a job that is done is open: {:#?}",
        view.leases
    );
    Ok((hit, view.leases.len()))
}

/// Kills as soon as something shows on the machine before the job runs.
fn at_what_shows(
    world: &mut World,
    job: JobId,
    crash: Crash,
    shows: impl Fn(&World) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let hit = loop {
        if shows(world)? {
            break true;
        }
        // Too late: it was shorter than a look.
        if begun.elapsed() > Duration::from_millis(200) && wait_for_the_point(world, job, Point::Fetch)? > Point::Start
        {
            break false;
        }
    };
    strike(world, crash)?;
    Ok(hit)
}

/// Kills where the archive of what the job made is about to be written by the keeper, or read by the agent.
fn at_the_archive(world: &mut World, job: JobId, crash: Crash) -> anyhow::Result<bool> {
    wait_for_the_point(world, job, Point::Running)?;
    world.tenant.wait_until_it_says(job, "step 10 of")?;
    let agent = world.owner.agent.pid()?;
    let keeper = keeper_of(agent).context("the agent has no keeper")?;
    let who = if crash.moment == Moment::Collecting {
        keeper
    } else {
        agent
    };
    let lease = world.lease_of(job)?;
    let gate = Gate::at(&[world.owner.data().join(format!("scratch/{lease}"))])?;
    let held = gate.hold(&crash.moment.to_string(), |pid, path| {
        pid == who && path.ends_with("out.sealed")
    })?;
    strike(world, crash)?;
    drop(held);
    Ok(true)
}

/// Kills the agent while its job runs, starts it again, and kills it where it is about to empty the scratch folder.
fn in_the_sweep(world: &mut World, job: JobId) -> anyhow::Result<bool> {
    wait_for_the_point(world, job, Point::Running)?;
    world.tenant.wait_until_it_says(job, "step 10 of")?;
    world.owner.agent.kill()?;
    let scratch = world.owner.data().join("scratch");
    let gate = Gate::at(&[world.owner.data()])?;
    world.owner.spawn_agent()?;
    let agent = world.owner.agent.pid()?;
    let held = gate.hold("the sweep", |pid, path| pid == agent && is_same(path, &scratch))?;
    world.owner.agent.kill()?;
    drop(held);
    Ok(true)
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || other.canonicalize().is_ok_and(|other| one == other)
}

fn strike(world: &mut World, crash: Crash) -> anyhow::Result<()> {
    std::thread::sleep(crash.after);
    let agent = world.owner.agent.pid()?;
    let keeper = match crash.victim {
        Victim::Agent => None,
        Victim::Keeper | Victim::Both => keeper_of(agent),
    };
    if matches!(crash.victim, Victim::Agent | Victim::Both) {
        world.owner.agent.kill()?;
    }
    if let Some(keeper) = keeper {
        signal(keeper, Signal::KILL);
    }
    Ok(())
}

/// What the books and the leases' own traces do not show: block devices, half-unpacked layers, temporary files.
fn nothing_stays(world: &World) -> anyhow::Result<()> {
    let folder = world.folder().canonicalize()?;
    wait_for("no block device to be left", || {
        let loops = std::fs::read_dir("/sys/block")?.flatten();
        let mut files = loops.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
        let left = files.any(|file| file.contains(&*folder.to_string_lossy()));
        Ok((!left).then_some(()))
    })?;
    for place in ["data/images/unfinished", "data/scratch", "tmp"] {
        let entries = std::fs::read_dir(folder.join(place)).into_iter().flatten().flatten();
        let left: Vec<_> = entries.map(|entry| entry.path()).collect();
        ensure!(left.is_empty(), "left: {left:?}");
    }
    Ok(())
}

/// How often each moment was hit and each victim fell.
pub fn hits(told: &[Crashed]) -> String {
    let mut moments: BTreeMap<Moment, (usize, usize)> = Moment::ALL.map(|moment| (moment, (0, 0))).into();
    let mut victims: BTreeMap<Victim, usize> = BTreeMap::new();
    for crashed in told {
        let (hit, missed) = moments.entry(crashed.crash.moment).or_default();
        if crashed.hit {
            *hit += 1;
        } else {
            *missed += 1;
        }
        *victims.entry(crashed.crash.victim).or_default() += 1;
    }
    let moments: Vec<String> = moments
        .iter()
        .map(|(moment, (hit, missed))| match missed {
            0 => format!("{moment} {hit}"),
            _ => format!("{moment} {hit} (and {missed} too late)"),
        })
        .collect();
    let victims: Vec<String> = victims
        .iter()
        .map(|(victim, count)| format!("{victim} {count}"))
        .collect();
    format!("hits by moment: {}\nkilled: {}", moments.join(", "), victims.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_always_the_same_crash_and_all_moments_and_victims_come_up() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..500 {
            let crash = Crash::of(seed);
            assert_eq!(crash, Crash::of(seed));
            seen.insert((crash.moment, crash.victim));
        }
        for moment in Moment::ALL {
            for victim in moment.victims() {
                assert!(seen.contains(&(moment, *victim)), "{victim} at {moment} never comes up");
            }
        }
    }
}
