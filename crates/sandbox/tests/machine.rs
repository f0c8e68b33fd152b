//! The walls, limits, folders and lives of jobs once more, on a machine whose cgroups are version 2 alone: users' machines are such, this
//! one may not be. The machine is emulated: a distribution's kernel, busybox, and the very test programs that were built beside
//! this one.
//!
//! Needs `qemu-system-x86_64`, busybox and, in the environment variable `SELA_TEST_KERNEL`, a folder into which a Linux image
//! package was unpacked (`apt-get download linux-image-…-cloud-amd64 && dpkg-deb -x linux-image-*.deb FOLDER`).

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who starts the machine"
)]

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the machine runs first, as root, from its memory. A root that is the kernel's first file system cannot be
/// pivoted away from, so it moves to a second one.
const INIT: &str = r#"#!/bin/sh
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
for program in $(cat /t/programs); do
  # Freezing within a quarter of a second on a busy machine is no promise for an emulated one.
  if timeout 240 /t/deps/$program --test-threads 1 --skip a_busy_machine > /t/$program.log 2>&1; then
    echo "PASSED $program $(grep '^test result:' /t/$program.log)"
  else
    cat /t/$program.log
    echo "BROKEN $program"
  fi
done
echo "cgroups: $(cat /sys/fs/cgroup/cgroup.controllers)"
echo "the end"
poweroff -f
"#;

const APPLETS: [&str; 17] = [
    "sh",
    "mount",
    "mkdir",
    "cp",
    "switch_root",
    "insmod",
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
];

const PROGRAMS: [&str; 5] = ["walls", "limits", "folders", "life", "cards"];

#[test]
fn jobs_are_walled_in_on_a_machine_with_cgroup_version_2_alone() {
    let test = "jobs_are_walled_in_on_a_machine_with_cgroup_version_2_alone";
    let Some(kernel) = std::env::var_os("SELA_TEST_KERNEL").map(PathBuf::from) else {
        println!("{test}: skipped: needs SELA_TEST_KERNEL, a folder with an unpacked Linux image package");
        return;
    };
    if !cfg!(target_arch = "x86_64") || Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        println!("{test}: skipped: needs qemu-system-x86_64");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("memory.gz");
    pack(&furnish(folder.path(), &kernel), &memory);
    let said = start(&find(&kernel.join("boot"), "vmlinuz-"), &memory);
    println!("{said}");
    assert!(said.contains("the end"), "the machine did not reach its end:\n{said}");
    for program in PROGRAMS {
        assert!(
            said.contains(&format!("PASSED {program} test result: ok.")),
            "{program}:\n{said}"
        );
    }
    assert!(said.contains("cgroups: ") && said.contains("memory"), "{said}");
}

fn furnish(folder: &Path, kernel: &Path) -> PathBuf {
    let root = folder.join("root");
    for name in ["bin", "lib", "new", "proc", "sys", "dev", "t/deps", "t/examples"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox: apt-get install busybox-static");
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    let modules = fs::read_dir(kernel.join("lib/modules"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::copy(
        modules.join("kernel/fs/overlayfs/overlay.ko"),
        root.join("lib/overlay.ko"),
    )
    .unwrap();
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut programs = Vec::new();
    for program in PROGRAMS {
        programs.push((find(&deps, &format!("{program}-")), root.join("t/deps").join(program)));
    }
    for example in ["keeper", "inside"] {
        programs.push((
            deps.with_file_name("examples").join(example),
            root.join("t/examples").join(example),
        ));
    }
    for (source, target) in &programs {
        let stripped = Command::new("strip")
            .arg("-o")
            .arg(target)
            .arg(source)
            .status()
            .unwrap();
        assert!(stripped.success(), "strip {}", source.display());
        for library in libraries(source) {
            let target = root.join(library.strip_prefix("/").unwrap());
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(&library, target).unwrap();
        }
    }
    fs::write(root.join("t/programs"), PROGRAMS.join(" ")).unwrap();
    fs::write(root.join("init"), INIT).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    root
}

/// The newest file whose name begins so and has no extension.
fn find(folder: &Path, prefix: &str) -> PathBuf {
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

fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("/lib64/ld-linux-x86-64.so.2")
        .arg("--list")
        .arg(program)
        .output()
        .unwrap();
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
        .args([
            "280",
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-smp",
            "2",
            "-cpu",
            "max",
            "-m",
            "2048",
        ])
        .args([
            "-nographic",
            "-no-reboot",
            "-append",
            "console=ttyS0 panic=-1 quiet loglevel=0",
        ])
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
