//! Our own description of an NVIDIA card for a job, written from the running driver: device nodes of this card, libraries of this
//! very driver version, a few variables. In the words of the Container Device Interface it has `deviceNodes`, `mounts` and
//! `env`, and never a hook: a hook is a program that runs as root with what the image says (CVE-2025-23266). A library that is
//! looked up by several names is mounted under each, for which others need a hook.

use crate::card::{CardAccess, Placed};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a job finds the driver's libraries: a folder that images made for NVIDIA's runtime look into anyway.
pub const LIBRARIES_INSIDE: &str = "/usr/local/nvidia/lib64";
/// Where it finds the driver's tools.
pub const TOOLS_INSIDE: &str = "/usr/local/nvidia/bin";

/// Libraries that computing needs: name, and the number of its soname (`None` where that is the driver's version). Those marked
/// must be there; the others came and went with versions of the driver.
const LIBRARIES: [(&str, Option<&str>, bool); 6] = [
    ("libcuda.so", Some("1"), true),
    ("libnvidia-ml.so", Some("1"), true),
    ("libnvidia-ptxjitcompiler.so", Some("1"), false),
    ("libnvidia-nvvm.so", Some("4"), false),
    ("libnvidia-gpucomp.so", None, false),
    ("libnvidia-opencl.so", Some("1"), false),
];

/// The first of them, by the name that programs load it by.
const COMPUTE_LIBRARY: &str = "libcuda.so.1";

/// Tools of the driver that a job may want to look at its card with.
const TOOLS: [&str; 1] = ["nvidia-smi"];

/// Where distributions put the libraries, if the loader's own list does not say.
const FOLDERS: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
];

/// Nodes that a job can do without: for debuggers.
const OPTIONAL_NODE: &str = "/dev/nvidia-uvm-tools";

/// Why no description could be written.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// The kernel runs another version of the driver than the one whose libraries are installed.
    #[error(
        "the running NVIDIA driver is {running}, but the libraries installed are of {installed}: restart the PC to finish the driver's update"
    )]
    VersionMismatch {
        /// What the kernel runs.
        running: String,
        /// What is installed.
        installed: String,
    },
    /// A library is missing altogether.
    #[error(
        "{library}.{version} is not on this machine; install the NVIDIA driver's compute libraries (looked in {looked})"
    )]
    LibraryMissing {
        /// Which.
        library: String,
        /// Of which version.
        version: String,
        /// Where it was looked for.
        looked: String,
    },
    /// A device node is missing and could not be made.
    #[error("the device node {node} is missing and could not be made: {source}")]
    Node {
        /// Which.
        node: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Describes a card: `nodes` are the device nodes that its driver needs (`sela-gpu` names them), `version` is the version of the
/// running driver. Makes missing nodes, which takes root. Blocking.
///
/// # Errors
/// [`CdiError`].
pub fn nvidia(nodes: &[PathBuf], version: &str) -> Result<CardAccess, CdiError> {
    let devices = present_nodes(nodes)?;
    let folders = library_folders(&loader_list());
    let tools: Vec<PathBuf> = [
        "/usr/bin",
        "/usr/local/bin",
        "/usr/local/nvidia/bin",
        "/usr/lib/wsl/lib",
    ]
    .map(PathBuf::from)
    .to_vec();
    describe(devices, version, &folders, &tools)
}

/// The file of a described card's library for computing, of the running driver's version: what wipes its memory.
pub fn compute_library(card: &CardAccess) -> Option<PathBuf> {
    let inside = Path::new(LIBRARIES_INSIDE).join(COMPUTE_LIBRARY);
    let found = card.files.iter().find(|file| file.inside == inside);
    found.map(|file| file.outside.clone())
}

/// Whether a driver's library for computing is on this machine, of whatever version.
pub fn can_compute() -> bool {
    let folders = library_folders(&loader_list());
    folders.iter().any(|folder| folder.join(COMPUTE_LIBRARY).exists())
}

/// The same as a CDI document, for a runtime that reads one.
pub fn document(name: &str, card: &CardAccess) -> Value {
    let nodes: Vec<Value> = card
        .devices
        .iter()
        .map(|node| json!({ "hostPath": node.outside, "path": node.inside, "permissions": "rw" }))
        .collect();
    let mounts: Vec<Value> = card
        .files
        .iter()
        .map(|file| {
            json!({
                "hostPath": file.outside,
                "containerPath": file.inside,
                "options": ["ro", "nosuid", "nodev", "bind"],
            })
        })
        .collect();
    let env: Vec<String> = card.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    json!({
        "cdiVersion": "0.5.0",
        "kind": "sela.io/gpu",
        "devices": [{
            "name": name,
            "containerEdits": { "deviceNodes": nodes, "mounts": mounts, "env": env },
        }],
    })
}

fn describe(
    devices: Vec<Placed>,
    version: &str,
    folders: &[PathBuf],
    tools: &[PathBuf],
) -> Result<CardAccess, CdiError> {
    let mut files = Vec::new();
    for (library, soname, needed) in LIBRARIES {
        let exact = format!("{library}.{version}");
        let Some(outside) = folders
            .iter()
            .map(|folder| folder.join(&exact))
            .find(|path| path.is_file())
        else {
            if needed {
                return Err(missing(library, version, folders));
            }
            continue;
        };
        let mut names = vec![exact, library.to_owned()];
        names.extend(soname.map(|number| format!("{library}.{number}")));
        files.extend(names.into_iter().map(|name| Placed {
            outside: outside.clone(),
            inside: Path::new(LIBRARIES_INSIDE).join(name),
        }));
    }
    for tool in TOOLS {
        let found = tools.iter().map(|folder| folder.join(tool)).find(|path| path.is_file());
        files.extend(found.map(|outside| Placed {
            outside,
            inside: Path::new(TOOLS_INSIDE).join(tool),
        }));
    }
    let env = BTreeMap::from([
        ("LD_LIBRARY_PATH".to_owned(), LIBRARIES_INSIDE.to_owned()),
        ("PATH".to_owned(), TOOLS_INSIDE.to_owned()),
    ]);
    Ok(CardAccess {
        devices,
        files,
        env,
        wipe: None,
    })
}

/// Another version being there tells a half-finished update from a driver without its libraries.
fn missing(library: &str, version: &str, folders: &[PathBuf]) -> CdiError {
    let prefix = format!("{library}.");
    let is_version = |rest: &str| rest.contains('.') && rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let installed = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(&prefix).map(str::to_owned))
        .find(|rest| is_version(rest));
    match installed {
        Some(installed) => CdiError::VersionMismatch {
            running: version.to_owned(),
            installed,
        },
        None => CdiError::LibraryMissing {
            library: library.to_owned(),
            version: version.to_owned(),
            looked: folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
        },
    }
}

