//! What the jobs of a checkup ask the kernel for. Every question does no harm even where it is answered: what it makes it takes away
//! again, what it opens is only looked at, and what it takes is bounded by a number that stands here.

use super::ask::{Question, Value, call};
use std::path::Path;

/// `AT_FDCWD`: paths are absolute.
const HERE: i32 = libc::AT_FDCWD;
/// Room for a file that is shown.
const FILE: usize = 8 << 10;

/// Processes that are asked for.
pub(super) const FORKS: u32 = 24;
/// Files that are opened.
pub(super) const OPENS: u32 = 96;
/// Processes that spin, of a job that stands.
pub(super) const SPINNING: u32 = 2;
/// Name of the secret that a job is given.
pub(super) const SECRET: &str = "checkup";

/// The places that a job may write to, and the questions of what they are.
pub(super) const WRITABLE: [(&str, &str); 4] = [
    ("tmp_kind", "/tmp"),
    ("out_kind", "/out"),
    ("checkpoint_kind", "/checkpoint"),
    ("shm_kind", "/dev/shm"),
];

/// Where things are that a job should not, and should, find.
pub(super) struct Places<'a> {
    /// The job's root; `""` inside a job.
    pub(super) root: &'a str,
    /// Where it may write.
    pub(super) writable: &'a str,
    /// A file of the owner's.
    pub(super) owners_file: &'a Path,
    /// A port of this machine's loopback where the owner listens.
    pub(super) owners_port: u16,
    /// An abstract name where the owner listens.
    pub(super) owners_name: &'a str,
}

/// Calls that our list refuses. Without the list none of them does anything with these arguments.
const REFUSED: [(&str, libc::c_long, [i64; 5]); 20] = [
    ("ptrace", libc::SYS_ptrace, [0, 0, 0, 0, 0]),
    ("bpf", libc::SYS_bpf, [0, 0, 0, 0, 0]),
    ("perf_event_open", libc::SYS_perf_event_open, [0, 0, -1, -1, 0]),
    ("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0, 0]),
    ("keyctl", libc::SYS_keyctl, [0, 0, 0, 0, 0]),
    ("add_key", libc::SYS_add_key, [0, 0, 0, 0, 0]),
    ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
    ("mount", libc::SYS_mount, [0, 0, 0, 0, 0]),
    ("umount2", libc::SYS_umount2, [0, 0, 0, 0, 0]),
    ("fsopen", libc::SYS_fsopen, [0, 0, 0, 0, 0]),
    ("pivot_root", libc::SYS_pivot_root, [0, 0, 0, 0, 0]),
    ("chroot", libc::SYS_chroot, [0, 0, 0, 0, 0]),
    ("unshare", libc::SYS_unshare, [libc::CLONE_NEWUSER as i64, 0, 0, 0, 0]),
    ("setns", libc::SYS_setns, [-1, 0, 0, 0, 0]),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, [-1, 0, 0, 0, 0]),
    ("process_vm_readv", libc::SYS_process_vm_readv, [1, 0, 0, 0, 0]),
    ("kcmp", libc::SYS_kcmp, [1, 1, 0, 0, 0]),
    ("personality", libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0]),
    (
        "socket_packet",
        libc::SYS_socket,
        [libc::AF_PACKET as i64, libc::SOCK_RAW as i64, 0, 0, 0],
    ),
    (
        "socket_raw",
        libc::SYS_socket,
        [
            libc::AF_INET as i64,
            libc::SOCK_RAW as i64,
            libc::IPPROTO_ICMP as i64,
            0,
            0,
        ],
    ),
];

/// Their names.
pub(super) fn refused() -> impl Iterator<Item = &'static str> {
    REFUSED.into_iter().map(|(name, ..)| name)
}

