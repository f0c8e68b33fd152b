//! What is seen of the owner and the machine, and the typed reasons for which a card is held. The sentences are here
//! because `sela why`, the log and the window must say the same; when a reason holds is decided in `sela-core`.

use crate::id::GpuUuid;
use crate::senses::Senses;
use crate::units::{BootMs, Bytes, Celsius, Millis, Percent, UtcMs};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One signal as its source gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Observed<T> {
    /// The source answered.
    Value {
        /// What it said.
        value: T,
        /// Which source.
        source: String,
        /// When it was last known to be true.
        seen_boot_ms: BootMs,
    },
    /// The source exists but failed, hung or is too old: it holds.
    Unknown {
        /// Which source.
        source: String,
        /// What went wrong.
        why: String,
    },
    /// The source is not there (no seat, no session): it does not hold.
    NotApplicable {
        /// Why there can be none.
        why: String,
    },
}

/// The owner's input over all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct InputActivity {
    /// The newest moment at which a key, a button or a pointer moved.
    pub last_input_boot_ms: BootMs,
}

/// A process on a card that is neither a job of ours nor on the owner's ignore list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct ForeignUse {
    /// Which card.
    pub gpu: GpuUuid,
    /// Whose.
    pub pid: u32,
    /// Its name, where it can be read.
    pub name: Option<String>,
    /// Memory that it holds, where the driver tells.
    pub vram_used: Option<Bytes>,
    /// Its share of the card, where the driver tells.
    pub utilisation: Option<Percent>,
}

/// Everything that is seen of the owner at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Signals {
    /// Keyboard, mouse, pointer.
    pub input: Observed<InputActivity>,
    /// Other people's work on the cards.
    pub foreign: Observed<Vec<ForeignUse>>,
    /// Everything else that is seen.
    #[serde(default)]
    pub senses: Box<Senses>,
}

/// Why a card is not shared now. Each says what would lift it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HoldReason {
    /// The owner is here.
    InputRecent {
        /// How long ago the last input was.
        idle_ms: Millis,
        /// How long it must be quiet.
        needed_ms: Millis,
        /// What saw it.
        source: String,
    },
    /// A source that must be there does not answer.
    SignalUnknown {
        /// Which signal.
        signal: String,
        /// Which source.
        source: String,
        /// What went wrong.
        why: String,
    },
    /// After a card was given back it rests.
    CoolOff {
        /// What is left.
        remaining_ms: Millis,
    },
    /// Another program works on the card.
    ForeignUse {
        /// Its process.
        process: ForeignUse,
    },
    /// The owner said so.
    Paused {
        /// Until when; until told otherwise where `None`.
        until_utc_ms: Option<UtcMs>,
    },
    /// The card is too hot, or was and has not cooled.
    Hot {
        /// Now.
        temperature: Celsius,
        /// Below this it is shared again.
        resume_below: Celsius,
    },
    /// The driver does not answer for the card.
    CardUnreadable {
        /// What it said.
        why: String,
    },
    /// No isolation that would be safe enough can be had here.
    NoIsolation {
        /// What is missing.
        why: String,
    },
    /// The settings file cannot be read; the last good one is in force.
    SettingsBroken {
        /// Line, column and what is wrong.
        why: String,
    },
    /// The agent has just started and cleans up after its last run first.
    Starting,
    /// The agent is being stopped.
    Stopping,
    /// The machine goes to sleep.
    Asleep,
    /// A reason that a newer agent knows and this program does not.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for HoldReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InputRecent {
                idle_ms,
                needed_ms,
                source,
            } => write!(
                out,
                "keyboard or mouse used {} ago ({source}); sharing resumes after {} without input, in {}",
                Span(*idle_ms),
                Span(*needed_ms),
                Span(Millis(needed_ms.0.saturating_sub(idle_ms.0)))
            ),
            Self::SignalUnknown { signal, source, why } => {
                write!(
                    out,
                    "{signal} cannot be seen: {source}: {why}; run `sela doctor` to see how to mend it"
                )
            }
            Self::CoolOff { remaining_ms } => {
                write!(
                    out,
                    "the card was just given back and rests for {}",
                    Span(*remaining_ms)
                )
            }
            Self::ForeignUse { process } => {
                let name = process.name.as_deref().unwrap_or("a program");
                write!(out, "{name} (process {}) is using the card", process.pid)?;
                if let Some(bytes) = process.vram_used {
                    write!(out, " and holds {} MiB of its memory", bytes.0 >> 20)?;
                }
                write!(out, "; sharing resumes when it has ended")
            }
            Self::Paused { until_utc_ms: None } => write!(out, "you paused it; `sela resume` shares again"),
            Self::Paused {
                until_utc_ms: Some(until),
            } => {
                write!(
                    out,
                    "you paused it until {} (UTC ms); `sela resume` shares again at once",
                    until.0
                )
            }
            Self::Hot {
                temperature,
                resume_below,
            } => {
                write!(
                    out,
                    "the card is at {temperature}; sharing resumes below {resume_below}"
                )
            }
            Self::CardUnreadable { why } => write!(out, "the card cannot be read: {why}"),
            Self::NoIsolation { why } => write!(out, "jobs cannot be isolated here: {why}"),
            Self::SettingsBroken { why } => {
                write!(out, "agent.toml cannot be read: {why}; mend it and it is read again")
            }
            Self::Starting => write!(out, "the agent has just started and cleans up first"),
            Self::Stopping => write!(out, "the agent is stopping"),
            Self::Asleep => write!(out, "the PC goes to sleep; sharing resumes when it has woken up"),
            Self::Unknown => write!(out, "a reason that this version does not know; update this program"),
        }
    }
}

/// A span of time as people read it: "42 s", "4:18", "1:02:03".
#[derive(Debug, Clone, Copy)]
pub struct Span(pub Millis);

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.0.div_ceil(1000);
        let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        match (hours, minutes) {
            (0, 0) => write!(out, "{rest} s"),
            (0, _) => write!(out, "{minutes}:{rest:02}"),
            _ => write!(out, "{hours}:{minutes:02}:{rest:02}"),
        }
    }
}

/// Whether a card may be shared now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Availability {
    /// It may.
    Available,
    /// It may not, for these reasons; never empty.
    Held {
        /// All that hold, the one that lasts longest first.
        reasons: Vec<HoldReason>,
    },
}
