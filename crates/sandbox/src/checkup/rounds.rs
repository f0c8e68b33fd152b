//! The jobs of a checkup, one after the other, and what was seen of each from inside and from outside. Says what came, never whether it is
//! good: that is `judge`'s.

use super::ask::{self, Answers, Question};
use super::questions::{self, Places, SECRET as SECRET_NAME};
use super::run::{Outcome, Running};
use super::{CheckupError, Ground, MARK, SECRET};
use crate::docker::image::{EngineImageSettings, EngineImages};
use crate::keeper::wire::{CgroupLayout, Collected, Egress, JobPlan, Limits, Order, Program, Stop};
use crate::network::{Gateway, Internet, OwnersLine, PROXY};
use bollard::query_parameters::RemoveImageOptions;
use sela_protocol::blob::BlobId;
use sela_protocol::confidential::{Confidential, SealingKey, SecretNameError, SecretValue};
use sela_protocol::id::IdSource;
use sela_protocol::lease::EndCause;
use sela_protocol::network::{JobNetwork, NetworkShare};
use sela_protocol::sealed::{self, Purpose};
use sela_protocol::units::{Bytes, Millis};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, lchown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Memory of a job.
pub(super) const MEMORY: Bytes = Bytes::from_mib(48);
/// What a job that wants more than that asks for.
const EXCESS: u64 = 96 << 20;
/// Processes of a job, its init and the program included.
pub(super) const PIDS: u32 = 12;
/// Open files of a process.
pub(super) const FILES: u64 = 48;
/// Bytes that a job may print.
pub(super) const LOG: Bytes = Bytes(256 << 10);
/// Bytes that a job may leave.
const OUTPUT: Bytes = Bytes::from_mib(1);
/// An encrypted disk, at its smallest.
const DISK: Bytes = Bytes::from_mib(16);
/// A host that its tenant asks for and the owner does not allow.
const NOT_ALLOWED: &str = "sela-checkup.example.org:443";
/// How long a job stands frozen.
pub(super) const STANDSTILL: Duration = Duration::from_millis(200);

/// What was seen of each job; why not, where one could not be tried.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    pub(super) engine: bool,
    pub(super) around: Result<Around, String>,
    pub(super) standing: Result<Standing, String>,
    pub(super) memory: Result<Outcome, String>,
    pub(super) scratch: Result<Outcome, String>,
    pub(super) noise: Result<Outcome, String>,
    pub(super) proxied: Result<Proxied, String>,
    pub(super) abandoned: Result<Vec<String>, String>,
    /// `None` where no job is offered one.
    pub(super) disk: Option<Result<Outcome, String>>,
    /// What is left when all are gone.
    pub(super) left: Vec<String>,
}

/// Of the job that looked around.
#[derive(Debug, Clone)]
pub(super) struct Around {
    pub(super) answers: Answers,
    /// Whether its results lie on the disk as they were written.
    pub(super) readable: bool,
    /// Whether they open with the job's key.
    pub(super) opens: bool,
    /// Whether its secret lies on the disk.
    pub(super) secret_on_disk: bool,
}

/// Of the job that stood beside two processes that never stop.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) processes: Vec<Seen>,
    pub(super) idle: Option<String>,
    /// The limit on swap: what it reads, and what it should.
    pub(super) swap: Option<(String, String)>,
    /// From the order to every thread standing still, in microseconds.
    pub(super) frozen_after_us: u64,
    /// What the cgroup itself says.
    pub(super) frozen: bool,
    /// Processor time that was used in between, in microseconds.
    pub(super) used_frozen_us: u64,
    /// What the kernel's record of it says at the end.
    pub(super) stop: Stop,
    pub(super) left: Vec<String>,
}

/// A process of a job, from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) uid: u32,
    /// Whether its user namespace is another than ours.
    pub(super) own_namespace: bool,
}

/// Of the job with a proxy and no host that it may reach.
#[derive(Debug, Clone)]
pub(super) struct Proxied {
    pub(super) answers: Answers,
    pub(super) owners_port_was_reached: bool,
}

/// All of them. When the time is over, what is missing is said to be, and its keeper ends it.
pub(super) async fn all(ground: &Ground) -> Result<Evidence, CheckupError> {
    let until = Instant::now() + ground.limit;
    let stage = Stage::furnish(ground, until).await?;
    let evidence = stage.evidence().await;
    stage.clear().await;
    Ok(evidence)
}

/// What the owner has, for the jobs not to reach.
struct Owner {
    file: PathBuf,
    port: TcpListener,
    name: String,
    _named: UnixListener,
}

struct Stage<'a> {
    ground: &'a Ground,
    until: Instant,
    layer: PathBuf,
    owner: Owner,
    images: Option<(EngineImages, String)>,
}