/// Every question of the job that looks around.
pub(super) fn around(places: &Places<'_>) -> Vec<Question> {
    let mut questions: Vec<Question> = REFUSED
        .into_iter()
        .map(|(name, number, arguments)| Question::calls(name, vec![call(number, arguments.map(Value::from))]))
        .collect();
    questions.extend(rights(places));
    questions.extend(files(places));
    questions.extend(network(places));
    questions.extend(limits());
    questions.extend(left_behind());
    questions
}

fn open(path: &str, flags: i32) -> Vec<Value> {
    call(libc::SYS_openat, [HERE.into(), path.into(), flags.into(), 0o600.into()])
}

fn show(name: &str, path: &str) -> Question {
    let read = call(
        libc::SYS_read,
        [Value::Answer(0), Value::Room(FILE), Value::Number(FILE as i64)],
    );
    Question::shown(name, vec![open(path, libc::O_RDONLY), read])
}

fn list(name: &str, path: &str) -> Question {
    let read = call(
        libc::SYS_getdents64,
        [Value::Answer(0), Value::Room(2 * FILE), Value::Number(2 * FILE as i64)],
    );
    Question::shown(name, vec![open(path, libc::O_RDONLY | libc::O_DIRECTORY), read])
}

/// What a file system says of itself: its kind first.
fn kind(name: &str, path: &str) -> Question {
    Question::shown(name, vec![call(libc::SYS_statfs, [path.into(), Value::Room(120)])])
}

fn rights(places: &Places<'_>) -> Vec<Question> {
    let node = format!("{}/sela-checkup-node", places.writable);
    let null = i64::try_from(libc::makedev(1, 3)).unwrap_or(0);
    vec![
        show("ids", "/proc/self/uid_map"),
        show("status", "/proc/self/status"),
        Question::calls(
            "setresuid",
            vec![call(libc::SYS_setresuid, [1.into(), 1.into(), 1.into()])],
        ),
        Question::calls(
            "mknod",
            vec![
                call(
                    libc::SYS_mknodat,
                    [
                        HERE.into(),
                        node.as_str().into(),
                        Value::from(i64::from(libc::S_IFCHR | 0o600)),
                        null.into(),
                    ],
                ),
                call(libc::SYS_unlinkat, [HERE.into(), node.as_str().into(), 0.into()]),
            ],
        ),
        list("processes", "/proc"),
        Question::calls("init_memory", vec![open("/proc/1/mem", libc::O_RDWR)]),
        list("devices", "/dev"),
    ]
}

fn files(places: &Places<'_>) -> Vec<Question> {
    let owners = places.owners_file.display().to_string();
    let written = format!("{}/sela-checkup-written", places.root);
    let read = |name: &str, path: &str| Question::calls(name, vec![open(path, libc::O_RDONLY)]);
    vec![
        Question::calls(
            "write_image",
            vec![
                open(&written, libc::O_CREAT | libc::O_WRONLY),
                call(libc::SYS_unlinkat, [HERE.into(), written.as_str().into(), 0.into()]),
            ],
        ),
        read("owners_file", &owners),
        read("owners_file_above", &format!("/../../../../..{owners}")),
        read("owners_file_by_init", &format!("/proc/1/root{owners}")),
        read("shadow", "/etc/shadow"),
        list("descriptors", "/proc/self/fd"),
        show("environment", "/proc/self/environ"),
        kind("secrets_kind", "/run/secrets"),
        show("secret", &format!("/run/secrets/{SECRET}")),
    ]
    .into_iter()
    .chain(kinds())
    .collect()
}

/// What the places are that a job may write to.
pub(super) fn kinds() -> Vec<Question> {
    WRITABLE.map(|(name, path)| kind(name, path)).to_vec()
}

fn socket(domain: i32, kind: i32) -> Vec<Value> {
    call(libc::SYS_socket, [domain.into(), kind.into(), 0.into()])
}

fn connect(address: Vec<u8>) -> Vec<Value> {
    let length = i64::try_from(address.len()).unwrap_or(0);
    call(
        libc::SYS_connect,
        [Value::Answer(0), Value::Bytes(address), length.into()],
    )
}

