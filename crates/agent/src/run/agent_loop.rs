//! The loop that owns the state. What the owner, the cards and the timer say is read before anything else; every input is one
//! step of the core, and what it decides is carried out by `effects`.

use super::clock_of_today::today;
use super::locks::{CardLocks, LockError};
use super::outbox::Outbox;
use super::strip::StripRecorder;
use super::timer::BootTimer;
use crate::api::Ask;
use crate::calendars::Calendars;
use crate::jobs::Jobs;
use crate::keys::ExchangeKeys;
use crate::market::{Link, LinkNews};
use crate::settings::{Settings, SettingsFile, SettingsWatch};
use crate::store::{Committed, Store};
use anyhow::Context as _;
use ed25519_dalek::SigningKey;
use sela_core::{Input, State};
use sela_protocol::card::CardDescription;
use sela_protocol::envelope::PublicKey;
use sela_protocol::id::SessionId;
use sela_protocol::local::{CommandReply, Event};
use sela_protocol::units::{Millis, UtcMs};
use sela_sensors::Eyes;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{broadcast, mpsc, oneshot};

/// Old readings are rolled up this often.
const PRUNE: Millis = Millis(3_600_000);
/// When everything has ended, what is not yet on the disk gets so long.
const LAST_COMMIT: Duration = Duration::from_secs(5);

/// Everything that the loop hears.
pub(super) struct Ears {
    /// Presence and cards.
    pub(super) seen: mpsc::Receiver<Input>,
    /// Clients.
    pub(super) asked: mpsc::Receiver<Ask>,
    /// Leases' tasks.
    pub(super) reported: mpsc::Receiver<Input>,
    /// The store.
    pub(super) store_news: mpsc::UnboundedReceiver<Committed>,
    /// The exchange.
    pub(super) news: mpsc::Receiver<LinkNews>,
    /// The settings file.
    pub(super) watch: Option<SettingsWatch>,
    /// The moment that the core asked for.
    pub(super) timer: BootTimer,
}

/// Everything that the loop acts with.
pub(super) struct Hands {
    pub(super) key: SigningKey,
    pub(super) known: ExchangeKeys,
    pub(super) lab: bool,
    pub(super) accounts: PathBuf,
    pub(super) jobs: Option<Jobs>,
    pub(super) eyes: Eyes,
    pub(super) calendars: Calendars,
    /// Where what was read of calendars is kept.
    pub(super) calendar_folder: PathBuf,
    /// To report what comes of calendars.
    pub(super) report: mpsc::Sender<Input>,
    pub(super) store: Store,
    pub(super) strip: StripRecorder,
    pub(super) events: broadcast::Sender<Arc<Event>>,
    pub(super) link: Option<Link>,
    pub(super) link_news: mpsc::Sender<LinkNews>,
    pub(super) session: Option<SessionId>,
    pub(super) exchange: Option<PublicKey>,
    pub(super) outbox: Outbox<super::effects::Dependent>,
    pub(super) replies: HashMap<u64, oneshot::Sender<CommandReply>>,
    pub(super) requests: u64,
    pub(super) settings: Settings,
    pub(super) leaving: bool,
}

/// The loop.
pub(super) struct AgentLoop {
    pub(super) state: State,
    pub(super) hands: Hands,
    ears: Ears,
    file: SettingsFile,
    locks: CardLocks,
    cards: Vec<CardDescription>,
    next_midnight: UtcMs,
    pruned: Option<UtcMs>,
}

impl AgentLoop {
    pub(super) fn new(state: State, hands: Hands, ears: Ears, file: SettingsFile, locks: CardLocks) -> Self {
        Self {
            state,
            hands,
            ears,
            file,
            locks,
            cards: Vec::new(),
            next_midnight: UtcMs(0),
            pruned: None,
        }
    }

    /// Runs until the core says that everything has ended, or until it is told to leave a second time.
    ///
    /// # Errors
    /// Where signals or the timer cannot be had.
    pub(super) async fn run(mut self, started: Input) -> anyhow::Result<()> {
        let handler = |kind| signal(kind).context("signals cannot be caught");
        let (mut interrupt, mut terminate) = (handler(SignalKind::interrupt())?, handler(SignalKind::terminate())?);
        self.hands.follow_calendars();
        self.hands.connect();
        self.step(started)?;
        let mut told_to_leave = false;
        while !self.hands.leaving {
            tokio::select! {
                biased;
                () = either(&mut interrupt, &mut terminate) => {
                    if told_to_leave {
                        // Dropping everything closes the keepers' pipes: no job outlives this.
                        tracing::warn!("told to leave again: leaving at once");
                        return Ok(());
                    }
                    told_to_leave = true;
                    tracing::info!("told to leave: jobs are ended first");
                    self.step(Input::Shutdown)?;
                }
                Some(ask) = self.ears.asked.recv() => self.answer(ask)?,
                Some(input) = self.ears.seen.recv() => self.see(input)?,
                () = self.ears.timer.ran_out() => self.step(Input::Tick)?,
                Some(news) = self.ears.store_news.recv() => self.stored(news)?,
                Some(input) = self.ears.reported.recv() => self.step(input)?,
                Some(news) = self.ears.news.recv() => self.hear(news)?,
                () = changed(self.ears.watch.as_ref()) => self.read_settings()?,
            }
        }
        self.leave().await;
        Ok(())
    }

