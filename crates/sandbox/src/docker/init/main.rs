//! The first process of a job in a container: a program of its own, without any library, so that it runs in every image. It
//! waits for its keeper's word, starts the program, passes SIGTERM on to it, and reaps. End of file on its socket means that
//! the keeper is dead, and then so is the job, whatever the engine thinks. `build.rs` compiles it; `door` speaks to it.
//!
//! Nothing here allocates, panics on purpose or trusts the program: from the moment that it runs, this process belongs to a
//! stranger's user, and the keeper reads what it says as a stranger's word.

#![no_std]
#![no_main]
// A loop that copies must not become a call of the function that holds the loop.
#![no_builtins]

mod kernel;

use kernel::{
    Errno, accepts_nothing, call1, call2, call3, call4, call5, call6, leave, numbers as n, receive_descriptors,
};

/// Where the keeper's socket is shown to the container.
const DOOR: &[u8] = b"/.sela/door";

static SIGNALS: u64 = !0;
const SIGNAL_SET: usize = 8;
const SIGKILL: usize = 9;
const SIGTERM: u32 = 15;
const SIGCHLD: u32 = 17;
const NOT_PERMITTED: Errno = 1;
const INTERRUPTED: Errno = 4;

/// What the keeper gives with its word: the program's two outputs, and the memory that holds what to run.
struct Orders {
    out: usize,
    err: usize,
    text: Text,
}

/// What to run: three numbers (candidates, arguments, variables), then that many texts that each end in a zero byte, the
/// working folder before all.
struct Text {
    at: *const u8,
    size: usize,
}

/// Called by the first instruction.
#[unsafe(no_mangle)]
extern "C" fn begin() -> ! {
    // Memory and descriptors of this process are nothing for the program to read.
    let _ = call5(n::PRCTL, 4, 0, 0, 0, 0);
    let _ = call4(n::RT_SIGPROCMASK, 2, &raw const SIGNALS as usize, 0, SIGNAL_SET);
    let _ = call1(n::UMASK, 0o022);
    let Some(channel) = knock() else { leave(1) };
    if let Some(call) = unguarded() {
        say(channel, &[b'u', call]);
        leave(1);
    }
    say(channel, b"r");
    let Some(orders) = wait_for_orders(channel) else {
        leave(1)
    };
    // Lower than anything of the owner's. The cgroup says so, too, where the kernel can.
    let _ = call3(n::SETPRIORITY, 0, 0, 19);
    let _ = call3(n::IOPRIO_SET, 1, 0, 3 << 13);
    let program = start(channel, &orders);
    let _ = call1(n::CLOSE, orders.out);
    let _ = call1(n::CLOSE, orders.err);
    say(channel, b"s");
    reap(channel, program)
}

/// Connects to the keeper.
fn knock() -> Option<usize> {
    let mut address = [0_u8; 110];
    // AF_UNIX, in the machine's byte order.
    address[..2].copy_from_slice(&1_u16.to_ne_bytes());
    address[2..2 + DOOR.len()].copy_from_slice(DOOR);
    // AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC
    let socket = call3(n::SOCKET, 1, 5 | 0o2_000_000, 0).ok()?;
    call3(n::CONNECT, socket, address.as_ptr() as usize, 2 + DOOR.len() + 1).ok()?;
    Some(socket)
}

/// The first of two calls that our own list refuses and that an engine's own list may allow. Neither does anything here.
fn unguarded() -> Option<u8> {
    let own = call2(n::GETPID, 0, 0).unwrap_or(0);
    let unshared = call1(n::UNSHARE, 0);
    let read = call6(n::PROCESS_VM_READV, own, 0, 0, 0, 0, 0);
    if unshared != Err(NOT_PERMITTED) {
        Some(1)
    } else if read != Err(NOT_PERMITTED) {
        Some(2)
    } else {
        None
    }
}

fn say(channel: usize, what: &[u8]) {
    // A keeper that does not listen is dead, and then this process is about to be.
    let _ = call6(n::SENDTO, channel, what.as_ptr() as usize, what.len(), 0x4000, 0, 0);
}

/// `None` where the keeper is gone, or says something else.
fn wait_for_orders(channel: usize) -> Option<Orders> {
    let [out, err, memory] = receive_descriptors(channel)?;
    // SEEK_END
    let size = call3(n::LSEEK, memory, 0, 2).ok()?;
    // PROT_READ, MAP_PRIVATE
    let at = call6(n::MMAP, 0, size, 1, 2, memory, 0).ok()?;
    let _ = call1(n::CLOSE, memory);
    Some(Orders {
        out,
        err,
        text: Text {
            at: at as *const u8,
            size,
        },
    })
}

