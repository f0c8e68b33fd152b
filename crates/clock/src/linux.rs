//! Linux: `CLOCK_BOOTTIME` counts suspend, `CLOCK_MONOTONIC` (and `std::time::Instant` with it) does not; leases do.

use rustix::time::{ClockId, Timespec, clock_gettime};

pub(crate) fn boot_us() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    // Never negative: the kernel counts up from boot.
    tv_sec.unsigned_abs() * 1_000_000 + tv_nsec.unsigned_abs() / 1_000
}

pub(crate) fn utc_ms() -> i64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    tv_sec * 1_000 + tv_nsec / 1_000_000
}

pub(crate) fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}
