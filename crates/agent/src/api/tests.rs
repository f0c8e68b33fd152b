//! The local interface over its real socket and port, asked by the real client and by strangers, in front of a real core.

use super::{Agent, Ask, listen};
use crate::store::{Store, StripEntry};
use http::StatusCode;
use sela_client::{Client, ClientError};
use sela_core::{Effect, Input, Policy, State};
use sela_protocol::id::GpuUuid;
use sela_protocol::local::{Command, CommandReply, Event, Pause, Stretch};
use sela_protocol::presence::HoldReason;
use sela_protocol::units::{Millis, UtcMs};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};

struct House {
    folder: tempfile::TempDir,
    _listening: super::serve::Listening,
    store: Store,
    events: broadcast::Sender<Arc<Event>>,
    port: Option<SocketAddr>,
}

impl House {
    async fn open(listen_at: Option<SocketAddr>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (store, _, _) = Store::open(folder.path(), None, || UtcMs(0))?;
        let (asks, asked) = mpsc::channel(8);
        let (events, _) = broadcast::channel(4);
        let agent = Agent {
            asks,
            events: events.clone(),
            store: store.reader().expect("just opened"),
            doctor: Arc::new(Vec::new),
        };
        tokio::spawn(core(asked));
        let socket = folder.path().join("agent.sock");
        let listening = listen(agent, &socket, listen_at, &folder.path().join("token")).await?;
        Ok(Self {
            folder,
            _listening: listening,
            store,
            events,
            port: listen_at,
        })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    fn client(&self) -> Client {
        Client::at(self.socket())
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (StatusCode, serde_json::Value) {
        crate::market::install_tls();
        let port = self.port.expect("listens at a port");
        let mut request = reqwest::Client::new().get(format!("http://{port}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("an answer");
        (response.status(), response.json().await.unwrap_or_default())
    }
}

/// Answers as the agent's loop does, with the same core behind it.
async fn core(mut asked: mpsc::Receiver<Ask>) {
    let mut state = State::new(Policy::default(), sela_clock::now());
    while let Some(ask) = asked.recv().await {
        match ask {
            Ask::Snapshot { reply } => drop(reply.send(Box::new(state.snapshot(sela_clock::now())))),
            Ask::Command { command, reply } => {
                let input = Input::Command { request: 1, command };
                let effects = state.step(sela_clock::now(), input);
                let answer = effects.into_iter().find_map(|effect| {
                    if let Effect::Reply { reply, .. } = effect {
                        return Some(reply);
                    }
                    None
                });
                drop(reply.send(answer.expect("every command is answered")));
            }
        }
    }
}

fn free_port() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound")
}

#[tokio::test]
async fn the_socket_is_its_owners_alone_and_is_gone_with_the_agent() {
    let house = House::open(None).await.expect("opens");
    let socket = house.socket();
    let mode = std::fs::metadata(&socket).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    house.client().snapshot().await.expect("the owner is let in");
    drop(house);
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_socket_that_a_killed_agent_left_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    let error = Client::at(&socket).snapshot().await.expect_err("nobody listens");
    assert!(matches!(&error, ClientError::NotRunning { .. }), "{error}");
    assert!(error.to_string().contains("sela agent run"), "{error}");
}

#[tokio::test]
async fn a_command_reaches_the_core_and_its_answer_the_client() {
    let house = House::open(None).await.expect("opens");
    let client = house.client();
    let pause = Command::Pause {
        for_ms: Some(Millis(3_600_000)),
    };
    assert_eq!(client.command(&pause).await.expect("answered"), CommandReply::Done);
    let snapshot = client.snapshot().await.expect("answered");
    let Some(Pause {
        since_utc_ms,
        until_utc_ms: Some(until),
    }) = snapshot.pause
    else {
        panic!("paused for an hour: {:?}", snapshot.pause);
    };
    assert_eq!(until.since(since_utc_ms), Millis(3_600_000));
    let lease = "lease_0190a0b0-0000-7000-8000-000000000000".parse().expect("an id");
    let refused = client.command(&Command::EndLease { lease }).await.expect("answered");
    assert!(
        matches!(refused, CommandReply::Refused { .. }),
        "no such lease: {refused:?}"
    );
}

#[tokio::test]
async fn a_stream_opens_with_a_snapshot_and_whoever_falls_behind_gets_another() {
    let house = House::open(None).await.expect("opens");
    let mut events = house.client().events().await.expect("a stream");
    let first = events.next().await.expect("reads").expect("open");
    assert_eq!(first.number, 1);
    assert!(matches!(first.event, Event::Snapshot(_)), "{first:?}");
    let paused = Arc::new(Event::Pause { pause: None });
    house.events.send(Arc::clone(&paused)).expect("somebody listens");
    let second = events.next().await.expect("reads").expect("open");
    assert_eq!((second.number, &second.event), (2, paused.as_ref()));
    // Far more than the queue holds, without giving the stream a chance to take any.
    for _ in 0..100 {
        house.events.send(Arc::clone(&paused)).expect("somebody listens");
    }
    let third = events.next().await.expect("reads").expect("open");
    assert_eq!(third.number, 3, "numbers rise by one all the same");
    assert!(matches!(third.event, Event::Snapshot(_)), "{third:?}");
}

#[tokio::test]
async fn the_strip_tells_a_client_what_became_of_a_card() {
    let house = House::open(None).await.expect("opens");
    let now = sela_clock::now().utc_ms;
    let began = |from: UtcMs, held: Option<HoldReason>| Stretch {
        gpu: GpuUuid("GPU-1".into()),
        from_utc_ms: from,
        to_utc_ms: from,
        held,
        sold: None,
    };
    let (first, second) = (UtcMs(now.0 - 60_000), UtcMs(now.0 - 20_000));
    house.store.strip(vec![
        StripEntry::Began(began(first, Some(HoldReason::Starting))),
        StripEntry::Ended {
            gpu: GpuUuid("GPU-1".into()),
            at: second,
        },
        StripEntry::Began(began(second, None)),
    ]);
    let day = UtcMs(now.0 - 24 * 3_600_000);
    let record = house.client().strip(day, now.plus(Millis(1))).await.expect("answered");
    let stretches = record.expect("this agent keeps one").stretches;
    let [held, offered] = stretches.as_slice() else {
        panic!("two stretches: {stretches:?}");
    };
    assert_eq!((held.to_utc_ms, &held.held), (second, &Some(HoldReason::Starting)));
    assert_eq!((offered.from_utc_ms, &offered.held), (second, &None));
    assert!(offered.to_utc_ms >= now, "it goes on: {offered:?}");
    let nothing = house.client().strip(day, day).await.expect("an empty span is a span");
    assert_eq!(nothing.expect("a record").stretches, []);
}

#[tokio::test]
async fn errors_are_one_kind_of_answer_everywhere() {
    let port = free_port();
    let house = House::open(Some(port)).await.expect("opens");
    let token = std::fs::read_to_string(house.folder.path().join("token")).expect("a token");
    let bearer = format!("Bearer {token}");
    let good = [("authorization", bearer.as_str())];
    for (path, status, code) in [
        ("/v1/nothing", StatusCode::NOT_FOUND, "unknown_path"),
        ("/v1/earnings?cursor=x", StatusCode::BAD_REQUEST, "bad_cursor"),
        ("/v1/earnings?curser=1", StatusCode::BAD_REQUEST, "bad_query"),
        ("/v1/strip?from_utc_ms=1", StatusCode::BAD_REQUEST, "bad_query"),
        (
            "/v1/strip?from_utc_ms=1&to_utc_ms=x",
            StatusCode::BAD_REQUEST,
            "bad_query",
        ),
        (
            "/v1/strip?from_utc_ms=2&to_utc_ms=1",
            StatusCode::BAD_REQUEST,
            "bad_span",
        ),
        (
            "/v1/strip?from_utc_ms=0&to_utc_ms=2678400001",
            StatusCode::BAD_REQUEST,
            "bad_span",
        ),
    ] {
        let (found, problem) = house.get(path, &good).await;
        assert_eq!(
            (found, problem["code"].as_str()),
            (status, Some(code)),
            "{path}: {problem}"
        );
        assert!(!problem["detail"].as_str().unwrap_or_default().is_empty(), "{path}");
    }
}

#[tokio::test]
async fn the_port_is_for_who_has_the_token_and_for_no_other_sites_page() {
    let port = free_port();
    let house = House::open(Some(port)).await.expect("opens");
    let file = house.folder.path().join("token");
    let mode = std::fs::metadata(&file).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let bearer = format!("Bearer {}", std::fs::read_to_string(&file).expect("a token"));
    let authorization = ("authorization", bearer.as_str());
    for (headers, status) in [
        (vec![authorization], StatusCode::OK),
        (vec![], StatusCode::UNAUTHORIZED),
        (
            vec![authorization, ("origin", "http://evil.example")],
            StatusCode::FORBIDDEN,
        ),
        (
            vec![authorization, ("host", "evil.example")],
            StatusCode::MISDIRECTED_REQUEST,
        ),
    ] {
        let (found, problem) = house.get("/v1/snapshot", &headers).await;
        assert_eq!(found, status, "{headers:?}: {problem}");
    }
}

#[tokio::test]
async fn an_address_of_another_machine_is_refused() {
    let Err(error) = House::open(Some("0.0.0.0:0".parse().expect("an address"))).await else {
        panic!("it must not listen there");
    };
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}
