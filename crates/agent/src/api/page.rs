//! The window's page at the loopback port. It is the same for everybody and holds nothing of the owner, so that no token is
//! asked for it; what it shows it asks of `/v1` with the token from its address.

use super::routes::Failure;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

/// A path and what is there.
pub(super) type Files = &'static [(&'static str, &'static [u8])];

/// What was built before this program was; empty where nothing was.
pub(super) const FILES: Files = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Nothing from elsewhere, nothing inline.
const POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'";
/// Their names change with what they hold.
const FOREVER: &str = "public, max-age=31536000, immutable";

const NOT_BUILT: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Sela</title>\
    <p>This agent was built without its window: run <code>npm ci &amp;&amp; npm run build</code> in the project's folder, \
    build the agent again and start it anew.</p></html>\n";

const HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (X_FRAME_OPTIONS, "DENY"),
];

/// The page's own paths, and no others.
pub(super) fn router(files: Files) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/sign.svg", get(file))
        .route("/assets/{*name}", get(file))
        .layer(axum::middleware::map_response(with_headers))
        .with_state(files)
}

async fn page(State(files): State<Files>) -> Response {
    let html = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CACHE_CONTROL, "no-store")];
    match found(files, "/index.html") {
        Some(content) => (html, content).into_response(),
        None => (StatusCode::NOT_FOUND, html, NOT_BUILT).into_response(),
    }
}

async fn file(State(files): State<Files>, request: Request) -> Response {
    let path = Uri::path(request.uri());
    // Paths are compared as they came, with those that were built in: no path leads anywhere else.
    let Some(content) = found(files, path) else {
        return Failure::new(
            StatusCode::NOT_FOUND,
            "unknown_path",
            "the window's page has no such file",
        )
        .into_response();
    };
    let kept = if path.starts_with("/assets/") {
        FOREVER
    } else {
        "no-cache"
    };
    ([(CONTENT_TYPE, type_of(path)), (CACHE_CONTROL, kept)], content).into_response()
}

fn found(files: Files, path: &str) -> Option<&'static [u8]> {
    files
        .iter()
        .find(|(name, _)| *name == path)
        .map(|(_, content)| *content)
}

fn type_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        Some(_) | None => "application/octet-stream",
    }
}

async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
