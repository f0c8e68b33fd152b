//! The order in which an agent comes up: folders, lock, settings, sweep, store, interface, eyes; only then is anything offered.

use super::agent_loop::{AgentLoop, Ears, Hands};
use super::backend::{self, Chosen};
use super::clock_of_today::today;
use super::locks::{CardLocks, LockError, lock_file};
use super::outbox::Outbox;
use super::strip::StripRecorder;
use super::{recovery, timer};
use crate::api::{self, Agent};
use crate::calendars::Calendars;
use crate::doctor;
use crate::jobs::{Jobs, Workshop};
use crate::keys::{self, ExchangeKeys};
use crate::market::{self, http_client};
use crate::paths::Paths;
use crate::settings::{Settings, SettingsFile, SettingsWatch};
use crate::store::Store;
use anyhow::{Context as _, bail};
use sela_core::{Input, State};
use sela_protocol::local::IsolationState;
use sela_protocol::node::Scratch;
use sela_sandbox::docker::image::{EngineImageSettings, EngineImages};
use sela_sandbox::ids::IdRange;
use sela_sandbox::image::unpack::UnpackLimits;
use sela_sandbox::image::{Cache, CacheSettings, ProxyChoice, RegistryAccess};
use sela_sandbox::keeper::wire::CgroupPlace;
use sela_sandbox::network::OwnersLine;
use sela_sandbox::probe::{Machine, Probe, ScratchKind, probe};
use sela_sensors::Eyes;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};

/// How the agent was started.
#[derive(Debug, Clone)]
pub(crate) struct AgentOptions {
    /// Simulated cards and weaker isolation are admitted; money has no worth.
    pub(crate) lab: bool,
    /// Serve the local interface at this port as well.
    pub(crate) listen: Option<SocketAddr>,
}

/// Where jobs' ids are handed out.
pub(crate) const SUBUID: &str = "/etc/subuid";

/// Names this agent's cgroups: another data folder is another agent.
fn agent_name(data: &Path) -> String {
    let hash = Sha256::digest(data.as_os_str().as_encoded_bytes());
    format!("a{}", hex::encode(&hash[..8]))
}

/// Runs the agent until it is told to leave.
///
/// # Errors
/// Whatever keeps it from coming up, with what to do.
pub(crate) async fn run(options: AgentOptions) -> anyhow::Result<()> {
    let paths = Paths::from_environment()?;
    paths.make()?;
    // Held until this process ends: two agents with one key would be one node twice.
    let _alone = match lock_file(&paths.data.join("agent.lock")) {
        Ok(lock) => lock,
        Err(LockError::Taken) => bail!(
            "another agent runs with the data folder {}; `sela status` shows it",
            paths.data.display()
        ),
        Err(error) => return Err(error.into()),
    };
    market::install_tls();
    let file = SettingsFile::at(paths.settings());
    file.make()?;
    let (settings, settings_problem) = read_settings(&file);
    let key = keys::node_key(&paths.node_key())?;
    let known = ExchangeKeys::at(paths.exchange_keys());

    let found = probe(&Machine::this(), options.lab);
    let cgroups = cgroup_place(&paths);
    let mut swept = {
        let (place, scratch) = (cgroups.clone(), paths.scratch());
        tokio::task::spawn_blocking(move || recovery::sweep_machine(&place, &scratch)).await??
    };
    swept.leases.extend(backend::sweep(&settings, &cgroups.agent).await);
    let chosen = backend::choose(&settings, &Machine::this(), &found, options.lab).await;
    let exchange = match &settings.market {
        Some(market) => known.known(&market.url.to_string())?,
        None => None,
    };
    let (store, mut recovered, store_news) = Store::open(&paths.data, exchange, || today(sela_clock::now().utc_ms).0)?;
    recovery::fill_in(&mut recovered.open, &swept, &paths.accounts()).await;
    recovery::forget_closed(&recovered.open, &paths.accounts());

    let (asks, asked) = mpsc::channel(32);
    let (events, _) = broadcast::channel(64);
    let agent = Agent {
        asks,
        events: events.clone(),
        store: store.reader().context("the store has just been opened")?,
        doctor: {
            let (paths, lab) = (paths.clone(), options.lab);
            Arc::new(move || doctor::look(&paths, lab))
        },
    };
    let listening = api::listen(agent, &paths.socket(), options.listen, &paths.token()).await?;

    // Readings, presence and what jobs report: bounded, so that whoever reports too much waits.
    let (see, seen) = mpsc::channel(256);
    let (report, reported) = mpsc::channel(256);
    let (link_news, news) = mpsc::channel(256);
    let mut isolation = chosen.isolation.clone();
    // An engine is not told to open an encrypted disk.
    let in_engine = chosen.engine.is_some();
    let jobs = match workshop(&paths, &settings, &found, chosen, cgroups, options.lab).await {
        Ok(workshop) => workshop.map(|workshop| Jobs::new(workshop, report.clone())),
        Err(error) => {
            isolation = IsolationState::Missing {
                why: format!("{error:#}"),
            };
            None
        }
    };
    let eyes = Eyes::open(eyes_config(&settings), see).context("the sensors could not be started")?;
    let mut state = State::new(settings.policy.clone(), sela_clock::now());
    let started = Input::Started {
        lab: options.lab,
        isolation,
        scratch: match found.scratch {
            ScratchKind::Memory | ScratchKind::EncryptedDisk if in_engine => Scratch::Memory,
            ScratchKind::Memory => Scratch::Memory,
            ScratchKind::EncryptedDisk => Scratch::EncryptedDisk,
        },
        pause: recovered.pause,
        open: recovered.open,
        unsettled: recovered.unsettled,
    };
    let hands = Hands {
        key,
        known,
        lab: options.lab,
        accounts: paths.accounts(),
        jobs,
        eyes,
        calendars: Calendars::none(),
        calendar_folder: paths.data.join("calendars"),
        report,
        store,
        strip: StripRecorder::default(),
        events,
        link: None,
        link_news,
        session: None,
        exchange,
        outbox: Outbox::new(),
        replies: HashMap::new(),
        requests: 0,
        settings,
        leaving: false,
    };
    let ears = Ears {
        seen,
        asked,
        reported,
        store_news,
        news,
        watch: SettingsWatch::start(&file)
            .inspect_err(|error| tracing::warn!("{error:#}"))
            .ok(),
        timer: timer::BootTimer::new().context("the system gives no timer")?,
    };
    state.step(sela_clock::now(), Input::SettingsProblem(settings_problem));
    let agent_loop = AgentLoop::new(state, hands, ears, file, CardLocks::new(paths.locks.clone()));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), lab = options.lab, socket = %paths.socket().display(), "the agent runs");
    agent_loop.run(started).await?;
    drop(listening);
    tracing::info!("the agent has left");
    Ok(())
}

