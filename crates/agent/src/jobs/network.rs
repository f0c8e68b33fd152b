//! One lease's way to the network, served here while its job runs. What may be reached, and how fast, is checked in the sandbox's
//! gateway; this only tells what came of it.

use sela_protocol::network::{JobNetwork, NetworkUse};
use sela_sandbox::network::{Door, Gateway, Internet, OwnersLine};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often is looked at what was used.
const LOOK: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct LeaseNetwork {
    asked: Option<JobNetwork>,
    line: OwnersLine,
    way: Way,
    look: Interval,
    told: Option<NetworkUse>,
    halted: bool,
}

enum Way {
    /// None, or none any more.
    Closed,
    /// The job's socket has not come yet.
    Awaited(Door),
    Open(Gateway),
}

/// Something to tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// A line for the job's log.
    Line(String),
    /// What was used so far.
    Used(NetworkUse),
}

impl LeaseNetwork {
    /// Closed until it is opened.
    pub(super) fn new(asked: Option<JobNetwork>, line: OwnersLine) -> Self {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            asked,
            line,
            way: Way::Closed,
            look,
            told: None,
            halted: false,
        }
    }

    /// Serves the job whose socket comes through this door, if it asked for a network.
    pub(super) fn open(&mut self, door: Option<Door>) {
        if let (Some(_), Some(door)) = (&self.asked, door) {
            self.way = Way::Awaited(door);
        }
    }

    /// Nothing passes while the job stands frozen.
    pub(super) fn halt(&mut self, on: bool) {
        self.halted = on;
        if let Way::Open(gateway) = &self.way {
            gateway.halt(on);
        }
    }

    /// Waits until there is something to tell. Safe to drop half-way (`select!`).
    pub(super) async fn next(&mut self) -> Told {
        loop {
            match &mut self.way {
                Way::Closed => std::future::pending().await,
                Way::Awaited(door) => {
                    let listener = door.listener().await;
                    self.serve(listener);
                }
                Way::Open(gateway) => tokio::select! {
                    line = gateway.line() => return Told::Line(line),
                    _ = self.look.tick() => {
                        let used = gateway.used();
                        if self.told.as_ref() != Some(&used) {
                            self.told = Some(used.clone());
                            return Told::Used(used);
                        }
                    }
                },
            }
        }
    }

    /// The job is gone: every connection is closed. What is left to tell.
    pub(super) fn close(&mut self) -> Vec<Told> {
        let Way::Open(mut gateway) = std::mem::replace(&mut self.way, Way::Closed) else {
            return Vec::new();
        };
        let lines = std::iter::from_fn(|| gateway.waiting_line()).map(Told::Line);
        let mut left: Vec<Told> = lines.collect();
        let used = gateway.used();
        tracing::info!(
            down = used.down.0,
            up = used.up.0,
            refused = used.refused,
            last_refusal = used.last_refusal,
            "the job's connections are closed"
        );
        left.push(Told::Used(used));
        left
    }

    fn serve(&mut self, listener: std::io::Result<Option<std::net::TcpListener>>) {
        self.way = Way::Closed;
        let (Some(asked), Some(listener)) = (&self.asked, listener.transpose()) else {
            // The keeper is gone, and says so elsewhere.
            return;
        };
        match listener.and_then(|listener| Gateway::open(listener, asked, &self.line, Internet)) {
            Ok(gateway) => {
                gateway.halt(self.halted);
                self.way = Way::Open(gateway);
            }
            Err(error) => tracing::error!(%error, "a job's network could not be opened: it runs without"),
        }
    }
}
