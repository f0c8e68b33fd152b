//! `[presence]` and `[schedule]` of `agent.toml`: when the owner wants the card. Words into values; what they mean is the core's.

use super::read::{Refusal, mib};
use crate::calendars::{CalendarSource, CalendarSources};
use sela_core::schedule::{CalendarUse, Exception, Hours, Meaning, Plan, Schedule, Week, Window, Zones};
use sela_core::{BatteryRule, CardPolicy};
use sela_protocol::id::GpuUuid;
use sela_protocol::units::{Millis, Percent};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The names under `[presence]`.
pub(super) const PRESENCE: &[&str] = &[
    "idle_after_s",
    "cool_off_s",
    "evict_after_s",
    "save_grace_s",
    "steady_for_s",
    "foreign_vram_mib",
    "foreign_utilisation",
    "foreign_evict_vram_mib",
    "foreign_evict_utilisation",
    "foreign_idle_vram_mib",
    "foreign_idle_for_s",
    "ignore_programs",
    "game_programs",
    "share_while_working",
    "hold_while_engaged",
    "hold_while_playing",
    "hold_while_remote",
    "hold_on_metered",
    "battery",
];
/// The names under `[schedule]`.
pub(super) const SCHEDULE: &[&str] = &["zone", "windows", "exceptions", "opens", "closes"];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WrittenPresence {
    idle_after_s: Option<u32>,
    cool_off_s: Option<u32>,
    evict_after_s: Option<u32>,
    save_grace_s: Option<u32>,
    steady_for_s: Option<u32>,
    foreign_vram_mib: Option<u32>,
    foreign_utilisation: Option<u8>,
    foreign_evict_vram_mib: Option<u32>,
    foreign_evict_utilisation: Option<u8>,
    foreign_idle_vram_mib: Option<u32>,
    foreign_idle_for_s: Option<u32>,
    ignore_programs: Vec<String>,
    /// The sensors', not the policy's.
    pub(super) game_programs: Vec<String>,
    share_while_working: Option<WrittenSharing>,
    hold_while_engaged: Option<bool>,
    hold_while_playing: Option<bool>,
    hold_while_remote: Option<bool>,
    hold_on_metered: Option<bool>,
    battery: Option<WrittenBattery>,
}

