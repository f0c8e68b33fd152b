//! One request to the proxy: `CONNECT host:port HTTP/1.1` and headers that nobody reads (RFC 9110 §9.3.6). Pure: bytes in, a
//! target or the reason why not out. The bytes are a stranger's.

use sela_protocol::network::{Host, HostError};
use std::fmt;
use std::str::FromStr;

/// Bytes that a request may have, its last empty line included.
pub const LONGEST: usize = 8 << 10;

/// How much of a stranger's text is repeated to people.
const QUOTED: usize = 80;

/// Whom to connect to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// Its port.
    pub port: u16,
}

/// A whole request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Whom to connect to.
    pub target: Target,
    /// Where the request ends: what follows is the tunnel's already.
    pub length: usize,
}

/// Why bytes are no request that is served. Texts of the stranger's are cut and escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// More bytes than [`LONGEST`].
    #[error("a request of more than {LONGEST} bytes")]
    TooLong,
    /// No HTTP, TLS without a request before it, say.
    #[error("what came is no request to an HTTP proxy")]
    NotHttp,
    /// Another method.
    #[error("\"{0}\" is not served, CONNECT only: use https, or let the program tunnel (curl --proxytunnel)")]
    NotConnect(String),
    /// The target is not `host:port`.
    #[error("\"{0}\" is no host with a port, as in example.org:443")]
    NoTarget(String),
    /// The host is none.
    #[error(transparent)]
    BadHost(#[from] HostError),
}

/// Reads a request from what has come so far; `None` where it is not whole yet.
///
/// # Errors
/// As soon as it is clear that no request that is served can become of it.
pub fn read(bytes: &[u8]) -> Result<Option<Request>, RequestError> {
    let within = &bytes[..bytes.len().min(LONGEST)];
    let line_end = within.windows(2).position(|pair| pair == b"\r\n");
    let line = &within[..line_end.unwrap_or(within.len())];
    // The last byte may be the first half of the line's end.
    let open = if line_end.is_none() {
        line.strip_suffix(b"\r").unwrap_or(line)
    } else {
        line
    };
    if !open.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(RequestError::NotHttp);
    }
    let target = line_end.map(|_| target_of(line)).transpose()?;
    let end = within.windows(4).position(|four| four == b"\r\n\r\n");
    match (target, end) {
        (Some(target), Some(end)) => Ok(Some(Request {
            target,
            length: end + 4,
        })),
        (Some(_) | None, _) if bytes.len() >= LONGEST => Err(RequestError::TooLong),
        (Some(_) | None, _) => Ok(None),
    }
}

fn target_of(line: &[u8]) -> Result<Target, RequestError> {
    let line = std::str::from_utf8(line).map_err(|_| RequestError::NotHttp)?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    match (method, target, version, words.next()) {
        (Some("CONNECT"), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) => target.parse(),
        (Some(method), Some(_), Some(version), None) if version.starts_with("HTTP/") && method != "CONNECT" => {
            Err(RequestError::NotConnect(quoted(method)))
        }
        _ => Err(RequestError::NotHttp),
    }
}

/// Harmless to print, and short.
fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).flat_map(char::escape_debug).collect()
}

impl FromStr for Target {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let no_target = || RequestError::NoTarget(quoted(text));
        let (host, port) = text.rsplit_once(':').ok_or_else(no_target)?;
        let digits = !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
        let port: u16 = port
            .parse()
            .ok()
            .filter(|port| digits && *port != 0)
            .ok_or_else(no_target)?;
        if host.len() > QUOTED * 4 {
            return Err(no_target());
        }
        Ok(Self {
            host: host.parse()?,
            port,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_names_its_target_and_what_follows_is_not_its() {
        let bytes =
            b"CONNECT Example.org:443 HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: x\r\n\r\n\x16\x03\x01";
        let request = read(bytes).expect("a request").expect("a whole one");
        assert_eq!(request.target.to_string(), "example.org:443");
        assert_eq!(&bytes[request.length..], b"\x16\x03\x01");
        let shortest = b"CONNECT [2606:4700::1111]:443 HTTP/1.0\r\n\r\n";
        assert_eq!(
            read(shortest).expect("good").expect("whole").target.to_string(),
            "[2606:4700::1111]:443"
        );
    }

    #[test]
    fn what_is_no_request_is_refused_as_soon_as_that_is_clear() {
        let long = format!("CONNECT example.org:443 HTTP/1.1\r\nX: {}", "x".repeat(LONGEST));
        for (bytes, says) in [
            (b"\x16\x03\x01\x02\x00".as_slice(), "no request to an HTTP proxy"),
            (b"\x05\x01\x00", "no request to an HTTP proxy"),
            (b"hello there\r\n", "no request to an HTTP proxy"),
            (b"\r\n", "no request to an HTTP proxy"),
            (b"CONNECT  example.org:443 HTTP/1.1\r\n", "no request to an HTTP proxy"),
            (b"CONNECT example.org:443\r\n", "no request to an HTTP proxy"),
            (b"CONNECT example.org:443 HTTP/2\r\n", "no request to an HTTP proxy"),
            (b"CONNECT example.org:443 HTTP/1.1\nX: y", "no request to an HTTP proxy"),
            (b"GET http://example.org/ HTTP/1.1\r\n", "\"GET\" is not served"),
            (b"connect example.org:443 HTTP/1.1\r\n", "\"connect\" is not served"),
            (b"CONNECT example.org HTTP/1.1\r\n", "no host with a port"),
            (b"CONNECT example.org:0 HTTP/1.1\r\n", "no host with a port"),
            (b"CONNECT example.org:65536 HTTP/1.1\r\n", "no host with a port"),
            (b"CONNECT example.org:+443 HTTP/1.1\r\n", "no host with a port"),
            (b"CONNECT example.org: HTTP/1.1\r\n", "no host with a port"),
            (b"CONNECT localhost:443 HTTP/1.1\r\n", "no name of the internet"),
            (b"CONNECT user@example.org:443 HTTP/1.1\r\n", "no host name"),
            (b"CONNECT http://example.org:443 HTTP/1.1\r\n", "no host name"),
            (b"CONNECT 0x7f000001:443 HTTP/1.1\r\n", "neither a name nor an address"),
            (b"CONNECT ::1:443 HTTP/1.1\r\n", "no host name"),
            (long.as_bytes(), "more than 8192 bytes"),
            (&[b'A'; LONGEST], "more than 8192 bytes"),
        ] {
            let error = read(bytes).expect_err(says).to_string();
            assert!(error.contains(says), "{error} should say {says}");
            assert!(error.len() < 600 && !error.contains(char::is_control), "{error}");
        }
    }

    #[test]
    fn half_a_request_is_waited_for() {
        let whole = b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), Ok(None), "{length}");
        }
        assert!(read(whole).is_ok_and(|request| request.is_some()));
    }

    proptest! {
        /// Whatever comes, and however it is cut, nothing panics, and an answer once given does not change by what follows.
        #[test]
        fn an_answer_stands_whatever_follows(start in prop_oneof!["CONNECT [a-z.:0-9\\[\\]]{0,20} HTTP/1.1\r\n(A: b\r\n)?(\r\n)?", "\\PC{0,30}"], rest: Vec<u8>) {
            let mut bytes = start.into_bytes();
            let before = read(&bytes);
            bytes.extend(rest);
            match before {
                Ok(Some(request)) => prop_assert_eq!(read(&bytes), Ok(Some(request))),
                Err(error) => prop_assert_eq!(read(&bytes), Err(error)),
                Ok(None) => drop(read(&bytes)),
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            drop(read(&bytes));
        }
    }
}
