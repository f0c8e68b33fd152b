//! Peers without a daemon: the OCI runtimes crun and runc, given a bundle that asks for what a job of ours gets, and bubblewrap,
//! which knows no cgroups and so neither limits nor freezing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::Context;
use sela_sandbox::ids::ROOTFUL_RANGE;
use serde_json::{Value, json};

use crate::native::{MEMORY, PROCESSES};
use crate::peers::{FirstVersion, Peer, Rooted, Running, said};

/// An OCI runtime.
pub(crate) struct Oci {
    program: &'static str,
    folder: PathBuf,
    root: Rc<Rooted>,
    view: Option<Rc<FirstVersion>>,
}

impl Oci {
    pub(crate) fn new(
        program: &'static str,
        folder: &Path,
        root: &Rc<Rooted>,
        view: Option<Rc<FirstVersion>>,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder.join("state"))?;
        Ok(Self {
            program,
            folder: folder.to_owned(),
            root: Rc::clone(root),
            view,
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.arg("--root").arg(self.folder.join("state")).args(words);
        FirstVersion::show_to(self.view.as_ref(), &mut command);
        command
    }

    fn config(&self, name: &str, arguments: &[&str]) -> Value {
        let ids = json!([{ "containerID": 0, "hostID": ROOTFUL_RANGE.first, "size": ROOTFUL_RANGE.count }]);
        let kinds = ["pid", "mount", "network", "ipc", "uts", "user", "cgroup"];
        let namespaces: Vec<Value> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
        let place = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
        let memory = format!("size={}", MEMORY.0);
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": { "uid": 0, "gid": 0 },
                "args": arguments,
                "env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"],
                "cwd": "/",
                "capabilities": { "bounding": [], "effective": [], "permitted": [], "inheritable": [], "ambient": [] },
                "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024 }],
                "noNewPrivileges": true,
            },
            "root": { "path": self.root.0, "readonly": true },
            "hostname": "sela-job",
            "mounts": [
                place("/proc", "proc", &["nosuid", "nodev", "noexec"]),
                place("/dev", "tmpfs", &["nosuid", "noexec", "size=65536", "mode=755"]),
                place("/dev/shm", "tmpfs", &["nosuid", "nodev", "noexec", "mode=1777", "size=16777216"]),
                place("/tmp", "tmpfs", &["nosuid", "nodev", "mode=1777", &memory]),
                place("/out", "tmpfs", &["nosuid", "nodev", "noexec", &memory]),
                place("/checkpoint", "tmpfs", &["nosuid", "nodev", "noexec", &memory]),
            ],
            "linux": {
                "uidMappings": ids,
                "gidMappings": ids,
                "namespaces": namespaces,
                "cgroupsPath": format!("/sela-measure-{}/{name}", self.program),
                "resources": {
                    "memory": { "limit": MEMORY.0, "swap": MEMORY.0 },
                    "pids": { "limit": PROCESSES },
                },
                "seccomp": sela_sandbox::docker::call_list(),
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/interrupts", "/proc/sysrq-trigger", "/proc/acpi", "/proc/scsi"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
            },
        })
    }
}

impl Peer for Oci {
    fn name(&self) -> &'static str {
        self.program
    }

    fn version(&self) -> anyhow::Result<String> {
        let text = said(Command::new(self.program).arg("--version"))?;
        let version = text.lines().next().unwrap_or_default();
        Ok(format!("{version}{}", FirstVersion::words(self.view.as_ref())))
    }

    fn run(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let bundle = self.folder.join("bundle");
        std::fs::create_dir_all(&bundle)?;
        std::fs::write(bundle.join("config.json"), self.config(name, arguments).to_string())?;
        let mut command = self.command(&["run", "--bundle"]);
        command.arg(bundle).arg(name);
        Ok(command)
    }

    fn freeze(&self, name: &str) -> Option<Command> {
        Some(self.command(&["pause", name]))
    }

    fn thaw(&self, name: &str) -> Option<Command> {
        Some(self.command(&["resume", name]))
    }

    fn kill(&self, name: &str, _running: &Running) -> Command {
        self.command(&["kill", name, "KILL"])
    }

    fn first_process(&self, name: &str) -> anyhow::Result<u32> {
        let state: Value = serde_json::from_str(&said(&mut self.command(&["state", name]))?)?;
        let pid = state["pid"].as_u64().context("a state with a process id")?;
        Ok(u32::try_from(pid)?)
    }
}

impl Drop for Oci {
    fn drop(&mut self) {
        // The groups above the containers' own, which runtimes leave.
        let name = format!("sela-measure-{}", self.program);
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for folder in hierarchies
            .map(|hierarchy| hierarchy.path())
            .chain([PathBuf::from("/sys/fs/cgroup")])
        {
            let _ = std::fs::remove_dir(folder.join(&name));
        }
    }
}

/// bubblewrap.
pub(crate) struct Bubblewrap {
    folder: PathBuf,
    root: Rc<Rooted>,
}

impl Bubblewrap {
    pub(crate) fn new(folder: &Path, root: &Rc<Rooted>) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            root: Rc::clone(root),
        })
    }
}

impl Peer for Bubblewrap {
    fn name(&self) -> &'static str {
        "bubblewrap"
    }

    fn version(&self) -> anyhow::Result<String> {
        said(Command::new("bwrap").arg("--version"))
    }

    /// It maps a single id and takes compiled filters only, so it goes without ours.
    fn run(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let said_in = self.folder.join(name);
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec bwrap --info-fd 3 \"$@\" 3>\"$0\""])
            .arg(said_in);
        command.args([
            "--unshare-all",
            "--unshare-user",
            "--uid",
            "0",
            "--gid",
            "0",
            "--cap-drop",
            "ALL",
        ]);
        command.args([
            "--die-with-parent",
            "--new-session",
            "--hostname",
            "sela-job",
            "--clearenv",
        ]);
        command
            .args(["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--ro-bind"])
            .arg(&self.root.0)
            .arg("/");
        command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/out"]);
        command.args(["--tmpfs", "/checkpoint", "--"]).args(arguments);
        Ok(command)
    }

    fn freeze(&self, _name: &str) -> Option<Command> {
        None
    }

    fn thaw(&self, _name: &str) -> Option<Command> {
        None
    }

    /// Nothing but its own process is there to be told.
    fn kill(&self, _name: &str, running: &Running) -> Command {
        let mut command = Command::new("kill");
        command.args(["-KILL", &running.pid().to_string()]);
        command
    }

    fn first_process(&self, name: &str) -> anyhow::Result<u32> {
        let text = std::fs::read_to_string(self.folder.join(name))?;
        let said: Value = serde_json::from_str(&text)?;
        let pid = said["child-pid"].as_u64().context("bwrap names its child")?;
        Ok(u32::try_from(pid)?)
    }
}
