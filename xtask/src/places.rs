//! Where things lie: the repository, the build folder, the tools that we install for ourselves. Nothing is created here.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The folders that the verbs work in. All paths are absolute.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The root of the repository.
    pub(crate) root: PathBuf,
    /// Cargo's build folder.
    pub(crate) target: PathBuf,
    /// Tools that we installed for ourselves and files that we fetched. `SELA_CACHE_DIR` may put it outside the clone, so that the next clone
    /// need not build them again; nothing depends on that.
    pub(crate) cache: PathBuf,
}

/// How a program of ours was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quick to build, with debug assertions.
    Dev,
    /// Optimised: what people get, and what is measured.
    Release,
}

impl Places {
    /// Looks at the environment and at where this program was compiled.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies in the root of the repository; move it back")?
            .to_path_buf();
        let here = std::env::current_dir().context("the current folder is gone; change to one that exists")?;
        let absolute = |path: PathBuf| if path.is_absolute() { path } else { here.join(path) };
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| absolute(path.into()));
        let cache =
            std::env::var_os("SELA_CACHE_DIR").map_or_else(|| target.join("tools"), |path| absolute(path.into()));
        Ok(Self { root, target, cache })
    }

    /// A program of ours after it was built.
    pub(crate) fn program(&self, profile: Profile, name: &str) -> PathBuf {
        self.built(profile)
            .join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
    }

    /// The folder that holds what was built with `profile`.
    pub(crate) fn built(&self, profile: Profile) -> PathBuf {
        self.target.join(match profile {
            Profile::Dev => "debug",
            Profile::Release => "release",
        })
    }
}
