//! An emulated machine whose cgroups are version 2 alone: users' machines are such, the one that tests run on may not be. A
//! distribution's kernel, busybox, and the very programs that were built for this machine. What is tried on it is its users' to say.
//!
//! Needs `qemu-system-x86_64`, busybox and, in the environment variable `SELA_TEST_KERNEL`, a folder into which a Linux image
//! package was unpacked (`apt-get download linux-image-…-cloud-amd64 && dpkg-deb -x linux-image-*.deb FOLDER`).

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test a panic is the report, and skipped tests say so"
)]

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the machine runs first, as root, from its memory. A root that is the kernel's first file system cannot be
/// pivoted away from, so it moves to a second one.
const BEFORE: &str = r#"#!/bin/sh
export PATH=/bin
if [ ! -e /second ]; then
  mount -t tmpfs -o size=80% tmpfs /new
  for part in bin lib lib64 usr t init; do [ -e /$part ] && cp -a /$part /new/; done
  mkdir -p /new/proc /new/sys /new/dev /new/tmp
  echo > /new/second
  mount -t devtmpfs dev /new/dev
  exec switch_root /new /init
fi
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
insmod /lib/overlay.ko
export RUST_BACKTRACE=0
"#;

/// How it ends: with what it is, so that nobody takes another machine for it.
const AFTER: &str = r#"
echo "cgroups: $(cat /sys/fs/cgroup/cgroup.controllers)"
echo "the end"
poweroff -f
"#;

const APPLETS: [&str; 25] = [
    "sh",
    "mount",
    "umount",
    "mkdir",
    "mkfifo",
    "cp",
    "switch_root",
    "insmod",
    "ip",
    "poweroff",
    "cat",
    "ls",
    "sleep",
    "echo",
    "grep",
    "timeout",
    "tr",
    "sed",
    "head",
    "tail",
    "chmod",
    "chown",
    "su",
    "ln",
    "rm",
];

/// The kernel and everything else that it takes to start one.
#[derive(Debug)]
pub struct Machine {
    kernel: PathBuf,
    folder: tempfile::TempDir,
}

impl Machine {
    /// What is there of it; says by name that `test` is skipped where something is missing.
    pub fn find(test: &str) -> Option<Self> {
        let Some(kernel) = std::env::var_os("SELA_TEST_KERNEL").map(PathBuf::from) else {
            println!("{test}: skipped: needs SELA_TEST_KERNEL, a folder with an unpacked Linux image package");
            return None;
        };
        if !cfg!(target_arch = "x86_64") || Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
            println!("{test}: skipped: needs qemu-system-x86_64");
            return None;
        }
        let machine = Self {
            kernel,
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["bin", "lib", "new", "proc", "sys", "dev", "t/deps", "t/examples"] {
            fs::create_dir_all(machine.inside(name)).unwrap();
        }
        fs::copy("/bin/busybox", machine.inside("bin/busybox")).expect("busybox: apt-get install busybox-static");
        for applet in APPLETS {
            symlink("busybox", machine.inside("bin").join(applet)).unwrap();
        }
        machine.give_module("kernel/fs/overlayfs/overlay.ko");
        Some(machine)
    }

    fn inside(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path)
    }

    /// Puts a module of its kernel into its `/lib`, not loaded.
    pub fn give_module(&self, path: &str) {
        let modules = fs::read_dir(self.kernel.join("lib/modules")).unwrap();
        let modules = modules.flatten().next().unwrap().path();
        let name = Path::new(path).file_name().unwrap();
        fs::copy(modules.join(path), self.inside("lib").join(name)).unwrap();
    }

    /// Puts a program of this machine's there, with the libraries that it needs, without what only debuggers read.
    pub fn give_program(&self, source: &Path, target: &str) {
        fs::create_dir_all(self.inside(target).parent().unwrap()).unwrap();
        let stripped = Command::new("strip")
            .arg("-o")
            .arg(self.inside(target))
            .arg(source)
            .status()
            .unwrap();
        assert!(stripped.success(), "strip {}", source.display());
        for library in libraries(source) {
            let target = self.inside(library.strip_prefix("/").unwrap().to_str().unwrap());
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(&library, target).unwrap();
        }
    }

    /// Starts it, has it run a script of its shell as root, and gives everything that it said.
    ///
    /// # Panics
    /// Where it did not reach its end within five minutes, or its cgroups are not version 2's alone.
    pub fn run(&self, script: &str) -> String {
        fs::write(self.inside("init"), format!("{BEFORE}{script}{AFTER}")).unwrap();
        fs::set_permissions(self.inside("init"), fs::Permissions::from_mode(0o755)).unwrap();
        let memory = self.folder.path().join("memory.gz");
        pack(&self.inside(""), &memory);
        let said = start(&newest(&self.kernel.join("boot"), "vmlinuz-"), &memory);
        assert!(said.contains("the end"), "the machine did not reach its end:\n{said}");
        let controllers = said.lines().find_map(|line| line.strip_prefix("cgroups: "));
        assert!(controllers.is_some_and(|names| names.contains("memory")), "{said}");
        said
    }
}

/// The newest file whose name begins so and has no extension: cargo names what it builds by a hash.
///
/// # Panics
/// Where there is none.
pub fn newest(folder: &Path, prefix: &str) -> PathBuf {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with(prefix) && !name.ends_with(".d")
    });
    let newest = named.max_by_key(|entry| entry.metadata().and_then(|status| status.modified()).ok());
    newest
        .unwrap_or_else(|| panic!("no {prefix}… in {}", folder.display()))
        .path()
}

/// What a program needs beside itself, by the loader's own answer, which needs no shell: the emulated machine has none that `ldd`
/// could run in.
///
/// # Panics
/// Where this machine has no loader that is known here.
pub fn libraries(program: &Path) -> Vec<PathBuf> {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let loader = loaders.iter().find(|path| Path::new(path).exists()).expect("a loader");
    let listed = Command::new(loader).arg("--list").arg(program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

fn pack(root: &Path, target: &Path) {
    let script = "find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > \"$0\"";
    let packed = Command::new("sh")
        .args(["-c", script])
        .arg(target)
        .current_dir(root)
        .status()
        .unwrap();
    assert!(packed.success());
}

fn start(kernel: &Path, memory: &Path) -> String {
    let mut machine = Command::new("timeout")
        .args(["280", "qemu-system-x86_64", "-accel", "tcg,thread=multi"])
        .args(["-smp", "2", "-cpu", "max", "-m", "2048", "-nographic", "-no-reboot"])
        .args(["-append", "console=ttyS0 panic=-1 quiet loglevel=0"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(memory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    machine.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    machine.wait().unwrap();
    String::from_utf8_lossy(&said).replace('\r', "")
}
