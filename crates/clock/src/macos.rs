//! macOS: its `CLOCK_MONOTONIC` is `mach_continuous_time`, which goes on while the machine sleeps (`man clock_gettime`).

use rustix::time::{ClockId, Timespec, clock_gettime};

pub(crate) fn boot_us() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    // Never negative: the kernel counts up from boot.
    tv_sec.unsigned_abs() * 1_000_000 + tv_nsec.unsigned_abs() / 1_000
}

pub(crate) fn utc_ms() -> i64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    tv_sec * 1_000 + tv_nsec / 1_000_000
}

pub(crate) fn boot_id() -> std::io::Result<String> {
    let mut text = [0_u8; 64];
    let mut length = text.len();
    // SAFETY: the name is a C string, `text` is writable for `length` bytes, nothing is set.
    let result = unsafe {
        libc::sysctlbyname(
            c"kern.bootsessionuuid".as_ptr(),
            text.as_mut_ptr().cast(),
            &raw mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let bytes = &text[..length.min(text.len())];
    Ok(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned())
}
