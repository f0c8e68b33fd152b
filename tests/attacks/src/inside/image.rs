//! What an image brings along to gain rights, and what a job does to the image that it shares with others.

use super::{ask, at, child, wait_for};
use crate::arena::Arena;
use crate::catalogue::Control::Bare;
use crate::catalogue::Probe;
use crate::catalogue::promise::{IMAGE, NO_RIGHTS};
use crate::verdict::{Held, Outcome};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;

/// Where the image has a copy of the probe program that is its owner's for whoever starts it.
pub const SETUID_PROGRAM: &str = "bin/setuid-probe";
/// Where it has one with a capability of its own.
pub const CAPABLE_PROGRAM: &str = "bin/capable-probe";
/// Where it has a node of /dev/zero.
pub const DEVICE_NODE: &str = "bin/zero-node";
/// A file of the image's that a job tries to change.
pub const SHARED_FILE: &str = "etc/shared";
/// What is in it.
pub const SHARED_TEXT: &str = "the same for every job of this image\n";

const WRITES: &str = "writing to shared layers";

pub(crate) const PROBES: &[Probe] = &[
    Probe::as_user(
        "setuid in the image",
        "a plain user becomes another by a program of the image's",
        NO_RIGHTS,
        |_| rights_of(c"/bin/setuid-probe", "uid"),
    ),
    Probe::as_user(
        "setuid in the image",
        "a plain user gains a capability by a program of the image's",
        NO_RIGHTS,
        |_| rights_of(c"/bin/capable-probe", "capabilities"),
    ),
    Probe::as_user(
        "device nodes in the image",
        "a job opens a device node that its image brought",
        NO_RIGHTS,
        |_| {
            let mut byte = [1];
            File::open("/bin/zero-node")?.read_exact(&mut byte)?;
            Ok(format!("read {} from it", byte[0]))
        },
    ),
    Probe::inside(WRITES, "a job writes to a file of its image", IMAGE, Bare, |arena| {
        let path = shared(arena);
        let mut file = File::options().write(true).open(&path)?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(b"changed")?;
        fs::write(&path, SHARED_TEXT)?;
        Ok("changed it".to_owned())
    }),
    Probe::inside(WRITES, "a job replaces a program of its image", IMAGE, Bare, |arena| {
        let folder = root(arena).join("bin");
        fs::rename(folder.join("busybox"), folder.join("moved"))?;
        fs::rename(folder.join("moved"), folder.join("busybox"))?;
        Ok("moved it away and back".to_owned())
    }),
    Probe::inside(
        WRITES,
        "a job changes a file of its image by an attribute",
        IMAGE,
        Bare,
        |arena| {
            let file = File::open(shared(arena))?;
            ask(
                libc::SYS_fsetxattr,
                &[
                    libc::c_long::from(file.as_raw_fd()),
                    at(c"security.sela"),
                    at(c"x"),
                    1,
                    0,
                ],
            )?;
            Ok("it has an attribute more".to_owned())
        },
    ),
    Probe::inside(
        WRITES,
        "a job changes a file of its image through shared memory",
        IMAGE,
        Bare,
        |arena| {
            let file = File::options().read(true).write(true).open(shared(arena))?;
            map_writable(&file)
        },
    ),
    Probe::inside(
        WRITES,
        "a job opens a descriptor of its image anew for writing",
        IMAGE,
        Bare,
        |arena| {
            // As CVE-2019-5736 did with the program of the runtime: by the link in /proc, past the flags of the first opening.
            let file = File::open(shared(arena))?;
            let again = format!("/proc/self/fd/{}", file.as_raw_fd());
            File::options().write(true).open(again)?;
            Ok("opened it anew".to_owned())
        },
    ),
    Probe::inside(
        WRITES,
        "a job makes a file of its image another mode's",
        IMAGE,
        Bare,
        |arena| {
            let path = shared(arena);
            let mode = fs::metadata(&path)?.permissions();
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
            fs::set_permissions(&path, mode)?;
            Ok("changed it and back".to_owned())
        },
    ),
];

fn root(arena: &Arena) -> std::path::PathBuf {
    match arena.side {
        crate::arena::Side::Job => "/".into(),
        crate::arena::Side::Control => arena.image.clone(),
    }
}

fn shared(arena: &Arena) -> std::path::PathBuf {
    root(arena).join(SHARED_FILE)
}

/// Runs a program of the image's that says by its exit status whether it has more rights than whoever started it.
fn rights_of(program: &CStr, what: &str) -> Outcome {
    let word = std::ffi::CString::new(format!("has-{what}")).map_err(|_| Held::nothing("no such word"))?;
    let status = wait_for(child(|| {
        let arguments = [program.as_ptr(), word.as_ptr(), std::ptr::null()];
        let environment = [std::ptr::null()];
        // SAFETY: both lists end in null and live until the call replaces this process or fails.
        unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        101
    })?)?;
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(format!("gained {what}")),
        (true, 1) => Err(Held::nothing(format!("it runs without gaining {what}"))),
        (_, other) => Err(Held::nothing(format!("it did not run: {other}"))),
    }
}

/// The other end of [`rights_of`]: 0 where this process has more than a plain user.
pub fn has_more(what: &str) -> bool {
    match what {
        "has-uid" => {
            // SAFETY: the calls take nothing and cannot fail.
            unsafe { libc::geteuid() != libc::getuid() }
        }
        "has-capabilities" => {
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let of_self = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
            match of_self {
                Some(set) => u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set != 0),
                // An image's folder has no /proc: then by using it. CAP_CHOWN.
                None => effective_capabilities() != 0,
            }
        }
        _ => false,
    }
}

fn effective_capabilities() -> u32 {
    // struct __user_cap_header_struct of version 3, and two sets of effective, permitted, inheritable.
    let header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    match ask(libc::SYS_capget, &[at(&header), super::at_mut(&mut sets)]) {
        Ok(_) => sets[0] | sets[3],
        Err(_) => 0,
    }
}

fn map_writable(file: &File) -> Outcome {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(1);
    // SAFETY: a fresh mapping of an open file; it is unmapped before the file is closed.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: this very mapping, of this very length.
    unsafe { libc::munmap(mapped, length) };
    Ok("mapped it for writing".to_owned())
}
