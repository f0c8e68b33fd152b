//! Blobs and logs against a real HTTP server that follows a script: hashes, tokens, refusals, retries, and a log whose answer
//! was lost.

use super::blobs::{Blobs, TransferError, http_client};
use super::logs::LogUpload;
use crate::settings::url_of_market::MarketUrl;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post, put};
use futures_util::StreamExt as _;
use sela_protocol::blob::BlobId;
use sela_protocol::id::{IdSource, LeaseId};
use sela_protocol::units::UtcMs;
use sela_sandbox::keeper::wire::LogStream;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Default)]
struct Kept {
    blobs: HashMap<String, Vec<u8>>,
    logs: HashMap<String, Vec<u8>>,
    /// So many requests are answered with 503 before any succeeds.
    failures: u32,
    /// How long it rests before each two MiB of a body.
    pause: Duration,
    /// So many appends are kept and then answered with 503: the answer is lost.
    lost_answers: u32,
}

type Shared = Arc<Mutex<Kept>>;

const TOKEN: &str = "Bearer secret";

fn checked(headers: &HeaderMap, kept: &mut Kept) -> Result<(), StatusCode> {
    if headers.get("authorization").is_none_or(|value| value != TOKEN) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    if kept.failures > 0 {
        kept.failures -= 1;
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    Ok(())
}

async fn give(State(kept): State<Shared>, Path(blob): Path<String>, headers: HeaderMap) -> Result<Vec<u8>, StatusCode> {
    let mut kept = kept.lock().expect("not poisoned");
    checked(&headers, &mut kept)?;
    kept.blobs.get(&blob).cloned().ok_or(StatusCode::NOT_FOUND)
}

async fn take(
    State(kept): State<Shared>,
    Path((_, blob)): Path<(String, String)>,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Result<StatusCode, StatusCode> {
    let pause = {
        let mut kept = kept.lock().expect("not poisoned");
        checked(&headers, &mut kept)?;
        kept.pause
    };
    let mut chunks = body.into_data_stream();
    let (mut bytes, mut rest_at) = (Vec::new(), 0);
    while let Some(chunk) = chunks.next().await {
        if bytes.len() >= rest_at {
            rest_at += 2 << 20;
            tokio::time::sleep(pause).await;
        }
        bytes.extend_from_slice(&chunk.map_err(|_| StatusCode::BAD_REQUEST)?);
    }
    let mut kept = kept.lock().expect("not poisoned");
    kept.blobs.insert(blob, bytes);
    Ok(StatusCode::CREATED)
}

async fn append(
    State(kept): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<String, StatusCode> {
    let mut kept = kept.lock().expect("not poisoned");
    checked(&headers, &mut kept)?;
    let offset: usize = query["offset"].parse().expect("a number");
    let log = kept.logs.entry(query["stream"].clone()).or_default();
    assert!(offset <= log.len(), "no gap");
    let known = log.len() - offset;
    let next = {
        log.extend_from_slice(body.get(known..).unwrap_or_default());
        log.len()
    };
    if kept.lost_answers > 0 {
        kept.lost_answers -= 1;
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    Ok(format!("{{\"next\":{next}}}"))
}

struct Server {
    kept: Shared,
    url: MarketUrl,
    folder: tempfile::TempDir,
    lease: LeaseId,
}

impl Server {
    async fn start() -> Self {
        super::install_tls();
        let kept = Shared::default();
        let router = Router::new()
            .route("/v1/blobs/{blob}", get(give))
            .route("/v1/leases/{lease}/blobs/{blob}", put(take))
            .route("/v1/leases/{lease}/logs", post(append))
            .with_state(Arc::clone(&kept));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            kept,
            url: MarketUrl::parse(&url).expect("loopback"),
            folder: tempfile::tempdir().expect("a folder"),
            lease: IdSource::new(UtcMs(1), [2; 32]).draw(),
        }
    }

    fn blobs(&self, token: &str) -> Blobs {
        let http = http_client().expect("TLS");
        Blobs::new(http, self.url.clone(), token.to_owned())
    }

    fn set(&self, change: impl FnOnce(&mut Kept)) {
        change(&mut self.kept.lock().expect("not poisoned"));
    }
}

#[tokio::test]
async fn a_blob_comes_back_as_it_was_stored_though_the_exchange_was_away_for_a_moment() {
    let server = Server::start().await;
    let blobs = server.blobs("secret");
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let (from, to) = (server.folder.path().join("from"), server.folder.path().join("to"));
    std::fs::write(&from, &bytes).expect("written");
    let blob = BlobId::of(&bytes);
    server.set(|kept| kept.failures = 1);
    blobs.store(server.lease, blob, &from).await.expect("stored");
    server.set(|kept| kept.failures = 1);
    let size = blobs.fetch(blob, &to).await.expect("fetched");
    assert_eq!(size.0, bytes.len() as u64);
    assert!(std::fs::read(&to).expect("there") == bytes, "the same bytes");
}

#[tokio::test]
async fn a_blob_may_take_longer_to_send_than_it_may_stand_still() {
    const STANDSTILL: Duration = Duration::from_secs(1);
    let server = Server::start().await;
    let bytes = vec![7; 8 << 20];
    let from = server.folder.path().join("from");
    std::fs::write(&from, &bytes).expect("written");
    let blob = BlobId::of(&bytes);
    server.set(|kept| kept.pause = STANDSTILL / 3);
    let blobs = server.blobs("secret").giving_up_after(STANDSTILL);
    blobs.store(server.lease, blob, &from).await.expect("stored");
    server.set(|kept| assert!(kept.blobs[&blob.to_string()] == bytes));
}

#[tokio::test]
async fn an_exchange_that_takes_a_request_and_says_nothing_is_given_up() {
    super::install_tls();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let url = MarketUrl::parse(&url).expect("loopback");
    let blobs = Blobs::new(http_client().expect("TLS"), url, "secret".into());
    let blobs = blobs.giving_up_after(Duration::from_millis(200));
    let lease = IdSource::new(UtcMs(1), [2; 32]).draw();
    let appended = blobs.append_log(lease, "stdout", 0, Bytes::new()).await;
    let error = appended.expect_err("no answer");
    assert!(error.to_string().contains("nothing moved"), "{error}");
}

#[tokio::test]
async fn bytes_that_are_not_those_of_their_address_are_not_kept() {
    let server = Server::start().await;
    let blob = BlobId::of(b"asked for");
    server.set(|kept| drop(kept.blobs.insert(blob.to_string(), b"something else".to_vec())));
    let to = server.folder.path().join("to");
    let error = server.blobs("secret").fetch(blob, &to).await.expect_err("other bytes");
    assert!(matches!(error, TransferError::OtherBytes { .. }), "{error}");
    assert!(!to.exists(), "nothing is left");
}

#[tokio::test]
async fn what_a_job_asks_for_does_not_fill_the_owners_disk() {
    let server = Server::start().await;
    let blob = BlobId::of(b"large");
    server.set(|kept| drop(kept.blobs.insert(blob.to_string(), b"large".to_vec())));
    let to = server.folder.path().join("to");
    let blobs = server
        .blobs("secret")
        .leaving_free(sela_protocol::units::Bytes(u64::MAX));
    let error = blobs.fetch(blob, &to).await.expect_err("no room");
    assert!(error.to_string().contains("free_floor"), "{error}");
    assert!(!to.exists(), "nothing is left");
}

#[tokio::test]
async fn a_refusal_is_not_tried_again_and_leaves_nothing() {
    let server = Server::start().await;
    let to = server.folder.path().join("to");
    let blob = BlobId::of(b"x");
    for token in ["secret", "wrong"] {
        let error = server.blobs(token).fetch(blob, &to).await.expect_err("refused");
        assert!(matches!(error, TransferError::Refused { .. }), "{error}");
    }
    assert!(!to.exists());
}

#[tokio::test]
async fn a_log_arrives_whole_and_once_though_an_answer_was_lost() {
    let server = Server::start().await;
    server.set(|kept| kept.lost_answers = 1);
    let log = LogUpload::start(server.blobs("secret"), server.lease);
    let mut expected = Vec::new();
    for number in 0..2_000 {
        let line = format!("line {number}\n").into_bytes();
        expected.extend_from_slice(&line);
        log.add(LogStream::Out, line);
    }
    log.add(LogStream::Err, b"oh\n".to_vec());
    log.finish().await;
    server.set(|kept| {
        assert!(kept.logs["stdout"] == expected, "whole and once");
        assert_eq!(kept.logs["stderr"], b"oh\n");
    });
}

#[tokio::test]
async fn a_log_that_the_exchange_refuses_holds_nothing_up() {
    let server = Server::start().await;
    let log = LogUpload::start(server.blobs("wrong"), server.lease);
    log.add(LogStream::Out, b"lost".to_vec());
    log.finish().await;
    server.set(|kept| assert!(kept.logs.is_empty()));
}
