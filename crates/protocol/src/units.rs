//! Physical units and times as types, so that watts never meet degrees. No conversion that loses meaning, no clock,
//! no decision lives here.

use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $suffix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, concat!("{}", $suffix), self.0)
            }
        }
    };
}

unit!(
    /// Electrical power in milliwatts: the unit in which drivers report it.
    Milliwatts, u32, " mW"
);
unit!(
    /// Temperature in whole degrees Celsius, as drivers report it. A reading of 511 is no reading: see `Reading`.
    Celsius, i32, " °C"
);
unit!(
    /// A share of a whole, 0 to 100.
    Percent, u8, " %"
);
unit!(
    /// A clock rate in megahertz.
    Megahertz, u32, " MHz"
);
unit!(
    /// A count of bytes.
    Bytes, u64, " B"
);
unit!(
    /// A span of time in milliseconds, measured on `CLOCK_BOOTTIME`.
    Millis, u64, " ms"
);
unit!(
    /// A span of time in microseconds, as cgroups and measurements of a yield count it. Not money: that is `Micros`.
    Microseconds, u64, " µs"
);
unit!(
    /// A moment on `CLOCK_BOOTTIME` in microseconds since boot: where a job starts and stops being billed.
    BootUs, u64, " µs after boot"
);
unit!(
    /// A moment on `CLOCK_BOOTTIME`, milliseconds since this machine booted, suspend included. Comparable only within one boot.
    BootMs, u64, " ms after boot"
);
unit!(
    /// A moment in UTC, milliseconds since 1970-01-01. For people, receipts and schedules; never for a deadline.
    UtcMs, i64, " ms UTC"
);

impl Milliwatts {
    /// From whole watts.
    pub const fn from_watts(watts: u32) -> Self {
        Self(watts * 1000)
    }

    /// In watts, rounded to the nearest.
    pub const fn watts_rounded(self) -> u32 {
        (self.0 + 500) / 1000
    }
}

impl Bytes {
    /// From mebibytes (2^20 bytes).
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// From gibibytes (2^30 bytes).
    pub const fn from_gib(gib: u64) -> Self {
        Self(gib << 30)
    }
}

impl Millis {
    /// From whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1000)
    }
}

impl BootMs {
    /// The moment `span` later.
    pub const fn plus(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long after `earlier` this is; zero if it is not later.
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl BootUs {
    /// How long after `earlier` this is; zero if it is not later.
    pub const fn since(self, earlier: Self) -> Microseconds {
        Microseconds(self.0.saturating_sub(earlier.0))
    }

    /// The moment `span` later.
    pub const fn plus(self, span: Microseconds) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The same moment in whole milliseconds, rounded down.
    pub const fn in_ms(self) -> BootMs {
        BootMs(self.0 / 1000)
    }
}

impl Microseconds {
    /// In whole milliseconds, rounded down.
    pub const fn in_ms(self) -> Millis {
        Millis(self.0 / 1000)
    }
}

impl From<Millis> for Microseconds {
    fn from(millis: Millis) -> Self {
        Self(millis.0.saturating_mul(1000))
    }
}

impl UtcMs {
    /// The moment `span` later.
    pub const fn plus(self, span: Millis) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// How long after `earlier` this is; zero if it is not later.
    pub const fn since(self, earlier: Self) -> Millis {
        let span = self.0.saturating_sub(earlier.0);
        Millis(if span < 0 { 0 } else { span.unsigned_abs() })
    }
}

/// Both clocks, read together by `sela-clock` and passed in to everything that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Now {
    /// For deadlines and durations.
    pub boot_ms: BootMs,
    /// For people, receipts and schedules.
    pub utc_ms: UtcMs,
}
