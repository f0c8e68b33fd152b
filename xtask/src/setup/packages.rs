//! The table of system packages: what each is needed for, how to see that it is there, what it is called elsewhere. Looks, never installs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::Purpose;

/// A system package and what it is for.
#[derive(Debug)]
pub(crate) struct Package {
    /// Its name in Debian and Ubuntu.
    pub(crate) debian: &'static str,
    /// Its name in Homebrew; `None` where macOS has it, or where it is of no use there.
    homebrew: Option<&'static str>,
    /// Its name in winget; `None` likewise.
    winget: Option<&'static str>,
    /// How to see that it is there, however it was installed.
    probe: Probe,
    /// What it is for, as said when it is missing.
    pub(crate) reason: &'static str,
    /// The verbs that need it.
    purposes: &'static [Purpose],
}

/// How to see that something is there. Asking the package manager would miss what people installed in another way.
#[derive(Debug)]
pub(crate) enum Probe {
    /// A program that is found in PATH, or in the folders of system programs that PATH often lacks.
    Program(&'static str),
    /// The same, but it must need no shared library: it is put into images that have none.
    StaticProgram(&'static str),
    /// A file.
    File(&'static str),
    /// A library with its headers, by the name that pkg-config knows it by.
    Library(&'static str),
    /// A module of the Python that is found in PATH.
    PythonModule(&'static str),
    /// A module of the system's own Python: Debian installs modules for that one only.
    SystemPythonModule(&'static str),
}

use Purpose::{Bench, BenchSandbox, Fuzz, Run, RunInWindow, Soak, Test};

const BUILDS: &[Purpose] = &[Run, RunInWindow, Test, Bench, BenchSandbox, Soak, Fuzz];
const RUNS_JOBS: &[Purpose] = &[Run, RunInWindow, Test, Soak];
const OPENS_THE_WINDOW: &[Purpose] = &[RunInWindow, Test, Bench];
const TESTS: &[Purpose] = &[Test];
const TESTS_AND_PEERS: &[Purpose] = &[Test, BenchSandbox];
const PEERS: &[Purpose] = &[BenchSandbox];

const fn linux_only(debian: &'static str, probe: Probe, reason: &'static str, purposes: &'static [Purpose]) -> Package {
    Package {
        debian,
        homebrew: None,
        winget: None,
        probe,
        reason,
        purposes,
    }
}

/// Everything that is not a crate. `test --quick` needs none of it but a linker, without which this program could not have been built.
const PACKAGES: &[Package] = &[
    linux_only(
        "build-essential",
        Probe::Program("cc"),
        "compiles SQLite and links everything",
        BUILDS,
    ),
    linux_only(
        "pkg-config",
        Probe::Program("pkg-config"),
        "finds system libraries at build time",
        BUILDS,
    ),
    linux_only(
        "ca-certificates",
        Probe::File("/etc/ssl/certs/ca-certificates.crt"),
        "package registries are reached by TLS",
        BUILDS,
    ),
    Package {
        debian: "python3",
        homebrew: Some("python"),
        winget: Some("Python.Python.3.12"),
        probe: Probe::Program("python3"),
        reason: "pip fetches the spelling checker and the language model",
        purposes: RUNS_JOBS,
    },
    Package {
        debian: "python3-pip",
        homebrew: Some("python"),
        winget: Some("Python.Python.3.12"),
        probe: Probe::PythonModule("pip"),
        reason: "fetches the spelling checker and the language model",
        purposes: RUNS_JOBS,
    },
    linux_only(
        "busybox-static",
        Probe::StaticProgram("busybox"),
        "the shell inside the small images of the tests",
        TESTS_AND_PEERS,
    ),
    linux_only(
        "curl",
        Probe::Program("curl"),
        "the ordinary program that reaches a host through a job's proxy",
        TESTS,
    ),
    linux_only(
        "xvfb",
        Probe::Program("Xvfb"),
        "a display of its own to move a mouse on",
        &[Test, Bench],
    ),
    linux_only("xauth", Probe::Program("xauth"), "opens that display", TESTS),
    linux_only(
        "x11-utils",
        Probe::Program("xwininfo"),
        "asks that display what it shows",
        TESTS,
    ),
    linux_only("xdotool", Probe::Program("xdotool"), "moves that mouse", TESTS),
    linux_only(
        "dbus",
        Probe::Program("dbus-daemon"),
        "a bus of its own for a simulated logind",
        &[Test, Bench],
    ),
    linux_only(
        "python3-dbusmock",
        Probe::SystemPythonModule("dbusmock"),
        "simulates logind, UPower and others",
        TESTS,
    ),
    linux_only(
        "sway",
        Probe::Program("sway"),
        "a Wayland compositor without a screen",
        TESTS,
    ),
    linux_only("wtype", Probe::Program("wtype"), "types a key in it", TESTS),
    linux_only(
        "mutter",
        Probe::Program("mutter"),
        "GNOME's compositor, without a screen",
        TESTS,
    ),
    linux_only(
        "docker-registry",
        Probe::Program("docker-registry"),
        "a registry on loopback to pull images from",
        TESTS_AND_PEERS,
    ),
    linux_only(
        "docker.io",
        Probe::Program("dockerd"),
        "a container engine to guard jobs in",
        TESTS_AND_PEERS,
    ),
    linux_only("podman", Probe::Program("podman"), "another", TESTS_AND_PEERS),
    linux_only(
        "uidmap",
        Probe::Program("newuidmap"),
        "maps subordinate user ids into sandboxes",
        TESTS,
    ),
    linux_only(
        "iproute2",
        Probe::Program("ip"),
        "looks at a sandbox's network from outside",
        &[Test, Bench],
    ),
    linux_only(
        "qemu-system-x86",
        Probe::Program("qemu-system-x86_64"),
        "emulates a machine whose cgroups are version 2 alone",
        TESTS,
    ),
    linux_only(
        "libwebkit2gtk-4.1-dev",
        Probe::Library("webkit2gtk-4.1"),
        "the web view of the desktop window",
        OPENS_THE_WINDOW,
    ),
    linux_only(
        "libayatana-appindicator3-dev",
        Probe::Library("ayatana-appindicator3-0.1"),
        "the tray of the desktop window",
        OPENS_THE_WINDOW,
    ),
    linux_only("chromium", Probe::Program("chromium"), "a browser for the pages", TESTS),
    linux_only(
        "webkit2gtk-driver",
        Probe::Program("WebKitWebDriver"),
        "steers the desktop window",
        TESTS,
    ),
    linux_only(
        "dunst",
        Probe::Program("dunst"),
        "a daemon that shows notifications",
        TESTS,
    ),
    linux_only(
        "imagemagick",
        Probe::Program("import"),
        "takes pictures of a display",
        TESTS,
    ),
    linux_only(
        "fonts-dejavu-core",
        Probe::File("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"),
        "letters to show on that display",
        TESTS,
    ),
    linux_only(
        "boinc-client",
        Probe::Program("boinc"),
        "what the idle agent is measured beside",
        &[Bench],
    ),
    linux_only(
        "crun",
        Probe::Program("crun"),
        "the sandbox is measured beside it",
        PEERS,
    ),
    linux_only("runc", Probe::Program("runc"), "and beside it", PEERS),
    linux_only("bubblewrap", Probe::Program("bwrap"), "and beside it", PEERS),
    linux_only(
        "skopeo",
        Probe::Program("skopeo"),
        "pulls what the image cache is measured beside",
        PEERS,
    ),
    linux_only("umoci", Probe::Program("umoci"), "unpacks it", PEERS),
];

/// The packages that `purpose` needs on this system and that `is_here` does not find, in the order of the table.
pub(crate) fn missing(purpose: Purpose, is_here: impl Fn(&Probe) -> bool) -> Vec<&'static Package> {
    missing_on(std::env::consts::OS, purpose, is_here)
}

fn missing_on(system: &str, purpose: Purpose, is_here: impl Fn(&Probe) -> bool) -> Vec<&'static Package> {
    PACKAGES
        .iter()
        .filter(|package| package.purposes.contains(&purpose))
        .filter(|package| match system {
            "macos" => package.homebrew.is_some(),
            "windows" => package.winget.is_some(),
            _ => true,
        })
        .filter(|package| !is_here(&package.probe))
        .collect()
}

/// A Linux that is no Debian, as a system of [`install_line`].
const LINUX_WITHOUT_APT: &str = "linux without apt-get";

/// This system, as [`install_line`] takes it.
pub(crate) fn system() -> &'static str {
    if cfg!(target_os = "linux") && find_program("apt-get").is_none() {
        LINUX_WITHOUT_APT
    } else {
        std::env::consts::OS
    }
}

/// The one command that installs `missing` on `system`; where there is no one command, what to install.
pub(crate) fn install_line(system: &str, missing: &[&Package]) -> String {
    let names = |name: fn(&Package) -> Option<&'static str>| {
        let mut names: Vec<_> = missing.iter().filter_map(|package| name(package)).collect();
        names.dedup();
        names
    };
    match system {
        "macos" => format!("brew install {}", names(|package| package.homebrew).join(" ")),
        "windows" => {
            let lines: Vec<_> = names(|package| package.winget)
                .iter()
                .map(|name| format!("winget install --exact --id {name}"))
                .collect();
            lines.join(" && ")
        }
        LINUX_WITHOUT_APT => format!(
            "with this system's package manager, where they may be called otherwise: {}",
            names(|package| Some(package.debian)).join(" ")
        ),
        _ => format!(
            "sudo apt-get update && sudo apt-get install -y --no-install-recommends {}",
            names(|package| Some(package.debian)).join(" ")
        ),
    }
}

/// Looks at this machine.
pub(crate) fn is_here(probe: &Probe) -> bool {
    match probe {
        Probe::Program(name) => find_program(name).is_some(),
        Probe::StaticProgram(name) => find_program(name)
            .and_then(|path| std::fs::read(path).ok())
            .is_some_and(|bytes| needs_no_library(&bytes)),
        Probe::File(path) => Path::new(path).exists(),
        Probe::Library(name) => ends_well(Command::new("pkg-config").args(["--exists", name])),
        Probe::PythonModule(module) => has_module("python3", module),
        Probe::SystemPythonModule(module) => has_module("/usr/bin/python3", module),
    }
}

/// The first program of that name in PATH, or in the folders where a person's PATH does not look but root's does.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
        .find(|candidate| candidate.is_file())
}

fn has_module(python: &str, module: &str) -> bool {
    ends_well(Command::new(python).args(["-c", &format!("import {module}")]))
}

/// Whether the command can be started and ends with 0; what it says does not matter.
fn ends_well(command: &mut Command) -> bool {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Whether a 64-bit little-endian ELF file names no program interpreter (the dynamic loader): then it needs no library.
/// Offsets are those of the ELF-64 object file format, version 1.5.
fn needs_no_library(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let word = |at: usize| {
        elf.get(at..at + 4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let half = |at: usize| {
        elf.get(at..at + 2)
            .map(|bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    };
    let (true, Some(table), Some(entry_size), Some(entries)) =
        (elf.starts_with(b"\x7fELF\x02\x01"), word(32), half(54), half(56))
    else {
        return false;
    };
    (0..entries).all(|index| {
        usize::try_from(table)
            .ok()
            .and_then(|table| word(table + index * entry_size))
            .is_some_and(|kind| kind != INTERPRETER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(system: &str, purpose: Purpose, is_here: impl Fn(&Probe) -> bool) -> Vec<&'static str> {
        missing_on(system, purpose, is_here)
            .iter()
            .map(|package| package.debian)
            .collect()
    }

    #[test]
    fn a_quick_test_needs_no_system_package() {
        for system in ["linux", "macos", "windows"] {
            assert!(names(system, Purpose::QuickTest, |_| false).is_empty(), "{system}");
        }
    }

    #[test]
    fn running_needs_less_than_testing_and_only_measuring_needs_boinc() {
        let run = names("linux", Run, |_| false);
        let test = names("linux", Test, |_| false);
        assert!(
            run.iter().all(|name| test.contains(name)) && run.len() < test.len(),
            "{run:?} in {test:?}"
        );
        assert!(!run.contains(&"xvfb") && test.contains(&"xvfb"));
        let web_view = "libwebkit2gtk-4.1-dev";
        assert!(!run.contains(&web_view), "a server has no use for it");
        assert!(names("linux", RunInWindow, |_| false).contains(&web_view));
        assert!(!test.contains(&"boinc-client"));
        assert!(names("linux", Bench, |_| false).contains(&"boinc-client"));
        let peers = names("linux", BenchSandbox, |_| false);
        assert!(peers.contains(&"crun") && peers.contains(&"docker.io") && !peers.contains(&"boinc-client"));
        assert!(!test.contains(&"crun") && !names("linux", Bench, |_| false).contains(&"podman"));
    }

    #[test]
    fn what_is_there_is_not_installed_again() {
        assert!(names("linux", Test, |_| true).is_empty());
        let without_mouse = names("linux", Test, |probe| !matches!(probe, Probe::Program("xdotool")));
        assert_eq!(without_mouse, ["xdotool"]);
    }

    #[test]
    fn each_system_gets_one_command_in_its_own_words() {
        for (system, line) in [
            (
                "linux",
                "sudo apt-get update && sudo apt-get install -y --no-install-recommends python3 python3-pip",
            ),
            (
                LINUX_WITHOUT_APT,
                "with this system's package manager, where they may be called otherwise: python3 python3-pip",
            ),
            ("macos", "brew install python"),
            ("windows", "winget install --exact --id Python.Python.3.12"),
        ] {
            let missing = missing_on(system, Run, |probe| {
                !matches!(probe, Probe::Program("python3") | Probe::PythonModule(_))
            });
            assert_eq!(install_line(system, &missing), line);
        }
    }

    #[test]
    fn every_package_is_needed_by_something_and_says_what_for() {
        for package in PACKAGES {
            assert!(
                !package.purposes.is_empty() && !package.reason.is_empty(),
                "{}",
                package.debian
            );
            assert!(!package.purposes.contains(&Purpose::QuickTest), "{}", package.debian);
        }
    }

    #[test]
    fn a_program_is_static_only_if_it_names_no_loader() {
        let elf = |kinds: &[u32]| {
            let mut bytes = vec![0_u8; 64];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[32] = 64;
            bytes[54] = 56;
            bytes[56] = u8::try_from(kinds.len()).unwrap();
            for kind in kinds {
                bytes.extend(kind.to_le_bytes());
                bytes.extend([0; 52]);
            }
            bytes
        };
        assert!(needs_no_library(&elf(&[1, 1])));
        assert!(!needs_no_library(&elf(&[1, 3, 2])));
        assert!(!needs_no_library(&elf(&[1, 1])[..80]), "cut short");
        assert!(!needs_no_library(b"#!/bin/sh\n"));
        #[cfg(target_os = "linux")]
        assert!(!needs_no_library(
            &std::fs::read(std::env::current_exe().unwrap()).unwrap()
        ));
    }
}
