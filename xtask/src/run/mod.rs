//! `cargo xtask run`: the whole path on this machine. An exchange on loopback, a tenant with funds, an owner's agent, two jobs of real work; then
//! what ran where, what the model answered, who paid and who earned what, and whether the ledger sums to zero.
//!
//! Everything is done by the real programs through their real interfaces; this only starts them, waits and tells.

mod cards;
mod folders;
mod jobs;
mod operator;
mod rest;
mod story;
mod tenant;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use sela_protocol::id::JobId;
use sela_protocol::local::EarningsLine;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{JobState, JobView};

use crate::arguments::Purpose;
use crate::commands;
use crate::places::{Places, Profile};
use crate::processes::Processes;
use crate::setup;
use crate::workload_image::{self, WorkloadPlan};
use cards::Cards;
use folders::Folders;
use operator::Operator;
use story::{Story, heading};
use tenant::Tenant;

/// What the tenant begins with.
const FUNDS: Micros = Micros(5_000_000);
/// Both jobs together take a few minutes on two cores; much more means that something hangs.
const LONGEST: Duration = Duration::from_secs(20 * 60);
/// How often we look.
const LOOK: Duration = Duration::from_millis(500);

/// Runs the path. With `once` it ends with a code as soon as everything is told; else it stays up until Ctrl-C.
///
/// # Errors
/// If something does not start, ends early, takes too long, or does not add up.
pub(crate) fn run(places: &Places, once: bool) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_interrupt()?;
    setup::ensure(places, Purpose::Run)?;
    let story = Story::begin();
    story.tell("building the programs and the two images");
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
    let mut path = Path::start(places, &folders, &mut processes, &story, &stop)?;
    let jobs = path.submit(&images, &folders, &story)?;
    let views = path.watch(&jobs, &mut processes, &story, &stop)?;
    path.close(&views, &stop)?;
    if !once {
        path.show_further(&folders);
        while !stop.is_asked() {
            processes.all_run()?;
            std::thread::sleep(LOOK);
        }
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

/// Ctrl-C, SIGTERM and SIGHUP, looked at between steps.
#[derive(Debug, Clone)]
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn on_interrupt() -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&asked);
        ctrlc::set_handler(move || seen.store(true, Ordering::Relaxed)).context("cannot listen for Ctrl-C")?;
        Ok(Self(asked))
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until `look` finds something, looking now and then.
    fn wait<T>(
        &self,
        what: &str,
        longest: Duration,
        mut look: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            ensure!(!self.is_asked(), "interrupted while waiting for {what}");
            ensure!(
                begun.elapsed() < longest,
                "{what} took longer than {} s",
                longest.as_secs()
            );
            std::thread::sleep(LOOK);
        }
    }
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