    /// One input, one step, everything that it decides.
    pub(super) fn step(&mut self, input: Input) -> anyhow::Result<()> {
        let now = sela_clock::now();
        let effects = self.state.step(now, input);
        let lived = self.hands.strip.lived(now.utc_ms);
        self.hands.store.strip(lived);
        for effect in effects {
            self.hands.carry_out(effect);
        }
        let wake = self.state.next_wake();
        self.ears.timer.set(wake).context("the timer cannot be set")
    }

    fn answer(&mut self, ask: Ask) -> anyhow::Result<()> {
        match ask {
            Ask::Command { command, reply } => {
                let request = self.hands.expect_reply(reply);
                self.step(Input::Command { request, command })
            }
            Ask::Snapshot { reply } => {
                let snapshot = self.state.snapshot(sela_clock::now());
                // The client may have gone.
                drop(reply.send(Box::new(snapshot)));
                Ok(())
            }
        }
    }

    /// What the eyes see. Cards whose lock another agent holds are known, but not offered.
    fn see(&mut self, input: Input) -> anyhow::Result<()> {
        match input {
            Input::Cards(cards) => {
                self.cards.clone_from(&cards);
                let gone = self.hands.strip.present(sela_clock::now().utc_ms, &cards);
                self.hands.store.strip(gone);
                let refused = self.take_locks();
                self.step(Input::Cards(cards))?;
                refused.into_iter().try_for_each(|input| self.step(input))
            }
            Input::Readings(mut readings) => {
                self.housekeeping();
                if self.cards.iter().any(|card| !self.locks.holds(&card.uuid)) {
                    let refused = self.take_locks();
                    readings.retain(|reading| self.locks.holds(&reading.uuid));
                    refused.into_iter().try_for_each(|input| self.step(input))?;
                }
                self.hands.store.readings(sela_clock::now().utc_ms, readings.clone());
                self.step(Input::Readings(readings))
            }
            other @ (Input::Started { .. }
            | Input::Tick
            | Input::Policy(_)
            | Input::SettingsProblem(_)
            | Input::Signals(_)
            | Input::Calendar { .. }
            | Input::CardUnreadable { .. }
            | Input::CardUse { .. }
            | Input::Command { .. }
            | Input::Sleep { .. }
            | Input::Shutdown
            | Input::Market(_)
            | Input::Lease { .. }
            | Input::Earned(_)) => self.step(other),
        }
    }

    /// Takes the locks that are free; what is to be said of the cards whose lock is not.
    fn take_locks(&mut self) -> Vec<Input> {
        let refused = |(card, error): (&CardDescription, LockError)| Input::CardUnreadable {
            gpu: Some(card.uuid.clone()),
            why: error.to_string(),
        };
        self.cards
            .iter()
            .filter_map(|card| Some((card, self.locks.take(&card.uuid).err()?)))
            .map(refused)
            .collect()
    }

    fn housekeeping(&mut self) {
        let now = sela_clock::now().utc_ms;
        if now >= self.next_midnight {
            self.next_midnight = today(now).1;
            self.hands.store.sums();
        }
        if self.pruned.is_none_or(|pruned| now.since(pruned) >= PRUNE) {
            self.pruned = Some(now);
            self.hands.store.prune(now);
        }
    }

    fn stored(&mut self, news: Committed) -> anyhow::Result<()> {
        match news {
            Committed::UpTo(number) => {
                self.hands.committed(number);
                Ok(())
            }
            Committed::Sums(earned) => self.step(Input::Earned(earned)),
            // Nothing that depends on an entry is said while none can be written, so no job is taken; `sela doctor` says why.
            Committed::Problem(problem) => {
                match problem {
                    Some(problem) => tracing::error!(problem, "the store cannot write"),
                    None => tracing::info!("the store can write again"),
                }
                Ok(())
            }
        }
    }

    fn read_settings(&mut self) -> anyhow::Result<()> {
        match self.file.read() {
            Ok(settings) => {
                let market_changed = settings.market != self.hands.settings.market;
                let calendars_changed = settings.calendars != self.hands.settings.calendars;
                let policy = settings.policy.clone();
                if let Some(jobs) = &self.hands.jobs {
                    jobs.lend(policy.network.clone());
                }
                self.hands.eyes.treat_as_games(settings.game_programs.clone());
                self.hands.settings = settings;
                if calendars_changed {
                    self.hands.follow_calendars();
                }
                if market_changed {
                    self.hands.connect();
                }
                tracing::info!("agent.toml was read again");
                self.step(Input::SettingsProblem(None))?;
                self.step(Input::Policy(policy))
            }
            Err(error) => {
                let problem = format!("{}: {error}", self.file.path().display());
                tracing::warn!(problem, "agent.toml is not in force; the last good one is");
                self.step(Input::SettingsProblem(Some(problem)))
            }
        }
    }

    /// Everything has ended: what was decided is brought to the disk and to the exchange, as far as they take it.
    async fn leave(mut self) {
        let commit = async {
            while !self.hands.outbox.is_empty() {
                match self.ears.store_news.recv().await {
                    Some(Committed::UpTo(number)) => self.hands.committed(number),
                    Some(Committed::Sums(_) | Committed::Problem(_)) => {}
                    None => return,
                }
            }
        };
        if tokio::time::timeout(LAST_COMMIT, commit).await.is_err() {
            tracing::warn!("not everything came to the disk; it is closed at the next start");
        }
        let ended = self.hands.strip.left(sela_clock::now().utc_ms);
        self.hands.store.strip(ended);
        if let Some(link) = self.hands.link.take() {
            link.close().await;
        }
    }
}

async fn either(first: &mut Signal, second: &mut Signal) {
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
    }
}

async fn changed(watch: Option<&SettingsWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