impl<'a> Stage<'a> {
    async fn furnish(ground: &'a Ground, until: Instant) -> Result<Self, CheckupError> {
        let folder = |path: &Path| {
            let path = path.to_owned();
            move |source| CheckupError::Folder { path, source }
        };
        let layer = ground.folder.join("layer");
        make_image(&layer, ground.ids.first).map_err(folder(&layer))?;
        let owner = Owner::furnish(&ground.folder).map_err(folder(&ground.folder))?;
        let images = match &ground.engine {
            None => None,
            Some(found) => {
                let settings = EngineImageSettings {
                    notes: ground.folder.join("engine-images"),
                    budget: Bytes(u64::MAX),
                    free_floor: Bytes(0),
                    owners: ground.ids,
                };
                let engine = |error: &dyn std::fmt::Display| CheckupError::Engine(error.to_string());
                let images = EngineImages::open(found.clone(), settings).map_err(|error| engine(&error))?;
                let digest = BlobId::of(ask::PROGRAM);
                let given = images.load(digest, std::slice::from_ref(&layer)).await;
                let id = given.map_err(|error| engine(&error))?.id().to_owned();
                Some((images, id))
            }
        };
        Ok(Self {
            ground,
            until,
            layer,
            owner,
            images,
        })
    }

    /// The image that the engine was given.
    async fn clear(&self) {
        if let Some((images, id)) = &self.images
            && let Ok(engine) = images.engine().place.connect().await
        {
            // One that it keeps is the agent's to remove with the other images that were of no use for long.
            drop(engine.remove_image(id, None::<RemoveImageOptions>, None).await);
        }
    }

    async fn evidence(&self) -> Evidence {
        let around = self.in_time(self.look_around()).await;
        let standing = self.in_time(self.stand()).await;
        let memory = vec![Question::touch("memory", EXCESS)];
        let scratch = vec![questions::fill("scratch", "/tmp/fill", EXCESS)];
        let noise = vec![
            questions::fill("results", "/out/fill", 2 * OUTPUT.0),
            Question::noise("noise", 2 * LOG.0),
        ];
        let disk = if self.ground.disk && self.images.is_none() {
            Some(self.in_time(self.simply("disk", questions::kinds(), Some(DISK))).await)
        } else {
            None
        };
        Evidence {
            engine: self.images.is_some(),
            around,
            standing,
            memory: self.in_time(self.simply("memory", memory, None)).await,
            scratch: self.in_time(self.simply("scratch", scratch, None)).await,
            noise: self.in_time(self.simply("noise", noise, None)).await,
            proxied: self.in_time(self.ask_proxy()).await,
            abandoned: self.in_time(self.abandon()).await,
            disk,
            left: found_in(&self.ground.folder, MARK)
                .into_iter()
                .chain(found_in(&self.ground.folder, SECRET))
                .chain(mounts_below(&self.ground.folder))
                .collect(),
        }
    }

    async fn in_time<T>(&self, job: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        timeout_at(self.until, job)
            .await
            .unwrap_or_else(|_| Err("the time for all of them was over: is the machine busy?".to_owned()))
    }