impl Text {
    fn byte(&self, at: usize) -> u8 {
        if at >= self.size {
            leave(1);
        }
        // SAFETY: the mapping is `size` bytes long and lives as long as this process.
        unsafe { self.at.add(at).read() }
    }

    fn number(&self, index: usize) -> usize {
        let at = index * 4;
        u32::from_ne_bytes([self.byte(at), self.byte(at + 1), self.byte(at + 2), self.byte(at + 3)]) as usize
    }

    /// The place after the text that begins at `at`.
    fn after(&self, mut at: usize) -> usize {
        while self.byte(at) != 0 {
            at += 1;
        }
        at + 1
    }

    fn address(&self, at: usize) -> usize {
        self.at as usize + at
    }
}

/// Lists of addresses, as `execve` takes them.
struct Pointers {
    at: *mut usize,
    room: usize,
    used: usize,
}

impl Pointers {
    fn new(room: usize) -> Self {
        // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
        match call6(n::MMAP, 0, (room * size_of::<usize>()).max(1), 3, 0x22, usize::MAX, 0) {
            Ok(at) => Self {
                at: at as *mut usize,
                room,
                used: 0,
            },
            Err(_) => leave(1),
        }
    }

    fn push(&mut self, value: usize) {
        if self.used >= self.room {
            leave(1);
        }
        // SAFETY: within the mapping, which is `room` numbers long.
        unsafe { self.at.add(self.used).write(value) };
        self.used += 1;
    }

    fn here(&self) -> usize {
        self.at as usize + self.used * size_of::<usize>()
    }
}

/// Forks the program and waits until the kernel has taken it over. Does not return where that failed.
fn start(channel: usize, orders: &Orders) -> usize {
    let text = &orders.text;
    let (candidates, arguments, variables) = (text.number(0), text.number(1), text.number(2));
    let folder = 12;
    let first = text.after(folder);
    let mut pointers = Pointers::new(arguments + variables + 2);
    let mut at = first;
    for _ in 0..candidates {
        at = text.after(at);
    }
    let argument_list = pointers.here();
    for _ in 0..arguments {
        pointers.push(text.address(at));
        at = text.after(at);
    }
    pointers.push(0);
    let variable_list = pointers.here();
    for _ in 0..variables {
        pointers.push(text.address(at));
        at = text.after(at);
    }
    pointers.push(0);

    let mut pipe = [0_i32; 2];
    // O_CLOEXEC
    if call2(n::PIPE2, pipe.as_mut_ptr() as usize, 0o2_000_000).is_err() {
        leave(1);
    }
    let [reads, writes] = pipe.map(|end| end as usize);
    // As fork does: SIGCHLD at the end, everything copied.
    match call5(n::CLONE, SIGCHLD as usize, 0, 0, 0, 0) {
        Ok(0) => {
            let why = become_it(orders, folder, (first, candidates), argument_list, variable_list);
            let _ = call3(n::WRITE, writes, why.as_ptr() as usize, why.len());
            leave(127)
        }
        Ok(child) => {
            let _ = call1(n::CLOSE, writes);
            let mut why = [b'f'; 8];
            match read(reads, &mut why[1..]) {
                0 => {
                    let _ = call1(n::CLOSE, reads);
                    child
                }
                length => {
                    say(channel, &why[..=length]);
                    leave(1)
                }
            }
        }
        Err(_) => leave(1),
    }
}

fn read(from: usize, into: &mut [u8]) -> usize {
    loop {
        match call3(n::READ, from, into.as_mut_ptr() as usize, into.len()) {
            Ok(count) => return count.min(into.len()),
            Err(INTERRUPTED) => {}
            Err(_) => return 0,
        }
    }
}

