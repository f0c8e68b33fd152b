//! What a reason that holds a card means for a job that is on it: an end at once, a freeze, time to save, or nothing. How a lease goes
//! about it is in `lease`.

use crate::foreign;
use crate::lease::{Lease, Stop};
use crate::policy::CardPolicy;
use crate::wake::Wake;
use sela_protocol::lease::EndCause;
use sela_protocol::presence::{Availability, HoldReason};
use sela_protocol::units::{BootMs, Now};

/// The strongest reason to stop the job of a lease now.
pub(crate) fn stop_demand(
    lease: &Lease,
    availability: &Availability,
    newest_input: Option<BootMs>,
    policy: &CardPolicy,
    now: Now,
    wake: &mut Wake,
) -> Option<Stop> {
    if wake.due(now.boot_ms, lease.expires) {
        return Some(Stop::End(EndCause::LeaseExpired));
    }
    let reasons = match availability {
        Availability::Available { .. } => &[][..],
        Availability::Held { reasons } => reasons,
    };
    let end = reasons.iter().find_map(|reason| match reason {
        HoldReason::Paused { .. } => Some(EndCause::OwnerCommand),
        HoldReason::Starting | HoldReason::Stopping | HoldReason::Asleep => Some(EndCause::Shutdown),
        HoldReason::NoIsolation { why } => Some(EndCause::NodeFault { message: why.clone() }),
        HoldReason::Hot { .. } => Some(EndCause::Hot),
        HoldReason::CardUnreadable { .. } => Some(EndCause::CardLost),
        HoldReason::ForeignUse { process, .. } => foreign::evicts(process, policy).then(|| EndCause::OwnerProgram {
            name: process.name.clone(),
        }),
        HoldReason::Playing { program, .. } => Some(EndCause::OwnerProgram {
            name: Some(program.clone()),
        }),
        // What somebody watches, and from where they work, is nobody else's business.
        HoldReason::Engaged { .. } | HoldReason::RemoteSession { .. } => Some(EndCause::OwnerProgram { name: None }),
        HoldReason::CardAsleep => Some(EndCause::CardLost),
        HoldReason::SignalUnknown { signal, .. } => Some(EndCause::SensorSilent { what: signal.clone() }),
        HoldReason::InputRecent { .. }
        | HoldReason::GamepadRecent { .. }
        | HoldReason::OnBattery { .. }
        | HoldReason::Metered
        | HoldReason::OutsideSchedule { .. }
        | HoldReason::ScheduleUnsure { .. }
        | HoldReason::Settling { .. }
        | HoldReason::CoolOff { .. }
        | HoldReason::SettingsBroken { .. }
        | HoldReason::Unknown => None,
    });
    let recent_input = reasons.iter().any(|reason| {
        matches!(
            reason,
            HoldReason::InputRecent { .. } | HoldReason::GamepadRecent { .. }
        )
    });
    // Nobody waits for the card: there is time to save.
    let rule = reasons.iter().any(|reason| {
        matches!(
            reason,
            HoldReason::OnBattery { .. }
                | HoldReason::Metered
                | HoldReason::OutsideSchedule { .. }
                | HoldReason::ScheduleUnsure { .. }
        )
    });
    match (end, lease.cancelled.clone()) {
        (Some(cause), _) => Some(Stop::End(cause)),
        (None, Some(cancelled)) => Some(cancelled),
        // Input freezes at once and saves soon after: it comes first.
        (None, None) if rule && !recent_input => Some(Stop::Save(EndCause::OwnerRule)),
        (None, None) => newest_input.filter(|_| recent_input).map(Stop::Input),
    }
}
