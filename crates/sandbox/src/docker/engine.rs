//! Which container engines this machine has, and what each can promise. Looks, and asks the engine for its version; starts and
//! changes nothing.

use crate::cgroup::hybrid;
use crate::ids::IdRange;
use crate::keeper::wire::CgroupLayout;
use crate::probe::{Guarantee, Machine, Strength};
use bollard::models::{SystemInfo, SystemInfoCgroupDriverEnum, SystemVersion};
use bollard::{ClientVersion, Docker};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Seconds that an engine may take for one answer. Its own work on a slow disk is part of it.
const ANSWER_WITHIN_S: u64 = 120;
/// What is spoken until both have agreed on something newer: Docker's 20.10.
const OLDEST_API: ClientVersion = ClientVersion {
    major_version: 1,
    minor_version: 41,
};
/// Oldest versions, major and minor: what a job needs of them (private cgroup namespaces, own lists of system calls).
const OLDEST_DOCKER: (u32, u32) = (20, 10);
const OLDEST_PODMAN: (u32, u32) = (4, 0);

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// Docker, or one that is the same from outside (Moby).
    Docker,
    /// Podman, by its system service.
    Podman,
}

impl EngineKind {
    /// Its name in settings, images and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Where the machine's own one listens.
    pub fn usual_socket(self) -> PathBuf {
        PathBuf::from(match self {
            Self::Docker => "/run/docker.sock",
            Self::Podman => "/run/podman/podman.sock",
        })
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        })
    }
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginePlace {
    /// Which it is.
    pub kind: EngineKind,
    /// The Unix socket that it listens on.
    pub socket: PathBuf,
}

impl EnginePlace {
    /// The machine's own.
    pub fn usual(kind: EngineKind) -> Self {
        Self {
            kind,
            socket: kind.usual_socket(),
        }
    }

    /// Speaks to it, in words that both know.
    pub(crate) async fn connect(&self) -> Result<Docker, EngineError> {
        if !self.socket.exists() {
            return Err(EngineError::NotThere {
                kind: self.kind,
                socket: self.socket.clone(),
            });
        }
        let failed = |source| EngineError::Silent {
            kind: self.kind,
            source,
        };
        let socket = self.socket.to_string_lossy();
        let engine = Docker::connect_with_unix(&socket, ANSWER_WITHIN_S, &OLDEST_API).map_err(failed)?;
        match self.kind {
            EngineKind::Docker => engine.negotiate_version().await.map_err(failed),
            // Every Podman that is new enough knows these words, and to say which others it knows it looks through all that the
            // machine's packages have installed: half a second of processor time at each call.
            EngineKind::Podman => Ok(engine),
        }
    }
}

/// The engine's part of a job's plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginePlan {
    /// Which engine.
    pub place: EnginePlace,
    /// The image's id in it (`sha256:…`), as [`super::image::EngineImages::load`] gave it.
    pub image: String,
    /// Whether the engine maps a container's ids to subordinate ones. Where it does not, the job runs as ids of the plan's range.
    pub remapped: bool,
    /// Whose cgroups the job's are.
    pub cgroups: EngineCgroups,
}

/// Who makes a job's cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineCgroups {
    /// The keeper, and the engine puts the container below them.
    Ours,
    /// The engine, below the agent's group: Podman keeps processes of its own beside a container's. The keeper finds the
    /// container's and sets what is missing.
    BelowOurs,
    /// The engine, by systemd, which lets nobody else. The keeper does as before.
    Systemds,
}

/// What an engine is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFound {
    /// Which.
    pub place: EnginePlace,
    /// As it says itself.
    pub version: String,
    /// See [`EnginePlan::remapped`].
    pub remapped: bool,
    /// Who makes cgroups.
    pub cgroups: EngineCgroups,
    /// Where it keeps images.
    pub root: PathBuf,
}

