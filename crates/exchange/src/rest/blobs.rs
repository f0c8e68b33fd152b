//! Blobs over HTTP: tenants put and get their own; a node gets exactly what its lease needs. The address alone opens
//! nothing.

use crate::blobs::Received;
use crate::rest::problem::Refused;
use crate::rest::{Exchange, Shared, Tenant, TenantOrHolder, in_path};
use crate::store::blob_owners::{self, BlobOwner};
use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use sela_protocol::blob::BlobId;
use sela_protocol::id::TenantId;
use sela_protocol::tenant::Stored;
use sela_protocol::units::Bytes;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// How much is read on, and for how long, after a refusal.
const DRAINED: usize = 64 << 20;
const DRAINING: Duration = Duration::from_secs(5);
/// How much of a blob is read at once.
const CHUNK: usize = 256 << 10;

/// `PUT /v1/blobs/{address}`
pub(super) async fn put(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    Path(address): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Stored>), Refused> {
    let blob: BlobId = in_path(&address)?;
    let received = receive(&exchange, blob, exchange.blob_limit, &headers, body).await?;
    let size = received.size();
    let settling = exchange.settling.read().await;
    exchange.blobs.put_in_place(received).await?;
    let owner = BlobOwner { blob, tenant, size };
    let now = sela_clock::now().utc_ms;
    let kept = exchange
        .store
        .run(move |connection| blob_owners::keep(connection, &owner, now))
        .await;
    drop(settling);
    if let Err(error) = kept {
        remove_if_unowned(&exchange, blob).await;
        return Err(error.into());
    }
    Ok((StatusCode::CREATED, Json(Stored { blob, bytes: size.0 })))
}

/// `GET` and `HEAD /v1/blobs/{address}`
pub(super) async fn get(
    State(exchange): Shared,
    who: TenantOrHolder,
    Path(address): Path<String>,
) -> Result<Response, Refused> {
    let blob: BlobId = in_path(&address)?;
    let allowed = match who {
        TenantOrHolder::Tenant(tenant) => owned(&exchange, tenant, blob).await?,
        TenantOrHolder::Holder(access) => access.readable.contains(&blob),
    };
    if !allowed {
        return Err(not_yours(blob));
    }
    blob_body(&exchange, blob, "application/octet-stream").await
}

/// Whether a tenant has put a blob, or one of its jobs did.
pub(super) async fn owned(exchange: &Exchange, tenant: TenantId, blob: BlobId) -> Result<bool, Refused> {
    let owned = exchange
        .store
        .run(move |connection| blob_owners::owns(connection, tenant, blob));
    Ok(owned.await?)
}

/// Receives a blob; by its announced size it is refused before anything is kept.
pub(super) async fn receive(
    exchange: &Exchange,
    blob: BlobId,
    limit: Bytes,
    headers: &HeaderMap,
    body: Body,
) -> Result<Received, Refused> {
    let mut body = body.into_data_stream();
    let received = match refuse_announced(headers, limit) {
        Ok(()) => exchange
            .blobs
            .receive(blob, limit, &mut body)
            .await
            .map_err(Refused::from),
        Err(refused) => Err(refused),
    };
    if received.is_err() {
        drain(body).await;
    }
    received
}

/// Reads on for a while after a refusal: a connection that is closed with unread bytes is torn down, and the sender, who
/// is still sending, would never see why.
async fn drain(mut body: BodyDataStream) {
    let read_on = async {
        let mut read = 0;
        while let Some(Ok(chunk)) = body.next().await {
            read += chunk.len();
            if read > DRAINED {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAINING, read_on).await;
}

fn refuse_announced(headers: &HeaderMap, limit: Bytes) -> Result<(), Refused> {
    let announced: Option<u64> = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok());
    match announced {
        Some(bytes) if bytes > limit.0 => Err(Refused::too_large(format!(
            "{bytes} bytes are announced; the most that may be stored here is {}",
            limit.0
        ))),
        Some(_) | None => Ok(()),
    }
}

/// A blob that nobody owns is removed again, so that what was refused leaves nothing behind.
pub(super) async fn remove_if_unowned(exchange: &Exchange, blob: BlobId) {
    let _nobody_settles = exchange.settling.write().await;
    let owned = exchange
        .store
        .run(move |connection| blob_owners::is_owned(connection, blob))
        .await;
    match owned {
        Ok(true) => {}
        Ok(false) => {
            if let Err(error) = exchange.blobs.remove(blob).await {
                tracing::warn!(%blob, %error, "a refused blob could not be removed");
            }
        }
        Err(error) => tracing::warn!(%blob, %error, "whether a refused blob is owned could not be looked up"),
    }
}

/// Streams a blob.
pub(super) async fn blob_body(exchange: &Exchange, blob: BlobId, kind: &'static str) -> Result<Response, Refused> {
    let (file, size) = exchange.blobs.read(blob).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            not_yours(blob)
        } else {
            Refused::internal(&error)
        }
    })?;
    let chunks = stream::try_unfold(file, |mut file| async move {
        let mut chunk = Vec::with_capacity(CHUNK);
        (&mut file).take(CHUNK as u64).read_to_end(&mut chunk).await?;
        Ok::<_, std::io::Error>((!chunk.is_empty()).then_some((bytes::Bytes::from(chunk), file)))
    });
    let headers = [(CONTENT_TYPE, kind.to_owned()), (CONTENT_LENGTH, size.0.to_string())];
    Ok((headers, Body::from_stream(chunks)).into_response())
}

fn not_yours(blob: BlobId) -> Refused {
    Refused::not_found(
        "unknown_blob",
        format!("this key opens no blob {blob}: put it first, or check the address"),
    )
}
