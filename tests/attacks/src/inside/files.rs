//! Files of the owner's, of other tenants' jobs, and of tenants that were here before.

use super::{ask, at, at_mut, owned};
use crate::arena::{Arena, Side};
use crate::catalogue::Control::Bare;
use crate::catalogue::Probe;
use crate::catalogue::promise::{NOTHING_STAYS, OWN_FILES};
use crate::verdict::{Held, Outcome};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside(
        "host files",
        "a job reads a file of the owner's by its path",
        OWN_FILES,
        Bare,
        |arena| secret_in(arena, &arena.secret_file),
    ),
    Probe::inside(
        "host files",
        "a job climbs out of its root with dots",
        OWN_FILES,
        Bare,
        |arena| {
            let path = PathBuf::from("../".repeat(64)).join(below_root(&arena.secret_file));
            secret_in(arena, &path)
        },
    ),
    Probe::inside(
        "host files",
        "a job reads a file of the owner's through the root of its first process",
        OWN_FILES,
        Bare,
        |arena| {
            let root = PathBuf::from(format!("/proc/{}/root", arena.first_pid));
            secret_in(arena, &root.join(below_root(&arena.secret_file)))
        },
    ),
    Probe::inside(
        "host files",
        "a job opens the root of the file system by its handle",
        OWN_FILES,
        Bare,
        by_handle,
    ),
    Probe::inside(
        "host files",
        "a job writes a file into a folder of the owner's",
        OWN_FILES,
        Bare,
        |arena| {
            let target = arena.owner_folder.join("written by a job");
            File::create(&target)?.write_all(b"x")?;
            fs::remove_file(&target)?;
            Ok(format!("wrote {}", target.display()))
        },
    ),
    Probe::inside(
        "host files",
        "a job finds the owner's folders in its table of mounts",
        OWN_FILES,
        Bare,
        |arena| {
            if arena.side == Side::Control {
                // As a runtime does that shows a folder of the machine's.
                let folder =
                    CString::new(arena.owner_folder.as_os_str().as_bytes()).map_err(|_| Held::nothing("no name"))?;
                super::mounts::mount(Some(&folder), &folder, None, libc::MS_BIND)?;
            }
            let table = fs::read_to_string("/proc/self/mountinfo")?;
            let folder = arena.owner_folder.display().to_string();
            match table.lines().find(|line| line.contains(&folder)) {
                Some(line) => Ok(line.to_owned()),
                None => Err(Held::nothing(format!(
                    "{} mounts, none of them the owner's",
                    table.lines().count()
                ))),
            }
        },
    ),
    Probe::inside(
        "other jobs",
        "a job reads another job's scratch through that job's root",
        OWN_FILES,
        Bare,
        |arena| {
            let root = PathBuf::from(format!("/proc/{}/root", arena.other_job_pid));
            read_all(&root.join(below_root(&arena.other_job_file)))
        },
    ),
    Probe::inside(
        "other jobs",
        "a job reads what the agent keeps for another job",
        OWN_FILES,
        Bare,
        |arena| read_all(&arena.other_scratch_file),
    ),
    Probe::inside(
        "deleted scratch",
        "a job finds files that the job before it left",
        NOTHING_STAYS,
        Bare,
        |arena| {
            let mut seen = 0;
            for folder in &arena.left_in {
                if let Some(found) = find(folder, &arena.left_word, &mut seen) {
                    return Ok(format!("found it in {}", found.display()));
                }
            }
            Err(Held::nothing(format!("{seen} files, none of another job's")))
        },
    ),
    Probe::inside(
        "deleted scratch",
        "a job finds in fresh files what the job before it deleted",
        NOTHING_STAYS,
        Bare,
        in_fresh_files,
    ),
    Probe::inside(
        "deleted scratch",
        "a job finds shared memory that the job before it left",
        NOTHING_STAYS,
        Bare,
        |arena| {
            let segment = ask(libc::SYS_shmget, &[libc::c_long::from(arena.left_key), 0, 0])?;
            Ok(format!("segment {segment}"))
        },
    ),
];

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn read_all(path: &Path) -> Outcome {
    let text = fs::read(path)?;
    Ok(format!("read {} bytes of {}", text.len(), path.display()))
}

fn secret_in(arena: &Arena, path: &Path) -> Outcome {
    if fs::read_to_string(path)?.contains(&arena.secret) {
        Ok(format!("read the secret in {}", path.display()))
    } else {
        Err(Held::nothing("another file of that name"))
    }
}

/// A handle as open_by_handle_at(2) takes it.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

/// As CVE-2014-3519 and the "shocker" did: a handle needs no path. Where the kernel gives none, one is made up: inode 2.
fn by_handle(_: &Arena) -> Outcome {
    let mut handle = Handle {
        bytes: 128,
        kind: 1,
        handle: [0; 128],
    };
    let mut mount = 0_i32;
    let root = c"/";
    let given = ask(
        libc::SYS_name_to_handle_at,
        &[
            libc::c_long::from(libc::AT_FDCWD),
            at(root),
            at_mut(&mut handle),
            at_mut(&mut mount),
            0,
        ],
    );
    if given.is_err() {
        handle.bytes = 8;
        handle.handle[0] = 2;
    }
    let of_mount = File::open("/")?;
    let opened = ask(
        libc::SYS_open_by_handle_at,
        &[
            libc::c_long::from(of_mount.as_raw_fd()),
            at_mut(&mut handle),
            libc::c_long::from(libc::O_RDONLY | libc::O_DIRECTORY),
        ],
    )?;
    drop(owned(opened)?);
    Ok("opened a folder without a path".to_owned())
}

/// The first file below `folder` that holds `word`, or is named by it.
fn find(folder: &Path, word: &str, seen: &mut u32) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().ok()?;
        if kind.is_dir() {
            if let Some(found) = find(&path, word, seen) {
                return Some(found);
            }
        } else if kind.is_file() {
            *seen += 1;
            let content = fs::read(&path).unwrap_or_default();
            let name = path.as_os_str().as_bytes();
            if [content.as_slice(), name]
                .iter()
                .any(|bytes| bytes.windows(word.len()).any(|part| part == word.as_bytes()))
            {
                return Some(path);
            }
        }
    }
    None
}

/// Takes pages and blocks that were never written and reads them: they must be zeros. A control reads a file that was shortened
/// and lengthened by somebody who only wrote its middle, which proves that old bytes would be noticed.
fn in_fresh_files(arena: &Arena) -> Outcome {
    let mut seen = 0;
    for folder in &arena.left_in {
        if find(folder, "residue of an earlier tenant", &mut seen).is_some() {
            return Ok(format!("old bytes in {}", folder.display()));
        }
    }
    let path = arena.writable.join("fresh");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    ask(
        libc::SYS_fallocate,
        &[libc::c_long::from(file.as_raw_fd()), 0, 0, 4 << 20],
    )?;
    let mut bytes = Vec::new();
    File::open(&path)?.read_to_end(&mut bytes)?;
    fs::remove_file(&path)?;
    match bytes.iter().position(|byte| *byte != 0) {
        Some(place) => Ok(format!("an old byte at {place}")),
        None => Err(Held::nothing(format!("{} bytes, all of them zero", bytes.len()))),
    }
}
