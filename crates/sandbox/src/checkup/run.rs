//! One job of a checkup, with the agent's part played: it grants every second, notes every report, and hangs up when it has waited for
//! long enough, whereupon the keeper ends the job.

use super::ask::{self, Answers};
use crate::keeper::handle::{HandleError, Orders, Reports, spawn};
use crate::keeper::wire::{Collected, Fault, JobPlan, LogStream, Order, Report, Stop};
use crate::network::Door;
use sela_protocol::confidential::Confidential;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// How often is granted.
const GRANT: Duration = Duration::from_secs(1);
/// How long a keeper may take to end a job that was given up.
const FAREWELL: Duration = Duration::from_secs(8);

/// See the module.
pub(super) struct Running {
    orders: Option<Orders>,
    reports: Reports,
    grants: Interval,
    seen: Vec<Report>,
    /// How long it may take to do what it is waited for.
    patience: Duration,
}

/// How it went.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// What the program's answers were.
    pub(super) answers: Answers,
    /// Bytes that were printed.
    pub(super) printed: usize,
    /// How it stopped; a fault where it never ran.
    pub(super) stop: Result<Stop, Fault>,
    /// What was in `/out`.
    pub(super) outputs: Collected,
}

impl Running {
    /// Starts a keeper and its job.
    pub(super) async fn start(
        keeper: &Path,
        plan: &JobPlan,
        confidential: &Confidential,
        patience: Duration,
    ) -> Result<Self, String> {
        let begin = async || -> Result<Self, HandleError> {
            let (mut orders, reports) = spawn(keeper)?;
            let start = Order::Start {
                plan: Box::new(plan.clone()),
                confidential: Box::new(confidential.clone()),
            };
            orders.send(&start).await?;
            let mut grants = interval(GRANT);
            grants.set_missed_tick_behavior(MissedTickBehavior::Delay);
            Ok(Self {
                orders: Some(orders),
                reports,
                grants,
                seen: Vec::new(),
                patience,
            })
        };
        begin().await.map_err(|error| error.to_string())
    }

    /// Where the socket of a job with a proxy comes.
    pub(super) fn door(&mut self) -> Option<Door> {
        self.orders.as_mut().and_then(Orders::door)
    }

    pub(super) async fn order(&mut self, order: Order) -> Result<(), String> {
        match self.orders.as_mut() {
            Some(orders) => orders.send(&order).await.map_err(|error| error.to_string()),
            None => Err("nobody is at the keeper's other end".to_owned()),
        }
    }

    /// As an agent that is killed does.
    pub(super) fn hang_up(&mut self) {
        self.orders = None;
    }

    /// The next report; `None` at the keeper's end.
    async fn next(&mut self) -> Result<Option<Report>, String> {
        loop {
            tokio::select! {
                report = self.reports.next() => {
                    let report = report.map_err(|error| error.to_string())?;
                    self.seen.extend(report.clone());
                    return Ok(report);
                }
                _ = self.grants.tick() => {
                    if let Some(orders) = self.orders.as_mut() {
                        // A keeper that ended meanwhile is noticed by its end of file.
                        drop(orders.send(&Order::Grant).await);
                    }
                }
            }
        }
    }

    /// Waits for a report of a kind.
    async fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Report) -> Option<T>) -> Result<T, String> {
        let patience = self.patience;
        let waiting = async {
            while let Some(report) = self.next().await? {
                if let Some(found) = found(&report) {
                    return Ok(found);
                }
                if let Report::Failed { fault } = report {
                    return Err(fault.message);
                }
            }
            Err(format!("the job ended before {what}"))
        };
        timeout(patience, waiting)
            .await
            .unwrap_or_else(|_| Err(format!("it took too long until {what}: is the machine busy?")))
    }

    /// Waits until the program runs; gives its cgroup.
    pub(super) async fn until_started(&mut self) -> Result<PathBuf, String> {
        self.until("it was started", |report| {
            let Report::Started { cgroup, .. } = report else {
                return None;
            };
            Some(cgroup.clone())
        })
        .await
    }

    /// Waits until the program has answered.
    pub(super) async fn until_answered(&mut self, name: &str) -> Result<(), String> {
        while !ask::read(&self.output()).contains_key(name) {
            self.until("it said anything", |report| {
                matches!(report, Report::Log { .. }).then_some(())
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until it stands still; gives how long that took, in microseconds.
    pub(super) async fn until_frozen(&mut self) -> Result<u64, String> {
        self.until("it stood still", |report| {
            let Report::Frozen { after_us } = report else {
                return None;
            };
            Some(after_us.0)
        })
        .await
    }

    pub(super) async fn until_thawed(&mut self) -> Result<(), String> {
        self.until("it ran again", |report| matches!(report, Report::Thawed).then_some(()))
            .await
    }

    fn output(&self) -> Vec<u8> {
        let parts = self.seen.iter().filter_map(|report| {
            let Report::Log { stream, bytes } = report else {
                return None;
            };
            (*stream == LogStream::Out).then_some(bytes.0.as_slice())
        });
        parts.collect::<Vec<_>>().concat()
    }

    /// Everything to the end, for so long; then it is given up, and what follows is waited for.
    pub(super) async fn finish(mut self) -> Result<Outcome, String> {
        let mut given_up = false;
        let to_end = async |running: &mut Self| {
            while running.next().await?.is_some() {}
            Ok::<_, String>(())
        };
        let patience = self.patience;
        if timeout(patience, to_end(&mut self)).await.is_err() {
            given_up = true;
            self.hang_up();
            let ended = timeout(FAREWELL, to_end(&mut self)).await;
            ended.map_err(|_| "its keeper did not end when it was told to".to_owned())??;
        }
        let printed = self.output();
        let last = self.seen.pop();
        drop(self.reports.wait().await);
        if given_up {
            return Err("it took too long to end: is the machine busy?".to_owned());
        }
        let (stop, outputs) = match last {
            Some(Report::Ended { stop, outputs, .. }) => (Ok(stop), outputs),
            Some(Report::Failed { fault }) => (Err(fault), Collected::Nothing),
            _ => return Err("its keeper ended without a word".to_owned()),
        };
        Ok(Outcome {
            answers: ask::read(&printed),
            printed: printed.len(),
            stop,
            outputs,
        })
    }
}