/// The parties, once they are up.
struct Path {
    sela: PathBuf,
    cards: Cards,
    operator: Operator,
    tenant: Tenant,
    owner_variables: Vec<(&'static str, PathBuf)>,
}

/// A job that was submitted, and how much of its output was shown.
struct Watched {
    name: String,
    job: JobId,
    state: String,
    shown: usize,
}

impl Path {
    /// Starts the exchange and the agent and waits until the card is offered.
    fn start(
        places: &Places,
        folders: &Folders,
        processes: &mut Processes,
        story: &Story,
        stop: &Stop,
    ) -> anyhow::Result<Self> {
        let cards = Cards::find(&folders.lab)?;
        let lab = cards.are_simulated() || !cgroups_are_v2();
        for name in cards.names() {
            story.tell(format!("card: {name}"));
        }
        if cards.are_simulated() {
            story.tell("no NVIDIA driver with a card is here, so a SIMULATED one takes its place; jobs compute on the processor");
        }
        let program = places.program(Profile::Dev, "sela-exchange");
        let mut exchange = Command::new(&program);
        exchange.arg("serve").arg("--data").arg(&folders.exchange).args([
            "--listen",
            "127.0.0.1:0",
            "--name",
            "the exchange of this run",
        ]);
        if lab {
            exchange.arg("--lab");
        }
        processes.start("exchange", &mut exchange)?;
        let address = folders.exchange.join("address");
        let address = stop.wait("the exchange", Duration::from_secs(30), || {
            processes.all_run()?;
            Ok(std::fs::read_to_string(&address)
                .ok()
                .filter(|text| text.ends_with('\n')))
        })?;
        let url = format!("http://{}", address.trim());
        story.tell(format!(
            "exchange: {url}{}",
            if lab { " (LAB: its money has no worth)" } else { "" }
        ));
        let operator = Operator::new(&program, &folders.exchange);
        let created = operator.tenant("the tenant of this run", FUNDS)?;
        story.tell(format!("tenant: {} with {FUNDS}", created.tenant));
        let invited = operator.owner("the owner of this machine")?;
        std::fs::write(folders.settings(), settings(&url, &invited.invitation)).context("cannot write agent.toml")?;
        let tenant = Tenant::new(&url, &created.api_key);
        let owner_variables = folders.variables().map(|(name, path)| (name, path.to_owned())).to_vec();
        let sela = places.program(Profile::Dev, "sela");
        let path = Self {
            sela,
            cards,
            operator,
            tenant,
            owner_variables,
        };
        let mut agent = path.as_owner(&["agent", "run"]);
        path.cards.show_to(places, &mut agent);
        if lab {
            agent.arg("--lab");
        }
        processes.start("agent", &mut agent)?;
        story.tell(format!("owner: {}", invited.owner));
        Ok(path)
    }

    /// `sela`, asked by the owner.
    fn as_owner(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.sela);
        command
            .args(arguments)
            .envs(self.owner_variables.iter().map(|(name, path)| (name, path)));
        command
    }

    fn submit(&mut self, images: &Images, folders: &Folders, story: &Story) -> anyhow::Result<Vec<Watched>> {
        let prompts = folders.tenant.join("prompts.jsonl");
        std::fs::write(&prompts, jobs::prompts_file())
            .with_context(|| format!("cannot write {}", prompts.display()))?;
        let prompts = self.tenant.store(&prompts)?;
        let specs = [
            jobs::batch_inference(self.tenant.store(&images.batch_inference)?, prompts)?,
            jobs::training(self.tenant.store(&images.training)?)?,
        ];
        let mut watched = Vec::new();
        for spec in specs {
            let job = self.tenant.submit(&spec)?;
            let name = spec.name.clone().unwrap_or_default();
            story.tell(format!("submitted: {name} as {job}, at most {} per hour", spec.cap));
            watched.push(Watched {
                name,
                job,
                state: String::new(),
                shown: 0,
            });
        }
        Ok(watched)
    }

    /// Shows what happens until all jobs have ended.
    fn watch(
        &self,
        jobs: &[Watched],
        processes: &mut Processes,
        story: &Story,
        stop: &Stop,
    ) -> anyhow::Result<Vec<JobView>> {
        let mut jobs: Vec<_> = jobs
            .iter()
            .map(|job| Watched {
                name: job.name.clone(),
                state: String::new(),
                ..*job
            })
            .collect();
        stop.wait("the jobs", LONGEST, || {
            processes.all_run()?;
            let mut views = Vec::new();
            for job in &mut jobs {
                let view = self.tenant.view(job.job)?;
                let state = story::state(&view);
                if state != job.state {
                    story.tell(format!("{}: {state}", job.name));
                    job.state = state;
                }
                let log = self.tenant.log(job.job, job.shown)?;
                // Whole lines only; what follows the last one is shown when it is whole.
                let whole = log.rfind('\n').map_or(0, |end| end + 1);
                for line in log[..whole].lines() {
                    story.tell(format!("{} | {line}", job.name));
                }
                job.shown += whole;
                views.push(view);
            }
            Ok(views.iter().all(|view| view.state.is_final()).then_some(views))
        })
    }