/// A `sockaddr_in`.
fn internet(address: [u8; 4], port: u16) -> Vec<u8> {
    let family = u16::try_from(libc::AF_INET).unwrap_or(0).to_ne_bytes();
    [family.as_slice(), &port.to_be_bytes(), &address, &[0; 8]].concat()
}

/// A `sockaddr_un` with an abstract name.
fn abstract_name(name: &str) -> Vec<u8> {
    let family = u16::try_from(libc::AF_UNIX).unwrap_or(0).to_ne_bytes();
    [family.as_slice(), &[0], name.as_bytes()].concat()
}

fn network(places: &Places<'_>) -> Vec<Question> {
    /// Set aside for documents (RFC 5737). Connecting a datagram socket sends nothing: it only asks for a way.
    const NOBODY: [u8; 4] = [192, 0, 2, 1];
    vec![
        Question::calls(
            "owners_port",
            vec![
                socket(libc::AF_INET, libc::SOCK_STREAM),
                connect(internet([127, 0, 0, 1], places.owners_port)),
            ],
        ),
        Question::calls(
            "owners_name",
            vec![
                socket(libc::AF_UNIX, libc::SOCK_STREAM),
                connect(abstract_name(places.owners_name)),
            ],
        ),
        Question::calls(
            "way_out",
            vec![socket(libc::AF_INET, libc::SOCK_DGRAM), connect(internet(NOBODY, 53))],
        ),
        show("interfaces", "/proc/self/net/dev"),
    ]
}

fn limits() -> Vec<Question> {
    vec![
        Question::fork("fork", FORKS),
        Question::repeated("open", OPENS, vec![open("/", libc::O_RDONLY | libc::O_DIRECTORY)]),
        Question::calls("priority", vec![call(libc::SYS_getpriority, [0.into(), 0.into()])]),
        Question::calls("disk_priority", vec![call(libc::SYS_ioprio_get, [1.into(), 0.into()])]),
    ]
}

/// A result, with a word in it that is looked for on the disk later.
fn left_behind() -> Vec<Question> {
    vec![write("result", "/out/result", super::MARK.as_bytes().to_vec(), 1)]
}

/// Writes these bytes into a file, so often.
fn write(name: &str, path: &str, bytes: Vec<u8>, times: u32) -> Question {
    let length = i64::try_from(bytes.len()).unwrap_or(0);
    let steps = vec![
        open(path, libc::O_CREAT | libc::O_WRONLY),
        call(libc::SYS_write, [Value::Answer(0), Value::Bytes(bytes), length.into()]),
    ];
    if times == 1 {
        Question::calls(name, steps)
    } else {
        Question::repeated(name, times, steps)
    }
}

/// Writes zeroes into a file, in parts of 64 KiB.
pub(super) fn fill(name: &str, path: &str, bytes: u64) -> Question {
    const PART: usize = 64 << 10;
    let times = u32::try_from(bytes.div_ceil(PART as u64)).unwrap_or(u32::MAX);
    let steps = vec![
        open(path, libc::O_CREAT | libc::O_WRONLY),
        call(
            libc::SYS_write,
            [Value::Answer(0), Value::Room(PART), Value::Number(PART as i64)],
        ),
    ];
    Question::repeated(name, times, steps)
}

/// What a job asks its proxy for: one host by a `CONNECT`, and what it is told.
pub(super) fn ask_proxy(name: &str, proxy: std::net::SocketAddrV4, host: &str) -> Question {
    let words = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let length = i64::try_from(words.len()).unwrap_or(0);
    Question::shown(
        name,
        vec![
            socket(libc::AF_INET, libc::SOCK_STREAM),
            connect(internet(proxy.ip().octets(), proxy.port())),
            call(
                libc::SYS_write,
                [Value::Answer(0), words.as_str().into(), length.into()],
            ),
            call(
                libc::SYS_read,
                [Value::Answer(0), Value::Room(1024), Value::Number(1024)],
            ),
        ],
    )
}
