//! Who may speak to the loopback port: a browser that has the token, on a page of ours; without the token it sees that page
//! and nothing else. Pages of others and names that were made to point here (DNS rebinding) are refused.

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// What is expected of a request.
#[derive(Debug, Clone)]
pub(super) struct House {
    hosts: Arc<[String; 3]>,
    token: [u8; 32],
}

/// Status, code, sentence.
type Refusal = (StatusCode, &'static str, &'static str);

impl House {
    pub(super) fn new(port: u16, token: &str) -> Self {
        Self {
            hosts: Arc::new([
                format!("127.0.0.1:{port}"),
                format!("localhost:{port}"),
                format!("[::1]:{port}"),
            ]),
            token: hash(token),
        }
    }

    /// Whether a request came by a foreign name or from a foreign page, which no token would mend.
    fn refuses_to_show(&self, headers: &HeaderMap) -> Option<Refusal> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if !text(HOST).is_some_and(|host| self.hosts.iter().any(|ours| ours == host)) {
            return Some((
                StatusCode::MISDIRECTED_REQUEST,
                "foreign_host",
                "this is the agent of the machine itself: open it as 127.0.0.1 or localhost",
            ));
        }
        let ours = |origin: &str| {
            origin
                .strip_prefix("http://")
                .is_some_and(|origin| self.hosts.iter().any(|ours| ours == origin))
        };
        if headers.contains_key(ORIGIN) && !text(ORIGIN).is_some_and(ours) {
            return Some((
                StatusCode::FORBIDDEN,
                "foreign_origin",
                "another site's page may not speak to the agent",
            ));
        }
        None
    }

    fn refuses(&self, headers: &HeaderMap) -> Option<Refusal> {
        if let Some(refusal) = self.refuses_to_show(headers) {
            return Some(refusal);
        }
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = given.and_then(|value| value.strip_prefix("Bearer "));
        // Hashes are compared, so that the time it takes tells nothing of the token.
        if token.is_none_or(|token| hash(token) != self.token) {
            return Some((
                StatusCode::UNAUTHORIZED,
                "no_token",
                "the agent's token is missing or wrong: it is in the file \"token\" in the agent's runtime folder",
            ));
        }
        None
    }
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Lets a request in, or says why not.
pub(super) async fn let_in(State(house): State<House>, request: Request, next: Next) -> Response {
    answer(house.refuses(request.headers()), request, next).await
}

/// Lets a request see the page, or says why not.
pub(super) async fn let_see(State(house): State<House>, request: Request, next: Next) -> Response {
    answer(house.refuses_to_show(request.headers()), request, next).await
}

async fn answer(refusal: Option<Refusal>, request: Request, next: Next) -> Response {
    match refusal {
        None => next.run(request).await,
        Some((status, code, detail)) => super::routes::Failure::new(status, code, detail).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_of_ours_with_the_token_is_let_in() {
        let house = House::new(7351, "secret");
        for (host, origin, authorization, expected) in [
            (Some("127.0.0.1:7351"), None, Some("Bearer secret"), None),
            (
                Some("localhost:7351"),
                Some("http://localhost:7351"),
                Some("Bearer secret"),
                None,
            ),
            (Some("127.0.0.1:7351"), None, Some("Bearer other"), Some("no_token")),
            (Some("127.0.0.1:7351"), None, None, Some("no_token")),
            (
                Some("evil.example:7351"),
                None,
                Some("Bearer secret"),
                Some("foreign_host"),
            ),
            (None, None, Some("Bearer secret"), Some("foreign_host")),
            (
                Some("127.0.0.1:7351"),
                Some("http://evil.example"),
                Some("Bearer secret"),
                Some("foreign_origin"),
            ),
            (
                Some("127.0.0.1:7351"),
                Some("null"),
                Some("Bearer secret"),
                Some("foreign_origin"),
            ),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(HOST, host), (ORIGIN, origin), (AUTHORIZATION, authorization)] {
                if let Some(value) = value {
                    headers.insert(name, value.parse().expect("a header"));
                }
            }
            let code = house.refuses(&headers).map(|(_, code, _)| code);
            assert_eq!(code, expected, "{headers:?}");
        }
    }
}
