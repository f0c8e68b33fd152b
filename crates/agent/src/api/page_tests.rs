//! The window's page at a real port: what is shown to whom, under which headers, and that no path leads out of it.

use super::guest::House;
use super::page::{FILES, Files};
use super::serve::guarded;
use axum::Router;
use axum::routing::get;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const BUILT: Files = &[
    ("/index.html", b"<!doctype html>the page"),
    ("/sign.svg", b"<svg/>"),
    ("/assets/index-1.js", b"go()"),
    ("/assets/index-1.css", b"p{}"),
    ("/secret", b"not a path of the page"),
];

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

async fn open(files: Files) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let interface = Router::new()
        .route("/v1/snapshot", get(|| async { "the owner's" }))
        .fallback(|| async { "nothing here" });
    let served = guarded(interface, files, &House::new(address.port(), "token"));
    tokio::spawn(async move { axum::serve(listener, served).await });
    address
}

/// Asked byte by byte, since a proper client would tidy the path first.
async fn ask(address: SocketAddr, path: &str, host: &str, more: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.expect("asks");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
    let headers = lines.filter_map(|line| line.split_once(": "));
    Answer {
        status: status.parse().expect("a number"),
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

#[tokio::test]
async fn the_page_needs_no_token_and_the_interface_behind_it_does() {
    let address = open(BUILT).await;
    let host = address.to_string();
    for (path, kind, kept, body) in [
        ("/", "text/html; charset=utf-8", "no-store", "<!doctype html>the page"),
        (
            "/?a=b",
            "text/html; charset=utf-8",
            "no-store",
            "<!doctype html>the page",
        ),
        ("/sign.svg", "image/svg+xml", "no-cache", "<svg/>"),
        (
            "/assets/index-1.js",
            "text/javascript",
            "public, max-age=31536000, immutable",
            "go()",
        ),
        (
            "/assets/index-1.css",
            "text/css",
            "public, max-age=31536000, immutable",
            "p{}",
        ),
    ] {
        let answer = ask(address, path, &host, "").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, body), "{path}");
        assert_eq!(answer.header("content-type"), kind, "{path}");
        assert_eq!(answer.header("cache-control"), kept, "{path}");
    }
    assert_eq!(ask(address, "/v1/snapshot", &host, "").await.status, 401);
    let answer = ask(address, "/v1/snapshot", &host, "Authorization: Bearer token\r\n").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "the owner's"));
}

#[tokio::test]
async fn every_answer_of_the_page_forbids_what_is_not_its_own() {
    let address = open(BUILT).await;
    for path in ["/", "/assets/index-1.js", "/assets/none.js"] {
        let answer = ask(address, path, &address.to_string(), "").await;
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(answer.header("x-frame-options"), "DENY", "{path}");
    }
}

#[tokio::test]
async fn no_path_leads_out_of_the_page() {
    let address = open(BUILT).await;
    for (path, status) in [
        ("/assets/none.js", 404),
        ("/assets/", 401),
        ("/assets/../secret", 404),
        ("/assets/../index.html", 404),
        ("/assets/%2e%2e/secret", 404),
        ("/assets/..%2fsecret", 404),
        ("/assets//etc/passwd", 404),
        // Not of the page: the token is asked for before anything is said.
        ("/secret", 401),
        ("/index.html", 401),
        ("/v1/nothing", 401),
    ] {
        let answer = ask(address, path, &address.to_string(), "").await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(!answer.body.contains("not a path"), "{path}");
    }
}

#[tokio::test]
async fn the_page_is_not_shown_under_a_foreign_name_or_to_a_foreign_page() {
    let address = open(BUILT).await;
    let host = address.to_string();
    for path in ["/", "/sign.svg", "/assets/index-1.js"] {
        assert_eq!(ask(address, path, "evil.example", "").await.status, 421, "{path}");
        let foreign = ask(address, path, &host, "Origin: http://evil.example\r\n").await;
        assert_eq!(foreign.status, 403, "{path}");
        let own = ask(address, path, &host, &format!("Origin: http://{host}\r\n")).await;
        assert_eq!(own.status, 200, "{path}");
    }
}

#[tokio::test]
async fn an_agent_without_its_page_says_how_to_build_it() {
    let address = open(&[]).await;
    let answer = ask(address, "/", &address.to_string(), "").await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (404, "text/html; charset=utf-8")
    );
    assert!(answer.body.contains("npm run build"), "{}", answer.body);
}

#[tokio::test]
async fn what_the_built_in_page_names_is_built_in_too() {
    let Some((_, page)) = FILES.iter().find(|(path, _)| *path == "/index.html") else {
        assert!(FILES.is_empty(), "files of a page that is not there");
        return;
    };
    let page = std::str::from_utf8(page).expect("text");
    let named: Vec<&str> = page
        .split('"')
        .filter(|text| text.starts_with("/assets/") || text.ends_with(".svg"))
        .collect();
    assert!(!named.is_empty(), "{page}");
    let address = open(FILES).await;
    for path in named {
        let answer = ask(address, path, &address.to_string(), "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert_ne!(answer.header("content-type"), "application/octet-stream", "{path}");
    }
}
