//! The exchange's HTTP interface: one table of routes, who is let in where, and what bodies may be. Decisions are the
//! floor's; each module below only reads a request, asks, and writes the reply.

mod admin;
mod blobs;
mod jobs;
mod leases;
mod problem;

use crate::blobs::BlobFolder;
use crate::collect::Room;
use crate::door::Door;
use crate::listener::Place;
use crate::logs::LogFolder;
use crate::rest::problem::Refused;
use crate::session::socket::{self, Host, SOCKET_LIMIT};
use crate::store::Store;
use crate::vault::VaultKey;
use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use sela_market::floor::LeaseAccess;
use sela_market::input::ConnectionId;
use sela_market::secret::SecretHash;
use sela_protocol::id::TenantId;
use sela_protocol::tenant::MarketView;
use sela_protocol::units::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{RwLock, Semaphore, watch};

/// Most that a written body (a job spec, a deposit) may be.
const WRITTEN_LIMIT: usize = 1 << 20;
/// How many nodes' sockets may be open, those that have not said Hello included.
const SOCKETS: u32 = 4_096;

/// What all requests share.
pub(crate) struct Exchange {
    /// The way to the floor.
    pub(crate) door: Door,
    /// The database.
    pub(crate) store: Store,
    /// Blobs.
    pub(crate) blobs: BlobFolder,
    /// Jobs' logs.
    pub(crate) logs: LogFolder,
    /// Of the operator's key.
    pub(crate) operator: SecretHash,
    /// Opens what is kept of jobs that only they may read.
    pub(crate) vault_key: VaultKey,
    /// Most that one blob may be.
    pub(crate) blob_limit: Bytes,
    /// How much tenants may store, and for how long.
    pub(crate) room: Room,
    /// What nodes are told.
    pub(crate) host: Host,
    /// Turns true when the exchange stops: streams end then.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Read while a blob is put in place and given an owner; written while one without an owner is removed.
    pub(crate) settling: RwLock<()>,
    connections: AtomicU64,
    sockets: Arc<Semaphore>,
}

impl Exchange {
    /// Waits until no node's socket is open any more.
    pub(crate) async fn sockets_closed(&self) {
        // An error would mean that the semaphore is closed, which nobody does.
        let _ = self.sockets.acquire_many(SOCKETS).await;
    }

    /// From its parts.
    #[expect(clippy::too_many_arguments, reason = "called at one place, where each part is named")]
    pub(crate) fn new(
        door: Door,
        store: Store,
        blobs: BlobFolder,
        logs: LogFolder,
        operator: SecretHash,
        vault_key: VaultKey,
        blob_limit: Bytes,
        room: Room,
        host: Host,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        Self {
            door,
            store,
            blobs,
            logs,
            operator,
            vault_key,
            blob_limit,
            room,
            host,
            stopping,
            settling: RwLock::new(()),
            connections: AtomicU64::new(0),
            sockets: Arc::new(Semaphore::new(SOCKETS as usize)),
        }
    }
}

type Shared = State<Arc<Exchange>>;

/// All routes.
pub(crate) fn router(exchange: Arc<Exchange>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/v1/market", get(market))
        .route("/v1/nodes/session", get(node_session))
        .route("/v1/account", get(jobs::account))
        .route("/v1/jobs", post(jobs::submit).get(jobs::list))
        .route("/v1/jobs/{job}", get(jobs::view))
        .route("/v1/jobs/{job}/cancel", post(jobs::cancel))
        .route("/v1/jobs/{job}/events", get(jobs::events))
        .route("/v1/jobs/{job}/logs", get(jobs::logs))
        .route("/v1/jobs/{job}/output", get(jobs::output))
        .route("/v1/jobs/{job}/key", get(jobs::key))
        .route("/v1/blobs/{address}", put(blobs::put).get(blobs::get))
        .route("/v1/leases/{lease}/blobs/{address}", put(leases::put_blob))
        .route("/v1/leases/{lease}/logs", post(leases::append_log))
        .route("/v1/admin/tenants", post(admin::create_tenant))
        .route("/v1/admin/tenants/{tenant}/deposits", post(admin::deposit))
        .route("/v1/admin/owners", post(admin::invite_owner))
        .route("/v1/admin/ledger", get(admin::postings))
        .route("/v1/admin/ledger/check", get(admin::check_ledger))
        .route("/v1/admin/nodes", get(admin::nodes))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(exchange)
}

async fn no_such_path() -> Refused {
    Refused::not_found(
        "unknown_path",
        "there is nothing at this path: check it for a typing mistake, and that the exchange is of the version you expect",
    )
}

async fn no_such_method() -> Refused {
    Refused::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "this path does not take this method; the Allow header names those that it takes",
    )
}

async fn ready(State(exchange): Shared) -> Result<&'static str, Refused> {
    exchange.door.look(|_| ()).await?;
    exchange.store.run(|_| Ok(())).await?;
    Ok("ready\n")
}

