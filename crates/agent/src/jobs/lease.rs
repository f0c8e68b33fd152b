//! One lease's task: fetch, wait for the start, lead the keeper, store the results. Orders are read before anything else, so
//! that giving back the card waits for nothing.

use super::fetch::{self, Fetched};
use super::network::{LeaseNetwork, Told};
use super::results::{Checkpoints, Results};
use super::{LeaseOrder, Workshop, card_access, plan};
use crate::market::{Blobs, LogUpload};
use sela_core::{Input, LeaseEvent};
use sela_protocol::id::LeaseId;
use sela_protocol::lease::EndCause;
use sela_protocol::local::{CardWiped, ImageTransfer};
use sela_protocol::node::Award;
use sela_protocol::units::{Microseconds, Millis};
use sela_sandbox::docker;
use sela_sandbox::keeper::handle::{self, HandleError, Orders, Reports};
use sela_sandbox::keeper::wire::{Collected, FaultCode, LogStream, Order, Report, Stop};
use sela_sandbox::sweep::sweep_lease;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How often at most it is told how far an image is.
const TRANSFER_INTERVAL: Duration = Duration::from_millis(250);

/// One lease.
pub(super) struct LeaseTask {
    workshop: Arc<Workshop>,
    award: Box<Award>,
    blobs: Blobs,
    orders: mpsc::UnboundedReceiver<LeaseOrder>,
    inputs: mpsc::Sender<Input>,
    /// The results are wanted: said once the card is seen to be free.
    upload: bool,
    /// Why the agent ended the job, if it did.
    told: Option<EndCause>,
    network: LeaseNetwork,
}

/// What a job that ran has left.
struct Left {
    stop: Option<Stop>,
    outputs: Collected,
    checkpoint: Collected,
}

impl LeaseTask {
    pub(super) fn new(
        workshop: Arc<Workshop>,
        award: Box<Award>,
        blobs: Blobs,
        orders: mpsc::UnboundedReceiver<LeaseOrder>,
        inputs: mpsc::Sender<Input>,
    ) -> Self {
        let network = LeaseNetwork::new(award.spec.network.clone(), workshop.line.clone());
        Self {
            workshop,
            award,
            blobs,
            orders,
            inputs,
            upload: false,
            told: None,
            network,
        }
    }

