//! Which container engines this machine has, and what each can promise. Looks, and asks the engine for its version; starts and
//! changes nothing.

use crate::ids::IdRange;
use crate::probe::{Guarantee, Strength};
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

    /// Speaks to it, in the newest words that both know.
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
        engine.negotiate_version().await.map_err(failed)
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

/// What an engine promises of a job, in the words of `docs/security.md`, and in the order of the native backend's.
pub fn guarantees(found: &EngineFound) -> Vec<Guarantee> {
    use Strength::{Absent, Enforced, Weaker};
    let ids = if found.remapped {
        Enforced
    } else {
        Weaker {
            why: "the engine maps no ids (userns-remap): a job runs as a subordinate id, in the machine's own user namespace",
        }
    };
    let memory = match found.cgroups {
        EngineCgroups::Ours => Enforced,
        EngineCgroups::BelowOurs | EngineCgroups::Systemds => Weaker {
            why: "in a group of the engine's the kernel kills one process; the keeper ends the rest",
        },
    };
    [
        ("own user namespace, never the owner's uid", ids),
        ("no capabilities, no new privileges", Enforced),
        ("own list of system calls", Enforced),
        (
            "image read only, by digest",
            Weaker {
                why: "the engine keeps a copy of its own, which nobody hashes again",
            },
        ),
        ("no network", Enforced),
        ("sees its own processes only", Enforced),
        ("sees its own card only", Enforced),
        ("memory limit, scratch included", memory),
        ("no swap", Enforced),
        ("process limit", Enforced),
        ("CPU only when idle", Enforced),
        (
            "disk only when idle",
            Weaker {
                why: "idle I/O class, which only some schedulers obey",
            },
        ),
        ("frozen as a whole, killed as a whole", Enforced),
        ("billed by the kernel's own record of freezes", Enforced),
        ("results unreadable on the owner's disk", Absent { why: "placeholder" }),
    ]
    .map(|(name, strength)| Guarantee { name, strength })
    .to_vec()
}
