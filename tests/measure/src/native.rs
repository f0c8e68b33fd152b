//! A job as an agent runs it: the real `sela job-keeper`, a plan, grants every second.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sela_protocol::confidential::{Confidential, SealingKey};
use sela_protocol::id::IdSource;
use sela_protocol::lease::EndCause;
use sela_protocol::units::{Bytes, Millis, UtcMs};
use sela_sandbox::ids::ROOTFUL_RANGE;
use sela_sandbox::keeper::handle::{Orders, Reports, spawn};
use sela_sandbox::keeper::wire::{
    CgroupLayout, CgroupPlace, Egress, JobPlan, Limits, LogStream, Order, Program, Report,
};
use tokio::runtime::Runtime;

use crate::clock;
use crate::image::Small;

/// What every job and container may use.
pub(crate) const MEMORY: Bytes = Bytes::from_mib(512);
pub(crate) const PROCESSES: u32 = 64;

/// Makes plans, each for a lease of its own.
pub(crate) struct Planner<'a> {
    small: &'a Small,
    scratch: tempfile::TempDir,
    ids: IdSource,
    keeper: PathBuf,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(small: &'a Small) -> anyhow::Result<Self> {
        let mut seed = [0; 32];
        std::fs::File::open("/dev/urandom").and_then(|mut file| std::io::Read::read_exact(&mut file, &mut seed))?;
        Ok(Self {
            small,
            scratch: tempfile::Builder::new()
                .prefix("sela-measure-jobs-")
                .tempdir_in("/var/tmp")?,
            ids: IdSource::new(UtcMs(1_764_547_200_000), seed),
            keeper: sela_tests::program("sela")?,
        })
    }

    /// A job that runs this.
    pub(crate) fn plan(&mut self, arguments: &[&str]) -> anyhow::Result<JobPlan> {
        let lease = self.ids.draw();
        let own: sela_protocol::id::LeaseId = lease;
        let scratch = self.scratch.path().join(own.to_string());
        std::fs::create_dir(&scratch)?;
        Ok(JobPlan {
            lease,
            job: self.ids.draw(),
            layers: self.small.prepared.layers.clone(),
            program: Program {
                arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
                environment: self.small.prepared.config.environment.clone(),
                folder: PathBuf::from("/"),
                user: 0,
                group: 0,
            },
            ids: ROOTFUL_RANGE,
            cgroups: CgroupPlace {
                layout: layout(),
                root: PathBuf::from("/sys/fs/cgroup"),
                agent: format!("measure-{}", std::process::id()),
            },
            limits: Limits {
                memory: MEMORY,
                pids: PROCESSES,
                open_files: 1024,
                shm_size: Bytes::from_mib(16),
                log: Bytes::from_mib(1),
                wall_ms: Millis::from_secs(600),
                output: Bytes::from_mib(32),
                disk: None,
            },
            inputs: None,
            resume_from: None,
            checkpoint_every_ms: None,
            card: None,
            engine: None,
            egress: Egress::None,
            account: scratch.with_extension("account"),
            scratch,
        })
    }

    /// Starts a job; returns before it runs.
    pub(crate) async fn start(&self, plan: &JobPlan) -> anyhow::Result<NativeJob> {
        let (mut orders, reports) = spawn(&self.keeper)?;
        let confidential = Confidential {
            result_key: SealingKey::from_bytes([9; 32]),
            secrets: std::collections::BTreeMap::new(),
        };
        let start = Order::Start {
            plan: Box::new(plan.clone()),
            confidential: Box::new(confidential),
        };
        orders.send(&start).await?;
        Ok(NativeJob {
            orders,
            reports,
            granted: Instant::now(),
            started: None,
            output: Vec::new(),
        })
    }

    /// Runs a job to its end and gives what it printed.
    pub(crate) fn run(&mut self, runtime: &Runtime, arguments: &[&str]) -> anyhow::Result<String> {
        let plan = self.plan(arguments)?;
        let output = runtime.block_on(async {
            let mut job = self.start(&plan).await?;
            while job.next().await?.is_some() {}
            let output = std::mem::take(&mut job.output);
            job.gone().await?;
            anyhow::Ok(output)
        })?;
        self.forget(&plan)?;
        Ok(String::from_utf8(output)?)
    }

    /// Removes what the agent would after it has collected a job's results.
    pub(crate) fn forget(&self, plan: &JobPlan) -> anyhow::Result<()> {
        std::fs::remove_dir_all(&plan.scratch)?;
        Ok(std::fs::remove_file(&plan.account)?)
    }
}