    #[tracing::instrument(name = "lease", skip_all, fields(lease = %self.award.lease, job = %self.award.job, gpu = %self.award.gpu))]
    pub(super) async fn run(mut self) {
        let folder = self.workshop.scratch.join(self.award.lease.to_string());
        let log = LogUpload::start(self.blobs.clone(), self.award.lease);
        let checkpoints = Checkpoints::start(self.blobs.clone(), self.award.lease, self.inputs.clone());
        let left = match self.fetch(&folder).await {
            Ok(fetched) => self.lead(fetched, folder.clone(), &log, &checkpoints).await,
            Err(cause) => {
                tracing::info!(?cause, "the lease ends before its job was started");
                self.report(LeaseEvent::Failed { cause }).await;
                None
            }
        };
        self.wait_for_upload().await;
        let results = Results {
            blobs: &self.blobs,
            lease: self.award.lease,
        };
        checkpoints.finish().await;
        let (output, problem) = match left {
            Some(left) => self.store(&results, left).await,
            // Only a keeper that lived to the end tells what the job made. For a job that never ran, or that was ended, this says
            // nothing new; one that ended by itself is not done without what it made.
            None => (None, Some(lost_with_its_keeper())),
        };
        log.finish().await;
        if let Err(error) = tokio::fs::remove_dir_all(&folder).await
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, folder = %folder.display(), "a scratch folder stays until the next start");
        }
        self.report(LeaseEvent::Uploaded { output, problem }).await;
    }

    async fn report(&self, event: LeaseEvent) {
        let lease = self.award.lease;
        // The loop is gone only when the agent leaves; then nobody needs to know.
        drop(self.inputs.send(Input::Lease { lease, event }).await);
    }

    /// Gets everything and waits for the order to start.
    async fn fetch(&mut self, folder: &std::path::Path) -> Result<Fetched, EndCause> {
        let (tell, mut told) = watch::channel(None);
        let (inputs, lease) = (self.inputs.clone(), self.award.lease);
        let fetched = tokio::select! {
            biased;
            cause = told_to_end(&mut self.orders) => return Err(cause),
            fetched = fetch::fetch(&self.workshop, &self.award, &self.blobs, folder, &tell) => fetched?,
            never = pass_on_progress(&mut told, &inputs, lease) => match never {},
        };
        self.report(LeaseEvent::Fetched).await;
        loop {
            match self.orders.recv().await {
                Some(LeaseOrder::Start) => return Ok(fetched),
                Some(LeaseOrder::End { cause } | LeaseOrder::Save { cause, .. }) => return Err(cause),
                Some(LeaseOrder::Freeze | LeaseOrder::Thaw | LeaseOrder::Grant | LeaseOrder::Upload) => {}
                None => return Err(EndCause::Shutdown),
            }
        }
    }

    /// Starts a keeper and leads it to the end. `None` where the job never ran.
    async fn lead(
        &mut self,
        fetched: Fetched,
        folder: PathBuf,
        log: &LogUpload,
        checkpoints: &Checkpoints,
    ) -> Option<Left> {
        let (mut keeper, mut reports) = match self.start(&fetched, folder).await {
            Ok(started) => started,
            Err(cause) => {
                self.report(LeaseEvent::Failed { cause }).await;
                return None;
            }
        };
        let mut course = Course::default();
        let left = loop {
            tokio::select! {
                biased;
                order = self.orders.recv() => {
                    if let Err(error) = self.pass_on(order?, &mut keeper).await {
                        // Its end is read from its reports.
                        tracing::debug!(%error, "an order found no keeper");
                    }
                }
                report = reports.next() => match report {
                    Ok(Some(report)) => {
                        if matches!(report, Report::Stopped { .. }) {
                            self.close_network(log).await;
                        }
                        if let Some(left) = self.hear(report, &mut course, log, checkpoints).await {
                            break left;
                        }
                    }
                    Ok(None) => break self.keeper_died(&course, "it closed its reports").await,
                    Err(error) => break self.keeper_died(&course, &error.to_string()).await,
                },
                told = self.network.next() => self.tell(told, log).await,
            }
        };
        self.close_network(log).await;
        drop(keeper);
        if let Err(error) = reports.wait().await {
            tracing::warn!(%error, "the keeper could not be waited for");
        }
        // The image may be evicted only now that nothing is mounted.
        drop(fetched);
        left
    }

    async fn start(&mut self, fetched: &Fetched, folder: PathBuf) -> Result<(Orders, Reports), EndCause> {
        let fault = |error: &dyn std::fmt::Display| EndCause::NodeFault {
            message: error.to_string(),
        };
        let workshop = Arc::clone(&self.workshop);
        let (gpu, vram) = (self.award.gpu.clone(), self.award.spec.vram);
        // The driver's calls block.
        let card = tokio::task::spawn_blocking(move || card_access::of(&workshop, &gpu, vram))
            .await
            .map_err(|error| fault(&error))?
            .map_err(|error| fault(&error))?;
        let plan = plan::plan(&self.workshop, &self.award, fetched, folder, Some(card))?;
        let (mut keeper, reports) = handle::spawn(&self.workshop.program).map_err(|error| fault(&error))?;
        self.network.open(keeper.door());
        // The core takes no award without it. From here on the keeper has it, and nobody else here.
        let confidential = self.award.confidential.take().map(Box::new);
        let confidential = confidential.ok_or_else(|| fault(&"the award came without a key for what the job makes"))?;
        let plan = Box::new(plan);
        keeper
            .send(&Order::Start { plan, confidential })
            .await
            .map_err(|error| fault(&error))?;
        Ok((keeper, reports))
    }

    async fn pass_on(&mut self, order: LeaseOrder, keeper: &mut Orders) -> Result<(), HandleError> {
        let order = match order {
            LeaseOrder::Grant => Order::Grant,
            // The one cause for which a job is frozen.
            LeaseOrder::Freeze => {
                self.network.halt(true);
                Order::Freeze {
                    cause: EndCause::OwnerInput,
                }
            }
            LeaseOrder::Thaw => {
                self.network.halt(false);
                Order::Thaw
            }
            LeaseOrder::Save { grace, cause } => {
                self.network.halt(false);
                self.told = Some(cause.clone());
                Order::Save { cause, grace_ms: grace }
            }
            LeaseOrder::End { cause } => {
                self.told = Some(cause.clone());
                Order::End { cause }
            }
            LeaseOrder::Upload => {
                self.upload = true;
                return Ok(());
            }
            LeaseOrder::Start => return Ok(()),
        };
        keeper.send(&order).await
    }

    /// What came of the job's connections: to its tenant, and to its owner.
    async fn tell(&self, told: Told, log: &LogUpload) {
        match told {
            Told::Line(line) => log.add(LogStream::Err, line.into_bytes()),
            Told::Used(used) => self.report(LeaseEvent::Network(used)).await,
        }
    }

    async fn close_network(&mut self, log: &LogUpload) {
        for told in self.network.close() {
            self.tell(told, log).await;
        }
    }

    /// Takes a report; `Some` with the last one.
    async fn hear(
        &self,
        report: Report,
        course: &mut Course,
        log: &LogUpload,
        checkpoints: &Checkpoints,
    ) -> Option<Option<Left>> {
        match report {
            Report::CardWiped { wiped, took_us } => {
                tracing::info!(wiped = wiped.0, took_us = took_us.0, "the card's memory was wiped");
                let took_ms = took_us.in_ms();
                self.report(LeaseEvent::CardWiped(CardWiped { wiped, took_ms })).await;
            }
            Report::Started { init_pid, .. } => {
                tracing::info!(init_pid, "the job runs");
                course.started = true;
                self.report(LeaseEvent::Started).await;
            }
            Report::Frozen { after_us } => {
                tracing::info!(after_us = after_us.0, "the job stands frozen");
                self.report(LeaseEvent::Frozen).await;
            }
            Report::Thawed => self.report(LeaseEvent::Thawed).await,
            Report::Saving => tracing::info!("the job saves"),
            Report::Log { stream, bytes } => log.add(stream, bytes.0),
            Report::Usage { usage } => {
                course.thawed = usage.thawed_ms;
                course.frozen = usage.frozen_us;
                self.report(LeaseEvent::Usage {
                    thawed_ms: usage.thawed_ms,
                    frozen_ms: usage.frozen_us.in_ms(),
                })
                .await;
            }
            // Taken a little after the newest usage was: less time than it holds, never more.
            Report::CheckpointReady { archive } => checkpoints.store(archive, course.thawed),
            Report::CheckpointMissed { why } => tracing::warn!(why, "a checkpoint could not be taken"),
            Report::Stopped { stop } => self.stopped(stop, course).await,
            Report::Ended {
                stop,
                outputs,
                checkpoint,
            } => {
                self.stopped(stop.clone(), course).await;
                return Some(Some(Left {
                    stop: Some(stop),
                    outputs,
                    checkpoint,
                }));
            }
            Report::Failed { fault } => {
                tracing::info!(code = ?fault.code, message = fault.message, "the job could not be started");
                let cause = match (&self.told, fault.code) {
                    (Some(told), FaultCode::Stopped) => told.clone(),
                    _ => fault.end_cause(),
                };
                self.report(LeaseEvent::Failed { cause }).await;
                return Some(None);
            }
        }
        None
    }

    async fn stopped(&self, stop: Stop, course: &mut Course) {
        if course.stopped {
            return;
        }
        course.stopped = true;
        tracing::info!(
            cause = ?stop.cause,
            thawed_ms = stop.thawed_ms.0,
            frozen_us = stop.frozen_us.0,
            gone_after_us = stop.gone_after_us.0,
            "the job is gone"
        );
        self.report(LeaseEvent::Ended {
            cause: stop.cause,
            thawed_ms: stop.thawed_ms,
            frozen_ms: stop.frozen_us.in_ms(),
        })
        .await;
    }

    /// A keeper that dies takes its job with it (PDEATHSIG, PID namespace). What is known of the job's time is what it reported
    /// or wrote down last.
    async fn keeper_died(&self, course: &Course, why: &str) -> Option<Left> {
        self.sweep().await;
        if course.stopped {
            tracing::error!(why, "the job's keeper died before it had collected what the job left");
            return None;
        }
        tracing::error!(why, "the job's keeper died, and the job with it");
        let account = super::plan::account(&self.workshop, self.award.lease);
        if let Some(stop) = crate::run::accounts::read(&account) {
            self.stopped(stop, &mut Course::default()).await;
            return None;
        }
        let cause = EndCause::NodeFault {
            message: format!("the job's keeper died: {why}"),
        };
        let event = if course.started {
            LeaseEvent::Ended {
                cause,
                thawed_ms: course.thawed,
                frozen_ms: course.frozen.in_ms(),
            }
        } else {
            LeaseEvent::Failed { cause }
        };
        self.report(event).await;
        None
    }

    /// Nobody but its keeper removes a job's cgroups, and nobody but the kernel says that the job is gone.
    async fn sweep(&self) {
        let (place, lease) = (self.workshop.cgroups.clone(), self.award.lease);
        let swept = tokio::task::spawn_blocking(move || sweep_lease(&place, lease)).await;
        match swept {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "what the keeper left stays until the next start"),
            Err(error) => tracing::error!(%error, "the sweep ended by a panic"),
        }
        if let Some(images) = &self.workshop.engine
            && let Err(error) = docker::sweep_lease(&images.engine().place, lease).await
        {
            tracing::error!(%error, "what the keeper left in the engine stays until the next start");
        }
    }

    async fn wait_for_upload(&mut self) {
        while !self.upload {
            match self.orders.recv().await {
                Some(LeaseOrder::Upload) => self.upload = true,
                Some(
                    LeaseOrder::Start
                    | LeaseOrder::Freeze
                    | LeaseOrder::Thaw
                    | LeaseOrder::Save { .. }
                    | LeaseOrder::End { .. }
                    | LeaseOrder::Grant,
                ) => {}
                None => return,
            }
        }
    }

    async fn store(
        &self,
        results: &Results<'_>,
        left: Left,
    ) -> (Option<sela_protocol::blob::BlobId>, Option<EndCause>) {
        let thawed_ms = left.stop.map_or(Millis(0), |stop| stop.thawed_ms);
        match results.store("/checkpoint", left.checkpoint).await {
            Ok(Some(blob)) => self.report(LeaseEvent::CheckpointStored { blob, thawed_ms }).await,
            Ok(None) => {}
            Err(problem) => tracing::warn!(?problem, "the last checkpoint is not stored; the one before stands"),
        }
        match results.store("/out", left.outputs).await {
            Ok(output) => (output, None),
            Err(problem) => {
                tracing::warn!(?problem, "what the job made is not stored");
                (None, Some(problem))
            }
        }
    }
}

