//! Gathers what all watchers report into the agent's one queue of inputs: cards as they are, presence as one `Signals` on
//! every change and as a sign of life each period.

use crate::Config;
use crate::attention::Attention;
use crate::cards;
use crate::input::logind::{self, Power};
use crate::input::{Sighting, Source, combine, x11};
use sela_core::Input;
use sela_protocol::id::{GpuUuid, LeaseId};
use sela_protocol::presence::{ForeignUse, Observed, Signals};
use std::time::Duration;
use tokio::sync::mpsc;

/// All watchers. Dropping it ends them.
#[derive(Debug)]
pub struct Eyes {
    attention: Attention,
    orders: std::sync::mpsc::Sender<cards::Order>,
    _gatherer: tokio::task::JoinHandle<()>,
}

/// Something that a watcher reported.
#[derive(Debug)]
enum Report {
    Display(Sighting),
    Login(logind::Report),
    Card(cards::Report),
}

const DISPLAY: &str = "X11";
const LOGIN: &str = "logind";

impl Eyes {
    /// Opens all eyes that this machine has; what they see goes to `inputs`, which should be read before anything else.
    ///
    /// # Errors
    /// Where no thread or event descriptor can be made.
    pub fn open(config: Config, inputs: mpsc::Sender<Input>) -> std::io::Result<Self> {
        let attention = Attention::new();
        let (reports, gathered) = mpsc::channel(64);
        let (orders, ordered) = std::sync::mpsc::channel();
        let mut sources = Vec::new();
        let now = sela_clock::now().boot_ms;
        let waiting = || Sighting::Failed("has not answered yet".into());
        if let Some(display) = config.display.clone() {
            sources.push(Source {
                name: DISPLAY,
                sighting: waiting(),
                heard: now,
            });
            let (bell, reports) = (attention.bell()?, reports.clone());
            std::thread::Builder::new()
                .name("x11".into())
                .stack_size(128 << 10)
                .spawn(move || {
                    x11::watch(&display, &bell, &|sighting| {
                        reports.blocking_send(Report::Display(sighting)).is_ok()
                    });
                })?;
        }
        sources.push(Source {
            name: LOGIN,
            sighting: waiting(),
            heard: now,
        });
        watch_login(&config, attention.clone(), reports.clone());
        if config.wayland && config.display.is_none() {
            let why = "this session runs under Wayland, whose compositor is asked by way of logind only".to_owned();
            tracing::info!(%why, "input");
        }
        let (library, eye_attention) = (config.nvml_library, attention.clone());
        std::thread::Builder::new()
            .name("cards".into())
            .stack_size(512 << 10)
            .spawn(move || {
                cards::watch(library, &eye_attention, &ordered, &|report| {
                    reports.blocking_send(Report::Card(report)).is_ok()
                });
            })?;
        let gatherer = tokio::spawn(gather(sources, attention.clone(), gathered, inputs));
        Ok(Self {
            attention,
            orders,
            _gatherer: gatherer,
        })
    }

    /// Looks closely while a job runs, or no longer.
    pub fn attend(&self, high: bool) {
        self.attention.set(high);
        // The thread ends only with the process: an order that finds nobody has nobody to serve.
        let _ = self.orders.send(cards::Order::Wake);
    }

    /// Reports what a lease's job uses of its card, 20 times a second, or no longer.
    pub fn watch_card(&self, gpu: GpuUuid, lease: LeaseId, on: bool) {
        let _ = self.orders.send(cards::Order::Watch { gpu, lease, on });
    }
}

fn watch_login(config: &Config, attention: Attention, reports: mpsc::Sender<Report>) {
    let (sender, mut receiver) = mpsc::channel(8);
    tokio::spawn(logind::watch(
        config.system_bus.clone(),
        config.display.is_some(),
        attention,
        sender,
    ));
    tokio::spawn(async move {
        while let Some(report) = receiver.recv().await {
            if reports.send(Report::Login(report)).await.is_err() {
                return;
            }
        }
    });
}

async fn gather(
    mut sources: Vec<Source>,
    attention: Attention,
    mut reports: mpsc::Receiver<Report>,
    inputs: mpsc::Sender<Input>,
) {
    let mut foreign: Observed<Vec<ForeignUse>> = Observed::Unknown {
        source: "NVML".into(),
        why: "has not answered yet".into(),
    };
    let mut said: Option<Signals> = None;
    let mut changes = attention.changes();
    let mut next_sign_of_life = sela_clock::now().boot_ms;
    loop {
        let rest = next_sign_of_life.since(sela_clock::now().boot_ms);
        let report = tokio::select! {
            report = reports.recv() => match report {
                Some(report) => Some(report),
                None => return,
            },
            () = tokio::time::sleep(Duration::from_millis(rest.0)) => None,
            changed = changes.changed() => match changed {
                Ok(()) => {
                    // From here on silence counts at the new rate: what was heard at the old one is no fault, and the next sign of
                    // life is due long before the one that was planned.
                    let now = sela_clock::now().boot_ms;
                    next_sign_of_life = now;
                    sources.iter_mut().for_each(|source| source.heard = now);
                    None
                }
                Err(_) => return,
            },
        };
        let now = sela_clock::now().boot_ms;
        let passed_on = match report {
            Some(Report::Display(sighting)) => hear(&mut sources, DISPLAY, sighting),
            Some(Report::Login(logind::Report::Input(sighting))) => hear(&mut sources, LOGIN, sighting),
            Some(Report::Login(logind::Report::Power(power))) => Some(power_input(power)),
            Some(Report::Card(cards::Report::Foreign(seen))) => {
                foreign = seen;
                None
            }
            Some(Report::Card(cards::Report::Input(input))) => Some(input),
            None => None,
        };
        if let Some(input) = passed_on
            && inputs.send(input).await.is_err()
        {
            return;
        }
        let signals = Signals {
            input: combine(&sources, now, attention.period()),
            foreign: foreign.clone(),
            senses: sela_protocol::senses::Senses::default(),
        };
        let changed = said.as_ref().is_none_or(|said| !says_the_same(said, &signals));
        if changed || now >= next_sign_of_life {
            next_sign_of_life = now.plus(attention.period());
            said = Some(signals.clone());
            if inputs.send(Input::Signals(signals)).await.is_err() {
                return;
            }
        }
    }
}

fn hear(sources: &mut [Source], name: &str, sighting: Sighting) -> Option<Input> {
    if let Some(source) = sources.iter_mut().find(|source| source.name == name) {
        source.sighting = sighting;
        source.heard = sela_clock::now().boot_ms;
    }
    None
}

const fn power_input(power: Power) -> Input {
    match power {
        Power::Sleep(asleep) => Input::Sleep { asleep },
        Power::Shutdown => Input::Shutdown,
    }
}

/// Whether two observations differ in nothing but when they were made.
fn says_the_same(before: &Signals, after: &Signals) -> bool {
    fn same<T: PartialEq>(before: &Observed<T>, after: &Observed<T>) -> bool {
        match (before, after) {
            (
                Observed::Value {
                    value: a, source: b, ..
                },
                Observed::Value {
                    value: x, source: y, ..
                },
            ) => a == x && b == y,
            (Observed::Value { .. } | Observed::Unknown { .. } | Observed::NotApplicable { .. }, _) => before == after,
        }
    }
    same(&before.input, &after.input) && same(&before.foreign, &after.foreign)
}
