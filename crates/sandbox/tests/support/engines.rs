//! Real container engines of a test's own: data, sockets and logs in a folder that goes with it, ended by process id. One that
//! is not installed, or that this machine cannot start, is skipped by name; where nothing may be skipped that is a failure.

use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use sela_sandbox::docker::image::{EngineImageSettings, EngineImages, GivenImage};
use sela_sandbox::docker::{EngineCgroups, EngineFound, EngineKind, EnginePlace, EnginePlan, look};
use sela_sandbox::ids::ROOTFUL_RANGE;
use sela_sandbox::keeper::wire::JobPlan;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Names the engine that a test program's jobs run in; without it they run natively.
pub(crate) const ENGINE: &str = "SELA_TEST_ENGINE";

/// Whom the files for [`docker`] call the owner of jobs' ids.
const REMAPPED: &str = "sela-remapped";

/// How long an engine may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running engine.
pub(crate) struct Engine {
    pub(crate) place: EnginePlace,
    process: Child,
    folder: tempfile::TempDir,
}

impl Engine {
    /// Starts one; `None` where it was said by name why it is skipped.
    pub(crate) async fn start(kind: EngineKind) -> Option<Self> {
        let program = match kind {
            EngineKind::Docker => "dockerd",
            EngineKind::Podman => "podman",
        };
        let Some(program) = find(program) else {
            let why = format!("{program} is not installed: apt-get install docker.io podman");
            return skip(kind, &why);
        };
        // Short: the engines put sockets into it.
        let folder = tempfile::Builder::new().prefix("sela-e-").tempdir_in(quick()).unwrap();
        let place = EnginePlace {
            kind,
            socket: folder.path().join("engine.sock"),
        };
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = match kind {
            EngineKind::Docker => docker(&program, folder.path()),
            EngineKind::Podman => podman(&program, folder.path(), &place.socket),
        };
        // What watches over Podman's containers leaves a file where it was started.
        command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut engine = Self {
            place,
            process: command.spawn().unwrap(),
            folder,
        };
        match engine.answers().await {
            Ok(()) => Some(engine),
            Err(why) => {
                let why = format!("it does not start here: {why}");
                skip(kind, &why)
            }
        }
    }

