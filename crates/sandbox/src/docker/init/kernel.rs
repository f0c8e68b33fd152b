//! How the init in a container speaks to the kernel: system calls by number, and what a compiler expects to find in a library.
//! Numbers are those of the kernel's own tables for each architecture.

use core::panic::PanicInfo;

/// What the kernel says where it refuses.
pub(crate) type Errno = i32;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call begin",
    "ud2",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(".globl _start", "_start:", "mov x29, xzr", "bl begin", "brk #1");

#[cfg(target_arch = "x86_64")]
pub(crate) mod numbers {
    //! Of x86-64.
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const LSEEK: usize = 8;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const RT_SIGACTION: usize = 13;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const SENDTO: usize = 44;
    pub(crate) const RECVFROM: usize = 45;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const KILL: usize = 62;
    pub(crate) const CHDIR: usize = 80;
    pub(crate) const UMASK: usize = 95;
    pub(crate) const SETSID: usize = 112;
    pub(crate) const SETPRIORITY: usize = 141;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const IOPRIO_SET: usize = 251;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const NEWFSTATAT: usize = 262;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const UNSHARE: usize = 272;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const PIPE2: usize = 293;
    pub(crate) const PROCESS_VM_READV: usize = 310;
    pub(crate) const CLOSE_RANGE: usize = 436;
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod numbers {
    //! Of arm64, the generic table.
    pub(crate) const READ: usize = 63;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const LSEEK: usize = 62;
    pub(crate) const MMAP: usize = 222;
    pub(crate) const RT_SIGACTION: usize = 134;
    pub(crate) const RT_SIGPROCMASK: usize = 135;
    pub(crate) const GETPID: usize = 172;
    pub(crate) const SOCKET: usize = 198;
    pub(crate) const CONNECT: usize = 203;
    pub(crate) const SENDTO: usize = 206;
    pub(crate) const RECVFROM: usize = 207;
    pub(crate) const RECVMSG: usize = 212;
    pub(crate) const CLONE: usize = 220;
    pub(crate) const EXECVE: usize = 221;
    pub(crate) const WAIT4: usize = 260;
    pub(crate) const KILL: usize = 129;
    pub(crate) const CHDIR: usize = 49;
    pub(crate) const UMASK: usize = 166;
    pub(crate) const SETSID: usize = 157;
    pub(crate) const SETPRIORITY: usize = 140;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const IOPRIO_SET: usize = 30;
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const NEWFSTATAT: usize = 79;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const UNSHARE: usize = 97;
    pub(crate) const SIGNALFD4: usize = 74;
    pub(crate) const DUP3: usize = 24;
    pub(crate) const PIPE2: usize = 59;
    pub(crate) const PROCESS_VM_READV: usize = 270;
    pub(crate) const CLOSE_RANGE: usize = 436;
}

use numbers as n;

/// One call. Negative answers down to −4095 are errors.
pub(crate) fn call6(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Result<usize, Errno> {
    let answer: isize;
    // SAFETY: the callers pass addresses of live memory of the size that the call takes, or plain numbers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    if (-4095..0).contains(&answer) {
        Err(answer as Errno * -1)
    } else {
        Ok(answer as usize)
    }
}

pub(crate) fn call5(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize) -> Result<usize, Errno> {
    call6(number, a, b, c, d, e, 0)
}

pub(crate) fn call4(number: usize, a: usize, b: usize, c: usize, d: usize) -> Result<usize, Errno> {
    call6(number, a, b, c, d, 0, 0)
}

pub(crate) fn call3(number: usize, a: usize, b: usize, c: usize) -> Result<usize, Errno> {
    call6(number, a, b, c, 0, 0, 0)
}

pub(crate) fn call2(number: usize, a: usize, b: usize) -> Result<usize, Errno> {
    call6(number, a, b, 0, 0, 0, 0)
}

pub(crate) fn call1(number: usize, a: usize) -> Result<usize, Errno> {
    call6(number, a, 0, 0, 0, 0, 0)
}

/// Ends this process.
pub(crate) fn leave(status: usize) -> ! {
    loop {
        let _ = call1(n::EXIT_GROUP, status);
    }
}

/// Every signal does what it usually does.
pub(crate) fn accepts_nothing() {
    // A `sigaction` of the kernel: handler (0 is the usual one), flags, restorer, mask.
    let usual = [0_usize; 4];
    for signal in 1..=64 {
        let _ = call4(n::RT_SIGACTION, signal, usual.as_ptr() as usize, 0, 8);
    }
}

#[repr(C)]
struct Message {
    name: usize,
    name_length: usize,
    parts: *mut [usize; 2],
    part_count: usize,
    control: *mut Control,
    control_length: usize,
    flags: i32,
}

#[repr(C)]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; 3],
}

/// Waits for the word `g` with exactly three descriptors. `None` for anything else, end of file included.
pub(crate) fn receive_descriptors(channel: usize) -> Option<[usize; 3]> {
    let mut word = [0_u8; 1];
    let mut part = [word.as_mut_ptr() as usize, 1];
    let mut control = Control {
        length: 0,
        level: 0,
        kind: 0,
        descriptors: [-1; 3],
    };
    let mut message = Message {
        name: 0,
        name_length: 0,
        parts: &raw mut part,
        part_count: 1,
        control: &raw mut control,
        control_length: size_of::<Control>(),
        flags: 0,
    };
    // MSG_CMSG_CLOEXEC
    while let Err(error) = call3(n::RECVMSG, channel, &raw mut message as usize, 0x4000_0000) {
        if error != 4 {
            return None;
        }
    }
    // SAFETY: the kernel wrote through these pointers behind the compiler's back; both live until here.
    let (word, control) = unsafe { ((&raw const word).read_volatile(), (&raw const control).read_volatile()) };
    // A header of 16 bytes and three numbers; SOL_SOCKET, SCM_RIGHTS.
    let whole = control.length == 28 && control.level == 1 && control.kind == 1;
    (word == *b"g" && whole).then(|| control.descriptors.map(|descriptor| descriptor as usize))
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    leave(101)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: both are `count` bytes long, as promised by the caller.
        unsafe { to.add(at).write(from.add(at).read()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize) < from as usize {
        // SAFETY: as promised by the caller; forwards does not overwrite what is still to be read.
        return unsafe { memcpy(to, from, count) };
    }
    for at in (0..count).rev() {
        // SAFETY: as above.
        unsafe { to.add(at).write(from.add(at).read()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: `count` bytes long, as promised by the caller.
        unsafe { to.add(at).write(value as u8) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: both are `count` bytes long, as promised by the caller.
        let (one, other) = unsafe { (one.add(at).read(), other.add(at).read()) };
        if one != other {
            return i32::from(one) - i32::from(other);
        }
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    // SAFETY: as promised by the caller.
    unsafe { memcmp(one, other, count) }
}