/// The loader's list of libraries, as text; empty where it cannot be had.
fn loader_list() -> String {
    #[expect(clippy::disallowed_methods, reason = "this crate is where processes are started")]
    let listed = ["/sbin/ldconfig", "ldconfig"]
        .into_iter()
        .find_map(|program| Command::new(program).arg("-p").output().ok());
    listed.map_or_else(String::new, |output| {
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}

/// Folders in which the loader knows `libcuda` or `libnvidia-ml` of this machine's own word size, then the usual ones.
fn library_folders(list: &str) -> Vec<PathBuf> {
    let ours = if cfg!(target_arch = "aarch64") {
        "AArch64"
    } else {
        "x86-64"
    };
    let known = list.lines().filter_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let wanted = ["libcuda.so", "libnvidia-ml.so"]
            .iter()
            .any(|library| name.starts_with(library));
        (wanted && name.contains(ours)).then(|| Path::new(path).parent().map(Path::to_owned))?
    });
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in known.chain(FOLDERS.map(PathBuf::from)) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Nodes that are there, after making those that are not.
fn present_nodes(nodes: &[PathBuf]) -> Result<Vec<Placed>, CdiError> {
    let mut present = Vec::new();
    for node in nodes {
        if !node.exists()
            && let Err(source) = make_node(node)
        {
            if node == Path::new(OPTIONAL_NODE) {
                continue;
            }
            return Err(CdiError::Node {
                node: node.clone(),
                source,
            });
        }
        present.push(Placed {
            outside: node.clone(),
            inside: node.clone(),
        });
    }
    Ok(present)
}

/// By NVIDIA's own tool, which also loads the module; else by the numbers that the kernel gives.
fn make_node(node: &Path) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this crate is where processes are started")]
    let ran = Command::new("nvidia-modprobe").args(["-c", "0", "-u"]).status();
    if ran.is_ok() && node.exists() {
        return Ok(());
    }
    let devices = fs::read_to_string("/proc/devices")?;
    let (major, minor) = numbers(node, &devices)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the kernel module behind it is not loaded"))?;
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    let device = rustix::fs::makedev(major, minor);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        node,
        rustix::fs::FileType::CharacterDevice,
        mode,
        device,
    )?;
    // The umask does not apply to what every program that uses the card must open.
    Ok(rustix::fs::chmod(node, mode)?)
}

