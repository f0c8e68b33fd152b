//! Everything that the agent can be told to do. Executors report back only as inputs.

use crate::record::Record;
use sela_protocol::id::{GpuUuid, LeaseId};
use sela_protocol::lease::{EndCause, MeterNote};
use sela_protocol::local::{CommandReply, Event};
use sela_protocol::node::{Award, NodeMessage};
use sela_protocol::units::Millis;

/// One thing to do. Within one step the order is the order of doing, with one freedom and one duty:
/// *urgent* effects ([`Effect::is_urgent`]) never wait for anything; *dependent* ones ([`Effect::Send`],
/// [`Effect::SendMeter`], [`Effect::Fetch`], [`Effect::Publish`], [`Effect::Reply`]) wait until every [`Effect::Append`] before them is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Freeze the job at once; report [`crate::LeaseEvent::Frozen`] or `FreezeFailed`.
    Freeze {
        /// Whose.
        lease: LeaseId,
    },
    /// Let it run again.
    Thaw {
        /// Whose.
        lease: LeaseId,
    },
    /// Thaw it, ask it to save (SIGTERM), end it after `grace`; report `Ended`.
    Save {
        /// Whose.
        lease: LeaseId,
        /// How long it may take.
        grace: Millis,
        /// Why, to be reported back.
        cause: EndCause,
    },
    /// End it at once, whatever it is doing (fetching included); report `Ended` (or `Failed` if nothing ran).
    End {
        /// Whose.
        lease: LeaseId,
        /// Why, to be reported back.
        cause: EndCause,
    },
    /// The loop lives: the job may run five seconds more.
    Grant {
        /// Whose.
        lease: LeaseId,
    },
    /// Commit this before what depends on it.
    Append(Record),
    /// Tell the exchange.
    Send(NodeMessage),
    /// Sign this note, keep the envelope, and tell the exchange. An `Append(Record::Noted)` of the same note precedes it.
    SendMeter(MeterNote),
    /// Get image, inputs and checkpoint of an award; report `Fetched` or `Failed`.
    Fetch(Box<Award>),
    /// Start the fetched job; report `Started` or `Failed`.
    Start {
        /// Whose.
        lease: LeaseId,
    },
    /// Store what the ended job left; report `Uploaded`.
    Upload {
        /// Whose.
        lease: LeaseId,
    },
    /// Look at what the job uses of its card, 20 times a second, and report [`crate::Input::CardUse`], until `WatchCard` with `on: false`.
    WatchCard {
        /// Which card.
        gpu: GpuUuid,
        /// Whose job.
        lease: LeaseId,
        /// Whether to look.
        on: bool,
    },
    /// Look at signals and cards at the rate that a running job needs (or no longer).
    Attention {
        /// Whether any job runs.
        high: bool,
    },
    /// Tell window, tray and command line.
    Publish(Event),
    /// Answer a command.
    Reply {
        /// Which request.
        request: u64,
        /// What.
        reply: CommandReply,
    },
    /// Everything has ended: leave.
    Exit,
}

impl Effect {
    /// Whether this must be done before and without waiting for any record, queue or disk.
    pub const fn is_urgent(&self) -> bool {
        match self {
            Self::Freeze { .. } | Self::Thaw { .. } | Self::Save { .. } | Self::End { .. } | Self::Grant { .. } => true,
            Self::Append(_)
            | Self::Send(_)
            | Self::SendMeter(_)
            | Self::Fetch(_)
            | Self::Start { .. }
            | Self::Upload { .. }
            | Self::WatchCard { .. }
            | Self::Attention { .. }
            | Self::Publish(_)
            | Self::Reply { .. }
            | Self::Exit => false,
        }
    }
}