/// In the child. Returns only where it cannot: at which step, with which error, and whether no candidate is there at all.
fn become_it(
    orders: &Orders,
    folder: usize,
    (first, candidates): (usize, usize),
    arguments: usize,
    variables: usize,
) -> [u8; 6] {
    let failed = |step: u8, error: Errno, missing: bool| {
        let [a, b, c, d] = error.to_ne_bytes();
        [step, a, b, c, d, u8::from(missing)]
    };
    let _ = call2(n::SETSID, 0, 0);
    // AT_FDCWD, O_RDONLY
    let null = call4(n::OPENAT, usize::MAX - 99, c"/dev/null".as_ptr() as usize, 0, 0);
    let streams = null
        .and_then(|null| call3(n::DUP3, null, 0, 0))
        .and_then(|_| call3(n::DUP3, orders.out, 1, 0))
        .and_then(|_| call3(n::DUP3, orders.err, 2, 0));
    if let Err(error) = streams {
        return failed(b'o', error, false);
    }
    accepts_nothing();
    let none = 0_u64;
    let _ = call4(n::RT_SIGPROCMASK, 2, &raw const none as usize, 0, SIGNAL_SET);
    if let Err(error) = call1(n::CHDIR, orders.text.address(folder)) {
        return failed(b'd', error, false);
    }
    // CLOSE_RANGE_CLOEXEC: what is open besides closes as the program begins.
    let _ = call3(n::CLOSE_RANGE, 3, u32::MAX as usize, 4);
    let (mut at, mut worst, mut missing) = (first, 2, true);
    for _ in 0..candidates {
        let candidate = orders.text.address(at);
        let error = call3(n::EXECVE, candidate, arguments, variables).err().unwrap_or(5);
        // What is there but cannot be run tells more than what is not there. AT_SYMLINK_NOFOLLOW
        let mut stat = [0_u8; 256];
        let is_there = call4(
            n::NEWFSTATAT,
            usize::MAX - 99,
            candidate,
            stat.as_mut_ptr() as usize,
            0x100,
        )
        .is_ok();
        if is_there {
            missing = false;
        }
        if is_there || !matches!(error, 2 | 20) {
            worst = error;
            break;
        }
        at = orders.text.after(at);
    }
    failed(b'x', worst, missing)
}

/// Until the program has ended, or the keeper: then nothing of the job is left.
fn reap(channel: usize, program: usize) -> ! {
    // SFD_CLOEXEC | SFD_NONBLOCK
    let Ok(signals) = call4(
        n::SIGNALFD4,
        usize::MAX,
        &raw const SIGNALS as usize,
        SIGNAL_SET,
        0o2_004_000,
    ) else {
        end(1)
    };
    loop {
        // Two pollfd of eight bytes: descriptor, POLLIN, what came.
        let mut ready = [signals as i32, 1, channel as i32, 1];
        let polled = call5(n::PPOLL, ready.as_mut_ptr() as usize, 2, 0, 0, SIGNAL_SET);
        if polled.is_err_and(|error| error != INTERRUPTED) {
            end(1);
        }
        let mut signal = [0_u32; 32];
        while call3(n::READ, signals, signal.as_mut_ptr() as usize, 128) == Ok(128) {
            match signal[0] {
                SIGCHLD => {
                    if let Some(status) = reap_all(program) {
                        let [a, b, c, d] = status.to_ne_bytes();
                        say(channel, &[b'e', a, b, c, d]);
                        kill_all();
                        // The group that counts what the job has used goes with this process: the keeper says when.
                        let mut word = [0_u8; 1];
                        let _ = call6(n::RECVFROM, channel, word.as_mut_ptr() as usize, 1, 0, 0, 0);
                        leave(0);
                    }
                }
                SIGTERM => {
                    let _ = call2(n::KILL, program, SIGTERM as usize);
                }
                _ => {}
            }
        }
        if ready[3] >> 16 == 0 {
            continue;
        }
        let mut word = [0_u8; 1];
        // MSG_DONTWAIT
        match call6(n::RECVFROM, channel, word.as_mut_ptr() as usize, 1, 0x40, 0, 0) {
            Ok(1) if word == *b"t" => {
                let _ = call2(n::KILL, program, SIGTERM as usize);
            }
            Err(11 | INTERRUPTED) => {}
            _ => end(1),
        }
    }
}

fn reap_all(program: usize) -> Option<i32> {
    let mut end = None;
    let mut status = 0_i32;
    // WNOHANG
    while let Ok(pid) = call4(n::WAIT4, usize::MAX, &raw mut status as usize, 1, 0) {
        if pid == 0 {
            break;
        }
        if pid == program {
            end = Some(status);
        }
    }
    end
}

/// Everything in this PID namespace but this process; then this process.
fn end(status: usize) -> ! {
    kill_all();
    leave(status)
}

fn kill_all() {
    let _ = call2(n::KILL, usize::MAX, SIGKILL);
    let mut one = 0_i32;
    loop {
        match call4(n::WAIT4, usize::MAX, &raw mut one as usize, 0, 0) {
            Ok(_) | Err(INTERRUPTED) => {}
            Err(_) => return,
        }
    }
}
