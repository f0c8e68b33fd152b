//! The image of the attacks, and what hostile images try on the keeper and on those who come after.

use crate::control::Plain;
use crate::ground::{Ground, IDS};
use crate::job::program;
use crate::outside::Pair;
use rustix::fs::{FileType, Mode};
use sela_attacks::verdict::{Held, Outcome};
use sela_attacks::{CAPABLE_PROGRAM, DEVICE_NODE, SETUID_PROGRAM, SHARED_FILE, SHARED_TEXT};
use sela_emulated::libraries;
use sela_sandbox::card::{CardAccess, Placed};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Version 2 of file capabilities with the effective bit: CAP_CHOWN, permitted (linux/capability.h).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// busybox with its applets, the probe program with what it links, and what an image may bring along to gain rights.
pub(crate) fn make_image(image: &Path) {
    for folder in ["bin", "etc", "root", "usr/lib", "lib", "lib64"] {
        fs::create_dir_all(image.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", image.join("bin/busybox")).expect("busybox: apt-get install busybox-static");
    let applets = Command::new("/bin/busybox").arg("--list").output().unwrap().stdout;
    let applets = String::from_utf8(applets).unwrap();
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", image.join("bin").join(applet)).unwrap();
    }
    fs::write(image.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    fs::write(image.join(SHARED_FILE), SHARED_TEXT).unwrap();
    let probe = program("sela-probe");
    // Without what only debuggers read, where that can be had: an engine is given all of it.
    let small = image.join("bin/sela-probe");
    let stripped = Command::new("strip").arg("-o").arg(&small).arg(&probe).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(&probe, &small).unwrap();
    }
    for name in [SETUID_PROGRAM, CAPABLE_PROGRAM] {
        fs::copy(&small, image.join(name)).unwrap();
    }
    for library in libraries(&probe) {
        let target = image.join(library.strip_prefix("/").unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&library, target).unwrap();
    }
    let mode = Mode::from_raw_mode(0o666);
    let zero = rustix::fs::makedev(1, 5);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        image.join(DEVICE_NODE),
        FileType::CharacterDevice,
        mode,
        zero,
    )
    .unwrap();
    rustix::fs::chmod(image.join(DEVICE_NODE), mode).unwrap();
    give(image);
    // Changing the owner takes these away, so they come last.
    fs::set_permissions(image.join(SETUID_PROGRAM), fs::Permissions::from_mode(0o4755)).unwrap();
    rustix::fs::setxattr(
        image.join(CAPABLE_PROGRAM),
        "security.capability",
        &CAPABILITY,
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
}

/// Owned by the job's ids, as the cache of images leaves layers.
fn give(path: &Path) {
    lchown(path, Some(IDS.first), Some(IDS.first)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// Every name below a folder with what makes it what it is.
fn state(folder: &Path) -> BTreeMap<PathBuf, (u32, u32, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let status = fs::symlink_metadata(&path).unwrap();
        let content = if status.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        if status.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
        }
        found.insert(
            path.strip_prefix(folder).unwrap().to_owned(),
            (status.mode(), status.uid(), status.len(), content),
        );
    }
    found
}

/// What a job tries so that the next one of the same image gets something else. `$ROOT` is empty inside a job.
const POISON: &str = "echo bad >> $ROOT/etc/shared; rm -f $ROOT/bin/ls; echo bad > $ROOT/bin/new; chmod 777 $ROOT/etc; \
    ln -sf /tmp $ROOT/root; mv $ROOT/usr $ROOT/old; echo bad > $ROOT/bin/busybox; true";

pub(crate) async fn poisoned(ground: &Ground) -> Pair {
    let before = state(&ground.image);
    let mut plan = ground.script(POISON);
    plan.program.environment.push(("ROOT".to_owned(), String::new()));
    ground.start(&plan).finish().await;
    let next = ground
        .start(&ground.script("cat /etc/shared; ls /bin | wc -l"))
        .finish()
        .await;
    let behind = if state(&ground.image) == before && next.out.starts_with(SHARED_TEXT) {
        Err(Held::nothing(format!("{} names are what they were", before.len())))
    } else {
        Ok("the image has changed".to_owned())
    };
    let copy = ground.fresh("poisoned");
    Plain::shell(&format!(
        "cp -a {}/etc {}/root {0}/usr {1}",
        ground.image.display(),
        ground.image.display()
    ))
    .finish();
    for folder in ["etc", "bin", "root", "usr"] {
        fs::create_dir_all(copy.join(folder)).unwrap();
    }
    let before = state(&copy);
    Plain::shell(&format!("ROOT={}; {POISON}", copy.display())).finish();
    let without = if state(&copy) == before {
        Err(Held::nothing("nothing changed"))
    } else {
        Ok("a plain folder has changed".to_owned())
    };
    Pair::new(without, behind)
}

/// As CVE-2024-21626: the working folder of an image, or of an exec, named through a descriptor that the runtime forgot to close.
pub(crate) async fn leaked_descriptor(ground: &Ground) -> Pair {
    let climb = format!(
        "{}{}",
        "../".repeat(20),
        ground.secret_file.strip_prefix("/").unwrap().display()
    );
    let jobs: Vec<_> = (3..11)
        .map(|number| {
            let mut plan = ground.script(&format!("cat {climb} /proc/self/cwd/{climb}; true"));
            plan.program.folder = PathBuf::from(format!("/proc/self/fd/{number}"));
            (number, ground.start(&plan))
        })
        .collect();
    let mut behind: Outcome = Err(Held::nothing("no descriptor leads anywhere"));
    for (number, job) in jobs {
        let outcome = job.finish().await;
        if outcome.fault().is_none() && outcome.out.contains(&ground.secret()) {
            behind = Ok(format!("descriptor {number} leads out"));
        }
    }
    let root = File::open("/").unwrap();
    rustix::io::fcntl_setfd(&root, rustix::io::FdFlags::empty()).unwrap();
    let mut command = Command::new("/bin/busybox");
    command
        .args(["cat", ground.secret_file.strip_prefix("/").unwrap().to_str().unwrap()])
        .current_dir(format!("/proc/self/fd/{}", root.as_raw_fd()));
    let said = Plain::start(&mut command).finish();
    let without = if said.contains(&ground.secret()) {
        Ok("a descriptor that was left open leads to the owner's file".to_owned())
    } else {
        Err(Held::nothing("it leads nowhere"))
    };
    Pair::new(without, behind)
}

/// As CVE-2024-0132: a link in the image at the place where the runtime puts the card's files.
pub(crate) async fn linked_target(ground: &Ground) -> Pair {
    const INSIDE: &str = "/usr/local/nvidia/lib64/libcuda.so.1";
    let folder = ground.owner_folder.join("libraries");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libcuda.so.1"), "the owner's own").unwrap();
    let hostile = ground.fresh("hostile");
    fs::create_dir_all(hostile.join("usr/local/nvidia")).unwrap();
    symlink(&folder, hostile.join("usr/local/nvidia/lib64")).unwrap();
    give(&hostile);
    let library = ground.fresh("driver").join("libcuda.so.595.1");
    fs::write(&library, "the driver's").unwrap();

    let mut plan = ground.script(&format!(
        "cat {INSIDE}; cat {INSIDE}/../../../../../..{secret}; echo bad > {INSIDE}; sleep 0.1",
        secret = ground.secret_file.display()
    ));
    plan.layers.push(hostile.clone());
    plan.card = Some(CardAccess {
        files: vec![Placed {
            outside: library.clone(),
            inside: PathBuf::from(INSIDE),
        }],
        ..CardAccess::default()
    });
    let outcome = ground.start(&plan).finish().await;
    let owners = fs::read_to_string(folder.join("libcuda.so.1")).unwrap();
    let drivers = fs::read_to_string(&library).unwrap();
    let untouched = owners == "the owner's own" && drivers == "the driver's";
    let behind = if untouched && outcome.out == "the driver's" {
        Err(Held::nothing(
            "the card's file is where it belongs, and the owner's untouched",
        ))
    } else {
        Ok(format!("{owners:?}, {drivers:?}, and inside {:?}", outcome.out))
    };
    // A runtime that makes the place for a mount by its path in the image.
    fs::write(hostile.join(INSIDE.trim_start_matches('/')), "").unwrap();
    let owners = fs::read_to_string(folder.join("libcuda.so.1")).unwrap();
    let without = if owners == "the owner's own" {
        Err(Held::nothing("the link was not followed"))
    } else {
        Ok("the owner's file was emptied".to_owned())
    };
    Pair::new(without, behind)
}

/// As CVE-2025-23266: variables of the image's that a program takes which the runtime starts outside of the job. The loader itself
/// tells: it writes a file wherever it meets them.
pub(crate) async fn hooked(ground: &Ground) -> Pair {
    let traces = ground.fresh("hooked");
    let variables = [
        ("LD_PRELOAD".to_owned(), "/bin/evil.so".to_owned()),
        ("LD_DEBUG".to_owned(), "files".to_owned()),
        ("LD_DEBUG_OUTPUT".to_owned(), traces.join("trace").display().to_string()),
    ];
    let found = || fs::read_dir(&traces).unwrap().count();
    let mut plan = ground.plan(&["/bin/sela-probe", "do", "crash", "/tmp"]);
    plan.program.environment.extend(variables.clone());
    plan.card = Some(CardAccess::default());
    let outcome = ground.start(&plan).finish().await;
    assert!(outcome.out.contains("crashing"), "{outcome:?}");
    let behind = match found() {
        0 => Err(Held::nothing("no program outside took them")),
        count => Ok(format!("{count} programs outside took them")),
    };
    let mut command = Command::new(program("sela-probe"));
    command.arg("spare").envs(variables);
    Plain::start(&mut command).finish();
    let without = match found() {
        0 => Err(Held::nothing("the loader did not tell")),
        count => Ok(format!("{count} program took them")),
    };
    Pair::new(without, behind)
}
