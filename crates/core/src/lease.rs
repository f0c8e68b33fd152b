//! The life of one lease on its card: fetch, start, run, freeze, save, end, verify. Decides what must be done about a
//! lease at a moment ([`Lease::settle`]); what is said to whom about it is in `state`.

use crate::effect::Effect;
use crate::policy::CardPolicy;
use crate::wake::Wake;
use sela_protocol::blob::BlobId;
use sela_protocol::id::{GpuUuid, NodeId};
use sela_protocol::lease::{EndCause, LeasePhase, MeterNote};
use sela_protocol::local::{CardWiped, ImageTransfer, YieldMeasure};
use sela_protocol::network::NetworkUse;
use sela_protocol::node::{Award, LEASE_TTL};
use sela_protocol::units::{BootMs, Millis, Milliwatts, Now, UtcMs};

/// A freeze that is not confirmed after this becomes an end (provider.md §2).
pub(crate) const FREEZE_BOUND: Millis = Millis(250);
/// A frozen job whose work on the card goes on after this is ended: queued kernels run on when the CPU stands.
pub(crate) const QUIET_BOUND: Millis = Millis(1_000);
/// The keeper itself ends a job after its grace; if that is not reported after this much more, it is told again.
const SAVE_SLACK: Millis = Millis(1_000);
/// How often the keeper must hear that the loop lives.
pub(crate) const GRANT_INTERVAL: Millis = Millis(1_000);
/// How often a running lease is noted.
pub(crate) const NOTE_INTERVAL: Millis = Millis(10_000);
/// Input within this after the first still belongs to a single bump.
const BUMP: Millis = Millis(1_000);

/// One lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) award: Box<Award>,
    /// Who this machine is at the exchange that awarded it.
    pub(crate) node: NodeId,
    pub(crate) accepted: Now,
    pub(crate) phase: Phase,
    pub(crate) thawed: Millis,
    pub(crate) frozen: Millis,
    pub(crate) noted: BootMs,
    granted: Option<BootMs>,
    /// Input up to here is no reason to stop: it was there before the lease, or it was a bump.
    forgiven_input: Option<BootMs>,
    /// The exchange's word holds until here.
    pub(crate) expires: BootMs,
    pub(crate) checkpoint: Option<(BlobId, Millis)>,
    pub(crate) energy: Energy,
    /// What its job uses of the network, where it may use any.
    pub(crate) network: Option<NetworkUse>,
    /// How far its image is, until everything is here.
    pub(crate) transfer: Option<ImageTransfer>,
    /// What was wiped of the card's memory for its job.
    pub(crate) wiped: Option<CardWiped>,
    /// The exchange asked for the end.
    pub(crate) cancelled: Option<Stop>,
    yielding: Option<Yielding>,
}

/// How far the lease is. A phase carries what only makes sense in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Fetching,
    Starting,
    Running,
    /// Freeze was asked for.
    Freezing {
        first_input: BootMs,
        quiet_before: Millis,
        asked: BootMs,
    },
    /// Stands frozen.
    Frozen {
        first_input: BootMs,
        quiet_before: Millis,
        card_quiet: bool,
    },
    Saving {
        cause: EndCause,
        until: BootMs,
    },
    /// End was asked for, or the job ended by itself.
    Ending {
        cause: EndCause,
        job_gone: bool,
        card_free: bool,
    },
}

/// A reason to stop a running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At once.
    End(EndCause),
    /// Freeze first, then decide. The moment of the newest input.
    Input(BootMs),
    /// May save first.
    Save(EndCause),
}

/// Energy that the card used while the job was there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Energy {
    last: Option<(Milliwatts, BootMs)>,
    microjoules: Option<u64>,
}

#[derive(Debug, Clone)]
struct Yielding {
    since: BootMs,
    since_utc: UtcMs,
    frozen: Option<Millis>,
    quiet: Option<Millis>,
    vram_free: Option<Millis>,
}

impl Energy {
    /// A power reading: the power since the last one is taken as that reading's (left sum).
    pub(crate) fn add(&mut self, power: Milliwatts, at: BootMs) {
        let before = self.last.replace((power, at));
        if let Some((power, since)) = before {
            let spent = u64::from(power.0).saturating_mul(at.since(since).0);
            self.microjoules = Some(self.microjoules.unwrap_or(0).saturating_add(spent));
        }
    }