/// All cards or none, or those named.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WrittenSharing {
    All(bool),
    Cards(Vec<GpuUuid>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WrittenBattery {
    Least(u8),
    Word(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WrittenSchedule {
    zone: Option<String>,
    windows: Option<Vec<String>>,
    exceptions: Vec<String>,
    opens: BTreeMap<String, String>,
    closes: BTreeMap<String, String>,
}

impl WrittenPresence {
    /// The cards that are named as shared while their owner works.
    pub(super) fn cards_shared_while_working(&self) -> &[GpuUuid] {
        match &self.share_while_working {
            Some(WrittenSharing::Cards(cards)) => cards,
            Some(WrittenSharing::All(_)) | None => &[],
        }
    }

    /// A policy with these words in it, and the default for all else.
    pub(super) fn check(&self) -> Result<CardPolicy, Refusal> {
        let default = CardPolicy::default();
        let seconds = |written: Option<u32>, default: Millis| {
            written.map_or(default, |seconds| Millis::from_secs(u64::from(seconds)))
        };
        let idle_after = seconds(self.idle_after_s, default.idle_after);
        if idle_after < Millis::from_secs(1) {
            return Err(("presence.idle_after_s", "at least 1".to_owned()));
        }
        let cool_off = seconds(self.cool_off_s, idle_after);
        if cool_off < idle_after {
            let least = idle_after.0 / 1000;
            return Err((
                "presence.cool_off_s",
                format!("at least idle_after_s, which is {least}"),
            ));
        }
        let most = Millis::from_secs(60);
        let save_grace = seconds(self.save_grace_s, default.save_grace);
        if save_grace > most {
            let why = "at most 60: the card is yours within that".to_owned();
            return Err(("presence.save_grace_s", why));
        }
        let evict_after = seconds(self.evict_after_s, default.evict_after);
        if evict_after > most {
            let why = "at most 60: a frozen job holds the card's memory".to_owned();
            return Err(("presence.evict_after_s", why));
        }
        let share = |path, written: Option<u8>, default: Percent| match written.map_or(default, Percent) {
            share if share.0 > 100 => Err((path, "0 to 100, in percent".to_owned())),
            share => Ok(share),
        };
        let foreign_vram = self.foreign_vram_mib.map_or(default.foreign_vram, mib);
        let foreign_utilisation = share(
            "presence.foreign_utilisation",
            self.foreign_utilisation,
            default.foreign_utilisation,
        )?;
        let evict_utilisation = share(
            "presence.foreign_evict_utilisation",
            self.foreign_evict_utilisation,
            foreign_utilisation,
        )?;
        let hold = |written: Option<bool>, default: bool| written.unwrap_or(default);
        Ok(CardPolicy {
            idle_after,
            cool_off,
            evict_after,
            save_grace,
            steady_for: seconds(self.steady_for_s, default.steady_for),
            foreign_vram,
            foreign_utilisation,
            foreign_evict_vram: not_below(
                "presence.foreign_evict_vram_mib",
                "foreign_vram_mib",
                self.foreign_evict_vram_mib.map_or(foreign_vram, mib),
                foreign_vram,
            )?,
            foreign_evict_utilisation: not_below(
                "presence.foreign_evict_utilisation",
                "foreign_utilisation",
                evict_utilisation,
                foreign_utilisation,
            )?,
            foreign_idle_vram: self.foreign_idle_vram_mib.map_or(default.foreign_idle_vram, mib),
            foreign_idle_for: seconds(self.foreign_idle_for_s, default.foreign_idle_for),
            ignored_programs: self.ignore_programs.clone(),
            share_while_working: matches!(self.share_while_working, Some(WrittenSharing::All(true))),
            hold_while_engaged: hold(self.hold_while_engaged, default.hold_while_engaged),
            hold_while_playing: hold(self.hold_while_playing, default.hold_while_playing),
            hold_while_remote: hold(self.hold_while_remote, default.hold_while_remote),
            hold_on_metered: hold(self.hold_on_metered, default.hold_on_metered),
            battery: self
                .battery
                .as_ref()
                .map_or(Ok(default.battery), WrittenBattery::check)?,
            ..default
        })
    }
}

/// What ends a job is never less than what keeps one from starting: else a job would start and end at once.
fn not_below<T: PartialOrd>(path: &'static str, other: &str, written: T, least: T) -> Result<T, Refusal> {
    if written < least {
        return Err((
            path,
            format!("at least {other}: what ends a job would else not keep one from starting"),
        ));
    }
    Ok(written)
}

impl WrittenBattery {
    fn check(&self) -> Result<BatteryRule, Refusal> {
        match self {
            Self::Word(word) if word == "hold" => Ok(BatteryRule::Hold),
            Self::Word(word) if word == "ignore" => Ok(BatteryRule::Ignore),
            Self::Least(least) if *least <= 100 => Ok(BatteryRule::From(Percent(*least))),
            Self::Word(_) | Self::Least(_) => {
                let words = "\"hold\", \"ignore\", or the percent from which on sharing on battery is right";
                Err(("presence.battery", words.to_owned()))
            }
        }
    }
}

impl WrittenSchedule {
    fn uses(&self) -> impl Iterator<Item = CalendarUse> {
        let of = |names: &BTreeMap<String, String>, meaning| {
            let names: Vec<String> = names.keys().cloned().collect();
            names.into_iter().map(move |name| CalendarUse { name, meaning })
        };
        of(&self.opens, Meaning::Opens).chain(of(&self.closes, Meaning::Closes))
    }

    /// Where the calendars are.
    pub(super) fn sources(&self) -> Result<CalendarSources, Refusal> {
        if let Some(name) = self.opens.keys().find(|name| self.closes.contains_key(*name)) {
            return Err((
                "schedule.closes",
                format!("the calendar {name:?} cannot both open and close"),
            ));
        }
        let read = |path, addresses: &BTreeMap<String, String>| {
            let sources = addresses.iter().map(|(name, address)| {
                let source = CalendarSource::parse(address).map_err(|why| (path, why))?;
                Ok((name.clone(), source))
            });
            sources.collect::<Result<CalendarSources, Refusal>>()
        };
        let mut sources = read("schedule.opens", &self.opens)?;
        sources.extend(read("schedule.closes", &self.closes)?);
        Ok(sources)
    }

    /// The plan; none where nothing is written.
    pub(super) fn check(&self) -> Result<Option<Plan>, Refusal> {
        let Some(zone) = &self.zone else {
            let calendars = !self.opens.is_empty() || !self.closes.is_empty();
            if self.windows.is_some() || !self.exceptions.is_empty() || calendars {
                let words = "a schedule needs to know whose clock counts: zone = \"Asia/Jakarta\", for example";
                return Err(("schedule.windows", words.to_owned()));
            }
            return Ok(None);
        };
        let windows = self
            .windows
            .as_ref()
            .map(|windows| windows.iter().map(|text| window(text)).collect());
        let exceptions: Result<_, Refusal> = self.exceptions.iter().map(|text| exception(text)).collect();
        let plan = Plan {
            zone: zone.clone(),
            // Who names only hours that open means no others.
            week: match windows.transpose()? {
                Some(windows) => Week::Windows(windows),
                None if self.opens.is_empty() => Week::Always,
                None => Week::Windows(Vec::new()),
            },
            exceptions: exceptions?,
            calendars: self.uses().collect(),
        };
        match Schedule::of(plan.clone(), &Zones::bundled()) {
            Ok(_) => Ok(Some(plan)),
            Err(fault) => Err(("schedule.zone", fault.to_string())),
        }
    }
}

/// `mon-fri 22:00-06:00`.
fn window(text: &str) -> Result<Window, Refusal> {
    let refuse = |why: String| ("schedule.windows", why);
    let (days, hours) = text.split_once(' ').ok_or_else(|| {
        refuse(format!(
            "{text:?} is no window; write days and hours, as \"mon-fri 22:00-06:00\""
        ))
    })?;
    Ok(Window {
        days: days.parse().map_err(|fault| refuse(format!("{text:?}: {fault}")))?,
        hours: hours
            .trim()
            .parse()
            .map_err(|fault| refuse(format!("{text:?}: {fault}")))?,
    })
}

/// `2026-12-24 closed`, `2026-12-24..2026-12-26 10:00-12:00,20:00-24:00`.
fn exception(text: &str) -> Result<Exception, Refusal> {
    let refuse = |why: &str| ("schedule.exceptions", format!("{text:?}: {why}"));
    let form = "write a date or two and \"closed\" or hours, as \"2026-12-24..2026-12-26 10:00-12:00\"";
    let (dates, hours) = text.split_once(' ').ok_or_else(|| refuse(form))?;
    let (from, to) = dates.split_once("..").unwrap_or((dates, dates));
    let hours: Result<Vec<Hours>, Refusal> = match hours.trim() {
        "closed" => Ok(Vec::new()),
        hours => hours
            .split(',')
            .map(|hours| {
                hours
                    .trim()
                    .parse()
                    .map_err(|fault: sela_core::schedule::PlanFault| refuse(&fault.to_string()))
            })
            .collect(),
    };
    let exception = Exception {
        from: from.parse().map_err(|_| refuse(form))?,
        to: to.parse().map_err(|_| refuse(form))?,
        hours: hours?,
    };
    if exception.to < exception.from {
        return Err(refuse("it ends before it begins"));
    }
    Ok(exception)
}

#[cfg(test)]
mod tests {
    use crate::settings::Settings;
    use sela_core::BatteryRule;
    use sela_core::schedule::Week;
    use sela_protocol::id::GpuUuid;
    use sela_protocol::units::{Bytes, Percent};

    #[test]
    fn an_owner_says_when_the_card_may_be_shared_and_what_holds_it() {
        let settings = Settings::parse(
            "[presence]\nshare_while_working = true\nhold_on_metered = false\nbattery = 40\nforeign_evict_vram_mib = 2048\n\
             [schedule]\nzone = \"Asia/Jakarta\"\nwindows = [\"mon-fri 22:00-06:00\", \"sat,sun 00:00-24:00\"]\n\
             exceptions = [\"2026-12-24..2026-12-26 closed\", \"2027-01-01 00:00-12:00, 20:00-24:00\"]\n",
            "machine",
        )
        .expect("good settings");
        let policy = &settings.policy.rest;
        assert!(policy.share_while_working && !policy.hold_on_metered && policy.hold_while_playing);
        assert_eq!(policy.battery, BatteryRule::From(Percent(40)));
        assert_eq!(policy.foreign_evict_vram, Bytes::from_gib(2));
        let plan = policy.schedule.as_ref().expect("a schedule");
        assert!(
            matches!(&plan.week, Week::Windows(windows) if windows.len() == 2),
            "{plan:?}"
        );
        assert_eq!(plan.exceptions[0].hours, []);
        assert_eq!(plan.exceptions[1].hours.len(), 2);
        let second = Settings::parse("[presence]\nshare_while_working = [\"GPU-2\"]\n", "machine").expect("a card");
        for (gpu, shared) in [("GPU-1", false), ("GPU-2", true)] {
            let policy = second.policy.for_card(&GpuUuid(gpu.into()));
            assert_eq!(policy.share_while_working, shared, "{gpu}");
        }
        let followed = "[schedule]\nzone = \"UTC\"\ncloses = { work = \"https://example.org/a.ics\", home = \"/home/me/a.ics\" }\n";
        let followed = Settings::parse(followed, "machine").expect("calendars");
        assert_eq!(followed.calendars.len(), 2);
        let plan = followed.policy.rest.schedule.expect("a schedule");
        assert_eq!((plan.week, plan.calendars.len()), (Week::Always, 2));
        for (word, rule) in [("\"hold\"", BatteryRule::Hold), ("\"ignore\"", BatteryRule::Ignore)] {
            let settings = Settings::parse(&format!("[presence]\nbattery = {word}\n"), "machine").expect(word);
            assert_eq!(settings.policy.rest.battery, rule);
        }
    }

    #[test]
    fn a_bad_schedule_says_where_and_what_would_be_right() {
        for (text, line, says) in [
            ("[schedule]\nwindows = []\n", 2, "whose clock counts"),
            ("[schedule]\nzone = \"Europe/Atlantis\"\n", 2, "no time zone"),
            ("[schedule]\nzone = \"UTC\"\nwindows = [\"mon\"]\n", 3, "is no window"),
            (
                "[schedule]\nzone = \"UTC\"\nwindows = [\"noday 10:00-11:00\"]\n",
                3,
                "days are mon",
            ),
            (
                "[schedule]\nzone = \"UTC\"\nwindows = [\"mon 24:00-06:00\"]\n",
                3,
                "begins at 24:00",
            ),
            (
                "[schedule]\nzone = \"UTC\"\nexceptions = [\"2026-02-30 closed\"]\n",
                3,
                "write a date",
            ),
            (
                "[schedule]\nzone = \"UTC\"\nexceptions = [\"2026-05-02..2026-05-01 closed\"]\n",
                3,
                "ends before",
            ),
            (
                "[schedule]\nzone = \"UTC\"\nopens = { w = \"http://example.org\" }\n",
                3,
                "over https://",
            ),
            (
                "[schedule]\nzone = \"UTC\"\nopens = { w = \"/a\" }\ncloses = { w = \"/a\" }\n",
                4,
                "cannot both",
            ),
            ("[schedule]\nzones = \"UTC\"\n", 2, "did you mean \"zone\""),
            ("[presence]\nbattery = 101\n", 2, "\"hold\", \"ignore\""),
            ("[presence]\nbattery = \"never\"\n", 2, "\"hold\", \"ignore\""),
            (
                "[presence]\nforeign_evict_vram_mib = 10\n",
                2,
                "at least foreign_vram_mib",
            ),
        ] {
            let error = Settings::parse(text, "machine").expect_err(text);
            assert_eq!(error.at.map(|(line, _)| line), Some(line), "{text}: {error}");
            assert!(error.to_string().contains(says), "{error} should say {says}");
        }
    }
}
