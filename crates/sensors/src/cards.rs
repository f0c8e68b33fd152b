//! The cards and who is on them: one thread owns the driver, since its calls block and may hang; what it sees it reports.
//! A process belongs to a job if its cgroup says so; all others are foreign, and whether they count is decided in core.

use crate::JOBS_CGROUP;
use crate::asleep;
use crate::attention::Attention;
use crate::look::Look;
use sela_core::Input;
use sela_gpu::{GpuError, Nvml};
use sela_protocol::card::{CardDescription, CardProcess, Reading};
use sela_protocol::id::{GpuUuid, LeaseId};
use sela_protocol::presence::{ForeignUse, Observed};
use sela_protocol::units::{BootMs, Bytes, Millis, Percent};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often the processes on a card are looked at while a job runs.
const PROCESSES_RUNNING: Millis = Millis(250);
/// How often a card that is being given back is looked at.
const WATCHED: Millis = Millis(50);
/// How often a driver that does not start, or lists no card, is tried again.
const RETRY: Millis = Millis(30_000);

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Look at what a lease's job uses of its card, or no longer.
    Watch { gpu: GpuUuid, lease: LeaseId, on: bool },
    /// The attention has changed.
    Wake,
}

/// What the thread reports.
#[derive(Debug)]
pub(crate) enum Report {
    /// For core as it is.
    Input(Box<Input>),
    /// A part of the signals.
    Foreign(Observed<Vec<ForeignUse>>),
    /// Which cards sleep.
    Sleeping(Look<Vec<String>>),
}

impl Report {
    fn input(input: Input) -> Self {
        Self::Input(Box::new(input))
    }
}

