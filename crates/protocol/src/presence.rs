//! What is seen of the owner and the machine, and the typed reasons for which a card is held. The sentences are here
//! because `sela why`, the log and the window must say the same; when a reason holds is decided in `sela-core`.

use crate::id::GpuUuid;
use crate::senses::{EngagementKind, PlayKind, Senses};
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
        /// How long it still counts if it goes on computing nothing; until it ends where `None`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "bindings", ts(optional))]
        idle_for_ms: Option<Millis>,
    },
    /// The owner has a pad in hands.
    GamepadRecent {
        /// How long ago it last moved.
        idle_ms: Millis,
        /// How long it must be quiet.
        needed_ms: Millis,
        /// What saw it.
        source: String,
    },
    /// The owner is engaged in something without touching anything.
    Engaged {
        /// In what.
        kind: EngagementKind,
        /// The program.
        program: String,
    },
    /// A game, or what the owner wants treated as one.
    Playing {
        /// How it was recognised.
        kind: PlayKind,
        /// The program.
        program: String,
    },
    /// Somebody works at this machine from elsewhere.
    RemoteSession {
        /// By which way.
        by: String,
    },
    /// The machine lives on a battery.
    OnBattery {
        /// What is left of it, where it is told.
        charge: Option<Percent>,
        /// From this on the owner shares all the same; never where `None`.
        least: Option<Percent>,
    },
    /// The network costs by volume.
    Metered,
    /// The card sleeps, and is not woken by looking.
    CardAsleep,
    /// The owner's schedule is closed.
    OutsideSchedule {
        /// When it opens next; not within the coming weeks where `None`.
        opens_utc_ms: Option<UtcMs>,
        /// The zone whose clock counts.
        zone: String,
    },
    /// The owner's schedule may be closed: not all of it can be known.
    ScheduleUnsure {
        /// What is missing, and how to mend it.
        why: String,
    },
    /// What held the card has just gone, and must stay away for a moment.
    Settling {
        /// For how long still.
        remaining_ms: Millis,
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
            Self::ForeignUse { process, idle_for_ms } => {
                let name = process.name.as_deref().unwrap_or("a program");
                write!(out, "{name} (process {}) is using the card", process.pid)?;
                if let Some(bytes) = process.vram_used {
                    write!(out, " and holds {} MiB of its memory", bytes.0 >> 20)?;
                }
                match idle_for_ms {
                    None => write!(out, "; sharing resumes when it has ended"),
                    Some(left) => write!(
                        out,
                        "; sharing resumes when it has ended, or computed nothing for {} more",
                        Span(*left)
                    ),
                }
            }
            Self::GamepadRecent {
                idle_ms,
                needed_ms,
                source,
            } => write!(
                out,
                "gamepad used {} ago ({source}); sharing resumes after {} without input, in {}",
                Span(*idle_ms),
                Span(*needed_ms),
                Span(Millis(needed_ms.0.saturating_sub(idle_ms.0)))
            ),
            Self::Engaged { kind, program } => {
                match kind {
                    EngagementKind::KeepsAwake => {
                        write!(out, "{program} keeps the screen on, as for a film or a call")?
                    }
                    EngagementKind::Camera => write!(out, "a camera is in use ({program})")?,
                    EngagementKind::Microphone => write!(out, "a microphone is in use ({program})")?,
                    EngagementKind::Unknown => write!(out, "you are engaged in something ({program})")?,
                }
                write!(out, "; sharing resumes when that has ended")
            }
            Self::Playing { kind, program } => {
                match kind {
                    PlayKind::GameMode => write!(out, "{program} plays: it asked for game mode")?,
                    PlayKind::Fullscreen => write!(out, "{program} fills the screen")?,
                    PlayKind::Steam => write!(out, "Steam says that {program} runs")?,
                    PlayKind::Vr => write!(out, "VR is on ({program})")?,
                    PlayKind::Listed => write!(out, "{program} runs, which is on your list")?,
                    PlayKind::Unknown => write!(out, "{program} plays")?,
                }
                write!(out, "; sharing resumes when it has ended")
            }
            Self::RemoteSession { by } => {
                write!(
                    out,
                    "somebody works here from elsewhere ({by}); sharing resumes when that has ended"
                )
            }
            Self::OnBattery { charge, least } => {
                write!(out, "this PC is on battery")?;
                if let Some(charge) = charge {
                    write!(out, " ({charge})")?;
                }
                match least {
                    None => write!(out, "; sharing resumes on mains"),
                    Some(least) => write!(out, "; sharing resumes on mains, or from {least} on"),
                }
            }
            Self::Metered => write!(out, "the network costs by volume; sharing resumes on one that does not"),
            Self::CardAsleep => write!(
                out,
                "the card sleeps to save power and is not woken by looking; sharing resumes when something has woken it"
            ),
            Self::OutsideSchedule {
                opens_utc_ms: Some(opens),
                zone,
            } => write!(out, "your schedule is closed; it opens at {} (UTC ms; {zone})", opens.0),
            Self::OutsideSchedule {
                opens_utc_ms: None,
                zone,
            } => write!(out, "your schedule is closed, for weeks ({zone}); change it to share"),
            Self::ScheduleUnsure { why } => write!(out, "your schedule may be closed: {why}"),
            Self::Settling { remaining_ms } => write!(
                out,
                "what held it has just gone; sharing resumes in {} if it stays away",
                Span(*remaining_ms)
            ),
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
    Available {
        /// Until when, where the owner's schedule says; without a known end where `None`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "bindings", ts(optional))]
        until_utc_ms: Option<UtcMs>,
    },
    /// It may not, for these reasons; never empty.
    Held {
        /// All that hold, the one that lasts longest first.
        reasons: Vec<HoldReason>,
    },
}

impl Availability {
    /// Shared without a known end.
    pub const OPEN: Self = Self::Available { until_utc_ms: None };

    /// Whether it may.
    pub const fn is_available(&self) -> bool {
        matches!(self, Self::Available { .. })
    }
}
