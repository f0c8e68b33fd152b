//! `agent.toml`: what the owner wants, as people write it, read into what `sela-core` decides by. A bad file is an error
//! with line and column and changes nothing. When to read it again is `watch`'s; what a setting means is the core's.

mod presence;
mod read;
mod watch;

pub(crate) use read::SettingsError;
pub(crate) use watch::{SettingsFile, SettingsWatch};

use crate::calendars::CalendarSources;
use sela_core::Policy;
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::units::Bytes;
use sela_sandbox::image::ProxyUrl;
use serde::Deserialize;
use std::path::PathBuf;
use url_of_market::MarketUrl;

pub(crate) mod url_of_market;

/// Everything that `agent.toml` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where the card is offered; nowhere where `None`.
    pub(crate) market: Option<MarketSettings>,
    /// What the owner allows.
    pub(crate) policy: Policy,
    /// Programs that are treated as games while they run.
    pub(crate) game_programs: Vec<String>,
    /// The calendars that the schedule names.
    pub(crate) calendars: CalendarSources,
    /// What a kilowatt-hour costs, where the owner told.
    pub(crate) per_kwh: Option<Micros>,
    /// What walls jobs in.
    pub(crate) backend: Backend,
    /// Where the container engine listens, if not where it usually does.
    pub(crate) engine_socket: Option<PathBuf>,
    /// Most that images may take.
    pub(crate) disk_budget: Bytes,
    /// Never leave less than this free.
    pub(crate) disk_free_floor: Bytes,
    /// Most that is written for images on one day.
    pub(crate) disk_daily_writes: Bytes,
    /// Through which proxy registries are reached; as the environment says where `None`.
    pub(crate) image_proxy: Option<ProxyUrl>,
}

impl Settings {
    /// What is in force where no file could be read: no exchange is named, so nothing is offered.
    pub(crate) fn defaults() -> Self {
        Self {
            market: None,
            policy: Policy {
                job_memory: DEFAULT_JOB_MEMORY,
                ..Policy::default()
            },
            game_programs: Vec::new(),
            calendars: CalendarSources::new(),
            per_kwh: None,
            backend: Backend::Auto,
            engine_socket: None,
            disk_budget: DEFAULT_DISK_BUDGET,
            disk_free_floor: DEFAULT_DISK_FREE_FLOOR,
            disk_daily_writes: DEFAULT_DISK_DAILY_WRITES,
            image_proxy: None,
        }
    }
}

/// What walls jobs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Backend {
    /// The native backend where it can be, else a container engine.
    #[default]
    Auto,
    /// The agent itself.
    Native,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

/// `[market]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MarketSettings {
    /// The exchange.
    pub(crate) url: MarketUrl,
    /// Admits a key that the exchange does not know.
    pub(crate) invitation: Option<String>,
    /// The node's name, for people.
    pub(crate) name: String,
}

/// What a card is let for at least where the owner did not say: above the electricity of most cards in most countries.
pub(crate) const DEFAULT_FLOOR: HourlyPrice = HourlyPrice(Micros(100_000));

const DEFAULT_DISK_BUDGET: Bytes = Bytes::from_gib(40);
const DEFAULT_DISK_FREE_FLOOR: Bytes = Bytes::from_gib(10);
/// A third of what the cheapest drives of 1 TB are made to take for five years.
const DEFAULT_DISK_DAILY_WRITES: Bytes = Bytes::from_gib(100);
const DEFAULT_JOB_MEMORY: Bytes = Bytes::from_gib(8);

/// What a new `agent.toml` says: every setting with its default, as comments.
pub(crate) const TEMPLATE: &str = include_str!("template.toml");
