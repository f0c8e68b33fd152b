//! Runs inside a job, for the tests: asks the kernel for what a job must not have and prints what it answered, a line each; or
//! with a path, holds a lock on that device until it is killed.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::fs::OpenOptions;
use std::io;
use std::time::Duration;

/// Calls that must be refused, with arguments that would do no harm if they were not.
const CALLS: [(&str, libc::c_long, [libc::c_long; 4]); 22] = [
    ("ptrace", libc::SYS_ptrace, [0, 0, 0, 0]),
    ("bpf", libc::SYS_bpf, [0, 0, 0, 0]),
    ("perf_event_open", libc::SYS_perf_event_open, [0, 0, -1, -1]),
    ("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0]),
    ("keyctl", libc::SYS_keyctl, [0, 0, 0, 0]),
    ("add_key", libc::SYS_add_key, [0, 0, 0, 0]),
    ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0]),
    ("mount", libc::SYS_mount, [0, 0, 0, 0]),
    ("umount2", libc::SYS_umount2, [0, 0, 0, 0]),
    ("pivot_root", libc::SYS_pivot_root, [0, 0, 0, 0]),
    ("chroot", libc::SYS_chroot, [0, 0, 0, 0]),
    (
        "unshare_user",
        libc::SYS_unshare,
        [libc::CLONE_NEWUSER as libc::c_long, 0, 0, 0],
    ),
    ("setns", libc::SYS_setns, [-1, 0, 0, 0]),
    (
        "clone_newuser",
        libc::SYS_clone,
        [(libc::CLONE_NEWUSER | libc::SIGCHLD) as libc::c_long, 0, 0, 0],
    ),
    ("clone3", libc::SYS_clone3, [0, 0, 0, 0]),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, [0, 0, 0, 0]),
    ("kexec_load", libc::SYS_kexec_load, [0, 0, 0, 0]),
    ("init_module", libc::SYS_init_module, [0, 0, 0, 0]),
    ("personality", libc::SYS_personality, [0x0040_0000, 0, 0, 0]),
    ("process_vm_readv", libc::SYS_process_vm_readv, [1, 0, 0, 0]),
    (
        "socket_vsock",
        libc::SYS_socket,
        [libc::AF_VSOCK as libc::c_long, libc::SOCK_STREAM as libc::c_long, 0, 0],
    ),
    (
        "socket_alg",
        libc::SYS_socket,
        [libc::AF_ALG as libc::c_long, libc::SOCK_SEQPACKET as libc::c_long, 0, 0],
    ),
];

fn main() {
    match std::env::args().nth(1) {
        Some(word) if word == "attribute" => set_attribute(),
        Some(device) => hold(&device),
        None => ask(),
    }
}

fn hold(device: &str) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device)
        .expect("the device is there");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("nobody holds it");
    println!("held {device}");
    std::thread::sleep(Duration::from_secs(60));
}

/// Sets an extended attribute on the folder that is named as the second word.
fn set_attribute() {
    let folder = std::env::args().nth(2).expect("a folder");
    let set = rustix::fs::setxattr(folder, "user.note", b"x", rustix::fs::XattrFlags::empty());
    match set {
        Ok(()) => println!("set"),
        Err(error) => println!("{error}"),
    }
}

fn ask() {
    for (name, call, [a, b, c, d]) in CALLS {
        // SAFETY: refused or not, none of these calls touches this process's memory with null pointers and empty lengths.
        let result = unsafe { libc::syscall(call, a, b, c, d) };
        let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let answer = match (result, error) {
            (-1, libc::EPERM) => "EPERM".to_owned(),
            (-1, libc::ENOSYS) => "ENOSYS".to_owned(),
            (-1, other) => format!("errno {other}"),
            (value, _) => format!("allowed: {value}"),
        };
        if name == "clone_newuser" && result == 0 {
            return;
        }
        println!("{name} {answer}");
    }
}
