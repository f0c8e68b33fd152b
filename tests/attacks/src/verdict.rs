//! How an attack went: what a probe says of itself, and what the suite makes of that.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// The end of one attack: what it got, or why it got nothing.
pub type Outcome = Result<String, Held>;

/// Why an attack did not go through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// The system said no.
    Refused {
        /// Its number, where it gave one.
        errno: Option<i32>,
        /// In words.
        what: String,
    },
    /// It went on, up to a limit.
    Contained {
        /// Which.
        what: String,
    },
}

impl Held {
    /// Nothing was there to be reached.
    pub fn nothing(what: impl Into<String>) -> Self {
        Self::Refused {
            errno: None,
            what: what.into(),
        }
    }

    /// A limit held.
    pub fn contained(what: impl Into<String>) -> Self {
        Self::Contained { what: what.into() }
    }
}

impl From<io::Error> for Held {
    fn from(error: io::Error) -> Self {
        Self::Refused {
            errno: error.raw_os_error(),
            what: error.to_string(),
        }
    }
}

/// One line of what the probe program prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Which probe.
    pub probe: String,
    /// How it went.
    pub seen: Seen,
}

/// An [`Outcome`] on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Seen {
    /// The attack went through.
    Visible {
        /// What it got.
        what: String,
    },
    /// The system said no.
    Refused {
        /// Its number, where it gave one.
        errno: Option<i32>,
        /// In words.
        what: String,
    },
    /// It went on, up to a limit.
    Contained {
        /// Which.
        what: String,
    },
}

impl From<Outcome> for Seen {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(what) => Self::Visible { what },
            Err(Held::Refused { errno, what }) => Self::Refused { errno, what },
            Err(Held::Contained { what }) => Self::Contained { what },
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Visible { what } => write!(out, "visible: {what}"),
            Self::Refused { what, .. } => write!(out, "refused: {what}"),
            Self::Contained { what } => write!(out, "contained: {what}"),
        }
    }
}

/// Errors with which a kernel says that it does not have something at all.
const LACKING: [i32; 8] = [
    libc::ENOSYS,
    libc::EOPNOTSUPP,
    libc::EAFNOSUPPORT,
    libc::EPROTONOSUPPORT,
    libc::ESOCKTNOSUPPORT,
    libc::ENODEV,
    libc::ENXIO,
    libc::ENOPROTOOPT,
];

impl Seen {
    /// Of a control that failed: the name of what this machine lacks, if that is why. Anything else is a control that proves nothing.
    pub fn lacking(&self) -> Option<String> {
        match self {
            Self::Refused {
                errno: Some(errno),
                what,
            } if LACKING.contains(errno) => Some(format!("this machine has no such thing: {what}")),
            Self::Refused { .. } | Self::Contained { .. } | Self::Visible { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_kernel_lacks_makes_a_control_impossible() {
        for (error, lacking) in [
            (libc::ENOSYS, true),
            (libc::EAFNOSUPPORT, true),
            (libc::EPERM, false),
            (libc::EACCES, false),
            (libc::ENOENT, false),
        ] {
            let seen = Seen::from(Err(Held::from(io::Error::from_raw_os_error(error))));
            assert_eq!(seen.lacking().is_some(), lacking, "{seen}");
        }
        assert_eq!(Seen::from(Err(Held::nothing("x"))).lacking(), None);
    }
}