/// How far a led job has come.
#[derive(Debug, Default)]
struct Course {
    started: bool,
    stopped: bool,
    thawed: Millis,
    frozen: Microseconds,
}

/// Passes on how far the image is, at most every [`TRANSFER_INTERVAL`]: what comes in between is contained in what comes later.
async fn pass_on_progress(
    told: &mut watch::Receiver<Option<ImageTransfer>>,
    inputs: &mpsc::Sender<Input>,
    lease: LeaseId,
) -> Infallible {
    loop {
        if told.changed().await.is_err() {
            // Whoever told is done; the fetch says so itself.
            std::future::pending::<()>().await;
        }
        let so_far = *told.borrow_and_update();
        if let Some(so_far) = so_far {
            let event = LeaseEvent::Transfer(so_far);
            // The loop is gone only when the agent leaves; then nobody needs to know.
            drop(inputs.send(Input::Lease { lease, event }).await);
        }
        tokio::time::sleep(TRANSFER_INTERVAL).await;
    }
}

/// Waits for the order to end; all others mean nothing yet.
async fn told_to_end(orders: &mut mpsc::UnboundedReceiver<LeaseOrder>) -> EndCause {
    loop {
        match orders.recv().await {
            Some(LeaseOrder::End { cause } | LeaseOrder::Save { cause, .. }) => return cause,
            Some(
                LeaseOrder::Start | LeaseOrder::Freeze | LeaseOrder::Thaw | LeaseOrder::Grant | LeaseOrder::Upload,
            ) => {}
            None => return EndCause::Shutdown,
        }
    }
}

/// Why a job that ended by itself has nothing to show.
fn lost_with_its_keeper() -> EndCause {
    EndCause::NodeFault {
        message: "the job's keeper died before what the job made was collected".into(),
    }
}
