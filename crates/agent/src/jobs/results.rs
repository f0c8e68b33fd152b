//! What a job leaves, stored at the exchange: checkpoints while it runs, one after another, and the rest when it is gone.

use crate::market::{Blobs, TransferError};
use sela_core::{Input, LeaseEvent};
use sela_protocol::blob::BlobId;
use sela_protocol::id::LeaseId;
use sela_protocol::lease::EndCause;
use sela_protocol::units::Millis;
use sela_sandbox::keeper::wire::{Archive, Collected};
use tokio::sync::mpsc;

/// Stores archives of a lease.
pub(super) struct Results<'a> {
    pub(super) blobs: &'a Blobs,
    pub(super) lease: LeaseId,
}

impl Results<'_> {
    /// Stores what was collected of a folder; gives its address if there was anything.
    ///
    /// # Errors
    /// On whose account it goes, in words for tenant and owner.
    pub(super) async fn store(&self, folder: &str, collected: Collected) -> Result<Option<BlobId>, EndCause> {
        match collected {
            Collected::Nothing => Ok(None),
            Collected::Refused { why } => Err(EndCause::JobFault {
                message: format!("{folder}: {why}"),
            }),
            Collected::Archived { archive } => {
                let stored = self.store_archive(&archive).await;
                stored
                    .map(|()| Some(archive.blob))
                    .map_err(|error| EndCause::NodeFault {
                        message: format!("{folder}: {error}"),
                    })
            }
        }
    }

    /// Stores an archive and removes it from this machine, stored or not: a failed one would be of no use later.
    async fn store_archive(&self, archive: &Archive) -> Result<(), TransferError> {
        let stored = self.blobs.store(self.lease, archive.blob, &archive.path).await;
        if let Err(error) = tokio::fs::remove_file(&archive.path).await {
            tracing::warn!(%error, path = %archive.path.display(), "an archive could not be removed");
        }
        stored
    }
}

/// Checkpoints of a running job on their way to the exchange.
#[derive(Debug)]
pub(super) struct Checkpoints {
    archives: mpsc::UnboundedSender<(Archive, Millis)>,
    task: tokio::task::JoinHandle<()>,
}

impl Checkpoints {
    pub(super) fn start(blobs: Blobs, lease: LeaseId, inputs: mpsc::Sender<Input>) -> Self {
        // The keeper takes no third while two lie there: this cannot grow.
        let (archives, mut received) = mpsc::unbounded_channel::<(Archive, Millis)>();
        let task = tokio::spawn(async move {
            while let Some((archive, thawed_ms)) = received.recv().await {
                let results = Results { blobs: &blobs, lease };
                match results.store_archive(&archive).await {
                    Ok(()) => {
                        let event = LeaseEvent::CheckpointStored {
                            blob: archive.blob,
                            thawed_ms,
                        };
                        drop(inputs.send(Input::Lease { lease, event }).await);
                    }
                    Err(error) => tracing::warn!(%lease, %error, "a checkpoint was not stored"),
                }
            }
        });
        Self { archives, task }
    }

    pub(super) fn store(&self, archive: Archive, thawed_ms: Millis) {
        drop(self.archives.send((archive, thawed_ms)));
    }

    /// Waits until all are stored, or given up.
    pub(super) async fn finish(self) {
        drop(self.archives);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "storing checkpoints ended by a panic");
        }
    }
}