/// How ids in an image are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    /// What each owner is less than in the cache.
    pub(crate) shift: u32,
    /// Who owns what root does.
    pub(crate) root: u32,
}

/// Why an engine cannot run strangers' jobs.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No socket.
    #[error("{kind} is not running here: there is no {}; start it, or set sandbox.backend to another", socket.display())]
    NotThere {
        /// Which.
        kind: EngineKind,
        /// Where it was looked for.
        socket: PathBuf,
    },
    /// It does not answer.
    #[error("{kind} does not answer: {source}")]
    Silent {
        /// Which.
        kind: EngineKind,
        /// Why.
        source: bollard::errors::Error,
    },
    /// It takes too long.
    #[error("{kind} does not answer; restart it")]
    Hangs {
        /// Which.
        kind: EngineKind,
    },
    /// It does not let go of a container.
    #[error(
        "{kind} does not remove the container {container} of an earlier job; remove it by hand, or restart the engine"
    )]
    Stays {
        /// Which.
        kind: EngineKind,
        /// The engine's id of it.
        container: String,
    },
    /// It answers and is of no use.
    #[error("{kind} {version} cannot run strangers' jobs: {why}")]
    Unfit {
        /// Which.
        kind: EngineKind,
        /// Its version.
        version: String,
        /// What is wrong, and what to do.
        why: String,
    },
}

/// Asks an engine what it is like.
///
/// # Errors
/// [`EngineError`] where it is not there, or not fit for a stranger's job.
pub async fn look(place: &EnginePlace) -> Result<EngineFound, EngineError> {
    let engine = place.connect().await?;
    let failed = |source| EngineError::Silent {
        kind: place.kind,
        source,
    };
    let version = engine.version().await.map_err(failed)?;
    let info = engine.info().await.map_err(failed)?;
    let number = version.version.clone().unwrap_or_default();
    judge(place, &version, &info, Path::new("/sys/fs/selinux/enforce")).map_err(|why| EngineError::Unfit {
        kind: place.kind,
        version: number,
        why,
    })
}

