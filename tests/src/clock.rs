//! The clock that measurements from outside are made on: the one that the keeper writes in its account, too.

/// Microseconds since this machine booted, suspend included.
pub fn boot_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}
