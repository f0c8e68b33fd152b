//! The self-test of what an agent needs on this machine: each line says what was looked at, what was found and how to mend
//! it. Looks without changing anything, and without a running agent.

pub(crate) mod sandbox;

use crate::keys::read_node_key;
use crate::paths::Paths;
use crate::run::{backend, nvml_library};
use crate::settings::{Settings, SettingsFile};
use crate::store;
use sela_gpu::Nvml;
use sela_protocol::card::{CardDescription, Reading};
use sela_protocol::envelope::PublicKey;
use sela_protocol::local::{DoctorLine, IsolationState, Verdict};
use sela_protocol::units::Bytes;
use sela_sandbox::docker::{self, EngineError, EngineFound, EngineKind, EnginePlace};
use sela_sandbox::probe::{Guarantee, Machine, Strength, probe};
use std::path::Path;
use std::time::Duration;

/// How long an engine is waited for.
const ENGINE_PATIENCE: Duration = Duration::from_secs(5);

/// One line.
pub(crate) fn line(subject: &str, verdict: Verdict, found: String, remedy: Option<&str>) -> DoctorLine {
    DoctorLine {
        subject: subject.to_owned(),
        verdict,
        found,
        remedy: remedy.map(str::to_owned),
    }
}

/// Looks at everything. Blocking.
pub(crate) fn look(paths: &Paths, lab: bool) -> Vec<DoctorLine> {
    let mut lines = vec![settings(paths), key(paths), books(paths)];
    lines.extend(cards());
    lines.extend(isolation(lab));
    lines.extend(engines(paths, lab));
    lines.push(disk(paths));
    lines
}

fn settings(paths: &Paths) -> DoctorLine {
    let file = SettingsFile::at(paths.settings());
    let shown = file.path().display();
    match file.read() {
        Ok(_) if file.path().exists() => line("settings", Verdict::Good, format!("{shown} reads"), None),
        Ok(_) => line(
            "settings",
            Verdict::Limited,
            format!("there is no {shown} yet; the agent writes one at its first start"),
            None,
        ),
        Err(error) => line(
            "settings",
            Verdict::Bad,
            format!("{shown}: {error}"),
            Some("mend it and save it: the agent reads it again at once"),
        ),
    }
}

fn key(paths: &Paths) -> DoctorLine {
    match read_node_key(&paths.node_key()) {
        Ok(Some(key)) => line(
            "node key",
            Verdict::Good,
            format!("this machine is {}", PublicKey::of(&key)),
            None,
        ),
        Ok(None) => line(
            "node key",
            Verdict::NotApplicable,
            "none yet; the agent makes one at its first start".to_owned(),
            None,
        ),
        Err(error) => line("node key", Verdict::Bad, format!("{error:#}"), None),
    }
}

fn books(paths: &Paths) -> DoctorLine {
    match store::check(&paths.data) {
        Ok(true) => line("earnings", Verdict::Good, "earnings.db is whole".to_owned(), None),
        Ok(false) => line(
            "earnings",
            Verdict::NotApplicable,
            "there is no earnings.db yet".to_owned(),
            None,
        ),
        Err(error) => line(
            "earnings",
            Verdict::Bad,
            error.to_string(),
            Some("free some disk space; if the file is broken, put back a copy of it"),
        ),
    }
}

fn cards() -> Vec<DoctorLine> {
    let found = Nvml::start(nvml_library().as_deref()).and_then(|driver| {
        let cards = driver.cards()?;
        Ok((driver, cards))
    });
    match found {
        Ok((_, cards)) if cards.is_empty() => vec![line(
            "cards",
            Verdict::Bad,
            "the driver lists no card".to_owned(),
            Some("check that the card is seated and its driver is loaded"),
        )],
        Ok((driver, cards)) => cards.iter().map(|card| one_card(&driver, card)).collect(),
        Err(error) => vec![line("cards", Verdict::Bad, error.to_string(), None)],
    }
}

