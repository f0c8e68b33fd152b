//! Blobs over HTTP: tenants put and get their own; a node gets exactly what its lease needs. The address alone opens
//! nothing.

use crate::blobs::Received;
use crate::collect::{self, KeepError};
use crate::rest::problem::Refused;
use crate::rest::{Exchange, Shared, Tenant, TenantOrHolder, in_path};
use crate::store::blob_owners::{self, BlobOwner};
use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use sela_protocol::blob::BlobId;
use sela_protocol::id::TenantId;
use sela_protocol::tenant::Stored;
use sela_protocol::units::Bytes;
use std::io::SeekFrom;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

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
    if let Err(refused) = refuse_where_full(&exchange, tenant, blob).await {
        drain(body.into_data_stream()).await;
        return Err(refused);
    }
    let received = receive(&exchange, blob, exchange.blob_limit, &headers, body).await?;
    let size = received.size();
    collect::keep_for_tenant(&exchange, received, BlobOwner { blob, tenant, size }).await?;
    Ok((StatusCode::CREATED, Json(Stored { blob, bytes: size.0 })))
}

/// `GET` and `HEAD /v1/blobs/{address}`; with `Range: bytes=N-` from byte N on, so that a transfer can be gone on with.
pub(super) async fn get(
    State(exchange): Shared,
    who: TenantOrHolder,
    Path(address): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let blob: BlobId = in_path(&address)?;
    let allowed = match who {
        TenantOrHolder::Tenant(tenant) => owned(&exchange, tenant, blob).await?,
        TenantOrHolder::Holder(access) => access.readable.contains(&blob),
    };
    if !allowed {
        return Err(not_yours(blob));
    }
    blob_body(&exchange, blob, "application/octet-stream", first_byte(&headers)).await
}

/// The first byte that is asked for. Of the forms of RFC 9110 §14.2 only this one is understood; any other is answered with all
/// of it, as the RFC allows.
fn first_byte(headers: &HeaderMap) -> u64 {
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok());
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    from.and_then(|from| from.parse().ok()).unwrap_or(0)
}

/// Refuses before anything is received where nothing would be kept; the exact sum is made when it has come.
async fn refuse_where_full(exchange: &Exchange, tenant: TenantId, blob: BlobId) -> Result<(), Refused> {
    let found = exchange.store.run(move |connection| {
        let known = blob_owners::owns(connection, tenant, blob)?;
        Ok((known, blob_owners::stored(connection, tenant)?))
    });
    let quota = exchange.room.quota;
    match found.await? {
        (false, stored) if stored >= quota => Err(KeepError::OverQuota { stored, quota }.into()),
        (true | false, _) => Ok(()),
    }
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

/// Streams a blob from byte `from` on; all of it where it has no such byte.
pub(super) async fn blob_body(
    exchange: &Exchange,
    blob: BlobId,
    kind: &'static str,
    from: u64,
) -> Result<Response, Refused> {
    let (mut file, size) = exchange.blobs.read(blob).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            not_yours(blob)
        } else {
            Refused::internal(&error)
        }
    })?;
    let from = if from < size.0 { from } else { 0 };
    if from > 0 {
        let sought = file.seek(SeekFrom::Start(from)).await;
        sought.map_err(|error| Refused::internal(&error))?;
    }
    let chunks = stream::try_unfold(file, |mut file| async move {
        let mut chunk = Vec::with_capacity(CHUNK);
        (&mut file).take(CHUNK as u64).read_to_end(&mut chunk).await?;
        Ok::<_, std::io::Error>((!chunk.is_empty()).then_some((bytes::Bytes::from(chunk), file)))
    });
    let headers = [
        (CONTENT_TYPE, kind.to_owned()),
        (CONTENT_LENGTH, (size.0 - from).to_string()),
    ];
    let body = Body::from_stream(chunks);
    if from == 0 {
        return Ok((headers, body).into_response());
    }
    let range = [(CONTENT_RANGE, format!("bytes {from}-{}/{}", size.0 - 1, size.0))];
    Ok((StatusCode::PARTIAL_CONTENT, headers, range, body).into_response())
}

fn not_yours(blob: BlobId) -> Refused {
    Refused::not_found(
        "unknown_blob",
        format!("this key opens no blob {blob}: put it first, or check the address"),
    )
}
