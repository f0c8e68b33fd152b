//! What clients are shown of the state: whole view-models, so that no window, tray or command line decides anything.

use crate::lease::Lease;
use crate::state::State;
use sela_protocol::id::GpuUuid;
use sela_protocol::local::{CardState, LOCAL_PROTOCOL, LeaseState, Snapshot, ThermalLimits};
use sela_protocol::presence::Availability;
use sela_protocol::units::Now;

impl State {
    /// Everything that a client shows, as of `now`: reasons count down by it.
    pub fn snapshot(&mut self, now: Now) -> Snapshot {
        // Asking what holds a card also collects wakes; those of the last step stay in force.
        let wake = self.wake;
        let uuids: Vec<GpuUuid> = self.cards.keys().cloned().collect();
        let mut cards: Vec<CardState> = uuids
            .iter()
            .filter_map(|gpu| {
                let availability = self.availability(gpu, now);
                self.card_view(gpu, availability)
            })
            .collect();
        cards.sort_by_key(|card| card.description.index);
        self.wake = wake;
        Snapshot {
            protocol: LOCAL_PROTOCOL,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            now,
            lab: self.lab,
            market: self.market.clone(),
            isolation: self.isolation.clone(),
            pause: self.pause,
            settings_problem: self.settings_problem.clone(),
            signals: self.signals.clone(),
            cards,
            earned: self.earned,
        }
    }

    pub(crate) fn card_view(&self, gpu: &GpuUuid, availability: Availability) -> Option<CardState> {
        let card = self.cards.get(gpu)?;
        let policy = self.policy.for_card(gpu);
        Some(CardState {
            description: card.description.clone(),
            reading: card.reading.clone(),
            floor: policy.floor,
            limits: ThermalLimits {
                core_hard: policy.core_hard,
                resume_below: policy.resume_below,
            },
            availability,
            lease: card.lease.as_ref().map(Lease::view),
            last_yield: card.last_yield.clone(),
        })
    }
}

impl Lease {
    fn view(&self) -> LeaseState {
        LeaseState {
            lease: self.award.lease,
            job: self.award.job,
            name: self.award.spec.name.clone(),
            phase: self.phase_word(),
            price: self.award.price,
            thawed_ms: self.thawed,
            gross: self.award.price.due(self.thawed),
            network: self.network.clone(),
            transfer: self.transfer,
            wiped: self.wiped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use sela_protocol::units::{BootMs, UtcMs};

    #[test]
    fn a_snapshot_names_the_version_of_the_local_interface_not_that_of_the_exchanges() {
        let now = Now {
            boot_ms: BootMs(1),
            utc_ms: UtcMs(2),
        };
        assert_eq!(
            State::new(Policy::default(), now).snapshot(now).protocol,
            LOCAL_PROTOCOL
        );
    }
}
