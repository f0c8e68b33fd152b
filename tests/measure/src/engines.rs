//! Peers with a daemon or a store: Docker and Podman, each with folders of its own that go with the measurement, each with the
//! small image pulled before anything is measured.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sela_sandbox::ids::ROOTFUL_RANGE;

use crate::image::Small;
use crate::native::{MEMORY, PROCESSES};
use crate::peers::{FirstVersion, Peer, Running, end_with_us, said};

/// Whom the files for the daemon call the owner of containers' ids.
const REMAPPED: &str = "sela-remapped";
/// How long a daemon may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(60);

/// What both are asked for, beside how ids are mapped.
fn walls(profile: &Path) -> Vec<String> {
    let calls = format!("seccomp={}", profile.display());
    let memory = MEMORY.0.to_string();
    let processes = PROCESSES.to_string();
    let place = format!("size={}", MEMORY.0);
    let words = [
        "--network",
        "none",
        "--read-only",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--security-opt",
        &calls,
        "--memory",
        &memory,
        "--memory-swap",
        &memory,
        "--pids-limit",
        &processes,
        "--ulimit",
        "nofile=1024:1024",
        "--hostname",
        "sela-job",
    ];
    let mut walls: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    for folder in ["/tmp", "/out", "/checkpoint"] {
        walls.extend(["--tmpfs".to_owned(), format!("{folder}:{place}")]);
    }
    walls
}

/// Docker, by its own client and a daemon of ours.
pub(crate) struct Docker {
    daemon: Child,
    folder: PathBuf,
    image: String,
    walls: Vec<String>,
}

impl Docker {
    pub(crate) fn begin(folder: &Path, small: &Small, profile: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let log = File::create(folder.join("log"))?;
        let daemon = daemon(folder)?
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut docker = Self {
            daemon,
            folder: folder.to_owned(),
            image: small.reference.clone(),
            walls: walls(profile),
        };
        docker.wait_until_up()?;
        said(&mut docker.command(&["pull", "--quiet", &docker.image]))?;
        Ok(docker)
    }

    fn wait_until_up(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while said(&mut self.command(&["version"])).is_err() {
            let ended = self.daemon.try_wait()?.is_some();
            ensure!(
                !ended && begun.elapsed() < PATIENCE,
                "dockerd does not start: {}",
                std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(client());
        command
            .arg("--host")
            .arg(format!("unix://{}", self.folder.join("engine.sock").display()));
        command.env("DOCKER_CONFIG", self.folder.join("client")).args(words);
        command
    }
}

/// The one that came with the daemon, where there are two.
fn client() -> &'static str {
    let beside = "/usr/bin/docker";
    if Path::new(beside).is_file() { beside } else { "docker" }
}

/// Without a bridge and without iptables, with ids mapped to a job's: the files that say to which are the machine's own for
/// everybody but it.
fn daemon(folder: &Path) -> anyhow::Result<Command> {
    let settings = serde_json::json!({
        "bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false,
        "storage-driver": "overlay2",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "userns-remap": REMAPPED,
        "data-root": folder.join("data"),
        "exec-root": folder.join("exec"),
        "pidfile": folder.join("pid"),
        "hosts": [format!("unix://{}", folder.join("engine.sock").display())],
    });
    let file = folder.join("daemon.json");
    std::fs::write(&file, settings.to_string())?;
    let mut script = String::new();
    for name in ["subuid", "subgid", "passwd", "group"] {
        let machines = Path::new("/etc").join(name);
        let own = folder.join(name);
        let before = std::fs::read_to_string(&machines).unwrap_or_default();
        let text = match name {
            "passwd" => format!("{before}{REMAPPED}:x:61999:61999::/:/bin/false\n"),
            "group" => format!("{before}{REMAPPED}:x:61999:\n"),
            _ => format!("{REMAPPED}:{}:{}\n", ROOTFUL_RANGE.first, ROOTFUL_RANGE.count),
        };
        std::fs::write(&own, text)?;
        // A machine without the file has nothing to lay it over.
        if !machines.exists() {
            File::create(&machines).with_context(|| format!("cannot make {}", machines.display()))?;
        }
        script.push_str(&format!("mount --bind {} {} && ", own.display(), machines.display()));
    }
    script.push_str(&format!("exec dockerd --config-file {}", file.display()));
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .current_dir(folder);
    end_with_us(&mut command);
    Ok(command)
}

impl Peer for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn version(&self) -> anyhow::Result<String> {
        let version =
            said(&mut self.command(&["version", "--format", "{{.Server.Version}}, client {{.Client.Version}}"]))?;
        Ok(format!("Docker {version}"))
    }