    /// In milliwatt-hours; `None` where the card never told its power.
    pub(crate) fn milliwatt_hours(self) -> Option<u64> {
        self.microjoules.map(|microjoules| microjoules / 3_600_000)
    }
}

impl Lease {
    pub(crate) fn accept(mut award: Box<Award>, node: NodeId, now: Now, last_input: Option<BootMs>) -> Self {
        // No decision needs it; its executor has it.
        award.confidential = None;
        Self {
            award,
            node,
            accepted: now,
            phase: Phase::Fetching,
            thawed: Millis(0),
            frozen: Millis(0),
            noted: now.boot_ms,
            granted: None,
            forgiven_input: last_input,
            expires: now.boot_ms.plus(LEASE_TTL),
            checkpoint: None,
            energy: Energy::default(),
            network: None,
            transfer: None,
            wiped: None,
            cancelled: None,
            yielding: None,
        }
    }

    /// How far the lease is, in the words that others use.
    pub(crate) const fn phase_word(&self) -> LeasePhase {
        match self.phase {
            Phase::Fetching => LeasePhase::Fetching,
            Phase::Starting => LeasePhase::Starting,
            Phase::Running | Phase::Freezing { .. } => LeasePhase::Running,
            Phase::Frozen { .. } => LeasePhase::Frozen,
            Phase::Saving { .. } => LeasePhase::Saving,
            Phase::Ending { .. } => LeasePhase::Ending,
        }
    }

