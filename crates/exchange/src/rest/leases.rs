//! What a node does over HTTP with a lease's token: store checkpoints and results, and send what the job prints.

use crate::collect;
use crate::logs::{LOG_REPLY_LIMIT, LogStream};
use crate::rest::blobs::receive;
use crate::rest::problem::Refused;
use crate::rest::{Holder, Shared, in_path, limited_body, query};
use crate::store::blob_owners::BlobOwner;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use sela_market::floor::LeaseAccess;
use sela_protocol::blob::BlobId;
use sela_protocol::id::LeaseId;
use sela_protocol::tenant::{LogPosition, Stored};
use sela_protocol::units::Bytes;

/// `PUT /v1/leases/{lease}/blobs/{address}`
pub(super) async fn put_blob(
    State(exchange): Shared,
    Holder(access): Holder,
    Path((lease, address)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Stored>), Refused> {
    let lease = same_lease(&access, &lease)?;
    let blob: BlobId = in_path(&address)?;
    let LeaseAccess { tenant, job, .. } = access;
    let spec = exchange
        .door
        .look(move |scene| scene.floor.job_view(tenant, job, scene.now).map(|view| view.spec))
        .await?;
    let limit = spec
        .map(|spec| archive_limit(spec.output_limit))
        .ok_or_else(|| Refused::internal(&"a lease without a job"))?;
    let received = receive(&exchange, blob, limit, &headers, body).await?;
    let size = received.size();
    collect::keep_for_lease(&exchange, received, BlobOwner { blob, tenant, size }, lease).await?;
    Ok((StatusCode::CREATED, Json(Stored { blob, bytes: size.0 })))
}

/// What `POST /v1/leases/{lease}/logs` says about its body.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AppendQuery {
    stream: LogStream,
    offset: u64,
}

/// `POST /v1/leases/{lease}/logs`
pub(super) async fn append_log(
    State(exchange): Shared,
    Holder(access): Holder,
    Path(lease): Path<String>,
    asked: Result<Query<AppendQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<LogPosition>, Refused> {
    let lease = same_lease(&access, &lease)?;
    let AppendQuery { stream, offset } = query(asked)?;
    let limit = usize::try_from(LOG_REPLY_LIMIT).unwrap_or(usize::MAX);
    let bytes = limited_body(body, limit).await?;
    let next = exchange.logs.append(lease, stream, offset, bytes).await?;
    Ok(Json(LogPosition { next }))
}

/// A job's `output_limit` bounds what its files hold; their archive adds headers and padding.
const fn archive_limit(output_limit: Bytes) -> Bytes {
    Bytes(
        output_limit
            .0
            .saturating_add(output_limit.0 / 4)
            .saturating_add(1 << 20),
    )
}

fn same_lease(access: &LeaseAccess, lease: &str) -> Result<LeaseId, Refused> {
    let lease: LeaseId = in_path(lease)?;
    if lease == access.lease {
        Ok(lease)
    } else {
        Err(Refused::new(
            StatusCode::FORBIDDEN,
            "other_lease",
            format!("this token is of lease {}, not of {lease}", access.lease),
        ))
    }
}
