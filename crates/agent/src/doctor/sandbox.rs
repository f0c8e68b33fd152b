//! Tries the walls for real: furnishes what `sela_sandbox::checkup` needs beside a running agent, under names that no agent has, and
//! takes all of it away again, however it went.

use crate::paths::Paths;
use crate::run::backend;
use crate::settings::{Backend, Settings, SettingsFile};
use sela_protocol::local::IsolationState;
use sela_protocol::node::Isolation;
use sela_sandbox::checkup::{self, Finding, Ground, LIMIT};
use sela_sandbox::docker;
use sela_sandbox::ids::IdRange;
use sela_sandbox::keeper::wire::CgroupPlace;
use sela_sandbox::probe::{self, Machine, ScratchKind};
use sela_sandbox::sweep::sweep;
use serde::Serialize;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// How the folders of checkups begin.
const FOLDER: &str = "doctor-";

/// All that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Checkup {
    /// Who walls jobs in here.
    pub(crate) isolation: Isolation,
    /// How long it took.
    pub(crate) took_ms: u64,
    /// Each guarantee.
    pub(crate) findings: Vec<Finding>,
}

/// Why nothing was tried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CannotTry {
    /// Only root may.
    #[error("the walls are built as root, so they are tried as root: `sudo sela doctor sandbox{0}`")]
    NotRoot(&'static str),
    /// This machine lacks something.
    #[error("jobs cannot be isolated here, so there is nothing to try: {0}")]
    Missing(String),
    /// It was tried, and went wrong before anything was found.
    #[error("{0}")]
    Failed(String),
}

/// Tries everything that jobs are promised here. `running` is how a running agent walls jobs in, which goes before the settings.
pub(crate) async fn check(paths: &Paths, lab: bool, running: Option<Isolation>) -> Result<Checkup, CannotTry> {
    let machine = Machine::this();
    if !machine.root {
        return Err(CannotTry::NotRoot(if lab { " --lab" } else { "" }));
    }
    let settings = SettingsFile::at(paths.settings()).read();
    let settings = chosen_by(settings.unwrap_or_else(|_| Settings::defaults()), running);
    let found = probe::probe(&machine, lab);
    let chosen = backend::choose(&settings, &machine, &found, lab).await;
    let isolation = match chosen.isolation {
        IsolationState::Ready { level } => level,
        IsolationState::Missing { why } => return Err(CannotTry::Missing(why)),
    };
    let layout = found.layout.map_or_else(|| docker::fits(&machine, lab), Ok);
    let layout = layout.map_err(CannotTry::Missing)?;
    let native = if found.guarantees.is_empty() {
        probe::promised(layout)
    } else {
        found.guarantees
    };
    let place = CgroupPlace {
        layout,
        root: machine.cgroups,
        agent: format!("{FOLDER}{}", std::process::id()),
    };
    let ids =
        IdRange::of_agent(Path::new(crate::run::SUBUID)).map_err(|error| CannotTry::Missing(error.to_string()))?;
    let folder = furnish(&paths.runtime)
        .map_err(|error| CannotTry::Failed(format!("{} cannot be furnished: {error}", paths.runtime.display())))?;
    let ground = Ground {
        keeper: std::env::current_exe().map_err(|error| CannotTry::Failed(error.to_string()))?,
        folder: folder.clone(),
        cgroups: place.clone(),
        ids,
        disk: chosen.engine.is_none() && found.scratch == ScratchKind::EncryptedDisk,
        promised: match &chosen.engine {
            Some(engine) => docker::promised(engine, native),
            None => native,
        },
        engine: chosen.engine,
        limit: LIMIT,
    };
    let begun = sela_clock::boot_us();
    let checked = tokio::select! {
        checked = checkup::check(&ground) => checked.map_err(|error| CannotTry::Failed(error.to_string())),
        // Every keeper notices that nobody is left, and ends its job.
        _ = tokio::signal::ctrl_c() => Err(CannotTry::Failed("stopped before all was tried".to_owned())),
    };
    let took_ms = sela_clock::boot_us().since(begun).0 / 1000;
    let cleared = tokio::task::spawn_blocking(move || clear(&place, &folder)).await;
    cleared.map_err(|error| CannotTry::Failed(error.to_string()))??;
    Ok(Checkup {
        isolation,
        took_ms,
        findings: checked?,
    })
}

/// The settings, with the backend that a running agent has chosen by them.
fn chosen_by(mut settings: Settings, running: Option<Isolation>) -> Settings {
    match running {
        Some(Isolation::Docker) => settings.backend = Backend::Docker,
        Some(Isolation::Podman) => settings.backend = Backend::Podman,
        Some(Isolation::Native | Isolation::LabCgroupV1) => settings.backend = Backend::Native,
        Some(Isolation::Unknown) | None => {}
    }
    settings
}

/// A folder of this process's own in the runtime folder; what a checkup that was killed left there is taken away.
fn furnish(runtime: &Path) -> std::io::Result<PathBuf> {
    if !runtime.exists() {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(runtime)?;
    }
    for entry in fs::read_dir(runtime)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(FOLDER) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    let folder = runtime.join(format!("{FOLDER}{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// Ends whatever is left, and removes it.
fn clear(place: &CgroupPlace, folder: &Path) -> Result<(), CannotTry> {
    let swept = sweep(place, folder).map_err(|error| CannotTry::Failed(error.to_string()));
    let removed = fs::remove_dir_all(folder)
        .map_err(|error| CannotTry::Failed(format!("{} cannot be removed: {error}", folder.display())));
    swept.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_checkup_left_is_taken_away_and_what_a_running_one_has_is_not() {
        let runtime = tempfile::tempdir().expect("a folder");
        let at = |name: &str| runtime.path().join(name);
        for name in ["doctor-4194305", "doctor-1", "scratch"] {
            fs::create_dir(at(name)).expect("made");
        }
        let own = furnish(runtime.path()).expect("furnished");
        assert!(own.is_dir());
        assert!(!at("doctor-4194305").exists(), "no process has this number");
        assert!(at("doctor-1").exists() && at("scratch").exists());
    }

    #[test]
    fn what_a_running_agent_chose_goes_before_the_settings() {
        for (running, backend) in [
            (None, Backend::Auto),
            (Some(Isolation::Native), Backend::Native),
            (Some(Isolation::LabCgroupV1), Backend::Native),
            (Some(Isolation::Docker), Backend::Docker),
            (Some(Isolation::Podman), Backend::Podman),
        ] {
            assert_eq!(chosen_by(Settings::defaults(), running).backend, backend);
        }
    }
}
