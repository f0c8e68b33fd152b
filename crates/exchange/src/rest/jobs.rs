//! What tenants do: submit jobs, watch and cancel them, read their logs and results.

use crate::collect::wants;
use crate::door::{Along, Once};
use crate::keys;
use crate::logs::LogStream;
use crate::rest::blobs::blob_body;
use crate::rest::problem::Refused;
use crate::rest::{Exchange, Shared, Tenant, in_path, query, written_body};
use crate::store::confidential;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use futures_util::stream;
use sela_market::effect::Answer;
use sela_market::input::Ask;
use sela_protocol::blob::BlobId;
use sela_protocol::confidential::{Confidential, SealingKey};
use sela_protocol::id::{JobId, LeaseId, TenantId};
use sela_protocol::job::{ImageSource, JobSpec, JobSpecError, Submission};
use sela_protocol::local::Page;
use sela_protocol::tenant::{JobKey, JobView, LOG_COMPLETE_HEADER, LOG_NEXT_HEADER, Submitted, TenantAccount};
use sela_protocol::written::WrittenError;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use zeroize::Zeroizing;

/// Longest that a request for logs waits for more.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Least time between two events of one job: its view is made anew for each.
const EVENT_SPACING: Duration = Duration::from_millis(100);

/// `GET /v1/account`
pub(super) async fn account(State(exchange): Shared, Tenant(tenant): Tenant) -> Result<Json<TenantAccount>, Refused> {
    let account = exchange
        .door
        .look(move |scene| scene.floor.tenant_account(tenant))
        .await?;
    account
        .map(Json)
        .ok_or_else(|| Refused::internal(&"a tenant with a key has no account"))
}

/// `POST /v1/jobs`
pub(super) async fn submit(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refused> {
    let idempotency_key = idempotency_key(&headers)?;
    let text = Zeroizing::new(written_body(body).await?);
    let submission = Submission::parse(&text).map_err(|error| Refused::unprocessable(spec_code(&error), error))?;
    let Submission {
        spec,
        result_key,
        secrets,
    } = submission;
    for (field, blob) in blobs_of(&spec) {
        if !wants(&exchange, tenant, blob).await? {
            return Err(Refused::unprocessable(
                "blob_not_stored",
                format!(
                    "job spec: {field}: {blob} is not stored under this account: put it first (PUT /v1/blobs/{blob})"
                ),
            ));
        }
    }
    // A client that makes no key (an older one, a script) gets one made here: no result lies or travels in the clear.
    let result_key = match result_key {
        Some(key) => key,
        None => SealingKey::from_bytes(keys::random_bytes().map_err(|error| Refused::internal(&error))?),
    };
    let along = Along::Submission {
        tenant,
        once: idempotency_key.map(|idempotency_key| Once {
            idempotency_key,
            fingerprint: exchange.vault_key.fingerprint(&text),
        }),
        confidential: Box::new(Confidential { result_key, secrets }),
    };
    let spec = Box::new(spec);
    let answer = exchange.door.ask(Ask::SubmitJob { tenant, spec }, Some(along)).await?;
    let Answer::Submitted(submitted) = answer else {
        return Err(unexpected("submit a job"));
    };
    let location = format!("/v1/jobs/{}", submitted.job);
    let reply: (_, _, Json<Submitted>) = (StatusCode::CREATED, [(LOCATION, location)], Json(submitted));
    Ok(reply.into_response())
}

/// What `GET /v1/jobs` asks for.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    cursor: Option<String>,
}