/// Major and minor number of a node of NVIDIA's, by the kernel's list of character devices.
fn numbers(node: &Path, devices: &str) -> Option<(u32, u32)> {
    let major = |driver: &[&str]| {
        let lines = devices
            .lines()
            .skip_while(|line| !line.starts_with("Character"))
            .take_while(|line| !line.is_empty());
        lines
            .filter_map(|line| line.trim().split_once(' '))
            .find(|(_, name)| driver.contains(name))?
            .0
            .parse()
            .ok()
    };
    // The same driver under its newer and its older name.
    let main = ["nvidia", "nvidia-frontend"];
    match node.file_name()?.to_str()? {
        "nvidiactl" => Some((major(&main)?, 255)),
        "nvidia-uvm" => Some((major(&["nvidia-uvm"])?, 0)),
        "nvidia-uvm-tools" => Some((major(&["nvidia-uvm"])?, 1)),
        name => Some((major(&main)?, name.strip_prefix("nvidia")?.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(folder.path().join(file), "").unwrap();
        }
        folder
    }

    fn node(path: &str) -> Placed {
        Placed {
            outside: PathBuf::from(path),
            inside: PathBuf::from(path),
        }
    }

    #[test]
    fn libraries_of_the_running_version_are_placed_under_every_name() {
        let folder = installed(&[
            "libcuda.so.595.10.01",
            "libnvidia-ml.so.595.10.01",
            "libnvidia-gpucomp.so.595.10.01",
            "libcuda.so.580.1",
            "nvidia-smi",
        ]);
        let folders = [folder.path().to_owned()];
        let card = describe(vec![node("/dev/nvidia0")], "595.10.01", &folders, &folders).unwrap();
        let inside: Vec<String> = card
            .files
            .iter()
            .map(|file| file.inside.display().to_string())
            .collect();
        for name in [
            "/usr/local/nvidia/lib64/libcuda.so.595.10.01",
            "/usr/local/nvidia/lib64/libcuda.so.1",
            "/usr/local/nvidia/lib64/libcuda.so",
            "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
            "/usr/local/nvidia/lib64/libnvidia-gpucomp.so.595.10.01",
            "/usr/local/nvidia/bin/nvidia-smi",
        ] {
            assert!(inside.iter().any(|found| found == name), "{name} in {inside:?}");
        }
        assert!(
            card.files
                .iter()
                .all(|file| !file.outside.ends_with("libcuda.so.580.1"))
        );
    }

    #[test]
    fn an_unfinished_update_says_restart_and_a_missing_library_says_install() {
        let updated = installed(&["libcuda.so.600.2", "libcuda.so.1", "libnvidia-ml.so.600.2"]);
        let error = describe(Vec::new(), "595.10.01", &[updated.path().to_owned()], &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("restart the PC") && error.contains("600.2"), "{error}");
        let bare = installed(&["libcuda.so.1"]);
        let error = describe(Vec::new(), "595.10.01", &[bare.path().to_owned()], &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("install"), "{error}");
    }

    #[test]
    fn the_loaders_folders_come_first_and_other_word_sizes_do_not() {
        let list = "\
            3 libs found in cache `/etc/ld.so.cache'\n\
            \tlibnvidia-ml.so.1 (libc6,x86-64) => /opt/driver/lib/libnvidia-ml.so.1\n\
            \tlibnvidia-ml.so.1 (libc6,AArch64) => /opt/driver/lib/libnvidia-ml.so.1\n\
            \tlibcuda.so.1 (libc6) => /usr/lib32/libcuda.so.1\n\
            \tlibc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6\n";
        let folders = library_folders(list);
        assert_eq!(folders[0], Path::new("/opt/driver/lib"));
        assert!(!folders.contains(&PathBuf::from("/usr/lib32")));
    }

    #[test]
    fn nodes_are_numbered_by_the_kernels_list() {
        let devices =
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n508 nvidia-uvm\n\nBlock devices:\n  7 nvidia\n";
        for (node, expected) in [
            ("/dev/nvidia3", Some((195, 3))),
            ("/dev/nvidiactl", Some((195, 255))),
            ("/dev/nvidia-uvm", Some((508, 0))),
            ("/dev/nvidia-uvm-tools", Some((508, 1))),
            ("/dev/nvidia-caps", None),
            ("/dev/kvm", None),
        ] {
            assert_eq!(numbers(Path::new(node), devices), expected, "{node}");
        }
        assert_eq!(
            numbers(Path::new("/dev/nvidia-uvm"), "Character devices:\n195 nvidia\n"),
            None
        );
    }

    #[test]
    fn the_document_has_nodes_mounts_and_variables_and_no_hook() {
        let folder = installed(&["libcuda.so.595.1", "libnvidia-ml.so.595.1"]);
        let card = describe(vec![node("/dev/nvidia0")], "595.1", &[folder.path().to_owned()], &[]).unwrap();
        let document = document("GPU-1", &card);
        let edits = document["devices"][0]["containerEdits"].as_object().unwrap();
        assert_eq!(edits.keys().collect::<Vec<_>>(), ["deviceNodes", "env", "mounts"]);
        assert_eq!(edits["deviceNodes"][0]["path"], "/dev/nvidia0");
        assert_eq!(edits["mounts"].as_array().unwrap().len(), 6);
    }
}
