//! Target `local_api`: bytes of a connection to the agent's socket, or to its loopback port, served by the real HTTP and the real routes
//! with a real core behind them. Whatever comes, every answer is HTTP and names its error, and no command gets past the guard of the
//! port without the token.

use crate::memory;
use crate::tape::Tape;
use sela_agent::LocalInterface;
use sela_protocol::local::{Command, Problem};
use serde_json::json;
use std::sync::LazyLock;

/// Of the port.
const TOKEN: &str = "5e1a5e1a";
/// Names by which the port's own page comes.
const HOSTS: [&str; 3] = ["127.0.0.1:7351", "localhost:7351", "[::1]:7351"];
/// A request's body may have 2 MiB; a connection's buffers and a runtime's tasks beside it.
const MEMORY: usize = 8 << 20;

/// For the one thread in which libFuzzer calls.
struct Place(LocalInterface);

static INTERFACE: LazyLock<std::sync::Mutex<Place>> = LazyLock::new(|| {
    let folder = std::path::PathBuf::from(format!("/dev/shm/sela-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder on a tmpfs");
    std::sync::Mutex::new(Place(LocalInterface::open(&folder).expect("the interface opens")))
});

/// Sends an input over one connection.
///
/// # Panics
/// If something does not hold.
pub fn hold(input: &[u8]) {
    let mut tape = Tape::new(input);
    let guarded = tape.choice(2) == 1;
    let bytes = tape.rest();
    let place = INTERFACE.lock().expect("one thread at a time");
    let answered = memory::at_most(MEMORY, || place.0.ask(bytes, guarded.then_some(TOKEN)));
    every_answer_is_http(&answered.answer);
    for command in &answered.commands {
        let written = serde_json::to_string(command).expect("a command is written");
        assert_eq!(&serde_json::from_str::<Command>(&written).expect(&written), command);
    }
    if guarded && !answered.commands.is_empty() {
        let text = String::from_utf8_lossy(bytes);
        let named = HOSTS.iter().any(|host| text.contains(host));
        assert!(
            named && text.contains(&format!("Bearer {TOKEN}")),
            "a command got past the guard"
        );
    }
}

fn every_answer_is_http(mut answer: &[u8]) {
    let mut answers = 0;
    while !answer.is_empty() {
        answers += 1;
        assert!(answers < 4_096, "more answers than requests fit");
        let end = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head ends");
        let head = std::str::from_utf8(&answer[..end])
            .expect("ours is ASCII")
            .to_ascii_lowercase();
        let status: u16 = head
            .strip_prefix("http/1.")
            .and_then(|rest| rest.get(2..5))
            .and_then(|status| status.parse().ok())
            .expect("a status line");
        assert!((100..500).contains(&status), "{head}");
        let body = &answer[end + 4..];
        let Some(length) = field(&head, "content-length").and_then(|length| length.parse::<usize>().ok()) else {
            // A stream of events, in chunks and without an end; or an answer that has no body.
            if field(&head, "transfer-encoding").is_some() {
                assert!(body.starts_with(b"1") || body.first().is_none_or(u8::is_ascii_hexdigit));
                return;
            }
            answer = body;
            continue;
        };
        // HEAD is answered with the length of what is not sent; then another head or nothing follows.
        let body = if body.starts_with(b"HTTP/1.") {
            &body[..0]
        } else {
            &body[..length.min(body.len())]
        };
        if body.len() == length && field(&head, "content-type") == Some("application/problem+json") {
            let problem: Problem = serde_json::from_slice(body).expect("a problem reads");
            assert!(
                problem.status == status && !problem.code.is_empty() && !problem.detail.is_empty(),
                "{problem:?}"
            );
        }
        answer = &answer[end + 4 + body.len()..];
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Each path, each command, and requests one after another.
pub fn seeds() -> Vec<Vec<u8>> {
    let lease = "lease_01890a5d-ac96-774b-bcce-b302099a8057";
    let commands = [
        json!({ "type": "pause", "for_ms": 60_000 }),
        json!({ "type": "resume" }),
        json!({ "type": "end_lease", "lease": lease }),
        json!({ "type": "quit" }),
        json!({ "type": "newer" }),
    ];
    let paths = [
        "snapshot",
        "events",
        "earnings?cursor=1",
        "jobs",
        "samples",
        "strip?from_utc_ms=0&to_utc_ms=1000",
        "doctor",
        "nothing",
    ];
    let head = format!("Host: {}\r\nAuthorization: Bearer {TOKEN}\r\n", HOSTS[0]);
    let mut requests: Vec<String> = paths
        .iter()
        .map(|path| format!("GET /v1/{path} HTTP/1.1\r\n{head}\r\n"))
        .collect();
    requests.extend(commands.iter().map(|command| {
        let body = command.to_string();
        let length = body.len();
        let kind = "Content-Type: application/json";
        format!("POST /v1/commands HTTP/1.1\r\n{head}{kind}\r\nContent-Length: {length}\r\n\r\n{body}")
    }));
    requests.push(format!("HEAD / HTTP/1.1\r\n{head}Origin: http://evil.example\r\n\r\n"));
    requests.push(format!(
        "POST /v1/commands HTTP/1.1\r\n{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
         11\r\n{{\"type\":\"resume\"}}\r\n0\r\n\r\n"
    ));
    requests.push(requests[..2].concat());
    let both = |request: &String| [0, 1].map(|guarded| [&[guarded], request.as_bytes()].concat());
    requests.iter().flat_map(both).collect()
}
