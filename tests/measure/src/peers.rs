//! The peers: who they are, and how each is asked to run a program of the small image, to stop it and to let it go. Each is
//! given what it can take of what we do: ids mapped to the same ones, no capabilities, no new privileges, the same list of
//! system calls, read only root, no network, the same limits.

use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, ensure};

use crate::clock;
use crate::engines::{Docker, Podman, PodmanStore};
use crate::image::Small;
use crate::runtimes::{Bubblewrap, Oci};

/// Somebody else who runs a program of an image behind walls.
pub(crate) trait Peer {
    /// As it is called in the results.
    fn name(&self) -> &'static str;
    /// Its own word on its version.
    fn version(&self) -> anyhow::Result<String>;
    /// Runs a program in the foreground under this name and removes what stood for it. Its output is the command's.
    fn run(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Command>;
    /// Tells it to freeze; `None` where it cannot.
    fn freeze(&self, name: &str) -> Option<Command>;
    /// And to thaw.
    fn thaw(&self, name: &str) -> Option<Command>;
    /// Tells it to kill.
    fn kill(&self, name: &str, running: &Running) -> Command;
    /// The first process inside.
    fn first_process(&self, name: &str) -> anyhow::Result<u32>;
}

/// All of them, with what they need beside them.
pub(crate) struct Peers {
    pub(crate) all: Vec<Box<dyn Peer>>,
    podman: PodmanStore,
}

impl Peers {
    pub(crate) fn begin(folder: &Path, small: &Small) -> anyhow::Result<Self> {
        let profile = folder.join("calls.json");
        std::fs::write(&profile, sela_sandbox::docker::call_list().to_string())?;
        let root = Rc::new(Rooted::bind(small.root()?, &folder.join("root"))?);
        let view = FirstVersion::where_needed()?.map(Rc::new);
        let podman = PodmanStore::new(&folder.join("podman"), view.clone())?;
        Ok(Self {
            all: vec![
                Box::new(Oci::new("crun", &folder.join("crun"), &root, view)?),
                Box::new(Oci::new("runc", &folder.join("runc"), &root, None)?),
                Box::new(Bubblewrap::new(&folder.join("bwrap"), &root)?),
                Box::new(Podman::begin(podman.clone(), small, &profile)?),
                Box::new(Docker::begin(&folder.join("docker"), small, &profile)?),
            ],
            podman,
        })
    }

    pub(crate) fn versions(&self) -> Vec<(&'static str, String)> {
        let versions = self.all.iter().map(|peer| (peer.name(), peer.version()));
        let said = versions.map(|(name, version)| (name, version.unwrap_or_else(|error| error.to_string())));
        said.collect()
    }

    /// Podman with its own folders, for pulling into.
    pub(crate) fn podman(&self) -> Command {
        self.podman.command()
    }
}

/// A view of this machine in which cgroups are of version 1 alone: crun refuses the mixed layout where version 2 has a controller.
/// `None` where that is no matter.
pub(crate) struct FirstVersion {
    holder: Child,
    namespace: OwnedFd,
}

impl FirstVersion {
    const SECOND: &str = "/sys/fs/cgroup/unified";

    fn where_needed() -> anyhow::Result<Option<Self>> {
        let controllers = std::fs::read_to_string(format!("{}/cgroup.controllers", Self::SECOND));
        if controllers.is_ok_and(|controllers| !controllers.trim().is_empty()) {
            Self::make().map(Some)
        } else {
            Ok(None)
        }
    }

    fn make() -> anyhow::Result<Self> {
        let script = format!("umount {} && echo made && exec sleep 100000", Self::SECOND);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        end_with_us(&mut command);
        let mut holder = command.stdout(Stdio::piped()).spawn()?;
        let mut word = [0; 4];
        let heard = holder.stdout.take().context("a pipe")?.read_exact(&mut word);
        let namespace = heard.and_then(|()| std::fs::File::open(format!("/proc/{}/ns/mnt", holder.id())));
        match namespace {
            Ok(namespace) => Ok(Self {
                holder,
                namespace: namespace.into(),
            }),
            Err(error) => {
                holder.kill()?;
                holder.wait()?;
                Err(error.into())
            }
        }
    }

    /// Lets a command see that.
    pub(crate) fn show_to(view: Option<&Rc<Self>>, command: &mut Command) {
        let Some(view) = view.map(Rc::as_ref) else { return };
        let namespace = view.namespace.as_raw_fd();
        // SAFETY: one system call, which takes numbers only; the descriptor is open as long as the view, which outlives its peers.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNS) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
    }

    /// What is said of whoever was shown that.
    pub(crate) const fn words(view: Option<&Rc<Self>>) -> &'static str {
        match view {
            Some(_) => " (shown cgroups of version 1 alone, since it refuses the mixed ones of this machine)",
            None => "",
        }
    }
}

impl Drop for FirstVersion {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The image's layer at a place that anybody can reach: a cache lets in nobody but its agent.
pub(crate) struct Rooted(pub(crate) PathBuf);

impl Rooted {
    fn bind(layer: &Path, place: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir(place)?;
        rustix::mount::mount_bind(layer, place)?;
        Ok(Self(place.to_owned()))
    }
}

impl Drop for Rooted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A program that a peer runs, which has said something.
pub(crate) struct Running {
    child: Child,
    /// From asking for it to its first byte, in milliseconds.
    pub(crate) first_output_ms: f64,
}

impl Running {
    /// Asks a peer and waits for the first byte.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        // Not the machine's /dev/null: crun gives its standard streams to the container's root, that node and all.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let begun = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut output = child.stdout.take().context("a pipe")?;
        let mut byte = [0; 1];
        let count = output.read(&mut byte)?;
        let first_output_ms = clock::ms_since(begun);
        if count == 0 {
            let mut said = String::new();
            child.stderr.take().context("a pipe")?.read_to_string(&mut said)?;
            child.wait()?;
            anyhow::bail!("{command:?} said nothing but: {said}");
        }
        child.stdout = Some(output);
        Ok(Self { child, first_output_ms })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until whoever was asked is done, its tidying up included.
    pub(crate) fn wait(mut self) -> anyhow::Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

/// Has what is started end where we are killed before we can end it.
pub(crate) fn end_with_us(command: &mut Command) {
    // SAFETY: one system call, which takes numbers only.
    unsafe {
        command.pre_exec(|| {
            let signal = Some(rustix::process::Signal::TERM);
            Ok(rustix::process::set_parent_process_death_signal(signal)?)
        });
    }
}

/// Runs a command to its end; what it prints is given.
///
/// # Errors
/// Where it fails: what it said.
pub(crate) fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