    /// What is due now: at most one change of phase, and a grant.
    pub(crate) fn settle(&mut self, stop: Option<Stop>, policy: &CardPolicy, now: Now, wake: &mut Wake) -> Vec<Effect> {
        let mut effects = Vec::new();
        match &self.phase {
            Phase::Fetching | Phase::Starting => match stop {
                Some(Stop::End(cause) | Stop::Save(cause)) => self.end(cause, now, &mut effects),
                Some(Stop::Input(at)) if self.is_new_input(at) => self.end(EndCause::OwnerInput, now, &mut effects),
                Some(Stop::Input(_)) | None => {}
            },
            Phase::Running => match stop {
                Some(Stop::End(cause)) => self.end(cause, now, &mut effects),
                Some(Stop::Save(cause)) => self.save(cause, policy, now, &mut effects),
                Some(Stop::Input(at)) if self.is_new_input(at) => self.freeze(at, now, &mut effects),
                Some(Stop::Input(_)) | None => {}
            },
            Phase::Freezing { asked, .. } => {
                let bound = asked.plus(FREEZE_BOUND);
                match stop {
                    Some(Stop::End(cause)) => self.end(cause, now, &mut effects),
                    Some(Stop::Save(_) | Stop::Input(_)) | None if wake.due(now.boot_ms, bound) => {
                        self.end(EndCause::OwnerInput, now, &mut effects);
                    }
                    Some(Stop::Save(_) | Stop::Input(_)) | None => {}
                }
            }
            Phase::Frozen {
                first_input,
                quiet_before,
                card_quiet,
            } => {
                let (first_input, quiet_before, card_quiet) = (*first_input, *quiet_before, *card_quiet);
                self.settle_frozen(
                    stop,
                    first_input,
                    quiet_before,
                    card_quiet,
                    policy,
                    now,
                    wake,
                    &mut effects,
                );
            }
            Phase::Saving { cause, until } => {
                let cause = cause.clone();
                match stop {
                    // Input is why it saves; anything stronger ends the saving.
                    Some(Stop::End(stronger)) => self.end(stronger, now, &mut effects),
                    Some(Stop::Save(_) | Stop::Input(_)) | None => {
                        if wake.due(now.boot_ms, until.plus(SAVE_SLACK)) {
                            self.end(cause, now, &mut effects);
                        }
                    }
                }
            }
            Phase::Ending { .. } => {}
        }
        effects.extend(self.grant(now, wake));
        effects
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one phase, taken apart so that self can be changed"
    )]
    fn settle_frozen(
        &mut self,
        stop: Option<Stop>,
        first_input: BootMs,
        quiet_before: Millis,
        card_quiet: bool,
        policy: &CardPolicy,
        now: Now,
        wake: &mut Wake,
        effects: &mut Vec<Effect>,
    ) {
        let newest_input = match stop {
            Some(Stop::End(cause)) => return self.end(cause, now, effects),
            Some(Stop::Save(cause)) => return self.save(cause, policy, now, effects),
            Some(Stop::Input(at)) => at,
            None => first_input,
        };
        if !card_quiet && wake.due(now.boot_ms, self.yielding_since(now).plus(QUIET_BOUND)) {
            return self.end(EndCause::OwnerInput, now, effects);
        }
        if !wake.due(now.boot_ms, first_input.plus(policy.evict_after)) {
            return;
        }
        let bumped = quiet_before >= policy.bump_quiet && newest_input <= first_input.plus(BUMP);
        if bumped {
            self.forgiven_input = Some(newest_input);
            self.phase = Phase::Running;
            self.yielding = None;
            effects.push(Effect::Thaw {
                lease: self.award.lease,
            });
            effects.push(self.watch(false));
        } else {
            self.save(EndCause::OwnerInput, policy, now, effects);
        }
    }

    fn is_new_input(&self, at: BootMs) -> bool {
        self.forgiven_input.is_none_or(|forgiven| at > forgiven)
    }

    fn freeze(&mut self, input: BootMs, now: Now, effects: &mut Vec<Effect>) {
        // Where no input was ever seen before, the quiet reaches back to the start of the lease at least.
        let before = self.forgiven_input.unwrap_or(self.accepted.boot_ms);
        self.phase = Phase::Freezing {
            first_input: input,
            quiet_before: input.since(before),
            asked: now.boot_ms,
        };
        self.begin_yield(input, now);
        effects.push(Effect::Freeze {
            lease: self.award.lease,
        });
        effects.push(self.watch(true));
    }

    fn save(&mut self, cause: EndCause, policy: &CardPolicy, now: Now, effects: &mut Vec<Effect>) {
        self.begin_yield(now.boot_ms, now);
        self.phase = Phase::Saving {
            cause: cause.clone(),
            until: now.boot_ms.plus(policy.save_grace),
        };
        effects.push(Effect::Save {
            lease: self.award.lease,
            grace: policy.save_grace,
            cause,
        });
    }

    /// Ends the job; a second call changes nothing.
    pub(crate) fn end(&mut self, cause: EndCause, now: Now, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Ending { .. }) {
            return;
        }
        self.begin_yield(now.boot_ms, now);
        self.phase = Phase::Ending {
            cause: cause.clone(),
            job_gone: false,
            card_free: false,
        };
        effects.push(Effect::End {
            lease: self.award.lease,
            cause,
        });
        effects.push(self.watch(true));
    }

    /// The job is gone from this machine; its card is watched until it is free of it.
    pub(crate) fn gone(&mut self, cause: EndCause, now: Now) -> Effect {
        self.begin_yield(now.boot_ms, now);
        let card_free = matches!(self.phase, Phase::Ending { card_free: true, .. });
        self.phase = Phase::Ending {
            cause,
            job_gone: true,
            card_free,
        };
        self.watch(true)
    }

    /// What the job still uses of its card was seen.
    pub(crate) fn card_use_seen(&mut self, quiet: bool, free: bool, now: Now) {
        if let Some(yielding) = &mut self.yielding {
            let span = now.boot_ms.since(yielding.since);
            if quiet {
                yielding.quiet.get_or_insert(span);
            }
            if free {
                yielding.vram_free.get_or_insert(span);
            }
        }
        match &mut self.phase {
            Phase::Frozen { card_quiet, .. } => *card_quiet |= quiet,
            Phase::Ending {
                card_free,
                job_gone: true,
                ..
            } => *card_free |= free,
            Phase::Ending { job_gone: false, .. }
            | Phase::Fetching
            | Phase::Starting
            | Phase::Running
            | Phase::Freezing { .. }
            | Phase::Saving { .. } => {}
        }
    }

    /// The keeper reported that the job stands frozen.
    pub(crate) fn frozen_seen(&mut self, now: Now) {
        if let Some(yielding) = &mut self.yielding {
            yielding.frozen.get_or_insert(now.boot_ms.since(yielding.since));
        }
        if let Phase::Freezing {
            first_input,
            quiet_before,
            ..
        } = self.phase
        {
            self.phase = Phase::Frozen {
                first_input,
                quiet_before,
                card_quiet: false,
            };
        }
    }

    /// Why it ended, once job and card are verified.
    pub(crate) fn finished(&self) -> Option<&EndCause> {
        match &self.phase {
            Phase::Ending {
                cause,
                job_gone: true,
                card_free: true,
            } => Some(cause),
            Phase::Ending { .. }
            | Phase::Fetching
            | Phase::Starting
            | Phase::Running
            | Phase::Freezing { .. }
            | Phase::Frozen { .. }
            | Phase::Saving { .. } => None,
        }
    }

    /// Why it ended, once the job is gone.
    pub(crate) const fn gone_for(&self) -> Option<&EndCause> {
        match &self.phase {
            Phase::Ending {
                cause, job_gone: true, ..
            } => Some(cause),
            Phase::Ending { .. }
            | Phase::Fetching
            | Phase::Starting
            | Phase::Running
            | Phase::Freezing { .. }
            | Phase::Frozen { .. }
            | Phase::Saving { .. } => None,
        }
    }

    /// Why it is being ended, while its job may still be there.
    pub(crate) const fn being_reclaimed_for(&self) -> Option<&EndCause> {
        match &self.phase {
            Phase::Saving { cause, .. }
            | Phase::Ending {
                cause, job_gone: false, ..
            } => Some(cause),
            Phase::Ending { .. }
            | Phase::Fetching
            | Phase::Starting
            | Phase::Running
            | Phase::Freezing { .. }
            | Phase::Frozen { .. } => None,
        }
    }

    /// A heartbeat sent at `sent` was acknowledged: the lease lives from there. One that was sent before the lease renews nothing.
    pub(crate) fn renew(&mut self, sent: BootMs) {
        if sent >= self.accepted.boot_ms {
            self.expires = self.expires.max(sent.plus(LEASE_TTL));
        }
    }

    /// A meter note of this moment.
    pub(crate) fn note(&self, now: Now, closing: Option<EndCause>) -> MeterNote {
        MeterNote {
            lease: self.award.lease,
            fencing: self.award.fencing,
            node: self.node,
            thawed_ms: self.thawed,
            frozen_ms: self.frozen,
            taken_utc_ms: now.utc_ms,
            closing,
            output: None,
        }
    }

    /// How fast the card was given back.
    pub(crate) fn yield_measure(&self, gpu: &GpuUuid, cause: &EndCause) -> Option<YieldMeasure> {
        self.yielding.as_ref().map(|yielding| YieldMeasure {
            at_utc_ms: yielding.since_utc,
            gpu: gpu.clone(),
            cause: cause.clone(),
            frozen_ms: yielding.frozen,
            quiet_ms: yielding.quiet,
            vram_free_ms: yielding.vram_free,
        })
    }

    fn watch(&self, on: bool) -> Effect {
        Effect::WatchCard {
            gpu: self.award.gpu.clone(),
            lease: self.award.lease,
            on,
        }
    }

    fn begin_yield(&mut self, since: BootMs, now: Now) {
        self.yielding.get_or_insert(Yielding {
            since,
            since_utc: now.utc_ms,
            frozen: None,
            quiet: None,
            vram_free: None,
        });
    }

    fn yielding_since(&self, now: Now) -> BootMs {
        self.yielding.as_ref().map_or(now.boot_ms, |yielding| yielding.since)
    }

    fn grant(&mut self, now: Now, wake: &mut Wake) -> Option<Effect> {
        match self.phase {
            Phase::Running | Phase::Freezing { .. } | Phase::Frozen { .. } | Phase::Saving { .. } | Phase::Starting => {
            }
            Phase::Fetching | Phase::Ending { .. } => return None,
        }
        let due = self.granted.map_or(now.boot_ms, |granted| granted.plus(GRANT_INTERVAL));
        if !wake.due(now.boot_ms, due) {
            return None;
        }
        self.granted = Some(now.boot_ms);
        wake.at(now.boot_ms.plus(GRANT_INTERVAL));
        Some(Effect::Grant {
            lease: self.award.lease,
        })
    }
}
