//! What becomes of a lease: the reports of its executors are taken, and when its job is gone and its card is free it is
//! written down and makes room. Its phases and their bounds are in `lease`.

use crate::Effect;
use crate::input::LeaseEvent;
use crate::lease::{NOTE_INTERVAL, Phase};
use crate::record::{Record, UnsettledLease};
use crate::state::State;
use sela_protocol::blob::BlobId;
use sela_protocol::id::{GpuUuid, LeaseId};
use sela_protocol::lease::EndCause;
use sela_protocol::local::Event;
use sela_protocol::node::NodeMessage;
use sela_protocol::units::Now;

impl State {
    pub(crate) fn lease_event(&mut self, id: LeaseId, event: LeaseEvent, now: Now, effects: &mut Vec<Effect>) {
        if let LeaseEvent::Uploaded { output, problem } = event {
            self.uploaded(id, output, problem, effects);
            return;
        }
        if let LeaseEvent::CheckpointStored { blob, thawed_ms } = event
            && let Some(ended) = self.uploading.get(&id)
        {
            // The last one, taken when the job had saved: without it, a job that was given back would lose what it saved.
            let message = NodeMessage::Checkpoint {
                lease: id,
                fencing: ended.note.fencing,
                blob,
                thawed_ms,
            };
            self.say(message, effects);
            return;
        }
        let Some(lease) = self.lease_mut(id) else {
            return;
        };
        if lease.gone_for().is_some() {
            // The job is gone and its closing note is written: nothing that is still on its way changes that.
            return;
        }
        let before = lease.phase_word();
        match event {
            LeaseEvent::Fetched => {
                lease.transfer = None;
                if lease.phase == Phase::Fetching {
                    lease.phase = Phase::Starting;
                    effects.push(Effect::Start { lease: id });
                }
            }
            LeaseEvent::Failed { cause } => {
                let watch = lease.gone(cause.clone(), now);
                let note = lease.note(now, Some(cause));
                effects.push(watch);
                self.note(note, effects);
                return;
            }
            LeaseEvent::Started => {
                if lease.phase == Phase::Starting {
                    lease.phase = Phase::Running;
                }
            }
            LeaseEvent::Frozen => lease.frozen_seen(now),
            LeaseEvent::FreezeFailed => lease.end(EndCause::OwnerInput, now, effects),
            LeaseEvent::Thawed => {}
            LeaseEvent::Usage { thawed_ms, frozen_ms } => {
                lease.thawed = lease.thawed.max(thawed_ms);
                lease.frozen = lease.frozen.max(frozen_ms);
                if now.boot_ms >= lease.noted.plus(NOTE_INTERVAL) {
                    lease.noted = now.boot_ms;
                    let note = lease.note(now, None);
                    self.note(note, effects);
                }
                return;
            }
            LeaseEvent::Network(used) => {
                lease.network = Some(used);
                return;
            }
            LeaseEvent::Transfer(so_far) => {
                lease.transfer = Some(so_far).filter(|_| lease.phase == Phase::Fetching);
                return;
            }
            LeaseEvent::CardWiped(wiped) => {
                lease.wiped = Some(wiped);
                return;
            }
            LeaseEvent::CheckpointStored { blob, thawed_ms } => {
                lease.checkpoint = Some((blob, thawed_ms));
                let fencing = lease.award.fencing;
                self.say(
                    NodeMessage::Checkpoint {
                        lease: id,
                        fencing,
                        blob,
                        thawed_ms,
                    },
                    effects,
                );
                return;
            }
            LeaseEvent::Ended {
                cause,
                thawed_ms,
                frozen_ms,
            } => {
                lease.thawed = lease.thawed.max(thawed_ms);
                lease.frozen = lease.frozen.max(frozen_ms);
                let note = lease.note(now, at_once(&cause));
                let watch = lease.gone(cause, now);
                effects.push(watch);
                self.note(note, effects);
                return;
            }
            LeaseEvent::Uploaded { .. } => {}
        }
        let (after, fencing) = (lease.phase_word(), lease.award.fencing);
        if before != after {
            self.say(
                NodeMessage::Progress {
                    lease: id,
                    fencing,
                    phase: after,
                },
                effects,
            );
        }
    }