/// A job under its keeper.
pub(crate) struct NativeJob {
    orders: Orders,
    reports: Reports,
    granted: Instant,
    started: Option<(u32, PathBuf)>,
    output: Vec<u8>,
}

impl NativeJob {
    /// The next report, with grants given while it is waited for.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Report>> {
        loop {
            self.grant().await?;
            let waited = tokio::time::timeout(Duration::from_millis(500), self.reports.next()).await;
            let Ok(report) = waited else { continue };
            let report = report?;
            match &report {
                Some(Report::Started { init_pid, cgroup, .. }) => self.started = Some((*init_pid, cgroup.clone())),
                Some(Report::Log {
                    stream: LogStream::Out,
                    bytes,
                }) => self.output.extend_from_slice(&bytes.0),
                Some(Report::Failed { fault }) => bail!("the job was not started: {}", fault.message),
                _ => {}
            }
            return Ok(report);
        }
    }

    async fn grant(&mut self) -> anyhow::Result<()> {
        if self.granted.elapsed() > Duration::from_millis(900) {
            self.granted = Instant::now();
            // A keeper that has ended needs none.
            drop(self.orders.send(&Order::Grant).await);
        }
        Ok(())
    }

    /// Reads what was reported meanwhile.
    pub(crate) async fn rest(&mut self, pause: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + pause;
        self.grant().await?;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match tokio::time::timeout(left, self.reports.next()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => bail!("the keeper ended early"),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Waits for the first bytes of its output.
    pub(crate) async fn first_output(&mut self) -> anyhow::Result<()> {
        while self.output.is_empty() {
            self.next()
                .await?
                .context("the keeper ended before the job said anything")?;
        }
        Ok(())
    }

    /// The job's init and its cgroup, of a job that has said something.
    pub(crate) fn started(&self) -> anyhow::Result<(u32, &Path)> {
        let (pid, cgroup) = self
            .started
            .as_ref()
            .context("it was started before it said anything")?;
        Ok((*pid, cgroup))
    }

    pub(crate) async fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        Ok(self.orders.send(order).await?)
    }

    /// Ends it and waits until nothing of it is left.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        self.order(&end()).await?;
        self.gone().await
    }

    /// Waits until its keeper is gone.
    pub(crate) async fn gone(mut self) -> anyhow::Result<()> {
        while self.next().await?.is_some() {}
        drop(self.orders);
        self.reports.wait().await?;
        Ok(())
    }
}

/// How an owner's return ends a job.
pub(crate) fn end() -> Order {
    Order::End {
        cause: EndCause::OwnerInput,
    }
}

/// And freezes it.
pub(crate) fn freeze() -> Order {
    Order::Freeze {
        cause: EndCause::OwnerInput,
    }
}

/// Waits until a cgroup of version 2 says so: `frozen 1`, `populated 0`. One that is gone is empty.
pub(crate) fn until_says(cgroup: &Path, line: &str) -> anyhow::Result<()> {
    let events = cgroup.join("cgroup.events");
    clock::until(line, || {
        Ok(clock::has_line(&events, line) || (line == "populated 0" && !events.exists()))
    })
}

fn layout() -> CgroupLayout {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        CgroupLayout::V2
    } else {
        CgroupLayout::LabCgroupV1
    }
}
