//! Where a run keeps its things: one folder under the build folder, made anew each time, so that no run lives on what another left.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::places::Places;

/// A path to a Unix socket may have at most 107 bytes (unix(7)); this much is left for the socket's own name.
const LONGEST_RUNTIME: usize = 90;

/// The folders of one run.
#[derive(Debug)]
pub(crate) struct Folders {
    /// What everything below lies in.
    pub(crate) all: PathBuf,
    /// The simulated driver's lab.
    pub(crate) lab: PathBuf,
    /// The exchange's data.
    pub(crate) exchange: PathBuf,
    /// The agent's settings, data and runtime folder.
    config: PathBuf,
    data: PathBuf,
    runtime: PathBuf,
    /// What the tenant sends and gets back.
    pub(crate) tenant: PathBuf,
    /// Everybody's logs.
    pub(crate) logs: PathBuf,
}

impl Folders {
    /// Removes what the last run left and makes the folders.
    ///
    /// # Errors
    /// If that fails, which it does while another run is still up.
    pub(crate) fn make(places: &Places) -> anyhow::Result<Self> {
        let all = places.target.join("run");
        let folders = Self {
            lab: all.join("lab"),
            exchange: all.join("exchange"),
            config: all.join("agent/config"),
            data: all.join("agent/data"),
            runtime: all.join("agent/runtime"),
            tenant: all.join("tenant"),
            logs: all.join("logs"),
            all,
        };
        if folders.runtime.as_os_str().len() > LONGEST_RUNTIME {
            bail!(
                "{} is too long a path for a socket; set CARGO_TARGET_DIR to a shorter folder",
                folders.runtime.display()
            );
        }
        folders.refuse_if_in_use()?;
        if folders.all.exists() {
            std::fs::remove_dir_all(&folders.all).with_context(|| format!("cannot empty {}", folders.all.display()))?;
        }
        for folder in [
            &folders.exchange,
            &folders.config,
            &folders.data,
            &folders.runtime,
            &folders.tenant,
            &folders.logs,
        ] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        for private in [&folders.exchange, &folders.runtime] {
            only_for_us(private)?;
        }
        Ok(folders)
    }

    /// The variables by which `sela` finds this run's agent.
    pub(crate) fn variables(&self) -> [(&'static str, &Path); 3] {
        [
            ("SELA_CONFIG_DIR", &self.config),
            ("SELA_DATA_DIR", &self.data),
            ("SELA_RUNTIME_DIR", &self.runtime),
        ]
    }

    /// The owner's settings file.
    pub(crate) fn settings(&self) -> PathBuf {
        self.config.join("agent.toml")
    }

    /// The agent's socket, which is there once it is up.
    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime.join("agent.sock")
    }

    /// The file that holds the token of the agent's page.
    pub(crate) fn token(&self) -> PathBuf {
        self.runtime.join("token")
    }

    /// An agent that answers is another run that is still up.
    fn refuse_if_in_use(&self) -> anyhow::Result<()> {
        if std::os::unix::net::UnixStream::connect(self.socket()).is_ok() {
            bail!(
                "another `cargo xtask run` is up in {}; end it with Ctrl-C first",
                self.all.display()
            );
        }
        Ok(())
    }
}

fn only_for_us(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot make {} private", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(name: &str) -> Places {
        let target = std::env::temp_dir().join(format!("sela-xtask-{name}-{}", std::process::id()));
        Places {
            root: "/".into(),
            cache: target.join("tools"),
            target,
        }
    }

    #[test]
    fn a_run_begins_with_nothing_of_the_last_one() {
        let places = places("anew");
        let folders = Folders::make(&places).unwrap();
        std::fs::write(folders.exchange.join("ledger"), "old").unwrap();
        let folders = Folders::make(&places).unwrap();
        assert_eq!(std::fs::read_dir(&folders.exchange).unwrap().count(), 0);
        std::fs::remove_dir_all(places.target).unwrap();
    }

    #[test]
    fn a_run_that_is_still_up_is_left_alone() {
        let places = places("up");
        let folders = Folders::make(&places).unwrap();
        let _agent = std::os::unix::net::UnixListener::bind(folders.socket()).unwrap();
        assert!(
            Folders::make(&places)
                .unwrap_err()
                .to_string()
                .contains("another `cargo xtask run` is up")
        );
        assert!(folders.exchange.exists());
        std::fs::remove_dir_all(places.target).unwrap();
    }

    #[test]
    fn a_folder_that_is_too_deep_for_a_socket_is_refused_before_anything_starts() {
        let deep = Places {
            target: std::env::temp_dir().join("d".repeat(100)),
            ..places("deep")
        };
        assert!(
            Folders::make(&deep)
                .unwrap_err()
                .to_string()
                .contains("CARGO_TARGET_DIR")
        );
        assert!(!deep.target.exists());
    }
}