/// Looks until the receiver is gone.
pub(crate) fn watch(
    library: Option<PathBuf>,
    sys: PathBuf,
    attention: &Attention,
    orders: &Receiver<Order>,
    report: &impl Fn(Report) -> bool,
) {
    let mut eye = Eye {
        library,
        sys,
        sleeping: false,
        driver: None,
        cards: Vec::new(),
        watched: Vec::new(),
        told_shares: BTreeMap::new(),
    };
    let mut next_readings = BootMs(0);
    let mut next_processes = BootMs(0);
    loop {
        let now = sela_clock::now().boot_ms;
        let mut reports = Vec::new();
        if now >= next_readings {
            reports.push(eye.mind_sleep());
            reports.extend(eye.read());
            next_readings = now.plus(if eye.driver.is_some() || eye.sleeping {
                attention.period()
            } else {
                RETRY
            });
        }
        if now >= next_processes {
            let foreign = eye.foreign(now);
            if matches!(foreign, Observed::Unknown { .. }) {
                // A card that is lost fails here first, since this is looked at more often: say what it is before what follows from it.
                reports.extend(eye.read());
            }
            reports.push(Report::Foreign(foreign));
            next_processes = now.plus(if attention.is_high() {
                PROCESSES_RUNNING
            } else {
                attention.period()
            });
        }
        reports.extend(eye.watched_use());
        if eye.let_sleep(attention) {
            // Both looks start it anew together.
            next_processes = next_readings;
        }
        if !reports.into_iter().all(report) {
            return;
        }
        let mut until = next_readings.min(next_processes);
        if !eye.watched.is_empty() {
            until = until.min(now.plus(WATCHED));
        }
        let span = until.since(sela_clock::now().boot_ms);
        match orders.recv_timeout(Duration::from_millis(span.0)) {
            Ok(Order::Watch { gpu, lease, on }) => {
                eye.watched.retain(|(_, watched)| *watched != lease);
                if on {
                    eye.watched.push((gpu, lease));
                }
            }
            Ok(Order::Wake) => {
                next_readings = BootMs(0);
                next_processes = BootMs(0);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Eye {
    library: Option<PathBuf>,
    /// `/sys`
    sys: PathBuf,
    /// Whether a card sleeps: then nothing is asked of any.
    sleeping: bool,
    driver: Option<Nvml>,
    cards: Vec<CardDescription>,
    watched: Vec<(GpuUuid, LeaseId)>,
    /// Up to which moment of the driver's clock each card has told its processes' shares.
    told_shares: BTreeMap<GpuUuid, u64>,
}

impl Eye {
    /// Sees in sysfs whether a card sleeps. A driver that is open is closed: it would wake it, or keep it from sleeping.
    fn mind_sleep(&mut self) -> Report {
        let look = asleep::look(&self.sys);
        self.sleeping = matches!(&look, Look::Seen(cards) if !cards.is_empty());
        if self.sleeping {
            self.driver = None;
        }
        Report::Sleeping(look)
    }

    /// Closes the driver between two looks where a card could sleep meanwhile; whether it did.
    fn let_sleep(&mut self, attention: &Attention) -> bool {
        let closes =
            self.driver.is_some() && !attention.is_high() && self.watched.is_empty() && asleep::may_sleep(&self.sys);
        if closes {
            self.driver = None;
        }
        closes
    }

    /// Cards and their readings; starts the driver where it has not started yet.
    fn read(&mut self) -> Vec<Report> {
        if self.sleeping {
            return vec![Report::input(Input::CardUnreadable {
                gpu: None,
                why: "a card of this machine sleeps; asking its driver would wake it".into(),
            })];
        }
        let cards = match self.list() {
            Ok(cards) => cards,
            Err(error) => {
                // A driver that fails as a whole is started anew: it may have been upgraded, or its card undocked.
                self.driver = None;
                return vec![Report::input(Input::CardUnreadable {
                    gpu: None,
                    why: error.to_string(),
                })];
            }
        };
        let mut reports = Vec::new();
        if cards != self.cards {
            self.cards.clone_from(&cards);
            reports.push(Report::input(Input::Cards(cards)));
        }
        let Some(driver) = &self.driver else {
            return reports;
        };
        let mut readings = Vec::new();
        for card in &self.cards {
            match driver.read(&card.uuid) {
                Ok(reading) => readings.push(reading),
                Err(error) => reports.push(Report::input(Input::CardUnreadable {
                    gpu: Some(card.uuid.clone()),
                    why: error.to_string(),
                })),
            }
        }
        if !readings.is_empty() {
            reports.push(Report::input(Input::Readings(readings)));
        }
        reports
    }

    fn list(&mut self) -> Result<Vec<CardDescription>, GpuError> {
        match &self.driver {
            Some(driver) => driver.cards(),
            None => {
                let driver = self.driver.insert(Nvml::start(self.library.as_deref())?);
                driver.cards()
            }
        }
    }

    fn foreign(&mut self, now: BootMs) -> Observed<Vec<ForeignUse>> {
        let source = || "NVML".to_owned();
        let Some(driver) = &self.driver else {
            let why = if self.sleeping {
                "a card that sleeps has no program on it"
            } else {
                "there is no card whose programs could be seen"
            };
            return Observed::NotApplicable { why: why.into() };
        };
        let mut foreign = Vec::new();
        for card in &self.cards {
            let gpu = &card.uuid;
            let processes = match driver.processes(gpu) {
                Ok(processes) => processes,
                Err(error) => {
                    return Observed::Unknown {
                        source: source(),
                        why: error.to_string(),
                    };
                }
            };
            let told = self.told_shares.entry(gpu.clone()).or_default();
            // A card that tells no shares is judged by memory alone.
            let shares = driver.process_shares(gpu, *told).map(|(shares, newest)| {
                *told = newest;
                shares
            });
            let shares = shares.unwrap_or_default();
            let others = processes
                .into_iter()
                .filter(|process| !is_ours(process.pid, JOBS_CGROUP))
                .map(|process| foreign_use(gpu, &process, shares.get(&process.pid).copied()));
            foreign.extend(others);
        }
        Observed::Value {
            value: foreign,
            source: source(),
            seen_boot_ms: now,
        }
    }

    /// What the jobs of leases that are being given back still use. A driver that fails here gives no report: core then
    /// never hears that the card is free, and does not offer it.
    fn watched_use(&self) -> Vec<Report> {
        let Some(driver) = &self.driver else {
            return Vec::new();
        };
        let look = |(gpu, lease): &(GpuUuid, LeaseId)| {
            let processes = driver.processes(gpu).ok()?;
            let marker = format!("/{lease}");
            let of_job: Vec<CardProcess> = processes
                .into_iter()
                .filter(|process| is_ours(process.pid, &marker))
                .collect();
            let utilisation = if of_job.is_empty() {
                Percent(0)
            } else {
                // The card's own figure: an upper bound of the job's share of it.
                driver
                    .read(gpu)
                    .ok()?
                    .utilisation
                    .value()
                    .copied()
                    .unwrap_or(Percent(100))
            };
            Some(Report::input(Input::CardUse {
                gpu: gpu.clone(),
                lease: *lease,
                vram: held(&of_job),
                utilisation,
            }))
        };
        self.watched.iter().filter_map(look).collect()
    }
}

/// One program on a card. A share of nothing is told only beside its memory: of a program whose memory is not told, resting for
/// one sample must not look like holding nothing.
fn foreign_use(gpu: &GpuUuid, process: &CardProcess, share: Option<Percent>) -> ForeignUse {
    let vram_used = process.vram_used.value().copied();
    ForeignUse {
        gpu: gpu.clone(),
        pid: process.pid,
        name: process.name.as_deref().map(file_name),
        vram_used,
        utilisation: share.filter(|share| share.0 > 0 || vram_used.is_some()),
    }
}

/// Memory held by these processes; one that the driver cannot tell of holds at least something.
fn held(processes: &[CardProcess]) -> Bytes {
    let of = |process: &CardProcess| match process.vram_used {
        Reading::Value { value } => value.0.max(1),
        Reading::NotSupported | Reading::Invalid { .. } => 1,
    };
    Bytes(processes.iter().map(of).sum())
}

/// Drivers give a program's whole path, which says more of its owner than a reason needs, and owners list names.
fn file_name(path: &str) -> String {
    path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned()
}

/// Whether a process is in a cgroup whose path contains `marker`. One that has just ended is not ours any more; one whose
/// cgroup cannot be read counts as foreign, the side that holds.
fn is_ours(pid: u32, marker: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|cgroups| cgroups.contains(marker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::card::Reading;

    #[test]
    fn a_program_whose_memory_is_not_told_never_looks_as_if_it_held_nothing() {
        let gpu = GpuUuid("GPU-1".into());
        let check = |vram_used, share, expected| {
            let process = CardProcess {
                pid: 7,
                vram_used,
                name: Some("/opt/game/Doom".into()),
            };
            let told = foreign_use(&gpu, &process, share);
            assert_eq!((told.vram_used.is_some(), told.utilisation), expected);
            assert_eq!(told.name.as_deref(), Some("Doom"));
        };
        let known = || Reading::of(Bytes(1));
        check(known(), Some(Percent(0)), (true, Some(Percent(0))));
        check(known(), None, (true, None));
        check(Reading::NotSupported, Some(Percent(0)), (false, None));
        check(Reading::NotSupported, Some(Percent(40)), (false, Some(Percent(40))));
    }
}
