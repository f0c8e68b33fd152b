//! The address of an exchange as people write it, and the two addresses that are made of it: for the node's socket and for
//! everything else. Nothing is connected here.

use std::fmt;

/// An exchange's address: `https://…` or, to this machine only, `http://…`. Written as `wss://` or `ws://` it means the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MarketUrl {
    secure: bool,
    /// Host, port and path, without a slash at the end.
    rest: String,
}

/// Why a text is no address of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MarketUrlError {
    /// Not a URL at all, or of another kind.
    #[error("\"{0}\" is no exchange's address; it reads https://host:port")]
    Malformed(String),
    /// Unencrypted, and not to this machine.
    #[error("\"{0}\" would go over the network unencrypted; use https:// (http:// is for 127.0.0.1 only)")]
    Unencrypted(String),
}

impl MarketUrl {
    /// Reads an address.
    ///
    /// # Errors
    /// See [`MarketUrlError`].
    pub(crate) fn parse(text: &str) -> Result<Self, MarketUrlError> {
        let malformed = || MarketUrlError::Malformed(text.to_owned());
        let parsed: http::Uri = text.trim_end_matches('/').parse().map_err(|_| malformed())?;
        let secure = match parsed.scheme_str() {
            Some("https" | "wss") => true,
            Some("http" | "ws") => false,
            Some(_) | None => return Err(malformed()),
        };
        let authority = parsed.authority().ok_or_else(malformed)?;
        if authority.as_str().contains('@') || parsed.query().is_some() {
            return Err(malformed());
        }
        if !secure && !is_loopback(authority.host()) {
            return Err(MarketUrlError::Unencrypted(text.to_owned()));
        }
        let rest = format!("{authority}{}", parsed.path().trim_end_matches('/'));
        Ok(Self { secure, rest })
    }

    /// For everything but the node's socket; `path` starts with a slash.
    pub(crate) fn http(&self, path: &str) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.rest)
    }

    /// For the node's socket; `path` starts with a slash.
    pub(crate) fn socket(&self, path: &str) -> String {
        let scheme = if self.secure { "wss" } else { "ws" };
        format!("{scheme}://{}{path}", self.rest)
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for MarketUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.http(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_in_both_spellings() {
        for (text, socket) in [
            ("https://market.example:7350/", "wss://market.example:7350/v1"),
            ("wss://market.example/lab", "wss://market.example/lab/v1"),
            ("http://127.0.0.1:7350", "ws://127.0.0.1:7350/v1"),
            ("ws://[::1]:7350", "ws://[::1]:7350/v1"),
            ("http://localhost:1", "ws://localhost:1/v1"),
        ] {
            assert_eq!(MarketUrl::parse(text).expect(text).socket("/v1"), socket);
        }
    }

    #[test]
    fn nothing_goes_over_a_network_unencrypted() {
        for text in [
            "http://market.example",
            "ws://10.0.0.1:7350",
            "http://127.0.0.1.example.org",
        ] {
            assert!(
                matches!(MarketUrl::parse(text), Err(MarketUrlError::Unencrypted(_))),
                "{text}"
            );
        }
        for text in [
            "market.example",
            "",
            "https://",
            "file:///x",
            "https://user:pass@host",
            "https://h/?q=1",
        ] {
            assert!(
                matches!(MarketUrl::parse(text), Err(MarketUrlError::Malformed(_))),
                "{text}"
            );
        }
    }
}
