//! How much processor time a process has used and when it started: the simulated card's measure of work. Reads the kernel only.

/// A clock that started at boot and counts suspend, nanoseconds. The driver measures with the kernel's own clock, as a real
/// driver does; nothing of the product reads time here.
pub(crate) fn boot_nanos() -> u64 {
    let moment = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    nanos(moment.tv_sec, moment.tv_nsec)
}

/// Processor time that all threads of a process have used, nanoseconds; `None` when it is gone.
pub(crate) fn used_nanos(pid: u32) -> Option<u64> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid place for the result; the call reads nothing else.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut moment = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `moment` is a valid place for the result; an unknown clock makes the call fail, not misbehave.
    if unsafe { libc::clock_gettime(clock, &raw mut moment) } != 0 {
        return None;
    }
    Some(nanos(moment.tv_sec, moment.tv_nsec))
}

/// When a process started, nanoseconds after boot in steps of 10 ms; with its id it names one process for ever.
pub(crate) fn started_nanos(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces and parentheses: fields are counted after its last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Some(ticks.saturating_mul(1_000_000_000 / ticks_per_second.max(1)))
}

fn nanos(seconds: i64, nanoseconds: i64) -> u64 {
    u64::try_from(seconds)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(nanoseconds).unwrap_or(0))
}
