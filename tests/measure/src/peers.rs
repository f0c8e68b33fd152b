//! The peers: who they are, and how each is asked to run a program of the small image, to stop it and to let it go. Each is
//! given what it can take of what we do: ids mapped to the same ones, no capabilities, no new privileges, the same list of
//! system calls, read only root, no network, the same limits.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

use crate::clock;
use crate::engines::{Docker, Podman};
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
    podman: PathBuf,
}

impl Peers {
    pub(crate) fn begin(folder: &Path, small: &Small) -> anyhow::Result<Self> {
        let profile = folder.join("calls.json");
        std::fs::write(&profile, sela_sandbox::docker::call_list().to_string())?;
        let root = Rooted::bind(small.root()?, &folder.join("root"))?;
        let root = std::rc::Rc::new(root);
        let podman = Podman::begin(&folder.join("podman"), small, &profile)?;
        let podman_root = podman.folder().to_owned();
        Ok(Self {
            all: vec![
                Box::new(Oci::new("crun", &folder.join("crun"), &root)?),
                Box::new(Oci::new("runc", &folder.join("runc"), &root)?),
                Box::new(Bubblewrap::new(&folder.join("bwrap"), &root)?),
                Box::new(podman),
                Box::new(Docker::begin(&folder.join("docker"), small, &profile)?),
            ],
            podman: podman_root,
        })
    }

    pub(crate) fn versions(&self) -> Vec<(&'static str, String)> {
        let versions = self.all.iter().map(|peer| (peer.name(), peer.version()));
        let said = versions.map(|(name, version)| (name, version.unwrap_or_else(|error| error.to_string())));
        said.collect()
    }

    /// Podman with its own folders, for pulling into.
    pub(crate) fn podman(&self) -> Command {
        Podman::command(&self.podman)
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
        command
            .stdin(Stdio::null())
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

/// Runs a command to its end; what it prints is given.
///
/// # Errors
/// Where it fails: what it said.
pub(crate) fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
