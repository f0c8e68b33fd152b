//! What is done about the last run before anything is offered: its jobs are swept from the machine, and its open leases get the
//! time that their keepers wrote down.

use super::accounts;
use sela_core::RecoveredLease;
use sela_protocol::lease::EndCause;
use sela_sandbox::keeper::wire::CgroupPlace;
use sela_sandbox::sweep::{Swept, sweep};
use std::path::Path;
use std::time::Duration;

/// A keeper whose agent was killed writes its account within this; it has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(3);
const GLANCE: Duration = Duration::from_millis(20);

/// Kills and removes what the last run left. Blocking, for up to ten seconds a job.
///
/// # Errors
/// What could not be removed; then nothing may be offered.
pub(super) fn sweep_machine(place: &CgroupPlace, scratch: &Path) -> anyhow::Result<Swept> {
    let swept = sweep(place, scratch)?;
    if swept != Swept::default() {
        tracing::warn!(
            leases = ?swept.leases,
            processes = swept.processes,
            folders = swept.scratch.len(),
            "the last run left something; it is gone now"
        );
    }
    Ok(swept)
}

/// Fills in what keepers wrote down. An account may be a moment late where the job was still there when it was swept.
pub(super) async fn fill_in(open: &mut [RecoveredLease], swept: &Swept, folder: &Path) {
    for recovered in open {
        let lease = recovered.lease.lease;
        let path = accounts::path(folder, lease);
        if swept.leases.contains(&lease.to_string()) {
            let written = async {
                while !path.exists() {
                    tokio::time::sleep(GLANCE).await;
                }
            };
            if tokio::time::timeout(PATIENCE, written).await.is_err() {
                tracing::warn!(%lease, "the keeper left no account; the newest note counts");
            }
        }
        let Some(stop) = accounts::read(&path) else {
            continue;
        };
        recovered.thawed_ms = recovered.thawed_ms.max(stop.thawed_ms);
        recovered.frozen_ms = recovered.frozen_ms.max(stop.frozen_us.in_ms());
        // A lease whose closing note was written keeps its cause. A grant that ran out means that the agent was not there; and a job
        // that ended by itself is not done, because what it made was never stored and is gone with the scratch folder.
        let stands = !matches!(stop.cause, EndCause::GrantExpired | EndCause::Exited { .. });
        if recovered.cause == EndCause::AgentRestarted && stands {
            recovered.cause = stop.cause;
        }
    }
}

/// Removes accounts of leases that are closed in the store: the agent was killed before it could.
pub(super) fn forget_closed(open: &[RecoveredLease], folder: &Path) {
    let wanted: Vec<_> = open
        .iter()
        .map(|recovered| accounts::path(folder, recovered.lease.lease))
        .collect();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !wanted.contains(&entry.path()) {
            accounts::remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_core::OpenLease;
    use sela_protocol::id::{GpuUuid, IdSource};
    use sela_protocol::lease::FencingToken;
    use sela_protocol::money::HourlyPrice;
    use sela_protocol::units::{BootUs, Microseconds, Millis, UtcMs};
    use sela_sandbox::keeper::wire::{FrozenSource, Stop};

    fn recovered(seed: u8) -> RecoveredLease {
        let mut ids = IdSource::new(UtcMs(1), [seed; 32]);
        RecoveredLease {
            lease: OpenLease {
                lease: ids.draw(),
                node: ids.draw(),
                fencing: FencingToken(1),
                job: ids.draw(),
                name: None,
                gpu: GpuUuid("GPU-1".into()),
                price: HourlyPrice::default(),
                accepted_utc_ms: UtcMs(1),
                lab: true,
            },
            thawed_ms: Millis(10_000),
            frozen_ms: Millis(0),
            cause: EndCause::AgentRestarted,
        }
    }

    #[tokio::test]
    async fn the_keepers_account_counts_and_where_there_is_none_the_newest_note_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut open = [recovered(1), recovered(2), recovered(3)];
        let stop = |thawed, cause| Stop {
            cause,
            exit: None,
            started_boot_us: BootUs(0),
            ended_boot_us: BootUs(0),
            frozen_us: Microseconds(2_500),
            frozen_source: FrozenSource::Kernel,
            thawed_ms: Millis(thawed),
            gone_after_us: Microseconds(0),
            cpu_us: Microseconds(0),
            memory_peak: None,
        };
        let accounts = [
            stop(12_345, EndCause::AgentRestarted),
            stop(11_000, EndCause::WallLimit),
        ];
        for (recovered, stop) in open.iter().zip(&accounts) {
            let path = accounts::path(folder.path(), recovered.lease.lease);
            std::fs::write(path, serde_json::to_vec(stop).expect("writes")).expect("written");
        }
        fill_in(&mut open, &Swept::default(), folder.path()).await;
        let found: Vec<_> = open.iter().map(|open| (open.thawed_ms.0, open.frozen_ms.0)).collect();
        assert_eq!(found, [(12_345, 2), (11_000, 2), (10_000, 0)]);
        assert_eq!(open[1].cause, EndCause::WallLimit);
    }

    #[test]
    fn accounts_of_closed_leases_are_removed_and_those_of_open_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = [recovered(1)];
        let kept = accounts::path(folder.path(), open[0].lease.lease);
        let closed = accounts::path(folder.path(), recovered(2).lease.lease);
        for path in [&kept, &closed] {
            std::fs::write(path, "{}").expect("written");
        }
        forget_closed(&open, folder.path());
        assert!(kept.exists() && !closed.exists());
    }

    #[tokio::test]
    async fn a_job_that_ended_before_its_results_were_stored_is_not_taken_for_done() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut open = [recovered(1)];
        let stop = Stop {
            cause: EndCause::Exited { code: 0 },
            exit: None,
            started_boot_us: BootUs(0),
            ended_boot_us: BootUs(0),
            frozen_us: Microseconds(0),
            frozen_source: FrozenSource::Kernel,
            thawed_ms: Millis(12_345),
            gone_after_us: Microseconds(0),
            cpu_us: Microseconds(0),
            memory_peak: None,
        };
        let path = accounts::path(folder.path(), open[0].lease.lease);
        std::fs::write(path, serde_json::to_vec(&stop).expect("writes")).expect("written");
        fill_in(&mut open, &Swept::default(), folder.path()).await;
        assert_eq!(
            (open[0].thawed_ms, &open[0].cause),
            (Millis(12_345), &EndCause::AgentRestarted)
        );
    }

    #[test]
    fn an_account_that_does_not_read_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.json");
        std::fs::write(&path, "{").expect("written");
        assert_eq!(accounts::read(&path), None);
    }
}