/// What it says of itself, weighed. Pure but for one file.
fn judge(
    place: &EnginePlace,
    version: &SystemVersion,
    info: &SystemInfo,
    enforcing: &Path,
) -> Result<EngineFound, String> {
    let is_podman = version
        .components
        .iter()
        .flatten()
        .any(|component| component.name.contains("Podman"));
    if is_podman != (place.kind == EngineKind::Podman) {
        return Err(format!("what listens at {} is another engine", place.socket.display()));
    }
    let number = version.version.clone().unwrap_or_default();
    let oldest = if is_podman { OLDEST_PODMAN } else { OLDEST_DOCKER };
    if major_and_minor(&number).is_none_or(|found| found < oldest) {
        return Err(format!("at least {}.{} is needed", oldest.0, oldest.1));
    }
    let options = info.security_options.as_deref().unwrap_or_default();
    let has = |name: &str| options.iter().any(|option| option.split(',').any(|part| part == name));
    if !has("name=seccomp") {
        return Err("it was built without lists of system calls (seccomp)".to_owned());
    }
    if has("name=rootless") {
        return Err(
            "it runs rootless, where limits depend on how the session was set up: use the machine's own".to_owned(),
        );
    }
    if info
        .operating_system
        .as_deref()
        .is_some_and(|name| name.contains("Docker Desktop"))
    {
        return Err(
            "Docker Desktop runs jobs in a virtual machine of its own, where nothing of them can be guarded from here"
                .to_owned(),
        );
    }
    if std::fs::read_to_string(enforcing).is_ok_and(|text| text.trim() == "1") {
        return Err(
            "SELinux is enforcing and keeps a container from its keeper's socket; this was not tried".to_owned(),
        );
    }
    Ok(EngineFound {
        place: place.clone(),
        version: number,
        remapped: has("name=userns"),
        cgroups: match info.cgroup_driver {
            Some(SystemInfoCgroupDriverEnum::CGROUPFS) if is_podman => EngineCgroups::BelowOurs,
            Some(SystemInfoCgroupDriverEnum::CGROUPFS) => EngineCgroups::Ours,
            Some(
                SystemInfoCgroupDriverEnum::SYSTEMD
                | SystemInfoCgroupDriverEnum::NONE
                | SystemInfoCgroupDriverEnum::EMPTY,
            )
            | None => EngineCgroups::Systemds,
        },
        root: PathBuf::from(info.docker_root_dir.clone().unwrap_or_default()),
    })
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

impl EngineFound {
    /// This engine's part of the plan for a job with an image that was given to it.
    pub fn plan(&self, image: String) -> EnginePlan {
        EnginePlan {
            place: self.place.clone(),
            image,
            remapped: self.remapped,
            cgroups: self.cgroups,
        }
    }

    /// How the owners of an image's files are counted in this engine: `ids` are those of the image cache.
    pub(crate) fn counted(&self, ids: IdRange) -> Counted {
        if self.remapped {
            Counted {
                shift: ids.first,
                root: 0,
            }
        } else {
            Counted {
                shift: 0,
                root: ids.first,
            }
        }
    }
}

/// What an engine promises less of than the native backend does, in the words of `docs/security.md`; all else is as there.
pub fn guarantees(found: &EngineFound) -> Vec<Guarantee> {
    use Strength::{Absent, Weaker};
    let mut less = Vec::new();
    let mut say = |name, strength| less.push(Guarantee { name, strength });
    if !found.remapped {
        let why = "the engine maps no ids (userns-remap): a job runs as a subordinate id, in the machine's own user namespace";
        say("own user namespace, never the owner's uid", Weaker { why });
    }
    let why = "the engine keeps a copy of its own, which nobody hashes again";
    say("image read only, by digest", Weaker { why });
    match found.cgroups {
        EngineCgroups::Ours => {}
        EngineCgroups::BelowOurs | EngineCgroups::Systemds => {
            let why = "in a group of the engine's the kernel kills one process; the keeper ends the rest";
            say("memory limit, scratch included", Weaker { why });
        }
    }
    let why = "an engine is not told to open one";
    say("an encrypted disk where a job asks for one", Absent { why });
    let why =
        "if agent, keeper and clerk are all killed while a job stands frozen, it stands until the agent's next start";
    say("no job outlives its grant", Weaker { why });
    less
}

/// Everything that jobs of an engine are promised on a machine whose native ones are promised `native`.
pub fn promised(found: &EngineFound, mut native: Vec<Guarantee>) -> Vec<Guarantee> {
    for less in guarantees(found) {
        match native.iter_mut().find(|guarantee| guarantee.name == less.name) {
            // What the machine itself does not give, no engine does.
            Some(Guarantee {
                strength: Strength::Absent { .. },
                ..
            }) => {}
            Some(guarantee) => *guarantee = less,
            None => native.push(less),
        }
    }
    native
}

/// What an engine's jobs need of the machine itself: the keeper must be root, and must be able to read and set their groups.
///
/// # Errors
/// What is missing, and what to do.
pub fn fits(machine: &Machine, lab: bool) -> Result<CgroupLayout, String> {
    if !machine.root {
        return Err("an agent needs root to guard containers for now: run it as a system service".to_owned());
    }
    if machine.cgroups.join("cgroup.controllers").exists() {
        return Ok(CgroupLayout::V2);
    }
    let unified = machine.cgroups.join(hybrid::UNIFIED).join("cgroup.controllers");
    if unified.exists() && lab {
        return Ok(CgroupLayout::LabCgroupV1);
    }
    Err("this machine has no cgroups of version 2 alone: boot with systemd.unified_cgroup_hierarchy=1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: EngineKind, remapped: bool, cgroups: EngineCgroups) -> EngineFound {
        EngineFound {
            place: EnginePlace::usual(kind),
            version: "26.1".to_owned(),
            remapped,
            cgroups,
            root: PathBuf::from("/var/lib/docker"),
        }
    }

    fn version(number: &str, component: &str) -> SystemVersion {
        serde_json::from_value(serde_json::json!({
            "Version": number,
            "Components": [{ "Name": component, "Version": number }],
        }))
        .unwrap()
    }

    #[test]
    fn engines_that_are_too_old_or_out_of_reach_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let enforcing = folder.path().join("enforce");
        std::fs::write(&enforcing, "1").unwrap();
        let permissive = folder.path().join("none");
        let info = |options: &[&str], system: &str| -> SystemInfo {
            serde_json::from_value(serde_json::json!({
                "SecurityOptions": options, "OperatingSystem": system, "CgroupDriver": "systemd",
            }))
            .unwrap()
        };
        let seccomp = ["name=seccomp,profile=default"];
        let docker = |number: &str| version(number, "Engine");
        let judge = |kind, version: SystemVersion, info: SystemInfo, file: &Path| {
            judge(&EnginePlace::usual(kind), &version, &info, file)
        };
        use EngineKind::{Docker, Podman};
        let plain = info(&seccomp, "Debian");
        for (kind, version, info, file, words) in [
            (Docker, docker("19.03.15"), plain.clone(), &permissive, "20.10"),
            (Docker, docker("dev"), plain.clone(), &permissive, "20.10"),
            (
                Podman,
                version("3.4.4", "Podman Engine"),
                plain.clone(),
                &permissive,
                "4.0",
            ),
            (
                Docker,
                version("4.3.1", "Podman Engine"),
                plain.clone(),
                &permissive,
                "another engine",
            ),
            (Podman, docker("26.1"), plain.clone(), &permissive, "another engine"),
            (Docker, docker("26.1"), info(&[], "Debian"), &permissive, "seccomp"),
            (
                Docker,
                docker("26.1"),
                info(&["name=seccomp", "name=rootless"], "x"),
                &permissive,
                "rootless",
            ),
            (
                Docker,
                docker("26.1"),
                info(&seccomp, "Docker Desktop"),
                &permissive,
                "virtual machine",
            ),
            (Docker, docker("26.1"), plain.clone(), &enforcing, "SELinux"),
        ] {
            let why = judge(kind, version, info, file).unwrap_err();
            assert!(why.contains(words), "{why} for {words}");
        }
        let fit = judge(Docker, docker("20.10.24+dfsg1"), plain, &permissive).unwrap();
        assert_eq!((fit.remapped, fit.cgroups), (false, EngineCgroups::Systemds));
        let mapped = info(&["name=seccomp", "name=userns"], "Debian");
        assert!(judge(Docker, docker("28.0.1"), mapped, &permissive).unwrap().remapped);
    }

    #[test]
    fn an_engine_promises_what_the_machine_does_but_for_what_it_says() {
        let machine = [
            ("no network", Strength::Enforced),
            ("image read only, by digest", Strength::Enforced),
            (
                "an encrypted disk where a job asks for one",
                Strength::Absent { why: "no ext4" },
            ),
        ];
        let machine = machine.map(|(name, strength)| Guarantee { name, strength });
        let said = promised(&found(EngineKind::Docker, true, EngineCgroups::Ours), machine.to_vec());
        let strength = |name: &str| &said.iter().find(|guarantee| guarantee.name == name).unwrap().strength;
        assert_eq!(strength("no network"), &Strength::Enforced);
        assert!(matches!(
            strength("image read only, by digest"),
            Strength::Weaker { .. }
        ));
        assert_eq!(
            strength("an encrypted disk where a job asks for one"),
            &Strength::Absent { why: "no ext4" }
        );
        assert!(matches!(strength("no job outlives its grant"), Strength::Weaker { .. }));
    }
}
