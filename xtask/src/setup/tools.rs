//! The tools that we install for ourselves, each at one pinned version: into a folder of ours, never into the machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::arguments::Purpose;
use crate::commands;
use crate::places::Places;
use crate::setup::packages::find_program;

/// Where the tools lie, ready to be handed to commands.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    folders: Vec<PathBuf>,
}

impl Tools {
    /// PATH with our tools in front.
    pub(crate) fn path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.folders.iter().cloned().chain(std::env::split_paths(&path));
        std::env::join_paths(folders).unwrap_or(path)
    }

    /// The tool of ours with that name.
    ///
    /// # Errors
    /// If it is not there, which says that its install failed.
    pub(crate) fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        self.folders
            .iter()
            .map(|folder| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
            .find(|path| path.is_file())
            .or_else(|| find_program(name))
            .with_context(|| {
                format!("{name} is not installed; `cargo xtask setup` installs it and says why if it cannot")
            })
    }
}

/// Where a tool comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// crates.io, compiled here.
    Cargo,
    /// PyPI, which ships the compiled program.
    Pip,
}

/// A tool that is used while testing and never linked.
#[derive(Debug)]
struct Tool {
    program: &'static str,
    version: &'static str,
    origin: Origin,
    /// Whether a version that the machine brings will do as well. Not for what judges the code: a newer judge judges differently.
    any_version: bool,
    purposes: &'static [Purpose],
}

const TOOLS: &[Tool] = &[
    Tool {
        program: "cargo-nextest",
        version: "0.9.143",
        origin: Origin::Cargo,
        any_version: true,
        purposes: &[Purpose::QuickTest, Purpose::Test],
    },
    Tool {
        program: "typos",
        version: "1.52.0",
        origin: Origin::Pip,
        any_version: false,
        purposes: &[Purpose::Test],
    },
    Tool {
        program: "cargo-deny",
        version: "0.20.2",
        origin: Origin::Cargo,
        any_version: false,
        purposes: &[Purpose::Test],
    },
    Tool {
        program: "cargo-machete",
        version: "0.9.2",
        origin: Origin::Cargo,
        any_version: false,
        purposes: &[Purpose::Test],
    },
];

/// Installs the tools that `purpose` needs and that are not there. A tool that cannot be installed is said and left out: the check
/// that wanted it then fails by name, and everything else still runs.
pub(crate) fn ensure(places: &Places, purpose: Purpose) -> anyhow::Result<Tools> {
    let tools = Tools {
        folders: vec![
            places.cache.join("cargo").join("bin"),
            places.cache.join("pip").join("bin"),
        ],
    };
    for tool in TOOLS.iter().filter(|tool| tool.purposes.contains(&purpose)) {
        if !tool.is_here(&tools) {
            println!("installing {} {} for ourselves", tool.program, tool.version);
            if let Err(error) = tool.install(places) {
                eprintln!("{} could not be installed: {error:#}", tool.program);
            }
        }
    }
    Ok(tools)
}

impl Tool {
    /// Asks the program itself: a file of the right name may be of the wrong version, or for another system.
    fn is_here(&self, tools: &Tools) -> bool {
        let Ok(program) = tools.program(self.program) else {
            return false;
        };
        let mut command = Command::new(program);
        // Cargo's subcommands are told their own name first, as cargo does.
        if self.program == "cargo-nextest" {
            command.arg("nextest");
        }
        let output = command.arg("--version").stdin(Stdio::null()).output();
        output.is_ok_and(|output| {
            let text = String::from_utf8_lossy(&output.stdout);
            output.status.success() && (self.any_version || says_version(&text, self.version))
        })
    }

    fn install(&self, places: &Places) -> anyhow::Result<()> {
        let pinned = |sign: &str| format!("{}{sign}{}", self.program, self.version);
        match self.origin {
            // `--debug`: compiling takes far longer than these tools ever run here.
            Origin::Cargo => commands::run(
                commands::cargo(
                    places,
                    ["install", "--quiet", "--debug", "--locked", "--force", "--root"],
                )
                .arg(places.cache.join("cargo"))
                .arg(pinned("@"))
                .env("CARGO_PROFILE_DEV_DEBUG", "0"),
            ),
            Origin::Pip => commands::run(
                Command::new(if cfg!(windows) { "python" } else { "python3" })
                    .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"])
                    .arg(places.cache.join("pip"))
                    .arg(pinned("==")),
            ),
        }
    }
}

/// Whether one word of what a program says about itself is that version.
fn says_version(text: &str, version: &str) -> bool {
    text.split_whitespace()
        .any(|word| word.trim_start_matches('v') == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_whole_word() {
        assert!(says_version("cargo-deny 0.20.2\n", "0.20.2"));
        assert!(says_version("0.9.2", "0.9.2"));
        assert!(says_version("typos-cli v1.52.0", "1.52.0"));
        assert!(!says_version("cargo-deny 0.20.21", "0.20.2"));
        assert!(!says_version("", "0.20.2"));
    }

    #[test]
    fn our_tools_are_found_before_the_machine_s() {
        let folder = std::env::temp_dir().join("sela-xtask-tools");
        let tools = Tools {
            folders: vec![folder.clone()],
        };
        assert_eq!(std::env::split_paths(&tools.path()).next(), Some(folder));
    }

    #[test]
    fn a_tool_that_is_nowhere_says_how_to_get_it() {
        let error = Tools { folders: Vec::new() }
            .program("no-such-tool-of-sela")
            .unwrap_err()
            .to_string();
        assert!(error.contains("cargo xtask setup"), "{error}");
    }
}
