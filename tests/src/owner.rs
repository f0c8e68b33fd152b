//! The owner: the agent under test, its settings as people write them, and `sela` as the owner types it.

use crate::{Part, Ran, program, run, wait_for};
use anyhow::Context;
use sela_nvml_sim::{FOLDER_VARIABLE, LIBRARY_FILE, Lab};
use sela_protocol::local::{EarningsLine, MarketLink, Page, Snapshot};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What goes into `agent.toml`. Times are short, so that a test of a life cycle takes seconds.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Per GPU-hour.
    pub floor: &'static str,
    /// Seconds without input before sharing starts.
    pub idle_after_s: u32,
    /// Seconds that a job stays frozen.
    pub evict_after_s: u32,
    /// Seconds that it may save.
    pub save_grace_s: u32,
    /// Bytes that images may take.
    pub disk_budget: u64,
    /// Bytes that stay free.
    pub disk_free_floor: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            floor: "0.100000",
            idle_after_s: 1,
            evict_after_s: 1,
            save_grace_s: 5,
            disk_budget: 1 << 30,
            disk_free_floor: 16 << 20,
        }
    }
}

impl Settings {
    /// The text of the file.
    pub fn text(&self, url: &str, invitation: &str) -> String {
        let Self {
            floor,
            idle_after_s,
            evict_after_s,
            save_grace_s,
            disk_budget,
            disk_free_floor,
        } = self;
        format!(
            "[market]\nurl = \"{url}\"\ninvitation = \"{invitation}\"\nname = \"the machine under test\"\n\n\
             [price]\nfloor = \"{floor}\"\n\n[electricity]\nper_kwh = \"0.300000\"\n\n\
             [presence]\nidle_after_s = {idle_after_s}\ncool_off_s = {idle_after_s}\nsteady_for_s = {idle_after_s}\n\
             evict_after_s = {evict_after_s}\nsave_grace_s = {save_grace_s}\n\n\
             [disk]\nbudget = {disk_budget}\nfree_floor = {disk_free_floor}\n"
        )
    }
}

/// An owner with a machine.
#[derive(Debug)]
pub struct Owner {
    /// The agent's process.
    pub agent: Part,
    folder: PathBuf,
    /// The lab of the simulated card; the machine's own driver is used where `None`.
    lab: Option<PathBuf>,
    display: Option<String>,
}

impl Owner {
    /// An owner whose agent does not run yet and keeps its things in `folder`.
    pub(crate) fn new(folder: &Path, logs: &Path, lab: Option<&Lab>, display: Option<String>) -> Self {
        Self {
            agent: Part::new("agent", logs.join("agent.log")),
            folder: folder.to_owned(),
            lab: lab.map(|lab| lab.folder().to_owned()),
            display,
        }
    }

    /// The settings file.
    pub fn settings_file(&self) -> PathBuf {
        self.folder.join("config/agent.toml")
    }

    /// The agent's data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the agent and waits until it answers.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn start_agent(&mut self) -> anyhow::Result<()> {
        self.spawn_agent()?;
        wait_for("the agent to answer", || {
            self.agent.is_up()?;
            Ok(self.sela(&["status", "--json"])?.good().ok().map(drop))
        })
    }

    /// Starts the agent and waits for nothing.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn_agent(&mut self) -> anyhow::Result<()> {
        let mut command = self.command(&["agent", "run", "--lab"])?;
        if let Some(lab) = &self.lab {
            command
                .env("SELA_NVML_LIBRARY", program(LIBRARY_FILE)?)
                .env(FOLDER_VARIABLE, lab);
        }
        if let Some(display) = &self.display {
            command.env("DISPLAY", display);
        }
        self.agent.start(&mut command)
    }

    /// `sela` with these words.
    ///
    /// # Errors
    /// Where it cannot be run.
    pub fn sela(&self, words: &[&str]) -> anyhow::Result<Ran> {
        run(&mut self.command(words)?)
    }

    /// `sela` with these words, as a tenant of an exchange would type it.
    ///
    /// # Errors
    /// Where it cannot be run.
    pub fn sela_as_tenant(&self, words: &[&str], url: &str, key: &str) -> anyhow::Result<Ran> {
        let mut command = self.command(words)?;
        run(command.env("SELA_EXCHANGE", url).env("SELA_API_KEY", key))
    }

    fn command(&self, words: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(program("sela")?);
        command.args(words);
        for (name, folder) in [
            ("SELA_CONFIG_DIR", "config"),
            ("SELA_DATA_DIR", "data"),
            ("SELA_RUNTIME_DIR", "runtime"),
            ("TMPDIR", "tmp"),
        ] {
            command.env(name, self.folder.join(folder));
        }
        // Whoever runs the tests may sit at a display: its input is none of the world's.
        for name in [
            "DISPLAY",
            "WAYLAND_DISPLAY",
            "XDG_SESSION_ID",
            "XDG_SESSION_TYPE",
            "XAUTHORITY",
            "SELA_API_KEY",
            "SELA_EXCHANGE",
        ] {
            command.env_remove(name);
        }
        command.env("SELA_LOG", "info,sela=debug,sela_agent=debug,sela_sandbox=debug");
        Ok(command)
    }

    /// The agent as it shows itself.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        self.sela(&["status", "--json"])?.json()
    }

    /// What `sela why` says.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn why(&self) -> anyhow::Result<String> {
        Ok(self.sela(&["why"])?.good()?.to_owned())
    }

    /// What `sela earnings` says.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn earnings(&self) -> anyhow::Result<Vec<EarningsLine>> {
        let page: Page<EarningsLine> = self.sela(&["earnings", "--json"])?.json()?;
        anyhow::ensure!(
            page.next.is_none(),
            "more leases than one page holds: this test asks for too many"
        );
        Ok(page.items)
    }

    /// Waits until the agent is connected and shares its first card.
    ///
    /// # Errors
    /// Where that takes too long.
    pub fn wait_until_shared(&self) -> anyhow::Result<()> {
        self.wait("the card to be shared", |snapshot| {
            matches!(snapshot.market, MarketLink::Connected { .. })
                && snapshot
                    .cards
                    .first()
                    .is_some_and(|card| card.availability.is_available())
        })
        .map(drop)
    }

    /// Waits until the agent shows itself as `is` wants it.
    ///
    /// # Errors
    /// Where that takes too long: with how it showed itself last.
    pub fn wait(&self, what: &str, is: impl Fn(&Snapshot) -> bool) -> anyhow::Result<Snapshot> {
        let mut last = None;
        wait_for(what, || {
            let snapshot = self.snapshot()?;
            if is(&snapshot) {
                return Ok(Some(snapshot));
            }
            last = Some(snapshot);
            Ok(None)
        })
        .with_context(|| format!("the agent showed last: {last:?}"))
    }
}
