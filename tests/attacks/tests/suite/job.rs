//! A job under a real keeper, with an agent's part played here: it grants every second and notes every report.

use crate::proxied::Served;
use sela_protocol::blob::BlobId;
use sela_protocol::confidential::Confidential;
use sela_protocol::lease::EndCause;
use sela_sandbox::docker::image::{EngineImages, GivenImage};
use sela_sandbox::keeper::handle::spawn;
use sela_sandbox::keeper::wire::{Archive, Collected, JobPlan, LogStream, Order, Report, Stop};
use sela_sandbox::network::Gateway;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A program that was built beside this test.
pub(crate) fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.ancestors().nth(2).unwrap().join(name);
    assert!(path.exists(), "{} is not built", path.display());
    path
}

pub(crate) struct Job {
    orders: Option<UnboundedSender<Order>>,
    reports: UnboundedReceiver<Report>,
    pub(crate) seen: Vec<Report>,
    pub(crate) keeper: u32,
    silent: Arc<AtomicBool>,
    agent: JoinHandle<()>,
}

impl Job {
    /// In the engine of these images, or natively; with the proxy that its plan asks for.
    pub(crate) fn start(
        plan: &JobPlan,
        confidential: &Confidential,
        images: Option<&EngineImages>,
        served: Option<Served>,
    ) -> Self {
        let (orders, mut given) = unbounded_channel();
        let (noted, reports) = unbounded_channel();
        let (named, names) = std::sync::mpsc::channel();
        let (mut plan, confidential, images) = (plan.clone(), confidential.clone(), images.cloned());
        let silent = Arc::new(AtomicBool::new(false));
        let says_nothing = silent.clone();
        // An agent of its own: attacks wait for processes and files meanwhile, and a grant must not.
        let agent = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let _image = match &images {
                    Some(images) => Some(give_image(images, &mut plan).await),
                    None => None,
                };
                let (mut to_keeper, mut from_keeper) = spawn(&program("examples/attacked-keeper")).unwrap();
                let start = Order::Start {
                    plan: Box::new(plan),
                    confidential: Box::new(confidential),
                };
                to_keeper.send(&start).await.unwrap();
                named.send(from_keeper.keeper_pid().unwrap()).unwrap();
                let door = to_keeper.door();
                let proxy = tokio::spawn(async move {
                    let Some((mut door, served)) = door.zip(served) else {
                        return;
                    };
                    let listener = door.listener().await.unwrap().unwrap();
                    let _open = Gateway::open(listener, &served.network, &served.line, served.uplink).unwrap();
                    std::future::pending::<()>().await;
                });
                let mut grants = tokio::time::interval(Duration::from_secs(1));
                loop {
                    tokio::select! {
                        order = given.recv() => match order {
                            // A keeper that ended meanwhile is noticed by its end of file.
                            Some(order) => drop(to_keeper.send(&order).await),
                            None => break,
                        },
                        _ = grants.tick() => if !says_nothing.load(Ordering::Relaxed) {
                            drop(to_keeper.send(&Order::Grant).await);
                        },
                        report = from_keeper.next() => match report.unwrap() {
                            Some(report) => drop(noted.send(report)),
                            None => break,
                        },
                    }
                }
                // As an agent that is killed does: the pipe is closed. What is said then is still read.
                drop(to_keeper);
                while let Ok(Some(report)) = from_keeper.next().await {
                    drop(noted.send(report));
                }
                drop(from_keeper.wait().await);
                proxy.abort();
            });
        });
        Self {
            orders: Some(orders),
            reports,
            seen: Vec::new(),
            keeper: names.recv().unwrap(),
            silent,
            agent,
        }
    }

    pub(crate) fn order(&self, order: Order) {
        self.orders.as_ref().unwrap().send(order).unwrap();
    }

    /// Whether it stands still now. One that does not in time its keeper has ended instead, which a busy machine may bring about.
    pub(crate) async fn freeze(&mut self) -> bool {
        self.order(Order::Freeze {
            cause: EndCause::OwnerInput,
        });
        let answered = self
            .until(|report| matches!(report, Report::Frozen { .. } | Report::Stopped { .. }))
            .await;
        matches!(answered, Report::Frozen { .. })
    }

    pub(crate) fn end(&self) {
        self.order(Order::End {
            cause: EndCause::OwnerCommand,
        });
    }

    /// As an agent that hangs does: it is there, and grants nothing more.
    pub(crate) fn fall_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    pub(crate) fn hang_up(&mut self) {
        self.orders = None;
    }

    async fn next(&mut self) -> Option<Report> {
        let report = self.reports.recv().await?;
        self.seen.push(report.clone());
        Some(report)
    }

    /// Waits for a report of a kind.
    pub(crate) async fn until(&mut self, mut found: impl FnMut(&Report) -> bool) -> Report {
        loop {
            match self.next().await {
                Some(report) if found(&report) => return report,
                Some(_) => {}
                None => panic!("the keeper ended; seen: {:#?}", self.seen),
            }
        }
    }

    /// The job's init and its cgroup.
    pub(crate) async fn until_started(&mut self) -> (u32, PathBuf) {
        self.until_started_or_refused()
            .await
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same, or why it was not started.
    pub(crate) async fn until_started_or_refused(&mut self) -> Result<(u32, PathBuf), String> {
        match self
            .until(|report| matches!(report, Report::Started { .. } | Report::Failed { .. }))
            .await
        {
            Report::Started { init_pid, cgroup, .. } => Ok((init_pid, cgroup)),
            Report::Failed { fault } => Err(fault.message),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the output holds a text.
    pub(crate) async fn until_says(&mut self, text: &str) {
        while !self.output(LogStream::Out).contains(text) {
            let goes_on = self.next().await.is_some();
            assert!(
                goes_on,
                "the keeper ended before it said {text}; seen: {:#?}",
                self.seen
            );
        }
    }

    pub(crate) async fn until_usage(&mut self) -> Report {
        self.until(|report| matches!(report, Report::Usage { .. })).await
    }

    /// Everything to the end.
    pub(crate) async fn finish(mut self) -> Outcome {
        while self.next().await.is_some() {}
        let (out, err) = (self.output(LogStream::Out), self.output(LogStream::Err));
        self.agent.join().unwrap();
        Outcome {
            out,
            err,
            seen: self.seen,
        }
    }

    fn output(&self, wanted: LogStream) -> String {
        let mut bytes = Vec::new();
        for report in &self.seen {
            if let Report::Log { stream, bytes: part } = report
                && *stream == wanted
            {
                bytes.extend_from_slice(&part.0);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// How it all went.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) seen: Vec<Report>,
}

impl Outcome {
    /// Stop, results, checkpoint; a panic where the job never ran.
    pub(crate) fn ended(&self) -> (&Stop, &Collected, &Collected) {
        match self.seen.last() {
            Some(Report::Ended {
                stop,
                outputs,
                checkpoint,
            }) => (stop, outputs, checkpoint),
            other => panic!("did not end but {other:?}; out: {}; err: {}", self.out, self.err),
        }
    }

    pub(crate) fn stop(&self) -> &Stop {
        self.ended().0
    }

    /// Why it was never started, if it was not.
    pub(crate) fn fault(&self) -> Option<String> {
        match self.seen.last() {
            Some(Report::Failed { fault }) => Some(fault.message.clone()),
            _ => None,
        }
    }

    pub(crate) fn archive(&self) -> Option<&Archive> {
        match self.ended().1 {
            Collected::Archived { archive } => Some(archive),
            Collected::Nothing | Collected::Refused { .. } => None,
        }
    }
}

/// What an agent does before it starts a keeper: the engine is given the layers. Here each folder of layers is one image: what is in
/// it does not change while jobs are started from it.
async fn give_image(images: &EngineImages, plan: &mut JobPlan) -> GivenImage {
    let layers = std::mem::take(&mut plan.layers);
    let names: Vec<String> = layers.iter().map(|layer| layer.display().to_string()).collect();
    let image = images.load(BlobId::of(names.join(":").as_bytes()), &layers).await;
    let image = image.unwrap();
    plan.engine = Some(images.engine().plan(image.id().to_owned()));
    image
}

/// Processes in a cgroup.
pub(crate) fn processes_in(cgroup: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}
