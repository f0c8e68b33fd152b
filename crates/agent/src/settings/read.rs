//! Parsing and checking `agent.toml`. Pure: text in, settings or an error with line and column out.

use super::presence::{PRESENCE, SCHEDULE, WrittenPresence, WrittenSchedule};
use super::url_of_market::MarketUrl;
use super::{
    Backend, DEFAULT_DISK_BUDGET, DEFAULT_DISK_DAILY_WRITES, DEFAULT_DISK_FREE_FLOOR, DEFAULT_FLOOR,
    DEFAULT_JOB_MEMORY, MarketSettings, Settings,
};
use sela_core::{CardPolicy, Policy};
use sela_protocol::id::GpuUuid;
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::network::{HostRule, LEAST_RATE, MOST_RULES, NetworkShare};
use sela_protocol::units::{Bytes, Celsius};
use sela_protocol::written::{self, Fields, WrittenError};
use sela_sandbox::image::ProxyUrl;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use toml_edit::{Document, Item, TableLike};

/// What is wrong with `agent.toml`, and where: 1-based line and column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", place(.at))]
pub(crate) struct SettingsError {
    /// Line and column; `None` where no place is to blame.
    pub(crate) at: Option<(usize, usize)>,
    /// What is wrong and what would be right.
    pub(crate) problem: String,
}

fn place(at: &Option<(usize, usize)>) -> String {
    at.map(|(line, column)| format!("line {line}, column {column}: "))
        .unwrap_or_default()
}

