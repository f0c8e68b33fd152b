//! What is seen of the owner and the machine besides hands and cards: film and call, game, lock, remote hands, power, the
//! line's cost, cards that sleep. Each is an [`Observed`] of its own; what follows from it is decided in `sela-core`.

use crate::presence::{InputActivity, Observed};
use crate::units::Percent;
use serde::{Deserialize, Serialize};

/// Everything of that kind at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(default)]
pub struct Senses {
    /// The newest button, trigger or real movement of a stick.
    pub gamepad: Observed<InputActivity>,
    /// Film, call, recording; empty where there is none.
    pub engaged: Observed<Vec<Engagement>>,
    /// Game, VR, full screen, programs of the owner's list; empty where there is none.
    pub playing: Observed<Vec<Play>>,
    /// Whether the session at the seat is locked.
    pub locked: Observed<bool>,
    /// Hands that reach this machine over a network; empty where there are none.
    pub remote: Observed<Vec<RemoteHand>>,
    /// Mains or battery; not applicable where there is no battery.
    pub power: Observed<PowerSource>,
    /// Whether the network costs by volume.
    pub metered: Observed<bool>,
    /// Cards that sleep, as PCI addresses ("0000:01:00.0"): whoever asked their driver would wake them.
    pub sleeping_cards: Observed<Vec<String>>,
}

/// Something that a person is engaged in without touching anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Engagement {
    /// What it is.
    pub kind: EngagementKind,
    /// The program, as it names itself; never a title.
    pub program: String,
}

/// What a person is engaged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum EngagementKind {
    /// A program asks that the screen stay on: film, call, presentation.
    KeepsAwake,
    /// A camera is in use.
    Camera,
    /// A microphone is in use.
    Microphone,
    /// A kind that a newer agent knows.
    #[serde(other)]
    Unknown,
}

/// A game, or what is treated as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct Play {
    /// How it was recognised.
    pub kind: PlayKind,
    /// The program's name where it is known; never a window's title.
    pub program: String,
    /// Its process where it is known.
    pub pid: Option<u32>,
}

/// How a game is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum PlayKind {
    /// It told GameMode.
    GameMode,
    /// A window fills the screen.
    Fullscreen,
    /// Steam says that it runs.
    Steam,
    /// A VR runtime runs.
    Vr,
    /// The owner's list names it.
    Listed,
    /// A kind that a newer agent knows.
    #[serde(other)]
    Unknown,
}

/// A way by which somebody works at this machine from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct RemoteHand {
    /// "RDP", "VNC", "Sunshine", or "login" for a remote graphical session.
    pub by: String,
}

/// What the machine runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct PowerSource {
    /// Whether it lives on a battery or on a UPS without mains.
    pub on_battery: bool,
    /// What is left, where it is told.
    pub charge: Option<Percent>,
}

impl Senses {
    /// As it is before any source has answered.
    pub fn unseen() -> Self {
        Self {
            gamepad: unseen(),
            engaged: unseen(),
            playing: unseen(),
            locked: unseen(),
            remote: unseen(),
            power: unseen(),
            metered: unseen(),
            sleeping_cards: unseen(),
        }
    }
}

fn unseen<T>() -> Observed<T> {
    Observed::Unknown {
        source: "sensors".into(),
        why: "has not answered yet".into(),
    }
}

/// An agent that does not tell of its surroundings does not look at them.
impl Default for Senses {
    fn default() -> Self {
        Self {
            gamepad: not_looked_at(),
            engaged: not_looked_at(),
            playing: not_looked_at(),
            locked: not_looked_at(),
            remote: not_looked_at(),
            power: not_looked_at(),
            metered: not_looked_at(),
            sleeping_cards: not_looked_at(),
        }
    }
}

fn not_looked_at<T>() -> Observed<T> {
    Observed::NotApplicable {
        why: "this agent does not look at it".into(),
    }
}