/// The settings in force, and what is wrong with the file. Where no good one was ever read it is the defaults, which offer nothing
/// to anybody: they name no exchange.
fn read_settings(file: &SettingsFile) -> (Settings, Option<String>) {
    match file.read() {
        Ok(settings) => (settings, None),
        Err(error) => {
            let problem = format!("{}: {error}", file.path().display());
            tracing::error!("{problem}; nothing is offered until it is mended");
            let defaults = Settings::defaults();
            (defaults, Some(problem))
        }
    }
}

fn cgroup_place(paths: &Paths) -> CgroupPlace {
    // Swept whatever may run now: an earlier run may have been a lab.
    let machine = Machine::this();
    let layout = probe(&machine, true).layout;
    CgroupPlace {
        layout: layout.unwrap_or(sela_sandbox::keeper::wire::CgroupLayout::V2),
        root: machine.cgroups,
        agent: agent_name(&paths.data),
    }
}

/// What leases need; `None` where no job can be isolated.
async fn workshop(
    paths: &Paths,
    settings: &Settings,
    found: &Probe,
    chosen: Chosen,
    cgroups: CgroupPlace,
    lab: bool,
) -> anyhow::Result<Option<Workshop>> {
    if !matches!(chosen.isolation, IsolationState::Ready { .. }) {
        return Ok(None);
    }
    let ids = IdRange::rootful(Path::new(SUBUID)).with_context(|| format!("{SUBUID} cannot be used"))?;
    let cache = CacheSettings {
        directory: paths.images(),
        budget: settings.disk_budget,
        free_floor: settings.disk_free_floor,
        owners: ids,
        limits: UnpackLimits::default(),
        registries: if lab {
            RegistryAccess::LoopbackToo
        } else {
            RegistryAccess::PublicOnly
        },
        proxy: match &settings.image_proxy {
            Some(proxy) => ProxyChoice::Given(proxy.clone()),
            None => ProxyChoice::Environment,
        },
        daily_writes: Some(settings.disk_daily_writes),
    };
    let cache = tokio::task::spawn_blocking(move || Cache::open(cache)).await??;
    let engine = chosen.engine.map(|engine| {
        let settings = EngineImageSettings {
            notes: paths.data.join("engine-images"),
            budget: settings.disk_budget,
            free_floor: settings.disk_free_floor,
            owners: ids,
        };
        EngineImages::open(engine, settings)
    });
    Ok(Some(Workshop {
        engine: engine.transpose()?,
        cache,
        line: OwnersLine::new(settings.policy.network.clone()),
        http: http_client().context("TLS could not be set up")?,
        free_floor: settings.disk_free_floor,
        scratch: paths.scratch(),
        accounts: paths.accounts(),
        ids,
        cgroups,
        scratch_kind: found.scratch,
        program: std::env::current_exe().context("this program's own path is not known")?,
        nvml_library: nvml_library(),
        simulation: std::env::var_os("SELA_NVML_SIM_DIR").map(PathBuf::from),
    }))
}

/// The driver's library, where a test names another than the system's.
pub(crate) fn nvml_library() -> Option<PathBuf> {
    std::env::var_os("SELA_NVML_LIBRARY").map(PathBuf::from)
}

fn eyes_config(settings: &Settings) -> sela_sensors::Config {
    let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let runtime_folder = text("XDG_RUNTIME_DIR").map(PathBuf::from);
    // A name is one in the session's runtime folder; a whole path stays what it is.
    let socket = |name: String| {
        runtime_folder
            .as_ref()
            .map_or(PathBuf::from(&name), |folder| folder.join(&name))
    };
    let own_bus = || {
        let socket = runtime_folder.as_ref()?.join("bus");
        socket.exists().then(|| format!("unix:path={}", socket.display()))
    };
    sela_sensors::Config {
        nvml_library: nvml_library(),
        display: text("DISPLAY"),
        wayland: text("WAYLAND_DISPLAY").map(socket),
        system_bus: text("DBUS_SYSTEM_BUS_ADDRESS"),
        session_bus: text("DBUS_SESSION_BUS_ADDRESS").or_else(own_bus),
        home: text("HOME").map(PathBuf::from),
        runtime_folder,
        programs: settings.game_programs.clone(),
        roots: sela_sensors::Roots::default(),
    }
}
