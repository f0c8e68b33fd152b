//! The only reader of time. Everything else is passed the time, so that a recorded log of inputs replays every decision.
//! Deadlines and durations are read on a clock that goes on while the machine sleeps; UTC is for people and receipts.
//! Nothing here waits, schedules or decides; what each operating system offers stands in a module of its own.

use sela_protocol::units::{BootUs, Now, UtcMs};
use std::fmt;

#[cfg(any(target_os = "linux", target_os = "android"))]
#[path = "linux.rs"]
mod system;

#[cfg(target_os = "macos")]
#[path = "macos.rs"]
mod system;

#[cfg(windows)]
#[path = "windows.rs"]
mod system;

/// Both clocks, in milliseconds. The two are read one right after the other, the one for deadlines first.
pub fn now() -> Now {
    Now {
        boot_ms: boot_us().in_ms(),
        utc_ms: UtcMs(system::utc_ms()),
    }
}

/// The clock for deadlines and durations alone, in microseconds since boot, suspend included: what yields and billed
/// times are measured on.
pub fn boot_us() -> BootUs {
    BootUs(system::boot_us())
}

/// Names one boot of this machine. Moments after boot are comparable only where this is equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BootId(String);

impl BootId {
    /// From a text that an earlier run of a program wrote down.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// To be written down.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Which boot this is.
///
/// # Errors
/// Where the system does not tell (no `/proc`, say). Whoever needs it must then treat every moment written down as from
/// another boot.
pub fn boot_id() -> std::io::Result<BootId> {
    system::boot_id().map(BootId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_for_deadlines_never_goes_back_and_both_units_agree() {
        let before = boot_us();
        let now = now();
        let after = boot_us();
        assert!(before <= after);
        assert!(before.in_ms() <= now.boot_ms && now.boot_ms <= after.in_ms());
    }

    #[test]
    fn utc_is_of_this_century() {
        // 2020-01-01 and 2100-01-01.
        assert!((1_577_836_800_000..4_102_444_800_000).contains(&now().utc_ms.0));
    }

    #[test]
    fn one_boot_has_one_id_and_it_is_not_empty() {
        let id = boot_id().expect("the system names its boot");
        assert_eq!(boot_id().expect("again"), id);
        assert!(!id.as_str().is_empty() && id.as_str().trim() == id.as_str());
        assert_eq!(BootId::from_text(id.to_string()), id);
    }
}
