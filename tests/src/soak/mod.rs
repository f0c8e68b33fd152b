//! The path under fire: each seed is one world, one job, one point of the job's life and one thing that goes wrong there. Whatever
//! it is, the job ends for the right reason, every lease is paid exactly once and nothing is left.

pub mod crash;
mod trouble;

pub use trouble::{Action, Point};

use crate::{Plan, Settings, World, expected_result, wait_for};
use anyhow::{Context, bail, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sela_protocol::id::JobId;
use sela_protocol::lease::{EndCause, LeasePhase};
use sela_protocol::tenant::{JobState, JobView};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};
use trouble::Trouble;

/// Steps of every job, and how long each takes: long enough for two checkpoints, short enough for thousands of runs.
const STEPS: u64 = 60;
const STEP_MS: &str = "40";

/// What one seed does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// Where trouble is to come.
    pub point: Point,
    /// What comes.
    pub action: Action,
    /// How long after the point was seen.
    pub after: Duration,
    /// How long it lasts, where it is something that lasts.
    pub lasts: Duration,
}

/// What came of one seed.
#[derive(Debug, Clone)]
pub struct Told {
    /// The seed.
    pub seed: u64,
    /// What it did.
    pub scenario: Scenario,
    /// Where the job really was when trouble came: a short point may be over before it is seen.
    pub hit: Point,
    /// How the job ended.
    pub state: JobState,
    /// How many leases it took.
    pub leases: usize,
    /// How long all of it took.
    pub took: Duration,
}

impl Scenario {
    /// The scenario of a seed: always the same.
    pub fn of(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Points take turns, so that a few seeds see all of them; what goes wrong there is drawn.
        let point = Point::ALL[usize::try_from(seed % Point::ALL.len() as u64).unwrap_or(0)];
        let action = Action::ALL[random.random_range(0..Action::ALL.len())];
        let jitter = if point.is_short() { 5 } else { 150 };
        let after = Duration::from_millis(random.random_range(0..jitter));
        // A stop that a grant survives, or one that it does not.
        let longest = if action.may_outlast_a_grant() && random.random_bool(0.5) {
            6_500
        } else {
            1_500
        };
        let lasts = Duration::from_millis(random.random_range(300..longest));
        Self {
            point,
            action,
            after,
            lasts,
        }
    }
}

/// Runs one seed in a world of its own.
///
/// # Errors
/// What was not as it must be, with the logs of all parts.
pub fn run(seed: u64) -> anyhow::Result<Told> {
    let begun = Instant::now();
    let scenario = Scenario::of(seed);
    let plan = Plan {
        display: true,
        settings: Settings {
            save_grace_s: 3,
            ..Settings::default()
        },
        ..Plan::default()
    };
    let mut world = World::begin(&plan)?;
    let told = live_through(&mut world, seed, scenario).and_then(|told| world.close().map(|()| told));
    let mut told = told.with_context(|| format!("{scenario:?}\n{}", world.logs()))?;
    told.took = begun.elapsed();
    Ok(told)
}

fn live_through(world: &mut World, seed: u64, scenario: Scenario) -> anyhow::Result<Told> {
    let steps = STEPS.to_string();
    let job = world.submit(&["--steps", &steps, "--step-ms", STEP_MS, "--save-ms", "100"])?;
    let hit = wait_for_the_point(world, job, scenario.point)?;
    std::thread::sleep(scenario.after);
    let trouble = Trouble::make(world, job, scenario.action)?;
    if trouble.lasts() {
        std::thread::sleep(scenario.lasts);
    }
    trouble.mend(world)?;
    let view = world.tenant.wait_for_end(job)?;
    check_the_end(world, job, &view, Some(scenario.action))?;
    Ok(Told {
        seed,
        scenario,
        hit,
        state: view.state,
        leases: view.leases.len(),
        took: Duration::ZERO,
    })
}