    pub(crate) fn uploaded(
        &mut self,
        id: LeaseId,
        output: Option<BlobId>,
        problem: Option<EndCause>,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(mut ended) = self.uploading.remove(&id) {
            ended.output = output;
            let closing_note_is_due = at_once(&ended.cause).is_none();
            // A job that ended by itself is done only with what it made; any other cause stands as it is.
            if let Some(problem) = problem
                && closing_note_is_due
            {
                ended.note.closing = Some(problem.clone());
                ended.cause = problem;
            }
            if closing_note_is_due {
                ended.note.output = output;
            }
            self.close(ended, closing_note_is_due, effects);
        }
    }

    /// Writes down that a lease has ended and reports it, with its closing note where that was not written at once.
    pub(crate) fn close(&mut self, ended: UnsettledLease, closing_note_is_due: bool, effects: &mut Vec<Effect>) {
        // First of all what says where the output is: a closing note alone would let the job pass for done without it.
        effects.push(Effect::Append(Record::Closed(ended.clone())));
        if closing_note_is_due {
            self.note(ended.note.clone(), effects);
        }
        self.say_result(&ended, effects);
        self.unsettled.insert(ended.note.lease, ended);
    }

    /// A lease whose job is gone and whose card is free makes room.
    pub(crate) fn settle_finished(&mut self, gpu: &GpuUuid, now: Now, effects: &mut Vec<Effect>) {
        let cool_off = self.policy.for_card(gpu).cool_off;
        let Some(card) = self.cards.get_mut(gpu) else {
            return;
        };
        // A card that the driver does not answer for tells nothing of its memory, and may never: its job is gone, so the tenant
        // need not wait for it, and what is unreadable is not offered anyway.
        let finished = match (&card.lease, &card.unreadable) {
            (Some(lease), None) => lease.finished(),
            (Some(lease), Some(_)) => lease.gone_for(),
            (None, _) => None,
        };
        let Some(cause) = finished.cloned() else {
            return;
        };
        let Some(lease) = card.lease.take() else {
            return;
        };
        effects.push(Effect::WatchCard {
            gpu: gpu.clone(),
            lease: lease.award.lease,
            on: false,
        });
        if let Some(measure) = lease.yield_measure(gpu, &cause).filter(|_| is_yield(&cause)) {
            card.last_yield = Some(measure.clone());
            effects.push(Effect::Publish(Event::Yielded(measure)));
        }
        if is_owners(&cause) {
            card.cool_off_until = Some(now.boot_ms.plus(cool_off));
        }
        let ended = UnsettledLease {
            note: lease.note(now, Some(cause.clone())),
            cause,
            output: None,
            energy_mwh: lease.energy.milliwatt_hours(),
            ended_utc_ms: now.utc_ms,
            lasted: now.boot_ms.since(lease.accepted.boot_ms),
        };
        effects.push(Effect::Upload {
            lease: ended.note.lease,
        });
        self.uploading.insert(ended.note.lease, ended);
    }
}

/// The cause that may be put on a closing note as soon as the job is gone. A job that ended by itself is closed only when what it
/// made is stored: if the agent dies before that, the job is not done, and goes on from its checkpoint.
pub(crate) fn at_once(cause: &EndCause) -> Option<EndCause> {
    (!matches!(cause, EndCause::Exited { .. })).then(|| cause.clone())
}

/// Whether the owner took the card back: then it rests for `cool_off`.
const fn is_owners(cause: &EndCause) -> bool {
    matches!(
        cause,
        EndCause::OwnerInput
            | EndCause::OwnerProgram { .. }
            | EndCause::OwnerCommand
            | EndCause::OwnerRule
            | EndCause::SensorSilent { .. }
    )
}

/// Whether an end is a giving back that is measured and shown.
const fn is_yield(cause: &EndCause) -> bool {
    is_owners(cause) || matches!(cause, EndCause::Hot | EndCause::Shutdown | EndCause::CardLost)
}