/// `GET /v1/jobs`: a page of the tenant's jobs, newest first. The next page is asked for with `cursor`, the last page's `next`.
pub(super) async fn list(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    asked: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Page<JobView>>, Refused> {
    let before = query(asked)?.cursor.map(|cursor| cursor.parse());
    let before = before.transpose().map_err(|_| {
        Refused::bad_request(
            "bad_cursor",
            "a cursor is the \"next\" of the page before, and nothing else",
        )
    })?;
    let page = exchange
        .door
        .look(move |scene| scene.floor.job_page(tenant, before, scene.now));
    let (items, next) = page.await?;
    Ok(Json(Page {
        items,
        next: next.map(|place| place.to_string()),
    }))
}

/// `GET /v1/jobs/{job}`
pub(super) async fn view(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    Path(job): Path<String>,
) -> Result<Json<JobView>, Refused> {
    Ok(Json(job_view(&exchange, tenant, in_path(&job)?).await?))
}

/// `POST /v1/jobs/{job}/cancel`
pub(super) async fn cancel(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    Path(job): Path<String>,
) -> Result<Json<JobView>, Refused> {
    let job = in_path(&job)?;
    let answer = exchange.door.ask(Ask::CancelJob { tenant, job }, None).await?;
    let Answer::CancelTaken(view) = answer else {
        return Err(unexpected("cancel a job"));
    };
    Ok(Json(*view))
}

/// `GET /v1/jobs/{job}/events`: the job's view now and on each change, as server-sent events; ends after the last change.
pub(super) async fn events(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    Path(job): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let job: JobId = in_path(&job)?;
    // An unknown job is an error before the stream begins, not an empty stream.
    job_view(&exchange, tenant, job).await?;
    let watcher = Watcher {
        changed: exchange.door.changed(),
        stopping: exchange.stopping.clone(),
        exchange,
        tenant,
        job,
        last: None,
    };
    let events = stream::unfold(watcher, |mut watcher| async move {
        let view = watcher.next().await?;
        let event = Event::default().event("job").json_data(&view).ok()?;
        Some((Ok(event), watcher))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

struct Watcher {
    exchange: Arc<Exchange>,
    tenant: TenantId,
    job: JobId,
    changed: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    last: Option<JobView>,
}

impl Watcher {
    /// The next view that differs from the last; `None` after a final one, and when the exchange stops.
    async fn next(&mut self) -> Option<JobView> {
        if self.last.as_ref().is_some_and(|last| last.state.is_final()) {
            return None;
        }
        loop {
            self.changed.mark_unchanged();
            let view = job_view(&self.exchange, self.tenant, self.job).await.ok()?;
            if self.last.as_ref() != Some(&view) {
                self.last = Some(view.clone());
                return Some(view);
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            }
            tokio::time::sleep(EVENT_SPACING).await;
        }
    }
}

/// What `GET /v1/jobs/{job}/logs` asks for.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    stream: LogStream,
    #[serde(default)]
    from: u64,
    #[serde(default)]
    wait_ms: u64,
}

/// `GET /v1/jobs/{job}/logs`: bytes from `from` on, all leases of the job in a row. To follow a log, ask again from
/// `sela-log-next` with `wait_ms` until `sela-log-complete` is true.
pub(super) async fn logs(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    Path(job): Path<String>,
    asked: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let job = in_path(&job)?;
    let LogQuery { stream, from, wait_ms } = query(asked)?;
    let mut appended = exchange.logs.appended();
    let mut changed = exchange.door.changed();
    let mut stopping = exchange.stopping.clone();
    let longest = tokio::time::sleep(Duration::from_millis(wait_ms).min(LONGEST_WAIT));
    let mut longest = std::pin::pin!(longest);
    loop {
        appended.mark_unchanged();
        changed.mark_unchanged();
        let view = job_view(&exchange, tenant, job).await?;
        let leases: Vec<LeaseId> = view.leases.iter().map(|lease| lease.lease).collect();
        let bytes = exchange.logs.read(&leases, stream, from).await;
        let bytes = bytes.map_err(|error| Refused::internal(&error))?;
        let complete = view.state.is_final() && bytes.is_empty();
        let reply = |bytes: Vec<u8>| {
            let headers = [
                (CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()),
                (LOG_NEXT_HEADER, (from + bytes.len() as u64).to_string()),
                (LOG_COMPLETE_HEADER, complete.to_string()),
            ];
            (headers, bytes).into_response()
        };
        if complete || !bytes.is_empty() {
            return Ok(reply(bytes));
        }
        tokio::select! {
            _ = appended.changed() => {}
            Ok(()) = changed.changed() => {}
            () = &mut longest => return Ok(reply(bytes)),
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(reply(bytes)),
        }
    }
}

/// `GET /v1/jobs/{job}/key`: what opens the job's output and checkpoints.
pub(super) async fn key(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    Path(job): Path<String>,
) -> Result<Json<JobKey>, Refused> {
    let job: JobId = in_path(&job)?;
    job_view(&exchange, tenant, job).await?;
    let kept = exchange
        .store
        .run(move |connection| confidential::of(connection, job))
        .await?;
    let Some(kept) = kept else {
        return Err(Refused::not_found(
            "no_key",
            "this job was submitted before results were sealed: its output needs no key",
        ));
    };
    let opened = exchange.vault_key.open(job, &kept);
    let result_key = opened.map_err(|error| Refused::internal(&error))?.result_key.clone();
    Ok(Json(JobKey { result_key }))
}

/// `GET /v1/jobs/{job}/output`: the tar of `/out`, sealed with the job's key.
pub(super) async fn output(
    State(exchange): Shared,
    Tenant(tenant): Tenant,
    Path(job): Path<String>,
) -> Result<Response, Refused> {
    let view = job_view(&exchange, tenant, in_path(&job)?).await?;
    let Some(blob) = view.output else {
        return Err(Refused::not_found(
            "no_output",
            if view.state.is_final() {
                "this job has ended and left nothing in /out"
            } else {
                "this job has not ended yet: its output is stored when it ends"
            },
        ));
    };
    blob_body(&exchange, blob, "application/octet-stream", 0).await
}

async fn job_view(exchange: &Exchange, tenant: TenantId, job: JobId) -> Result<JobView, Refused> {
    let view = exchange
        .door
        .look(move |scene| scene.floor.job_view(tenant, job, scene.now));
    view.await?
        .ok_or_else(|| crate::door::AskError::Refused(sela_market::effect::Refusal::UnknownJob(job)).into())
}

fn blobs_of(spec: &JobSpec) -> Vec<(String, BlobId)> {
    let image = match &spec.image {
        ImageSource::Registry { .. } => None,
        ImageSource::Archive { blob } => Some(("image.blob".to_owned(), *blob)),
    };
    let inputs = spec.inputs.iter().enumerate();
    image
        .into_iter()
        .chain(inputs.map(|(place, input)| (format!("inputs[{place}].blob"), input.blob)))
        .collect()
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    value
        .to_str()
        .ok()
        .filter(|key| (1..=200).contains(&key.len()))
        .map(|key| Some(key.to_owned()))
        .ok_or_else(|| {
            Refused::bad_request(
                "bad_idempotency_key",
                "an Idempotency-Key has 1 to 200 visible characters",
            )
        })
}

const fn spec_code(error: &JobSpecError) -> &'static str {
    match error {
        JobSpecError::Written(WrittenError::UnknownField { .. }) => "unknown_field",
        JobSpecError::Written(WrittenError::Malformed(_)) => "malformed",
        JobSpecError::Contradiction { .. } => "contradiction",
    }
}

/// The floor answers each kind of request with its own kind of answer.
pub(super) fn unexpected(asked: &'static str) -> Refused {
    Refused::internal(&format!(
        "the floor answered \"{asked}\" with an answer to something else"
    ))
}
