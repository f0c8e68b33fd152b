//! One person's desktop: display, bus, panel, home folder, and the shell on it.

use crate::{Bus, Panel, Screen};
use anyhow::Context;
use sela_tests::{Part, Ran, program, run, wait_for};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How the shell is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// By its owner: with the window.
    Shown,
    /// By the login: only the tray.
    Hidden,
}

/// The desktop. All that it starts ends with it.
#[derive(Debug)]
pub struct Desk {
    /// The shell; it does not run before [`Desk::start`].
    pub shell: Part,
    /// The panel.
    pub panel: Panel,
    /// The display.
    pub screen: Screen,
    /// The bus.
    pub bus: Bus,
    runtime: PathBuf,
    folder: PathBuf,
}

impl Desk {
    /// A desktop in `folder`, whose agent's runtime folder is `runtime`.
    ///
    /// # Errors
    /// Where a part does not come up.
    pub fn begin(folder: &Path, runtime: &Path) -> anyhow::Result<Self> {
        for part in ["logs", "home", "xdg"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        let bus = Bus::start(folder)?;
        Ok(Self {
            shell: Part::new("desktop", folder.join("logs/desktop.log")),
            panel: Panel::start(&bus)?,
            screen: Screen::start(&folder.join("logs"))?,
            bus,
            runtime: runtime.to_owned(),
            folder: folder.to_owned(),
        })
    }

    /// The folder that everything lies in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The person's home.
    pub fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    /// Puts a program onto this desktop, and onto no other that whoever runs the tests may sit at.
    pub fn surround<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for name in [
            "WAYLAND_DISPLAY",
            "XAUTHORITY",
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
            "XDG_CACHE_HOME",
            "LC_ALL",
            "LC_MESSAGES",
            "LANGUAGE",
            "SELA_LANGUAGE",
            "SELA_PANEL",
            "SELA_CONFIG_DIR",
            "XDG_CURRENT_DESKTOP",
        ] {
            command.env_remove(name);
        }
        command
            .env("DISPLAY", self.screen.name())
            .env("GDK_BACKEND", "x11")
            .env("DBUS_SESSION_BUS_ADDRESS", self.bus.address())
            .env("HOME", self.home())
            .env("XDG_RUNTIME_DIR", self.folder.join("xdg"))
            .env("SELA_RUNTIME_DIR", &self.runtime)
            .env("SELA_LOG", "info,sela_desktop=debug")
            // No accessibility bus: it would be a service of the system's bus, which is not this one.
            .env("NO_AT_BRIDGE", "1")
            .env("LANG", "en_US.UTF-8")
            .env("TZ", "Asia/Jakarta")
    }

    /// The shell with these words, on this desktop.
    ///
    /// # Errors
    /// Where it was not built: `cargo build -p sela-desktop`.
    pub fn command(&self, words: &[&str]) -> anyhow::Result<Command> {
        let program = program("sela-desktop").context("build it: `cargo build -p sela-desktop`")?;
        let mut command = Command::new(program);
        command.args(words);
        self.surround(&mut command);
        Ok(command)
    }

    /// Starts the shell and waits for its tray.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn start(&mut self, how: Start, words: &[&str]) -> anyhow::Result<()> {
        let before = self.panel.announced();
        let mut all = words.to_vec();
        if how == Start::Hidden {
            all.push("--hidden");
        }
        let mut command = self.command(&all)?;
        self.shell.start(&mut command)?;
        wait_for("the tray", || {
            self.shell.is_up()?;
            Ok((self.panel.announced() > before).then_some(()))
        })
        .with_context(|| self.log())
    }

    /// Starts the shell once more, to its end.
    ///
    /// # Errors
    /// Where it cannot be run or does not end.
    pub fn start_again(&self, words: &[&str]) -> anyhow::Result<Ran> {
        run(&mut self.command(words)?)
    }

    /// What the shell has said so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.shell.log()).unwrap_or_default()).into_owned()
    }

    /// All processes that the shell started, with those that they started: number and name.
    ///
    /// # Errors
    /// Where the shell does not run.
    pub fn children(&self) -> anyhow::Result<Vec<(u32, String)>> {
        let mut found = Vec::new();
        let mut to_look_at = vec![self.shell.pid()?];
        while let Some(pid) = to_look_at.pop() {
            for child in children_of(pid) {
                // One that went meanwhile has no name any more.
                if let Ok(name) = std::fs::read_to_string(format!("/proc/{child}/comm")) {
                    found.push((child, name.trim().to_owned()));
                }
                to_look_at.push(child);
            }
        }
        Ok(found)
    }

    /// The libraries and other files that the shell's own process has in its memory.
    ///
    /// # Errors
    /// Where the shell does not run.
    pub fn mapped_files(&self) -> anyhow::Result<BTreeSet<PathBuf>> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.shell.pid()?))?;
        let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
        Ok(files.map(PathBuf::from).collect())
    }
}

/// Waits until none of these processes is there any more.
///
/// # Errors
/// Where that takes too long: with those that stay.
pub fn wait_until_gone(processes: &[(u32, String)]) -> anyhow::Result<()> {
    let mut stay = Vec::new();
    wait_for("processes to end", || {
        stay = processes.iter().filter(|(pid, _)| runs(*pid)).cloned().collect();
        Ok(stay.is_empty().then_some(()))
    })
    .with_context(|| format!("of {processes:?} these stay: {stay:?}"))
}

/// One that only waits for somebody to take its exit status has ended.
fn runs(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

fn children_of(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|children| {
            children
                .split_whitespace()
                .filter_map(|child| child.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}