    /// A job that is asked all this, in a scratch folder of its own.
    fn plan(&self, name: &str, questions: &[Question]) -> Result<JobPlan, String> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
        let mut ids = IdSource::new(sela_clock::now().utc_ms, seed);
        let scratch = self.ground.folder.join(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&scratch);
        made.map_err(|error| format!("{}: {error}", scratch.display()))?;
        let words = questions.iter().map(Question::word);
        Ok(JobPlan {
            lease: ids.draw(),
            job: ids.draw(),
            layers: match self.images {
                Some(_) => Vec::new(),
                None => vec![self.layer.clone()],
            },
            program: Program {
                arguments: std::iter::once("/asks".to_owned()).chain(words).collect(),
                environment: Vec::new(),
                folder: PathBuf::from("/"),
                user: 0,
                group: 0,
            },
            ids: self.ground.ids,
            cgroups: self.ground.cgroups.clone(),
            limits: Limits {
                memory: MEMORY,
                pids: PIDS,
                open_files: FILES,
                shm_size: Bytes::from_mib(1),
                log: LOG,
                wall_ms: Millis::from_secs(self.ground.limit.as_secs()),
                output: OUTPUT,
                disk: None,
            },
            inputs: None,
            resume_from: None,
            checkpoint_every_ms: None,
            card: None,
            egress: Egress::None,
            engine: self
                .images
                .as_ref()
                .map(|(images, id)| images.engine().plan(id.clone())),
            account: self.ground.folder.join(format!("{name}.json")),
            scratch,
        })
    }

    async fn start(&self, plan: &JobPlan) -> Result<Running, String> {
        self.start_with(plan, &confidential()?).await
    }

    async fn start_with(&self, plan: &JobPlan, confidential: &Confidential) -> Result<Running, String> {
        Running::start(&self.ground.keeper, plan, confidential, self.ground.limit / 3).await
    }

    /// A job that ends by itself, or by its limits.
    async fn simply(&self, name: &str, questions: Vec<Question>, disk: Option<Bytes>) -> Result<Outcome, String> {
        let mut plan = self.plan(name, &questions)?;
        plan.limits.disk = disk;
        let outcome = self.start(&plan).await?.finish().await?;
        match &outcome.stop {
            Ok(_) => Ok(outcome),
            Err(fault) => Err(fault.message.clone()),
        }
    }

    async fn look_around(&self) -> Result<Around, String> {
        let places = self.owner.places();
        let plan = self.plan("around", &questions::around(&places))?;
        let confidential = confidential()?;
        let running = self.start_with(&plan, &confidential).await?;
        let outcome = running.finish().await?;
        outcome.stop.map_err(|fault| fault.message)?;
        let sealed = match &outcome.outputs {
            Collected::Archived { archive } => fs::read(&archive.path).unwrap_or_default(),
            Collected::Nothing | Collected::Refused { .. } => Vec::new(),
        };
        let opened = sealed::open(&confidential.result_key, Purpose::Output, &sealed);
        let around = Around {
            answers: outcome.answers,
            readable: !found_in(&plan.scratch, MARK).is_empty(),
            opens: opened.is_ok_and(|opened| holds(&opened, MARK)),
            secret_on_disk: !found_in(&self.ground.folder, SECRET).is_empty(),
        };
        drop(fs::remove_dir_all(&plan.scratch));
        Ok(around)
    }

    async fn stand(&self) -> Result<Standing, String> {
        let plan = self.plan("standing", &[Question::stand("stands", questions::SPINNING)])?;
        let mut running = self.start(&plan).await?;
        let cgroup = running.until_started().await?;
        running.until_answered("stands").await?;
        let processes = seen_in(&cgroup);
        let idle = reads(&self.controller(&cgroup, "cpu").join("cpu.idle"));
        let swap = self.swap(&cgroup);
        let cause = EndCause::OwnerInput;
        running.order(Order::Freeze { cause }).await?;
        let frozen_after_us = running.until_frozen().await?;
        let before = processor_time(&cgroup);
        tokio::time::sleep(STANDSTILL).await;
        let (after, frozen) = (processor_time(&cgroup), is_frozen(&cgroup));
        running.order(Order::Thaw).await?;
        running.until_thawed().await?;
        let cause = EndCause::OwnerCommand;
        running.order(Order::End { cause }).await?;
        let outcome = running.finish().await?;
        let stop = outcome.stop.map_err(|fault| fault.message)?;
        Ok(Standing {
            processes,
            idle,
            swap,
            frozen_after_us,
            frozen,
            used_frozen_us: after.saturating_sub(before),
            stop,
            left: self.left_of(&plan, &cgroup),
        })
    }

    async fn ask_proxy(&self) -> Result<Proxied, String> {
        let own = format!("127.0.0.1:{}", self.port());
        // The address at which clouds tell a machine its secrets, and a name set aside for examples.
        let hosts = [own.as_str(), "169.254.169.254:80", NOT_ALLOWED];
        let questions: Vec<Question> = (0..)
            .zip(hosts)
            .map(|(at, host)| questions::ask_proxy(&format!("proxy_{at}"), PROXY, host))
            .collect();
        let mut plan = self.plan("proxied", &questions)?;
        plan.egress = Egress::Proxy;
        let mut running = self.start(&plan).await?;
        let mut door = running.door().ok_or("the keeper has no door")?;
        let line = OwnersLine::new(NetworkShare {
            hosts: Vec::new(),
            down_per_s: Bytes::from_mib(1),
            up_per_s: Bytes::from_mib(1),
            job_bytes: Bytes::from_mib(1),
        });
        let network = JobNetwork {
            hosts: vec![NOT_ALLOWED.parse().map_err(|error| format!("{error}"))?],
            down_per_s: None,
            up_per_s: None,
            bytes: None,
        };
        let serving = async move {
            if let Ok(Some(listener)) = door.listener().await
                && let Ok(gateway) = Gateway::open(listener, &network, &line, Internet)
            {
                let _open = gateway;
                std::future::pending::<()>().await;
            }
            std::future::pending::<()>().await;
        };
        let outcome = tokio::select! {
            outcome = running.finish() => outcome?,
            () = serving => return Err("the proxy ended".to_owned()),
        };
        Ok(Proxied {
            answers: outcome.answers,
            owners_port_was_reached: self.owner.port.accept().is_ok(),
        })
    }

    /// Hangs up, as an agent that is killed does; gives what is left.
    async fn abandon(&self) -> Result<Vec<String>, String> {
        let plan = self.plan("abandoned", &[Question::stand("stands", questions::SPINNING)])?;
        let mut running = self.start(&plan).await?;
        let cgroup = running.until_started().await?;
        running.until_answered("stands").await?;
        running.hang_up();
        drop(running.finish().await?);
        let mut left = self.left_of(&plan, &cgroup);
        if plan.scratch.exists() {
            left.push(plan.scratch.display().to_string());
        }
        Ok(left)
    }

    fn port(&self) -> u16 {
        self.owner.port()
    }

    /// The folder of a controller, for a group whose version 2 folder is this.
    fn controller(&self, cgroup: &Path, name: &str) -> PathBuf {
        let root = &self.ground.cgroups.root;
        match self.ground.cgroups.layout {
            CgroupLayout::V2 => cgroup.to_owned(),
            CgroupLayout::LabCgroupV1 => {
                let inside = cgroup.strip_prefix(root.join(crate::cgroup::hybrid::UNIFIED));
                root.join(name).join(inside.unwrap_or(cgroup))
            }
        }
    }

    fn swap(&self, cgroup: &Path) -> Option<(String, String)> {
        let folder = self.controller(cgroup, "memory");
        let (file, expected) = match self.ground.cgroups.layout {
            CgroupLayout::V2 => ("memory.swap.max", 0),
            CgroupLayout::LabCgroupV1 => ("memory.memsw.limit_in_bytes", MEMORY.0),
        };
        Some((reads(&folder.join(file))?, expected.to_string()))
    }

    /// What of a job that is gone is still there.
    fn left_of(&self, plan: &JobPlan, cgroup: &Path) -> Vec<String> {
        let folders = ["memory", "pids", "cpu"].map(|name| self.controller(cgroup, name));
        let mut left: Vec<String> = folders
            .iter()
            .map(PathBuf::as_path)
            .chain([cgroup])
            .filter(|folder| folder.exists())
            .map(|folder| folder.display().to_string())
            .collect();
        left.dedup();
        left.extend(mounts_below(&plan.scratch));
        left
    }
}