    /// Tells how everything ended and checks that it adds up.
    fn close(&self, views: &[JobView], stop: &Stop) -> anyhow::Result<()> {
        heading("what ran where");
        for view in views {
            println!(
                "{}: {}",
                view.spec.name.as_deref().unwrap_or("a job"),
                story::state(view)
            );
            for line in story::leases(view) {
                println!("  {line}");
            }
        }
        if let Some(failed) = views.iter().find(|view| view.state != JobState::Done) {
            bail!("{} did not end well: {}", failed.job, story::state(failed));
        }
        let [inference, training] = views else {
            bail!("{} jobs ended instead of two", views.len());
        };
        heading("what the model answered");
        let answers = jobs::answers(&self.tenant.output(inference.job)?)?;
        for (prompt, answer) in &answers {
            println!("{prompt}\n  {}", answer.replace('\n', "\n  "));
        }
        ensure!(
            answers.len() == jobs::PROMPTS.len(),
            "{} answers to {} prompts",
            answers.len(),
            jobs::PROMPTS.len()
        );
        heading("what the training came to");
        println!("{}", jobs::training_result(&self.tenant.output(training.job)?)?);
        self.settle(views, stop)
    }

    /// Both sides of the money, and the ledger between them.
    fn settle(&self, views: &[JobView], stop: &Stop) -> anyhow::Result<()> {
        heading("what the tenant paid");
        let paid = Micros(views.iter().map(|view| view.paid.0).sum());
        for view in views {
            println!("{}: {}", view.spec.name.as_deref().unwrap_or("a job"), view.paid);
            ensure!(view.paid > Micros(0), "{} cost nothing", view.job);
        }
        let account = self.tenant.account()?;
        println!(
            "together {paid}; left of {FUNDS}: {}, in escrow: {}",
            account.available, account.escrow
        );
        ensure!(
            account.escrow == Micros(0),
            "{} is still set aside for jobs that have ended",
            account.escrow
        );
        ensure!(
            account.available.0 + paid.0 == FUNDS.0,
            "the tenant's money does not add up"
        );

        heading("what the owner earned");
        let lines = stop.wait("the receipts", Duration::from_secs(90), || {
            let lines = self.earnings()?;
            let gross: i64 = lines.iter().map(|line| line.gross.0).sum();
            Ok((gross == paid.0).then_some(lines))
        })?;
        for line in story::earnings(&lines) {
            println!("{line}");
        }

        heading("the ledger");
        let check = self.operator.check_ledger()?;
        for line in story::ledger(&check) {
            println!("{line}");
        }
        ensure!(story::is_right(&check), "the ledger is not right");
        Ok(())
    }

    fn earnings(&self) -> anyhow::Result<Vec<EarningsLine>> {
        let text = commands::output(&mut self.as_owner(&["earnings", "--json"]))?;
        serde_json::from_str(&text)
            .with_context(|| format!("`sela earnings --json` said what the protocol does not know: {text}"))
    }

    /// How to look at what is up, until Ctrl-C.
    fn show_further(&self, folders: &Folders) {
        heading("look further, in a second terminal");
        let variables: Vec<_> = folders
            .variables()
            .iter()
            .map(|(name, path)| format!("{name}={}", path.display()))
            .collect();
        println!("export {}", variables.join(" "));
        for command in ["status", "why", "earnings", "pause", "resume", "doctor"] {
            println!("{} {command}", self.sela.display());
        }
        println!("\nlogs: {}\nCtrl-C ends everything.", folders.logs.display());
    }
}

/// The owner's settings for a run: a short quiet time, since whoever types `cargo xtask run` has just used the keyboard.
fn settings(url: &str, invitation: &str) -> String {
    format!(
        "# Written by `cargo xtask run`.\n[market]\nurl = \"{url}\"\ninvitation = \"{invitation}\"\nname = \"this machine\"\n\n\
         [price]\nfloor = \"0.100000\"\n\n[electricity]\nper_kwh = \"0.300000\"\n\n[presence]\nidle_after_s = 3\n\n\
         [disk]\nfree_floor = 1073741824\n"
    )
}

/// Whether this machine has the cgroups that people's machines have. Where it has not, jobs run as `lab-cgroup-v1`, which an exchange takes only
/// with `--lab`.
fn cgroups_are_v2() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}