    async fn answers(&mut self) -> Result<(), String> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let error = match look(&self.place).await {
                Ok(found) => {
                    println!("{} {} on {:?}", self.place.kind, found.version, found.cgroups);
                    return Ok(());
                }
                Err(error) => error.to_string(),
            };
            let ended = self.process.try_wait().unwrap().is_some();
            if ended || Instant::now() > patience {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(3).collect();
                return Err(format!("{error}; its log ends: {}", last.join(" / ")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What tells another test program of this engine; see [`of_this_run`].
    pub(crate) fn in_words(&self) -> String {
        format!("{}:{}", self.place.kind.name(), self.place.socket.display())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // Asked first: it unmounts and ends what it started.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let patience = Instant::now() + Duration::from_secs(30);
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.process.kill());
        drop(self.process.wait());
        for mount in mounts_below(self.folder.path()) {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
        // What watches over Podman's containers may still be tidying up.
        let patience = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir_all(self.folder.path()).is_err() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The engine of this run's jobs. The image, and what the engine says of itself, come later.
pub(crate) fn of_this_run() -> Option<EnginePlan> {
    let words = std::env::var(ENGINE).ok()?;
    let (name, socket) = words.split_once(':').expect("the engine's name and its socket");
    let kind = match name {
        "docker" => EngineKind::Docker,
        "podman" => EngineKind::Podman,
        other => panic!("{other} is no engine"),
    };
    Some(EnginePlan {
        place: EnginePlace {
            kind,
            socket: PathBuf::from(socket),
        },
        image: String::new(),
        remapped: false,
        cgroups: EngineCgroups::Ours,
    })
}

/// Whether this run's jobs are in one.
pub(crate) fn is_in_engine() -> bool {
    of_this_run().is_some()
}

/// The images of an engine, without any noteworthy limit.
pub(crate) async fn images(place: &EnginePlace) -> EngineImages {
    images_within(place, Bytes::from_gib(4)).await
}

/// The same with a budget.
pub(crate) async fn images_within(place: &EnginePlace, budget: Bytes) -> EngineImages {
    let settings = EngineImageSettings {
        notes: place.socket.with_file_name("notes"),
        budget,
        free_floor: Bytes(0),
        owners: ROOTFUL_RANGE,
    };
    // What an engine is like stays as it is while a test runs, and Podman takes long to say it.
    static KNOWN: Mutex<Vec<EngineFound>> = Mutex::const_new(Vec::new());
    let mut known = KNOWN.lock().await;
    let found = match known.iter().find(|found| found.place == *place) {
        Some(found) => found.clone(),
        None => {
            let found = look(place).await.unwrap();
            known.push(found.clone());
            found
        }
    };
    EngineImages::open(found, settings).unwrap()
}

/// What an agent does before it starts a keeper: the engine is given the layers.
pub(crate) async fn give_image(plan: &mut JobPlan) -> Option<GivenImage> {
    let engine = plan.engine.as_mut()?;
    let images = images(&engine.place).await;
    let layers = std::mem::take(&mut plan.layers);
    let image = images.load(digest_of(&layers), &layers).await.unwrap();
    *engine = images.engine().plan(image.id().to_owned());
    Some(image)
}

/// Tells layers with other content apart.
fn digest_of(layers: &[PathBuf]) -> BlobId {
    fn list(folder: &Path, listing: &mut String) {
        let mut entries: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        entries.sort();
        for path in entries {
            let found = fs::symlink_metadata(&path).unwrap();
            let (name, mode) = (path.file_name().unwrap().to_string_lossy().into_owned(), found.mode());
            listing.push_str(&format!("{name} {mode} {}", found.uid()));
            if found.is_file() {
                listing.push_str(&BlobId::of(&fs::read(&path).unwrap()).to_string());
            } else if found.is_dir() {
                list(&path, listing);
            }
            listing.push(';');
        }
    }
    let mut listing = String::new();
    for layer in layers {
        list(layer, &mut listing);
        listing.push('|');
    }
    BlobId::of(listing.as_bytes())
}

fn skip(kind: EngineKind, why: &str) -> Option<Engine> {
    let everything_is_here = std::env::var_os("CI").is_some();
    let required = std::env::var_os("SELA_REQUIRE_ENGINES").is_some_and(|value| value == "1");
    assert!(!everything_is_here && !required, "{kind} may not be skipped: {why}");
    println!("{kind}: skipped: {why}");
    None
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Where an engine is quick: in memory, where there is enough. It writes many small files and waits for the disk after each.
fn quick() -> PathBuf {
    const ENOUGH: u64 = 2 << 30;
    let shared = PathBuf::from("/dev/shm");
    match rustix::fs::statfs(&shared) {
        Ok(found) if u64::try_from(found.f_bsize).unwrap_or(0) * found.f_bavail >= ENOUGH => shared,
        Ok(_) | Err(_) => std::env::temp_dir(),
    }
}

/// Whether the engines can stack an image's layers in a folder: on a file system that is stacked itself the kernel lets nobody. They
/// copy them there.
fn stacks(folder: &Path) -> bool {
    const OVERLAY: i64 = 0x794c_7630;
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let kind = rustix::fs::statfs(folder).unwrap().f_type;
    kinds.contains("\toverlay\n") && kind != OVERLAY
}

/// Works without a bridge, without iptables and on any file system. It maps ids, as an owner's can be told to: the files that
/// say to which are the machine's own for everybody but it.
fn docker(program: &Path, folder: &Path) -> Command {
    let settings = serde_json::json!({
        "bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false,
        "storage-driver": if stacks(folder) { "overlay2" } else { "vfs" },
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "userns-remap": REMAPPED,
        "data-root": folder.join("data"),
        "exec-root": folder.join("exec"),
        "pidfile": folder.join("pid"),
        "hosts": [format!("unix://{}", folder.join("engine.sock").display())],
    });
    let file = folder.join("daemon.json");
    fs::write(&file, settings.to_string()).unwrap();
    let range = format!("{REMAPPED}:{}:{}\n", ROOTFUL_RANGE.first, ROOTFUL_RANGE.count);
    let mut script = String::new();
    for name in ["subuid", "subgid", "passwd", "group"] {
        let machines = Path::new("/etc").join(name);
        let own = folder.join(name);
        let mut text = fs::read_to_string(&machines).unwrap_or_default();
        match name {
            "passwd" => text.push_str(&format!("{REMAPPED}:x:61999:61999::/:/bin/false\n")),
            "group" => text.push_str(&format!("{REMAPPED}:x:61999:\n")),
            _ => text.clone_from(&range),
        }
        fs::write(&own, text).unwrap();
        script.push_str(&format!("mount --bind {} {} && ", own.display(), machines.display()));
    }
    script.push_str(&format!("exec {} --config-file {}", program.display(), file.display()));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command
}

fn podman(program: &Path, folder: &Path, socket: &Path) -> Command {
    let mut command = Command::new(program);
    for (option, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
        command.arg(option).arg(folder.join(name));
    }
    command.args([
        "--storage-driver",
        if stacks(folder) { "overlay" } else { "vfs" },
        "--cgroup-manager",
        "cgroupfs",
        "--events-backend",
        "none",
    ]);
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        // The one that it prefers does not work where the versions of cgroups are mixed.
        command.args(["--runtime", "runc"]);
    }
    command.args(["system", "service", "--time", "0"]);
    command.arg(format!("unix://{}", socket.display()));
    command
}

fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    let mut found: Vec<_> = places.filter(|place| place.starts_with(folder)).collect();
    found.reverse();
    found
}