/// Leads the job to a point and says at which it was seen: this one, or a later one if this was over too soon.
fn wait_for_the_point(world: &World, job: JobId, point: Point) -> anyhow::Result<Point> {
    match point {
        Point::Freezing => {
            world.tenant.wait_until_it_says(job, "step 10 of")?;
            move_mouse(world)?;
            return Ok(point);
        }
        Point::Frozen | Point::Saving => {
            world.tenant.wait_until_it_says(job, "step 10 of")?;
            move_mouse(world)?;
        }
        Point::Ending => {
            world.tenant.wait_until_it_says(job, "step 10 of")?;
            world.owner.sela(&["end", &world.lease_of(job)?.to_string()])?.good()?;
            return Ok(point);
        }
        Point::Uploading => {
            world.tenant.wait_until_it_says(job, "step 10 of")?;
            let account = world
                .owner
                .data()
                .join(format!("accounts/{}.json", world.lease_of(job)?));
            return wait_for("the keeper's account", || Ok(account.exists().then_some(point)));
        }
        Point::Award | Point::Fetch | Point::Start | Point::Running | Point::Settled => {}
    }
    let begun = Instant::now();
    loop {
        let now = point_of(&world.tenant.view(job)?);
        match now {
            Some(now) if now >= point => return Ok(now),
            // The owner's hand is gone and the job runs elsewhere already.
            Some(Point::Award | Point::Fetch | Point::Start) if matches!(point, Point::Frozen | Point::Saving) => {
                return Ok(Point::Award);
            }
            Some(_) | None => {}
        }
        ensure!(
            begun.elapsed() < crate::PATIENCE,
            "the job never came to {point}: it is at {now:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn move_mouse(world: &World) -> anyhow::Result<()> {
    world.display.as_ref().context("no display")?.move_mouse()
}

/// Where the tenant sees its job.
fn point_of(view: &JobView) -> Option<Point> {
    match &view.state {
        JobState::Queued { .. } | JobState::Unknown => None,
        JobState::Done | JobState::Failed { .. } | JobState::Cancelled => Some(Point::Settled),
        JobState::Leased { phase } => {
            let accepted = view.leases.last().is_some_and(|lease| lease.accepted_utc_ms.is_some());
            match phase {
                _ if !accepted => Some(Point::Award),
                LeasePhase::Fetching => Some(Point::Fetch),
                LeasePhase::Starting => Some(Point::Start),
                LeasePhase::Running => Some(Point::Running),
                LeasePhase::Frozen => Some(Point::Frozen),
                LeasePhase::Saving => Some(Point::Saving),
                LeasePhase::Ending => Some(Point::Ending),
                LeasePhase::Uploading => Some(Point::Uploading),
                LeasePhase::Unknown => None,
            }
        }
    }
}

/// A job is done and right, unless its own program was killed: then that is what its tenant is told.
fn check_the_end(world: &World, job: JobId, view: &JobView, action: Option<Action>) -> anyhow::Result<()> {
    match &view.state {
        JobState::Done => {
            let output = world.tenant.output(job)?;
            let result = output.get("result").context("a job that is done left no result")?;
            ensure!(
                *result == expected_result(STEPS).as_bytes(),
                "the result is not that of {STEPS} steps"
            );
            Ok(())
        }
        JobState::Failed {
            cause: EndCause::Exited { code: 137 },
            ..
        } if action == Some(Action::KillJob) => Ok(()),
        JobState::Queued { .. }
        | JobState::Leased { .. }
        | JobState::Failed { .. }
        | JobState::Cancelled
        | JobState::Unknown => bail!("the job ended as {:?}: {:#?}", view.state, view.leases),
    }
}

impl fmt::Display for Told {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            scenario: Scenario { point, action, .. },
            hit,
            state,
            leases,
            took,
        } = self;
        write!(out, "seed {seed}: {action} at {hit}")?;
        if hit != point {
            write!(out, " (aimed at {point})")?;
        }
        let end = match state {
            JobState::Done => "done",
            JobState::Failed { .. } => "failed as it should",
            JobState::Queued { .. } | JobState::Leased { .. } | JobState::Cancelled | JobState::Unknown => "not done",
        };
        write!(out, ": {end} after {leases} leases, {:.1} s", took.as_secs_f64())
    }
}

/// How often each point was hit and each thing went wrong.
pub fn hits(told: &[Told]) -> String {
    let mut points: BTreeMap<String, usize> = Point::ALL.iter().map(|point| (point.to_string(), 0)).collect();
    let mut actions: BTreeMap<String, usize> = Action::ALL.iter().map(|action| (action.to_string(), 0)).collect();
    for told in told {
        *points.entry(told.hit.to_string()).or_default() += 1;
        *actions.entry(told.scenario.action.to_string()).or_default() += 1;
    }
    let line = |hits: BTreeMap<String, usize>| {
        let hits: Vec<_> = hits.iter().map(|(what, count)| format!("{what} {count}")).collect();
        hits.join(", ")
    };
    format!("hits by point: {}\nhits by action: {}", line(points), line(actions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_always_the_same_scenario_and_all_points_and_actions_come_up() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..500 {
            let scenario = Scenario::of(seed);
            assert_eq!(scenario, Scenario::of(seed));
            seen.insert((scenario.point, scenario.action));
        }
        for point in Point::ALL {
            assert!(seen.iter().any(|(seen, _)| *seen == point), "{point} never comes up");
        }
        for action in Action::ALL {
            assert!(seen.iter().any(|(_, seen)| *seen == action), "{action} never comes up");
        }
    }
}
