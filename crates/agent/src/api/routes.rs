//! The table of routes and what each answers. Errors are the same words everywhere: a code, a status, a sentence.

use super::{Agent, Leaving, events};
use crate::store::StoreError;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use sela_protocol::local::{
    Command, CommandReply, DoctorLine, EarningsLine, JobLine, Page, Problem, Sample, Snapshot, StripRecord,
};
use sela_protocol::units::{Millis, UtcMs};

/// All routes.
pub(super) fn router(agent: Agent) -> Router {
    Router::new()
        .route("/v1/snapshot", get(snapshot))
        .route(
            "/v1/events",
            get(|State(agent): State<Agent>| async { events::stream_of(agent) }),
        )
        .route("/v1/commands", post(command))
        .route("/v1/earnings", get(earnings))
        .route("/v1/jobs", get(jobs))
        .route("/v1/samples", get(samples))
        .route("/v1/strip", get(strip))
        .route("/v1/doctor", get(doctor))
        .fallback(no_such_path)
        .with_state(agent)
}

/// Why a request was not served.
#[derive(Debug)]
pub(super) struct Failure(Problem);

impl Failure {
    pub(super) fn new(status: StatusCode, code: &str, detail: impl ToString) -> Self {
        Self(Problem {
            code: code.to_owned(),
            status: status.as_u16(),
            detail: detail.to_string(),
        })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self.0).unwrap_or_default();
        (status, [(CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}

impl From<Leaving> for Failure {
    fn from(Leaving: Leaving) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the agent is stopping")
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Cursor(_) => Self::new(StatusCode::BAD_REQUEST, "bad_cursor", error),
            StoreError::TooMany { .. } => Self::new(StatusCode::BAD_REQUEST, "too_much", error),
            StoreError::Database { .. } | StoreError::Newer { .. } | StoreError::Entry { .. } | StoreError::Stopped => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", error)
            }
        }
    }
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Paging {
    cursor: Option<String>,
}

type Asked = Result<Query<Paging>, QueryRejection>;

fn cursor(asked: Asked) -> Result<Option<String>, Failure> {
    asked.map(|Query(paging)| paging.cursor).map_err(bad_query)
}

fn bad_query(rejection: QueryRejection) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "bad_query", rejection.body_text())
}

/// The longest time of which the strip is told at once.
const LONGEST_STRIP: Millis = Millis(31 * 24 * 3_600_000);

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SpanAsked {
    from_utc_ms: UtcMs,
    to_utc_ms: UtcMs,
}

async fn strip(
    State(agent): State<Agent>,
    asked: Result<Query<SpanAsked>, QueryRejection>,
) -> Result<Json<StripRecord>, Failure> {
    let Query(SpanAsked { from_utc_ms, to_utc_ms }) = asked.map_err(bad_query)?;
    if to_utc_ms < from_utc_ms || to_utc_ms.since(from_utc_ms) > LONGEST_STRIP {
        let detail = "to_utc_ms must not be before from_utc_ms, nor more than 31 days after it";
        return Err(Failure::new(StatusCode::BAD_REQUEST, "bad_span", detail));
    }
    let now = sela_clock::now().utc_ms;
    Ok(Json(agent.store.strip(from_utc_ms, to_utc_ms, now).await?))
}

async fn snapshot(State(agent): State<Agent>) -> Result<Json<Box<Snapshot>>, Failure> {
    Ok(Json(agent.snapshot().await?))
}

async fn command(
    State(agent): State<Agent>,
    command: Result<Json<Command>, JsonRejection>,
) -> Result<Json<CommandReply>, Failure> {
    let Json(command) =
        command.map_err(|rejection| Failure::new(StatusCode::BAD_REQUEST, "bad_command", rejection.body_text()))?;
    Ok(Json(agent.command(command).await?))
}

async fn earnings(State(agent): State<Agent>, asked: Asked) -> Result<Json<Page<EarningsLine>>, Failure> {
    Ok(Json(agent.store.earnings(cursor(asked)?).await?))
}

async fn jobs(State(agent): State<Agent>, asked: Asked) -> Result<Json<Page<JobLine>>, Failure> {
    let mut page = agent.store.jobs(cursor(asked)?).await?;
    // The store knows what ended; how far the rest is, the loop knows.
    let snapshot = agent.snapshot().await?;
    let running = || snapshot.cards.iter().filter_map(|card| card.lease.as_ref());
    for line in page.items.iter_mut().filter(|line| line.end.is_none()) {
        if let Some(lease) = running().find(|lease| lease.lease == line.lease) {
            line.phase = Some(lease.phase);
            line.thawed_ms = line.thawed_ms.max(lease.thawed_ms);
            line.network.clone_from(&lease.network);
            (line.transfer, line.wiped) = (lease.transfer, lease.wiped);
        }
    }
    Ok(Json(page))
}

async fn samples(State(agent): State<Agent>, asked: Asked) -> Result<Json<Page<Sample>>, Failure> {
    Ok(Json(agent.store.samples(cursor(asked)?).await?))
}

async fn doctor(State(agent): State<Agent>) -> Result<Json<Vec<DoctorLine>>, Failure> {
    let look = agent.doctor.clone();
    let lines = tokio::task::spawn_blocking(move || look()).await;
    lines
        .map(Json)
        .map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "doctor", error))
}

async fn no_such_path() -> Failure {
    Failure::new(
        StatusCode::NOT_FOUND,
        "unknown_path",
        "the agent has nothing at this path; this program and the agent may be of different versions",
    )
}
