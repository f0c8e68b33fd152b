//! Room for blobs: what a blob that was received becomes part of, and when it goes again. A file lies in the folder as long as
//! somebody has a right to it, and no longer; rights end some time after they were last used, and never while a job needs them.

use crate::blobs::Received;
use crate::door::{Along, AskError};
use crate::rest::Exchange;
use crate::store::StoreError;
use crate::store::blob_owners::{self, BlobOwner};
use sela_market::input::Ask;
use sela_protocol::blob::BlobId;
use sela_protocol::id::{LeaseId, TenantId};
use sela_protocol::units::{Bytes, Millis, UtcMs};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How often it is looked for what nobody needs any more.
const INTERVAL: Duration = Duration::from_secs(3_600);

/// How much tenants may store, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Most that one tenant may have.
    pub(crate) quota: Bytes,
    /// How long a blob is kept after it was last put, stored by a job, or named by one that was submitted.
    pub(crate) keep: Millis,
}

/// Why a blob that was received is not kept. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    /// The folder of blobs.
    #[error(transparent)]
    Blob(#[from] crate::blobs::BlobError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The floor says no.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The tenant has too much already.
    #[error("{}", over_quota(*.stored, *.quota))]
    OverQuota {
        /// What it has, this blob left out.
        stored: Bytes,
        /// What it may have.
        quota: Bytes,
    },
    /// The task that did it is gone.
    #[error("the exchange is being stopped: put it again in a moment")]
    Stopping,
}

/// What a tenant can do about it.
pub(crate) fn over_quota(stored: Bytes, quota: Bytes) -> String {
    format!(
        "{} bytes are stored under this account, and {} are the most, what its jobs made included: wait until older blobs are \
         forgotten, or ask the operator for more",
        stored.0, quota.0
    )
}

/// Gives a tenant a right to a blob that it has put.
///
/// # Errors
/// See [`KeepError`].
pub(crate) async fn keep_for_tenant(
    exchange: &Arc<Exchange>,
    received: Received,
    owner: BlobOwner,
) -> Result<(), KeepError> {
    let quota = exchange.room.quota;
    to_the_end(exchange, received, owner, move |exchange| async move {
        let now = sela_clock::now().utc_ms;
        let kept = exchange.store.run(move |connection| {
            if blob_owners::keep_within(connection, &owner, quota, now)? {
                return Ok(None);
            }
            blob_owners::stored(connection, owner.tenant).map(Some)
        });
        kept.await?
            .map_or(Ok(()), |stored| Err(KeepError::OverQuota { stored, quota }))
    })
    .await
}

/// Gives a lease and its tenant a right to a blob that a node has stored. No quota holds it up: the job has run, and is paid for.
///
/// # Errors
/// See [`KeepError`].
pub(crate) async fn keep_for_lease(
    exchange: &Arc<Exchange>,
    received: Received,
    owner: BlobOwner,
    lease: LeaseId,
) -> Result<(), KeepError> {
    let blob = owner.blob;
    to_the_end(exchange, received, owner, move |exchange| async move {
        let asked = exchange
            .door
            .ask(Ask::KeepBlob { lease, blob }, Some(Along::BlobOwner(owner)));
        asked.await.map(drop).map_err(KeepError::from)
    })
    .await
}

/// In a task of its own: a sender that hangs up in the middle must not leave a file that is nobody's.
async fn to_the_end<F: Future<Output = Result<(), KeepError>> + Send>(
    exchange: &Arc<Exchange>,
    received: Received,
    owner: BlobOwner,
    keep: impl FnOnce(Arc<Exchange>) -> F + Send + 'static,
) -> Result<(), KeepError> {
    let exchange = Arc::clone(exchange);
    let task = tokio::spawn(async move {
        let settling = exchange.settling.read().await;
        exchange.blobs.put_in_place(received).await?;
        let kept = keep(Arc::clone(&exchange)).await;
        drop(settling);
        if kept.is_err() {
            remove_if_unowned(&exchange, owner.blob).await;
        }
        kept
    });
    task.await.map_err(|_| KeepError::Stopping)?
}

/// A blob that nobody owns is removed again, so that what was refused leaves nothing behind.
async fn remove_if_unowned(exchange: &Exchange, blob: BlobId) {
    let _nobody_settles = exchange.settling.write().await;
    let owned = exchange
        .store
        .run(move |connection| blob_owners::is_owned(connection, blob))
        .await;
    match owned {
        Ok(true) => {}
        Ok(false) => {
            if let Err(error) = exchange.blobs.remove(blob).await {
                tracing::warn!(%blob, %error, "a blob that is nobody's could not be removed");
            }
        }
        Err(error) => tracing::warn!(%blob, %error, "whether a blob is anybody's could not be looked up"),
    }
}

/// Whether a tenant's job may name a blob; from then on it is kept for as long as if it had just been put.
///
/// # Errors
/// Where the store cannot be written.
pub(crate) async fn wants(exchange: &Exchange, tenant: TenantId, blob: BlobId) -> Result<bool, StoreError> {
    let now = sela_clock::now().utc_ms;
    exchange
        .store
        .run(move |connection| blob_owners::wants(connection, tenant, blob, now))
        .await
}

/// Removes what nobody needs any more, once an hour, until the exchange stops.
pub(crate) async fn collect_for_ever(exchange: Arc<Exchange>) {
    let mut stopping = exchange.stopping.clone();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            // An error means that the sender is gone, and with it the exchange.
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        match collect(&exchange, sela_clock::now().utc_ms).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::info!(forgotten, "blobs that nobody needs any more are gone"),
            Err(error) => tracing::warn!(%error, "blobs that nobody needs any more could not be looked for"),
        }
    }
}

/// Removes what nobody has wanted for as long as blobs are kept and no job needs; gives how many.
///
/// # Errors
/// Where the loop or the store is gone.
pub(crate) async fn collect(exchange: &Exchange, now: UtcMs) -> anyhow::Result<usize> {
    let before = UtcMs(now.0.saturating_sub_unsigned(exchange.room.keep.0));
    // A job that is submitted from here on has said in the store that it wants its blobs, before it came to the floor.
    let in_use = exchange.door.look(|scene| scene.floor.blobs_in_use()).await?;
    let forgotten = exchange
        .store
        .run(move |connection| blob_owners::forget(connection, before, &in_use))
        .await?;
    for blob in &forgotten {
        remove_if_unowned(exchange, *blob).await;
    }
    Ok(forgotten.len())
}
