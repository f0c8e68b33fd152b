//! What a job does while the suite watches it from outside: the deeds that a line of shell is too slow or too clumsy for.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

/// Does one thing: the first word says which, the rest is its own.
///
/// # Errors
/// Where the system refuses it.
pub fn run(words: &[String]) -> io::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["swap", folder, target] => swap(Path::new(folder), Path::new(target)),
        ["mark", marker, key, folders @ ..] => mark(marker, key, folders),
        ["leave", word, key, folders @ ..] => leave(word, key, folders),
        ["spin", processor] => spin(processor),
        ["count", file] => count(Path::new(file)),
        ["crash", folder] => crash(folder),
        ["connect", port] => {
            let port = port.parse().map_err(io::Error::other)?;
            std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).map(drop)
        }
        ["listen", port] => listen(port),
        _ => Err(io::Error::other("no such deed")),
    }
}

/// Puts a file and a link to `target` in each other's place, without end, so that whoever looks and then opens meets the other one.
fn swap(folder: &Path, target: &Path) -> io::Result<()> {
    let (file, link) = (folder.join("result"), folder.join("other"));
    fs::write(&file, "harmless")?;
    symlink(target, &link)?;
    // A folder of links, too: its name is a step of a path that may be looked at before it is walked.
    fs::create_dir_all(folder.join("steps"))?;
    fs::write(folder.join("steps/secret"), "harmless")?;
    symlink(target.parent().unwrap_or(Path::new("/")), folder.join("ways"))?;
    say("swapping")?;
    loop {
        exchange(&file, &link)?;
        exchange(&folder.join("steps"), &folder.join("ways"))?;
    }
}

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let (one, other) = (
        CString::new(one.as_os_str().as_bytes())?,
        CString::new(other.as_os_str().as_bytes())?,
    );
    // SAFETY: both texts live until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            one.as_ptr(),
            libc::AT_FDCWD,
            other.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Writes a marker wherever a job can write: contents, names, attributes, both outputs, shared memory, queues, socket names,
/// its own name. What cannot be written is left out: that is not the question here.
fn mark(marker: &str, key: &str, folders: &[&str]) -> io::Result<()> {
    for folder in folders {
        let folder = Path::new(folder);
        let named = folder.join(format!("name-{marker}"));
        fs::create_dir_all(&named)?;
        let file = named.join("content");
        fs::write(&file, marker)?;
        set_attribute(&file, marker);
        drop(symlink(marker, folder.join("link")));
    }
    leave_shared_memory(marker, key.parse().map_err(io::Error::other)?);
    leave_message(marker);
    let _listening = SocketAddr::from_abstract_name(marker).and_then(|name| UnixListener::bind_addr(&name));
    // A name of a process is 15 letters long.
    let name = CString::new(&marker[..marker.len().min(15)])?;
    // SAFETY: the text lives until the call returns.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    writeln!(io::stderr(), "to the log: {marker}")?;
    say("marked")
}

fn set_attribute(file: &Path, marker: &str) {
    use std::os::unix::ffi::OsStrExt as _;
    let Ok(name) = CString::new(file.as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: texts and a length that live until the call returns; that it may fail is fine.
    unsafe {
        libc::setxattr(
            name.as_ptr(),
            c"user.marker".as_ptr(),
            marker.as_ptr().cast(),
            marker.len(),
            0,
        )
    };
}

/// Leaves what the next tenant looks for: files, bytes that are deleted again, shared memory.
fn leave(word: &str, key: &str, folders: &[&str]) -> io::Result<()> {
    for folder in folders {
        let folder = Path::new(folder);
        fs::write(folder.join("left"), word)?;
        fs::write(folder.join("deleted"), "residue of an earlier tenant\n".repeat(40_000))?;
        fs::remove_file(folder.join("deleted"))?;
    }
    leave_shared_memory(word, key.parse().map_err(io::Error::other)?);
    say("left")
}

fn leave_shared_memory(word: &str, key: i32) {
    // SAFETY: a fresh segment of a page, of which the word's bytes are written while it is attached. It stays, which is the point.
    unsafe {
        let segment = libc::shmget(key, 4096, libc::IPC_CREAT | 0o666);
        if segment < 0 {
            return;
        }
        let place = libc::shmat(segment, std::ptr::null(), 0);
        if place.addr() == usize::MAX {
            return;
        }
        std::ptr::copy_nonoverlapping(word.as_ptr(), place.cast(), word.len().min(4096));
        libc::shmdt(place);
    }
}

/// In a queue that is called by the word, too.
fn leave_message(word: &str) {
    let Ok(name) = CString::new(format!("/{word}")) else {
        return;
    };
    // SAFETY: texts that live until the calls return.
    unsafe {
        let queue = libc::mq_open(
            name.as_ptr(),
            libc::O_CREAT | libc::O_WRONLY,
            0o600,
            std::ptr::null::<libc::mq_attr>(),
        );
        if queue >= 0 {
            libc::mq_send(queue, word.as_ptr().cast(), word.len(), 0);
            libc::close(queue);
        }
    }
}

/// Uses one processor wholly, until it is ended.
fn spin(processor: &str) -> io::Result<()> {
    let number: usize = processor.parse().map_err(io::Error::other)?;
    // SAFETY: a set is plain memory; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(number, &mut set);
        if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    say("spinning")?;
    let mut turns = 0_u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}

/// Counts in a file, from a grandchild in a session of its own.
fn count(file: &Path) -> io::Result<()> {
    // SAFETY: this program has one thread.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: as above.
        unsafe { libc::setsid() };
        // SAFETY: as above.
        if unsafe { libc::fork() } != 0 {
            // SAFETY: ends the one in the middle, so that the grandchild is nobody's any more.
            unsafe { libc::_exit(0) };
        }
        let mut counted = 0_u64;
        loop {
            counted += 1;
            fs::write(file, counted.to_string())?;
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    say("counting")?;
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// Dies so that the kernel would write its memory down, after asking for as much of that as it may.
fn crash(folder: &str) -> io::Result<()> {
    std::env::set_current_dir(folder)?;
    // The least that is a dump in a file and may be a dump in a program of the machine's.
    for wanted in [libc::RLIM_INFINITY, 0] {
        let limit = libc::rlimit {
            rlim_cur: wanted,
            rlim_max: wanted,
        };
        // SAFETY: the call reads one limit.
        if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) } == 0 {
            break;
        }
    }
    say("crashing")?;
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

fn listen(port: &str) -> io::Result<()> {
    let port = port.parse().map_err(io::Error::other)?;
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, port))?;
    say("listening")?;
    for stream in listener.incoming().flatten() {
        drop((&stream).write_all(crate::arena::GREETING.as_bytes()));
    }
    Ok(())
}

fn say(word: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{word}")?;
    io::stdout().flush()?;
    // Whoever waits for the word may look at once.
    File::open("/dev/null").map(drop)
}
