//! Where things lie on this machine: settings, data, runtime, locks. Nothing is read or written here but the folders
//! themselves, which are made with the rights that they need.

use anyhow::{Context as _, bail};
use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The folders of one agent. All paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paths {
    /// `agent.toml`, `tenant.toml`.
    pub(crate) config: PathBuf,
    /// Databases, node key, images, jobs' scratch.
    pub(crate) data: PathBuf,
    /// The socket and the token.
    pub(crate) runtime: PathBuf,
    /// One lock a card, shared by all users of this machine.
    pub(crate) locks: PathBuf,
}

impl Paths {
    /// From this process's environment.
    ///
    /// # Errors
    /// Where neither `SELA_…_DIR` nor the XDG variables nor `HOME` say where to look.
    pub(crate) fn from_environment() -> anyhow::Result<Self> {
        Self::from_variables(|name| std::env::var_os(name), rustix::process::getuid().as_raw())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> anyhow::Result<Self> {
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let under = |own: &str, service: &str, xdg: &str, home: &str| {
            absolute(own)
                .or_else(|| absolute(service))
                .or_else(|| absolute(xdg).map(|base| base.join("sela")))
                .or_else(|| absolute("HOME").map(|base| base.join(home).join("sela")))
                .with_context(|| {
                    format!("neither {own} nor {xdg} nor HOME is set to an absolute path; set one of them")
                })
        };
        let config = under(
            "SELA_CONFIG_DIR",
            "CONFIGURATION_DIRECTORY",
            "XDG_CONFIG_HOME",
            ".config",
        )?;
        let data = under("SELA_DATA_DIR", "STATE_DIRECTORY", "XDG_DATA_HOME", ".local/share")?;
        let runtime = sela_client::runtime_folder(&variable, uid);
        // A machine-wide folder, unless this agent was told to live in a runtime folder of its own: a test's.
        let locks =
            absolute("SELA_RUNTIME_DIR").map_or_else(|| PathBuf::from("/run/lock/sela"), |own| own.join("locks"));
        Ok(Self {
            config,
            data,
            runtime,
            locks,
        })
    }

    /// The settings, for people.
    pub(crate) fn settings(&self) -> PathBuf {
        self.config.join("agent.toml")
    }

    /// The tenant's settings.
    pub(crate) fn tenant(&self) -> PathBuf {
        self.config.join("tenant.toml")
    }

    /// The socket of the local interface.
    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime.join("agent.sock")
    }

    /// The token that a browser needs where `--listen` is given.
    pub(crate) fn token(&self) -> PathBuf {
        self.runtime.join("token")
    }

    /// The node's private key.
    pub(crate) fn node_key(&self) -> PathBuf {
        self.data.join("node.key")
    }

    /// The keys of exchanges that this node knows.
    pub(crate) fn exchange_keys(&self) -> PathBuf {
        self.data.join("exchange-keys.json")
    }

    /// The images' cache.
    pub(crate) fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// Folders of running leases.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.data.join("scratch")
    }

    /// What keepers wrote down of jobs that ended; outlives the scratch folders.
    pub(crate) fn accounts(&self) -> PathBuf {
        self.data.join("accounts")
    }

    /// Makes the folders that an agent needs; none of them is readable by others.
    ///
    /// # Errors
    /// Where one cannot be made, or belongs to somebody else.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        for folder in [
            &self.config,
            &self.data,
            &self.runtime,
            &self.images(),
            &self.scratch(),
            &self.accounts(),
        ] {
            private_folder(folder)?;
        }
        // Every user's agent locks here; sticky, so that none removes another's lock file.
        if !self.locks.exists() {
            std::fs::create_dir_all(&self.locks)
                .and_then(|()| std::fs::set_permissions(&self.locks, std::fs::Permissions::from_mode(0o1777)))
                .with_context(|| {
                    format!(
                        "the folder for the cards' locks, {}, cannot be made",
                        self.locks.display()
                    )
                })?;
        }
        Ok(())
    }
}

fn private_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("the folder {} cannot be made", folder.display()))?;
    let owner = std::fs::metadata(folder)
        .with_context(|| format!("the folder {} cannot be looked at", folder.display()))?
        .uid();
    let own = rustix::process::geteuid().as_raw();
    if owner != own {
        bail!(
            "the folder {} belongs to user {owner}, not to this one ({own}); run the agent as its owner or set another folder",
            folder.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], uid: u32, config: &str, data: &str, runtime: &str, locks: &str) {
        let paths = Paths::from_variables(
            |name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            },
            uid,
        )
        .expect("enough is set");
        assert_eq!(paths.config, Path::new(config));
        assert_eq!(paths.data, Path::new(data));
        assert_eq!(paths.runtime, Path::new(runtime));
        assert_eq!(paths.locks, Path::new(locks));
    }

    #[test]
    fn folders_follow_xdg_and_every_one_can_be_overridden() {
        check(
            &[("HOME", "/home/a")],
            1000,
            "/home/a/.config/sela",
            "/home/a/.local/share/sela",
            "/run/user/1000/sela",
            "/run/lock/sela",
        );
        check(
            &[
                ("HOME", "/home/a"),
                ("XDG_CONFIG_HOME", "/x/config"),
                ("XDG_DATA_HOME", "not/absolute"),
                ("XDG_RUNTIME_DIR", "/x/run"),
            ],
            1000,
            "/x/config/sela",
            "/home/a/.local/share/sela",
            "/x/run/sela",
            "/run/lock/sela",
        );
        check(
            &[
                ("SELA_CONFIG_DIR", "/t/c"),
                ("SELA_DATA_DIR", "/t/d"),
                ("SELA_RUNTIME_DIR", "/t/r"),
            ],
            0,
            "/t/c",
            "/t/d",
            "/t/r",
            "/t/r/locks",
        );
    }

    #[test]
    fn nothing_set_is_an_error_that_says_what_to_set() {
        let error = Paths::from_variables(|_| None, 1000).expect_err("nothing is set");
        assert!(error.to_string().contains("SELA_CONFIG_DIR"));
    }

    #[test]
    fn folders_are_made_for_their_owner_only() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str| root.path().join(name);
        let paths = Paths {
            config: at("c"),
            data: at("d"),
            runtime: at("r"),
            locks: at("r/locks"),
        };
        paths.make().expect("made");
        paths.make().expect("made again");
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        assert_eq!(mode(&paths.data), 0o700);
        assert_eq!(mode(&paths.locks), 0o1777);
    }
}
