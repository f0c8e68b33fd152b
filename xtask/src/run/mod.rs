//! `cargo xtask run`: the whole path on this machine. An exchange on loopback, a tenant with funds, an owner's agent, two jobs of real
//! work; then what ran where, what the model answered, who paid and who earned what, and whether the ledger sums to zero.
//!
//! Everything is done by the real programs through their real interfaces; this only starts them, waits, tells and adds up.

mod cards;
mod folders;
mod jobs;
mod operator;
mod page;
mod parties;
mod stop;
mod story;
mod tenant;
mod typed;
mod window;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use sela_protocol::id::JobId;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{JobState, JobView};

use crate::arguments::Purpose;
use crate::commands;
use crate::places::Places;
use crate::processes::Processes;
use crate::setup;
use crate::workload_image::{self, WorkloadPlan};
use folders::Folders;
use parties::{FUNDS, Parties};
use stop::{LOOK, Stop};
use story::{Story, heading};
use window::Window;

/// Both jobs together take a few minutes on two cores; much more means that something hangs.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// Runs the path. With `once` it ends with a code as soon as everything is told; else it stays up until Ctrl-C.
///
/// # Errors
/// If something does not start, ends early, takes too long, or does not add up.
pub(crate) fn run(places: &Places, once: bool) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_interrupt()?;
    let with_window = !once && window::is_possible();
    let purpose = if with_window {
        Purpose::RunInWindow
    } else {
        Purpose::Run
    };
    setup::ensure(places, purpose)?;
    let story = Story::begin();
    story.tell("building the programs and the two images");
    if !once {
        crate::page::build(places)?;
    }
    if with_window {
        window::build(places)?;
    }
    commands::run(&mut commands::cargo(
        places,
        [
            "build",
            "--quiet",
            "--locked",
            "-p",
            "sela-agent",
            "-p",
            "sela-exchange",
            "-p",
            "sela-nvml-sim",
        ],
    ))?;
    let images = Images::build(places)?;
    let folders = Folders::make(places)?;
    let mut processes = Processes::new(folders.logs.clone())?;
    let parties = Parties::start(places, &folders, &mut processes, &story, &stop, !once)?;
    let mut window = with_window
        .then(|| Window::open(places, &parties.owner, folders.logs.clone()))
        .transpose()?;
    let jobs = submit(&parties, &images, &folders, &story)?;
    let views = watch(&parties, jobs, &mut processes, &story, &stop)?;
    tell_results(&parties, &views)?;
    tell_money(&parties, &views, &stop)?;
    if !once {
        tell_how_to_look_further(&parties, &folders)?;
        stay_up(&mut processes, &mut window, &story, &stop)?;
        println!();
    }
    story.tell("ending the agent, then the exchange");
    for (name, status) in processes.end() {
        ensure!(
            status.success(),
            "{name} ended with {status}; look at {}",
            processes.log(name).display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Until Ctrl-C, or until the owner quits from the tray, which ends the agent too.
fn stay_up(processes: &mut Processes, window: &mut Option<Window>, story: &Story, stop: &Stop) -> anyhow::Result<()> {
    while !stop.is_asked() {
        match processes.first_ended()? {
            Some(("agent", status)) if status.success() => {
                story.tell("the owner has quit");
                return Ok(());
            }
            Some(_) => processes.all_run()?,
            None => {}
        }
        if let Some(open) = window
            && !open.is_up(story)?
        {
            *window = None;
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The archives of the two images.
struct Images {
    batch_inference: PathBuf,
    training: PathBuf,
}

impl Images {
    fn build(places: &Places) -> anyhow::Result<Self> {
        workload_image::compile(places)?;
        let model = workload_image::fetch_smollm2(&places.cache)?;
        let archive = |plan: WorkloadPlan| -> anyhow::Result<PathBuf> {
            let folder = places.target.join("images").join(plan.name);
            Ok(workload_image::build(&plan, &folder)?.archive)
        };
        Ok(Self {
            batch_inference: archive(WorkloadPlan::batch_inference(places, &model))?,
            training: archive(WorkloadPlan::training(places))?,
        })
    }
}

/// A job that was submitted, and how much of it was told.
struct Watched {
    name: String,
    job: JobId,
    state: String,
    printed: usize,
}

fn submit(parties: &Parties, images: &Images, folders: &Folders, story: &Story) -> anyhow::Result<Vec<Watched>> {
    let tenant = &parties.tenant;
    let prompts = folders.tenant.join("prompts.jsonl");
    std::fs::write(&prompts, jobs::prompts_file()).with_context(|| format!("cannot write {}", prompts.display()))?;
    let prompts = tenant.store(&prompts)?;
    let specs = [
        jobs::batch_inference(tenant.store(&images.batch_inference)?, prompts)?,
        jobs::training(tenant.store(&images.training)?)?,
    ];
    let mut watched = Vec::new();
    for spec in specs {
        let name = spec.name.clone().unwrap_or_default();
        let job = tenant.submit(&name, &spec)?;
        story.tell(format!("submitted: {name} as {job}, at most {} per hour", spec.cap));
        watched.push(Watched {
            name,
            job,
            state: String::new(),
            printed: 0,
        });
    }
    Ok(watched)
}

/// Tells what happens until all jobs have ended; gives them in the order in which they were submitted.
fn watch(
    parties: &Parties,
    mut jobs: Vec<Watched>,
    processes: &mut Processes,
    story: &Story,
    stop: &Stop,
) -> anyhow::Result<Vec<JobView>> {
    stop.wait("the jobs", LONGEST, || {
        processes.all_run()?;
        let listed = parties.tenant.jobs()?;
        let mut views = Vec::new();
        for job in &mut jobs {
            let view = listed.iter().find(|view| view.job == job.job);
            let view = view.with_context(|| format!("{} is not in the list of jobs any more", job.job))?;
            let state = story::state(view);
            if state != job.state {
                story.tell(format!("{}: {state}", job.name));
                job.state = state;
            }
            let log = parties.tenant.log(job.job)?;
            // Whole lines only; what follows the last one is told when it is whole.
            let whole = log.rfind('\n').map_or(0, |end| end + 1);
            for line in log.get(job.printed..whole).unwrap_or_default().lines() {
                story.tell(format!("{} | {line}", job.name));
            }
            job.printed = whole;
            views.push(view.clone());
        }
        Ok(views.iter().all(|view| view.state.is_final()).then_some(views))
    })
}

/// Tells where the jobs ran and what they made.
fn tell_results(parties: &Parties, views: &[JobView]) -> anyhow::Result<()> {
    heading("what ran where");
    for view in views {
        println!("{}: {}", name(view), story::state(view));
        for line in story::leases(view) {
            println!("  {line}");
        }
    }
    if let Some(failed) = views.iter().find(|view| view.state != JobState::Done) {
        bail!("{} did not end well: {}", name(failed), story::state(failed));
    }
    let [inference, training] = views else {
        bail!("{} jobs ended instead of two", views.len());
    };
    heading("what the model answered");
    let answers = jobs::answers(&parties.tenant.output("answers", inference.job)?)?;
    for (prompt, answer) in &answers {
        println!("{prompt}\n  {}", answer.trim().replace('\n', "\n  "));
    }
    ensure!(
        answers.len() == jobs::PROMPTS.len(),
        "{} answers to {} prompts",
        answers.len(),
        jobs::PROMPTS.len()
    );
    heading("what the training came to");
    println!(
        "{}",
        jobs::training_result(&parties.tenant.output("trained", training.job)?)?
    );
    Ok(())
}

/// Tells both sides of the money and the ledger between them, and that they agree.
fn tell_money(parties: &Parties, views: &[JobView], stop: &Stop) -> anyhow::Result<()> {
    heading("what the tenant paid");
    let paid = Micros(views.iter().map(|view| view.paid.0).sum());
    for view in views {
        println!("{}: {}", name(view), view.paid);
        ensure!(view.paid > Micros(0), "{} cost nothing", name(view));
    }
    let account = parties.tenant.account()?;
    println!(
        "together {paid}; left of {FUNDS}: {}, set aside: {}",
        account.available, account.escrow
    );
    ensure!(
        account.escrow == Micros(0),
        "{} is still set aside for jobs that have ended",
        account.escrow
    );
    ensure!(
        account.available.0 + paid.0 == FUNDS.0,
        "what was paid and what is left are not what there was"
    );

    heading("what the owner earned");
    let lines = stop.wait("the receipts for what was paid", Duration::from_secs(90), || {
        let lines = parties.owner.earnings()?;
        let gross: i64 = lines.iter().map(|line| line.gross.0).sum();
        Ok((gross == paid.0).then_some(lines))
    })?;
    for line in story::earnings(&lines) {
        println!("{line}");
    }

    heading("the ledger");
    let check = parties.operator.check_ledger()?;
    for line in story::ledger(&check) {
        println!("{line}");
    }
    ensure!(story::is_right(&check), "the ledger is not right");
    Ok(())
}

fn name(view: &JobView) -> &str {
    view.spec.name.as_deref().unwrap_or("a job without a name")
}

fn tell_how_to_look_further(parties: &Parties, folders: &Folders) -> anyhow::Result<()> {
    if let Some(listens) = &parties.owner.listens {
        heading("look at the owner's page in a browser");
        println!("{}", page::address(folders, listens)?);
    }
    heading("look further, in a second terminal");
    let variables: Vec<_> = folders
        .variables()
        .iter()
        .map(|(name, path)| format!("{name}={}", path.display()))
        .collect();
    println!("export {}", variables.join(" "));
    println!("alias sela={}", parties.owner.sela.display());
    println!("sela status; sela why; sela earnings; sela jobs; sela pause; sela resume; sela doctor");
    println!("\nas the tenant: export SELA_CONFIG_DIR={}", folders.tenant.display());
    println!(
        "sela account; sela job list; sela job logs JOB; sela job submit {}/training.json",
        folders.tenant.display()
    );
    println!("\nlogs: {}\nCtrl-C ends everything.", folders.logs.display());
    Ok(())
}