const FIELDS: Fields = Fields {
    names: &[
        "market",
        "price",
        "electricity",
        "presence",
        "schedule",
        "limits",
        "network",
        "sandbox",
        "disk",
        "images",
    ],
    nested: &[
        ("market", Fields::flat(&["url", "invitation", "name"])),
        ("price", Fields::flat(&["floor", "cards"])),
        ("electricity", Fields::flat(&["per_kwh"])),
        ("presence", Fields::flat(PRESENCE)),
        ("schedule", Fields::flat(SCHEDULE)),
        (
            "limits",
            Fields::flat(&["core_hard_c", "resume_below_c", "job_memory_mib"]),
        ),
        (
            "network",
            Fields::flat(&["hosts", "down_per_s", "up_per_s", "job_bytes"]),
        ),
        ("sandbox", Fields::flat(&["backend", "socket"])),
        ("disk", Fields::flat(&["budget", "free_floor", "daily_writes"])),
        ("images", Fields::flat(&["proxy"])),
    ],
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    market: WrittenMarket,
    price: WrittenPrice,
    electricity: WrittenElectricity,
    presence: WrittenPresence,
    schedule: WrittenSchedule,
    limits: WrittenLimits,
    network: WrittenNetwork,
    sandbox: WrittenSandbox,
    disk: WrittenDisk,
    images: WrittenImages,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenMarket {
    url: Option<String>,
    invitation: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenPrice {
    floor: Option<HourlyPrice>,
    cards: BTreeMap<GpuUuid, HourlyPrice>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenElectricity {
    per_kwh: Option<Micros>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenLimits {
    core_hard_c: Option<i32>,
    resume_below_c: Option<i32>,
    job_memory_mib: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenNetwork {
    hosts: Vec<HostRule>,
    down_per_s: Option<u64>,
    up_per_s: Option<u64>,
    job_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenSandbox {
    backend: Backend,
    socket: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenDisk {
    budget: Option<u64>,
    free_floor: Option<u64>,
    daily_writes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenImages {
    proxy: Option<String>,
}

impl Settings {
    /// Reads the text of an `agent.toml`. An empty text is all defaults; `machine` names the node where the file does not.
    ///
    /// # Errors
    /// See [`SettingsError`].
    pub(crate) fn parse(text: &str, machine: &str) -> Result<Self, SettingsError> {
        let document = Document::parse(text).map_err(|error| SettingsError {
            at: error.span().map(|span| line_and_column(text, span)),
            problem: error.message().trim().to_owned(),
        })?;
        refuse_unknown(text, &document)?;
        let written: Written = toml_edit::de::from_str(text).map_err(|error| SettingsError {
            at: error.span().map(|span| line_and_column(text, span)),
            problem: error.message().trim().to_owned(),
        })?;
        written.check(machine).map_err(|(path, problem)| SettingsError {
            at: span_of(document.as_table(), path).map(|span| line_and_column(text, span)),
            problem: format!("{path}: {problem}"),
        })
    }
}

pub(super) type Refusal = (&'static str, String);

impl Written {
    fn check(self, machine: &str) -> Result<Settings, Refusal> {
        let rest = self.card_policy()?;
        let floors = &self.price.cards;
        let own = floors.keys().chain(self.presence.cards_shared_while_working());
        let cards = own
            .map(|gpu| {
                let policy = CardPolicy {
                    floor: not_negative("price.cards", floors.get(gpu).copied().unwrap_or(rest.floor))?,
                    share_while_working: rest.share_while_working
                        || self.presence.cards_shared_while_working().contains(gpu),
                    ..rest.clone()
                };
                Ok((gpu.clone(), policy))
            })
            .collect::<Result<_, Refusal>>()?;
        let job_memory = self.limits.job_memory_mib.map_or(DEFAULT_JOB_MEMORY, mib);
        if let Some(per_kwh) = self.electricity.per_kwh
            && per_kwh.0 < 0
        {
            return Err(("electricity.per_kwh", "a price of zero or more".to_owned()));
        }
        Ok(Settings {
            market: self.market.check(machine)?,
            policy: Policy {
                rest,
                cards,
                job_memory,
                network: self.network.check()?,
            },
            game_programs: self.presence.game_programs,
            calendars: self.schedule.sources()?,
            per_kwh: self.electricity.per_kwh,
            backend: self.sandbox.backend,
            engine_socket: self.sandbox.socket,
            disk_budget: self.disk.budget.map_or(DEFAULT_DISK_BUDGET, Bytes),
            disk_free_floor: self.disk.free_floor.map_or(DEFAULT_DISK_FREE_FLOOR, Bytes),
            disk_daily_writes: self.disk.daily_writes.map_or(DEFAULT_DISK_DAILY_WRITES, Bytes),
            image_proxy: self.images.check()?,
        })
    }

    fn card_policy(&self) -> Result<CardPolicy, Refusal> {
        let default = self.presence.check()?;
        let core_hard = self.limits.core_hard_c.map_or(default.core_hard, Celsius);
        if !(50..=110).contains(&core_hard.0) {
            return Err(("limits.core_hard_c", "50 to 110 degrees".to_owned()));
        }
        // A lower hard limit pulls the default with it; one that was written must fit by itself.
        let gap = default.core_hard.0 - default.resume_below.0;
        let resume_below = self.limits.resume_below_c.map_or(Celsius(core_hard.0 - gap), Celsius);
        if resume_below >= core_hard {
            return Err((
                "limits.resume_below_c",
                format!("below core_hard_c, which is {}", core_hard.0),
            ));
        }
        Ok(CardPolicy {
            floor: not_negative("price.floor", self.price.floor.unwrap_or(DEFAULT_FLOOR))?,
            schedule: self.schedule.check()?,
            core_hard,
            resume_below,
            ..default
        })
    }
}

impl WrittenImages {
    fn check(self) -> Result<Option<ProxyUrl>, Refusal> {
        let written = self.proxy.filter(|text| !text.trim().is_empty());
        let proxy = written.map(|text| ProxyUrl::parse(text.trim())).transpose();
        proxy.map_err(|error| ("images.proxy", error.to_string()))
    }
}

impl WrittenMarket {
    fn check(self, machine: &str) -> Result<Option<MarketSettings>, Refusal> {
        let Some(url) = self.url else {
            return Ok(None);
        };
        let url = MarketUrl::parse(&url).map_err(|error| ("market.url", error.to_string()))?;
        Ok(Some(MarketSettings {
            url,
            invitation: self.invitation.filter(|text| !text.trim().is_empty()),
            name: self.name.unwrap_or_else(|| machine.to_owned()),
        }))
    }
}

impl WrittenNetwork {
    fn check(self) -> Result<NetworkShare, Refusal> {
        if self.hosts.len() > MOST_RULES {
            return Err(("network.hosts", format!("at most {MOST_RULES} hosts")));
        }
        let default = NetworkShare::default();
        let rate = |path, written: Option<u64>, default: Bytes| match written.map_or(default, Bytes) {
            rate if rate < LEAST_RATE => Err((path, format!("at least {} bytes a second", LEAST_RATE.0))),
            rate => Ok(rate),
        };
        Ok(NetworkShare {
            hosts: self.hosts,
            down_per_s: rate("network.down_per_s", self.down_per_s, default.down_per_s)?,
            up_per_s: rate("network.up_per_s", self.up_per_s, default.up_per_s)?,
            job_bytes: self.job_bytes.map_or(default.job_bytes, Bytes),
        })
    }
}

fn not_negative(path: &'static str, price: HourlyPrice) -> Result<HourlyPrice, Refusal> {
    if price.0 < Micros::ZERO {
        return Err((path, "a price of zero or more per hour".to_owned()));
    }
    Ok(price)
}

pub(super) fn mib(mib: u32) -> Bytes {
    Bytes::from_mib(u64::from(mib))
}

/// An unknown field is looked for before serde passes over it, so that the error names the nearest known one.
fn refuse_unknown(text: &str, document: &Document<&str>) -> Result<(), SettingsError> {
    let names = names_of(document.as_table());
    written::from_value::<serde_json::Value>(names, &FIELDS)
        .map(drop)
        .map_err(|error| SettingsError {
            at: match &error {
                WrittenError::UnknownField { path, .. } => {
                    span_of(document.as_table(), path).map(|span| line_and_column(text, span))
                }
                WrittenError::Malformed(_) => None,
            },
            problem: error.to_string(),
        })
}

/// The names alone: of values only whether they hold further names matters here.
fn names_of(table: &dyn TableLike) -> serde_json::Value {
    let object = table.iter().map(|(name, item)| {
        let inner = item.as_table_like().map_or(serde_json::Value::Null, names_of);
        (name.to_owned(), inner)
    });
    serde_json::Value::Object(object.collect())
}

/// Where the key of a dotted path stands; the nearest parent that is there where the key itself is not.
fn span_of(table: &dyn TableLike, path: &str) -> Option<Range<usize>> {
    let (name, rest) = path
        .split_once('.')
        .map_or((path, None), |(name, rest)| (name, Some(rest)));
    let (key, item) = table.get_key_value(name)?;
    let inner = rest
        .zip(item.as_table_like())
        .and_then(|(rest, table)| span_of(table, rest));
    inner.or_else(|| key.span()).or_else(|| Item::span(item))
}

fn line_and_column(text: &str, span: Range<usize>) -> (usize, usize) {
    let before = text.get(..span.start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TEMPLATE;
    use sela_protocol::units::Millis;

    fn parse(text: &str) -> Result<Settings, SettingsError> {
        Settings::parse(text, "machine")
    }

    #[test]
    fn an_empty_file_and_the_template_are_both_all_defaults() {
        let empty = parse("").expect("defaults");
        assert_eq!(parse(TEMPLATE).expect("the template"), empty);
        assert_eq!(empty.market, None);
        assert_eq!(
            empty.policy.network.hosts,
            [],
            "no job reaches anything unless its owner says so"
        );
        assert_eq!(empty.policy.rest.floor, DEFAULT_FLOOR);
    }

    #[test]
    fn the_templates_comments_are_the_defaults() {
        let shown: String = TEMPLATE
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|_| !line.contains('…')).unwrap_or(line))
            .filter(|line| line.starts_with('[') || line.contains(" = "))
            .filter(|line| !line.contains("url") && !line.starts_with("[price.cards]"))
            .map(|line| format!("{line}\n"))
            .collect();
        let mut shown = parse(&shown).expect("the comments read as settings");
        assert_eq!(shown.per_kwh.take(), Some(Micros(300_000)), "an example, not a default");
        assert!(shown.image_proxy.take().is_some(), "another example");
        assert_eq!(shown, parse("").expect("defaults"));
    }

    #[test]
    fn settings_reach_the_policy() {
        let settings = parse(
            "[market]\nurl = \"http://127.0.0.1:7350\"\n[price]\nfloor = \"0.2\"\n[price.cards]\n\"GPU-1\" = \"0.5\"\n\
             [presence]\nidle_after_s = 2\nignore_programs = [\"kwin\"]\ngame_programs = [\"blender\"]\n\
             [limits]\ncore_hard_c = 70\n[network]\nhosts = [\"*.hf.co\", \"*\"]\nup_per_s = 2048\n",
        )
        .expect("good settings");
        let policy = &settings.policy;
        assert_eq!(policy.rest.floor, HourlyPrice(Micros(200_000)));
        assert_eq!(
            policy.for_card(&GpuUuid("GPU-1".into())).floor,
            HourlyPrice(Micros(500_000))
        );
        assert_eq!(policy.rest.cool_off, Millis(2_000), "cool_off follows idle_after");
        assert_eq!(policy.rest.resume_below, Celsius(52));
        assert_eq!(policy.rest.ignored_programs, ["kwin"]);
        assert_eq!(settings.game_programs, ["blender"]);
        let network = &policy.network;
        assert_eq!((network.hosts.len(), network.up_per_s), (2, Bytes(2_048)));
        assert_eq!(network.down_per_s, NetworkShare::default().down_per_s);
        assert_eq!(settings.market.expect("a market").name, "machine");
    }

    #[test]
    fn an_owner_names_what_walls_jobs_in() {
        let defaults = parse("").expect("reads");
        assert_eq!((defaults.backend, defaults.engine_socket), (Backend::Auto, None));
        let named = parse("[sandbox]\nbackend = \"podman\"\nsocket = \"/run/user/7/podman.sock\"\n").expect("reads");
        assert_eq!(named.backend, Backend::Podman);
        assert_eq!(named.engine_socket, Some(PathBuf::from("/run/user/7/podman.sock")));
    }

    #[test]
    fn a_bad_file_says_where_and_what_would_be_right() {
        for (text, line, column, says) in [
            ("[price]\nfloor = 0.2\n", 2, 9, "string"),
            ("[price]\nflor = \"0.2\"\n", 2, 1, "did you mean \"floor\""),
            ("[prise]\n", 1, 2, "did you mean \"price\""),
            ("[price]\nfloor = \"0,2\"\n", 2, 9, "is not an amount"),
            ("[price]\nfloor = \"-1\"\n", 2, 1, "zero or more"),
            ("[price\n", 1, 7, ""),
            (
                "[presence]\nidle_after_s = 10\ncool_off_s = 5\n",
                3,
                1,
                "at least idle_after_s, which is 10",
            ),
            ("[presence]\n\nidle_after_s = 0\n", 3, 1, "at least 1"),
            ("[presence]\nforeign_utilisation = 101\n", 2, 1, "0 to 100"),
            ("[limits]\ncore_hard_c = 300\n", 2, 1, "50 to 110"),
            ("[market]\nurl = \"http://example.org\"\n", 2, 1, "https"),
            ("[market]\nurl = \"ftp://x\"\n", 2, 1, "https"),
            ("[images]\nproxy = \"socks5://x\"\n", 2, 1, "http://host:port"),
            ("[network]\nhosts = [\"https://hf.co/\"]\n", 2, 9, "write \"hf.co\""),
            (
                "[network]\nhosts = [\"10.0.0.1\"]\n",
                2,
                9,
                "not on the public internet",
            ),
            ("[network]\nhost = []\n", 2, 1, "did you mean \"hosts\""),
            ("[network]\n\nup_per_s = 1\n", 3, 1, "at least 1024"),
            ("[sandbox]\nbackend = \"lxc\"\n", 2, 11, "`docker`"),
            ("[sandbox]\nengine = \"docker\"\n", 2, 1, "unknown"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.at, Some((line, column)), "{text}: {error}");
            assert!(error.to_string().contains(says), "{error} should say {says}");
        }
    }
}