impl Owner {
    fn furnish(folder: &Path) -> io::Result<Self> {
        let file = folder.join("owners");
        fs::write(&file, "of the owner's\n")?;
        // Anybody's: what keeps a job from it must be the walls.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        let port = TcpListener::bind(("127.0.0.1", 0))?;
        port.set_nonblocking(true)?;
        let name = format!("sela-checkup-{}", std::process::id());
        let named = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok(Self {
            file,
            port,
            name,
            _named: named,
        })
    }

    fn port(&self) -> u16 {
        self.port.local_addr().map_or(0, |address| address.port())
    }

    fn places(&self) -> Places<'_> {
        Places {
            root: "",
            writable: "/tmp",
            owners_file: &self.file,
            owners_port: self.port(),
            owners_name: &self.name,
        }
    }
}

/// One program, owned by the job's root.
fn make_image(layer: &Path, owner: u32) -> io::Result<()> {
    let program = layer.join("asks");
    fs::create_dir(layer)?;
    fs::write(&program, ask::PROGRAM)?;
    for path in [&program, layer] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        lchown(path, Some(owner), Some(owner))?;
    }
    Ok(())
}

fn confidential() -> Result<Confidential, String> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| error.to_string())?;
    let name = SECRET_NAME.to_owned().try_into();
    let name = name.map_err(|error: SecretNameError| error.to_string())?;
    let value = SecretValue::new(SECRET.to_owned());
    Ok(Confidential {
        result_key: SealingKey::from_bytes(key),
        secrets: BTreeMap::from([(name, value)]),
    })
}

fn reads(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn keyed(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    found.and_then(|value| value.trim().parse().ok())
}

fn processor_time(cgroup: &Path) -> u64 {
    keyed(&cgroup.join("cpu.stat"), "usage_usec").unwrap_or(0)
}

fn is_frozen(cgroup: &Path) -> bool {
    keyed(&cgroup.join("cgroup.events"), "frozen") == Some(1)
}

/// Every process in a group and in those that an engine made below it.
pub(super) fn seen_in(cgroup: &Path) -> Vec<Seen> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let own = namespace("self");
    let mut seen: Vec<Seen> = reads(&cgroup.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|pid| {
            Some(Seen {
                uid: uid_of(pid)?,
                own_namespace: namespace(pid) != own,
            })
        })
        .collect();
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            seen.extend(seen_in(&entry.path()));
        }
    }
    seen
}

/// The effective user id, as this process's user namespace counts.
fn uid_of(pid: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn mounts_below(folder: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .filter(|place| Path::new(place).starts_with(folder))
        .map(|place| format!("a mount on {place}"))
        .collect()
}

/// Files below a folder that hold a text.
pub(super) fn found_in(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(found_in(&path, text));
        } else if kind.is_file() && fs::read(&path).is_ok_and(|bytes| holds(&bytes, text)) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