async fn market(State(exchange): Shared) -> Result<Json<MarketView>, Refused> {
    let (nodes, offers) = exchange.door.look(|scene| scene.sessions.connected()).await?;
    Ok(Json(MarketView {
        name: exchange.host.name.clone(),
        exchange: exchange.host.key,
        lab: exchange.host.lab,
        nodes,
        offers,
    }))
}

async fn node_session(
    State(exchange): Shared,
    Extension(of_address): Extension<Place>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let upgrade = upgrade.map_err(|error| {
        Refused::bad_request("not_a_websocket", format!("nodes connect here by WebSocket: {error}"))
    })?;
    let Ok(place) = Arc::clone(&exchange.sockets).try_acquire_owned() else {
        return Err(Refused::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_nodes",
            format!("{SOCKETS} nodes are connected, the most that this exchange serves: try again later"),
        ));
    };
    let connection = ConnectionId(exchange.connections.fetch_add(1, Ordering::Relaxed));
    let host = exchange.host.clone();
    Ok(upgrade
        .max_message_size(SOCKET_LIMIT)
        .max_frame_size(SOCKET_LIMIT)
        .on_upgrade(move |socket| async move {
            socket::serve(socket, connection, host).await;
            drop((place, of_address));
        })
        .into_response())
}

/// A tenant, by its API key.
pub(crate) struct Tenant(pub(crate) TenantId);

impl FromRequestParts<Arc<Exchange>> for Tenant {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, exchange: &Arc<Exchange>) -> Result<Self, Refused> {
        let key = bearer(&parts.headers)?;
        let tenant = exchange.door.look(move |scene| scene.floor.tenant_by_key(&key)).await?;
        tenant.map(Self).ok_or_else(unknown_api_key)
    }
}

/// A node, by the token of a lease that lasts.
pub(crate) struct Holder(pub(crate) LeaseAccess);

impl FromRequestParts<Arc<Exchange>> for Holder {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, exchange: &Arc<Exchange>) -> Result<Self, Refused> {
        let token = bearer(&parts.headers)?;
        let access = exchange
            .door
            .look(move |scene| scene.floor.lease_access(&token))
            .await?;
        access.map(Self).ok_or_else(|| {
            Refused::unauthorized("this lease token opens nothing: the lease is over, or another exchange gave it")
        })
    }
}

/// A tenant or a node, whichever the key belongs to.
pub(crate) enum TenantOrHolder {
    /// A tenant.
    Tenant(TenantId),
    /// A node with a lease that lasts.
    Holder(LeaseAccess),
}

impl FromRequestParts<Arc<Exchange>> for TenantOrHolder {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, exchange: &Arc<Exchange>) -> Result<Self, Refused> {
        let key = bearer(&parts.headers)?;
        let found = exchange.door.look(move |scene| match scene.floor.tenant_by_key(&key) {
            Some(tenant) => Some(Self::Tenant(tenant)),
            None => scene.floor.lease_access(&key).map(Self::Holder),
        });
        found.await?.ok_or_else(unknown_api_key)
    }
}

/// The operator.
pub(crate) struct Operator;

impl FromRequestParts<Arc<Exchange>> for Operator {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, exchange: &Arc<Exchange>) -> Result<Self, Refused> {
        if SecretHash::of(&bearer(&parts.headers)?) == exchange.operator {
            Ok(Self)
        } else {
            Err(Refused::unauthorized(
                "this is not the operator's key: it is in operator.key in the exchange's data folder",
            ))
        }
    }
}

fn unknown_api_key() -> Refused {
    Refused::unauthorized(
        "this API key is not known here; check that it is this exchange's key, or ask its operator for an account",
    )
}

fn bearer(headers: &HeaderMap) -> Result<String, Refused> {
    headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .map(|key| key.trim().to_owned())
        .ok_or_else(|| Refused::unauthorized("no key came along: send the header \"Authorization: Bearer KEY\""))
}

/// A body that a person wrote, as text.
async fn written_body(body: Body) -> Result<String, Refused> {
    let bytes = limited_body(body, WRITTEN_LIMIT).await?;
    String::from_utf8(bytes.to_vec()).map_err(|_| Refused::bad_request("not_utf8", "the body is not UTF-8 text"))
}

async fn limited_body(body: Body, limit: usize) -> Result<bytes::Bytes, Refused> {
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        if error.to_string().contains("length limit") {
            Refused::too_large(format!("the body is larger than {limit} bytes: send less at once"))
        } else {
            Refused::bad_request("cut_off", "the body was cut off: send the request again")
        }
    })
}

/// An id or address in a path.
fn in_path<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Refused> {
    text.parse().map_err(|error| Refused::bad_request("bad_id", error))
}

/// What a query holds; an unknown name in it is an error.
fn query<T>(query: Result<axum::extract::Query<T>, axum::extract::rejection::QueryRejection>) -> Result<T, Refused> {
    query
        .map(|axum::extract::Query(query)| query)
        .map_err(|error| Refused::bad_request("bad_query", error.body_text()))
}