fn one_card(driver: &Nvml, card: &CardDescription) -> DoctorLine {
    let subject = format!("card {}", card.index);
    let reading = match driver.read(&card.uuid) {
        Ok(reading) => reading,
        Err(error) => return line(&subject, Verdict::Bad, format!("{}: {error}", card.name), None),
    };
    if let Err(error) = driver.processes(&card.uuid) {
        let found = format!("{}: programs on it are not seen: {error}", card.name);
        return line(&subject, Verdict::Bad, found, None);
    }
    match reading.temperature {
        Reading::Value { value } if card.simulated => line(
            &subject,
            Verdict::Limited,
            format!("{} at {value}: SIMULATED, for labs only", card.name),
            None,
        ),
        Reading::Value { value } => line(&subject, Verdict::Good, format!("{} at {value}", card.name), None),
        Reading::NotSupported | Reading::Invalid { .. } => line(
            &subject,
            Verdict::Bad,
            format!("{} reports no temperature, so it cannot be guarded", card.name),
            Some("update the card's driver"),
        ),
    }
}

fn isolation(lab: bool) -> Vec<DoctorLine> {
    let found = probe(&Machine::this(), lab);
    let state = match &found.state {
        IsolationState::Ready { level } => line(
            "isolation",
            Verdict::Good,
            format!("jobs are isolated: {level:?}"),
            None,
        ),
        IsolationState::Missing { why } => line("isolation", Verdict::Bad, why.clone(), None),
    };
    std::iter::once(state)
        .chain(lacking("isolation", &found.guarantees))
        .collect()
}

/// What is promised in part, or not at all.
fn lacking(of: &str, guarantees: &[Guarantee]) -> Vec<DoctorLine> {
    let lines = guarantees.iter().filter_map(|guarantee| {
        let subject = format!("{of}, {}", guarantee.name);
        match guarantee.strength {
            Strength::Enforced => None,
            Strength::Weaker { why } => Some(line(&subject, Verdict::Limited, format!("weaker: {why}"), None)),
            Strength::Absent { why } => Some(line(&subject, Verdict::Limited, format!("absent: {why}"), None)),
        }
    });
    lines.collect()
}

/// Which container engines are here, and what each would promise. One that does not answer is not waited for longer than a person
/// would.
fn engines(paths: &Paths, lab: bool) -> Vec<DoctorLine> {
    let settings = SettingsFile::at(paths.settings()).read();
    let settings = settings.unwrap_or_else(|_| Settings::defaults());
    let mut lines = Vec::new();
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let subject = kind.name();
        match look_at(backend::place(&settings, kind)) {
            Ok(found) => {
                let says = format!("{kind} {} at {}", found.version, found.place.socket.display());
                lines.push(match docker::fits(&Machine::this(), lab) {
                    Ok(_) => line(subject, Verdict::Good, says, None),
                    Err(why) => line(subject, Verdict::Limited, format!("{says}: {why}"), None),
                });
                lines.extend(lacking(subject, &docker::guarantees(&found)));
            }
            Err(error @ EngineError::NotThere { .. }) => {
                lines.push(line(subject, Verdict::NotApplicable, error.to_string(), None));
            }
            Err(error) => lines.push(line(subject, Verdict::Limited, error.to_string(), None)),
        }
    }
    lines
}

/// On a thread of its own: this may be called from within a runtime, or without one.
fn look_at(place: EnginePlace) -> Result<EngineFound, EngineError> {
    let kind = place.kind;
    let asked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        runtime.block_on(async { tokio::time::timeout(ENGINE_PATIENCE, docker::look(&place)).await.ok() })
    });
    asked.join().ok().flatten().unwrap_or(Err(EngineError::Hangs { kind }))
}

fn disk(paths: &Paths) -> DoctorLine {
    let settings = SettingsFile::at(paths.settings()).read().ok();
    let floor = settings.map_or(Bytes(0), |settings| settings.disk_free_floor);
    let free = free_space(&paths.data);
    let gib = |bytes: Bytes| bytes.0 >> 30;
    match free {
        Some(free) if free > floor => line(
            "disk",
            Verdict::Good,
            format!("{} GiB are free, {} must stay free", gib(free), gib(floor)),
            None,
        ),
        Some(free) => line(
            "disk",
            Verdict::Bad,
            format!(
                "{} GiB are free and {} must stay free, so no image fits",
                gib(free),
                gib(floor)
            ),
            Some("free some space, or lower disk.free_floor in agent.toml"),
        ),
        None => line(
            "disk",
            Verdict::Bad,
            format!("{} cannot be looked at", paths.data.display()),
            None,
        ),
    }
}

/// Free space where a folder is or will be.
fn free_space(folder: &Path) -> Option<Bytes> {
    let there = folder.ancestors().find(|ancestor| ancestor.exists())?;
    let found = rustix::fs::statvfs(there).ok()?;
    Some(Bytes(found.f_bavail.saturating_mul(found.f_frsize)))
}