    fn run(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let mut command = self.command(&["run", "--rm", "--name", name]);
        let (program, rest) = arguments.split_first().context("a program")?;
        command
            .args(&self.walls)
            .args(["--entrypoint", program, &self.image])
            .args(rest);
        Ok(command)
    }

    fn freeze(&self, name: &str) -> Option<Command> {
        Some(self.command(&["pause", name]))
    }

    fn thaw(&self, name: &str) -> Option<Command> {
        Some(self.command(&["unpause", name]))
    }

    fn kill(&self, name: &str, _running: &Running) -> Command {
        self.command(&["kill", name])
    }

    fn first_process(&self, name: &str) -> anyhow::Result<u32> {
        Ok(said(&mut self.command(&["inspect", "--format", "{{.State.Pid}}", name]))?.parse()?)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        // Asked, not killed: it unmounts and ends what it started.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.daemon.wait();
        unmount_below(&self.folder);
    }
}

/// Podman's own folders, and how it sees the machine.
#[derive(Clone)]
pub(crate) struct PodmanStore {
    folder: PathBuf,
    view: Option<Rc<FirstVersion>>,
}

impl PodmanStore {
    pub(crate) fn new(folder: &Path, view: Option<Rc<FirstVersion>>) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let folder = folder.to_owned();
        Ok(Self { folder, view })
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("podman");
        for (option, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(option).arg(self.folder.join(name));
        }
        command.args([
            "--storage-driver",
            "overlay",
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "none",
        ]);
        command.current_dir(&self.folder);
        FirstVersion::show_to(self.view.as_ref(), &mut command);
        command
    }
}

/// Podman, which has no daemon.
pub(crate) struct Podman {
    store: PodmanStore,
    image: String,
    walls: Vec<String>,
}

impl Podman {
    pub(crate) fn begin(store: PodmanStore, small: &Small, profile: &Path) -> anyhow::Result<Self> {
        said(
            store
                .command()
                .args(["pull", "--quiet", "--tls-verify=false", &small.reference]),
        )?;
        Ok(Self {
            store,
            image: small.reference.clone(),
            walls: walls(profile),
        })
    }

    fn own(&self, words: &[&str]) -> Command {
        let mut command = self.store.command();
        command.args(words);
        command
    }
}

impl Peer for Podman {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn version(&self) -> anyhow::Result<String> {
        let format = "{{.Host.OCIRuntime.Name}}";
        let runtime = said(&mut self.own(&["info", "--format", format]))?;
        let seen = FirstVersion::words(self.store.view.as_ref());
        Ok(format!(
            "{}, over {runtime}{seen}",
            said(&mut self.own(&["--version"]))?
        ))
    }

    fn run(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let map = format!("0:{}:{}", ROOTFUL_RANGE.first, ROOTFUL_RANGE.count);
        let mut command = self.own(&[
            "run", "--rm", "--pull", "never", "--name", name, "--uidmap", &map, "--gidmap", &map,
        ]);
        let (program, rest) = arguments.split_first().context("a program")?;
        // It would ask for more processes than a mapped user may have.
        command.args(["--ulimit", "nproc=4096:4096"]);
        command
            .args(&self.walls)
            .args(["--entrypoint", program, &self.image])
            .args(rest);
        Ok(command)
    }

    fn freeze(&self, name: &str) -> Option<Command> {
        Some(self.own(&["pause", name]))
    }

    fn thaw(&self, name: &str) -> Option<Command> {
        Some(self.own(&["unpause", name]))
    }

    fn kill(&self, name: &str, _running: &Running) -> Command {
        self.own(&["kill", name])
    }

    fn first_process(&self, name: &str) -> anyhow::Result<u32> {
        Ok(said(&mut self.own(&["inspect", "--format", "{{.State.Pid}}", name]))?.parse()?)
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        drop(said(&mut self.own(&["rm", "--all", "--force"])));
        unmount_below(&self.store.folder);
    }
}

fn unmount_below(folder: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    let mut below: Vec<_> = places.filter(|place| place.starts_with(folder)).collect();
    below.reverse();
    for place in below {
        let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
    }
}
