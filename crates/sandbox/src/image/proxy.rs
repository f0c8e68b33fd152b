//! How registries are reached where a network lets nobody out but through a proxy: as the environment says, or as the owner's
//! settings say. The proxy is the owner's choice and may stand in the owner's network; what is asked of it is a stranger's, and
//! is looked at as ever.

use std::fmt;
use std::sync::Arc;

use reqwest::{ClientBuilder, NoProxy, Url};

use super::public_address::PublicResolver;
use super::reference::host_address;

/// Which proxy registries are reached through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// What `HTTPS_PROXY` or `ALL_PROXY` of the environment say, else none.
    #[default]
    Environment,
    /// This one; `NO_PROXY` of the environment still counts.
    Given(ProxyUrl),
}

/// An HTTP proxy: `http://[user:password@]host:port`. Its login does not show in `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl(Url);

/// A text that names no proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a proxy reads http://host:port or http://user:password@host:port")]
pub struct ProxyUrlError;

impl ProxyUrl {
    /// Reads a proxy's address; without a scheme it is `http`.
    ///
    /// # Errors
    /// [`ProxyUrlError`], which does not repeat the text: it may hold a password.
    pub fn parse(text: &str) -> Result<Self, ProxyUrlError> {
        let whole = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let url: Url = whole.parse().map_err(|_| ProxyUrlError)?;
        let plain = matches!(url.scheme(), "http" | "https") && matches!(url.path(), "" | "/") && url.query().is_none();
        if !plain || url.host_str().is_none_or(str::is_empty) {
            return Err(ProxyUrlError);
        }
        Ok(Self(url))
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.0.port_or_known_default().unwrap_or_default();
        write!(formatter, "ProxyUrl({}:{port})", self.0.host_str().unwrap_or_default())
    }
}

/// The proxy that was found, if any.
#[derive(Debug, Clone)]
pub(crate) struct Proxy(Option<ProxyUrl>);

impl Proxy {
    /// Looks where the choice says.
    ///
    /// # Errors
    /// [`ProxyUrlError`] where the environment names none that can be understood.
    pub(crate) fn find(choice: &ProxyChoice) -> Result<Self, ProxyUrlError> {
        let found = match choice {
            ProxyChoice::Given(url) => Some(url.clone()),
            ProxyChoice::Environment => of_environment(|name| std::env::var(name).ok())?,
        };
        Ok(Self(found))
    }

    /// Whether names are resolved by the proxy, out of our sight.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Sets up a client that reaches public addresses only, and through the proxy where there is one.
    ///
    /// # Errors
    /// What the client says of the proxy.
    pub(crate) fn apply(&self, builder: ClientBuilder) -> reqwest::Result<ClientBuilder> {
        // Off first: the client would look into the environment by itself.
        let builder = builder.no_proxy();
        let Some(ProxyUrl(url)) = &self.0 else {
            return Ok(builder.dns_resolver(Arc::new(PublicResolver::default())));
        };
        let own_name = url.host_str().filter(|host| host_address(host).is_none());
        let resolver = PublicResolver::except(own_name.map(str::to_owned));
        let proxy = reqwest::Proxy::all(url.clone())?.no_proxy(NoProxy::from_env());
        Ok(builder.dns_resolver(Arc::new(resolver)).proxy(proxy))
    }
}

fn of_environment(get: impl Fn(&str) -> Option<String>) -> Result<Option<ProxyUrl>, ProxyUrlError> {
    let names = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let found = names
        .iter()
        .find_map(|name| get(name).filter(|text| !text.trim().is_empty()));
    found.map(|text| ProxyUrl::parse(text.trim())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_read_and_its_password_shows_nowhere() {
        for (text, shown) in [
            ("http://proxy.example:3128", "ProxyUrl(proxy.example:3128)"),
            ("proxy.example:3128", "ProxyUrl(proxy.example:3128)"),
            ("http://me:secret@10.0.0.1:8080/", "ProxyUrl(10.0.0.1:8080)"),
            ("https://proxy.example", "ProxyUrl(proxy.example:443)"),
        ] {
            let proxy = ProxyUrl::parse(text).expect(text);
            assert_eq!(format!("{proxy:?}"), shown);
        }
        for bad in [
            "",
            "socks5://proxy.example:1080",
            "http://",
            "http://proxy.example/path",
            "http://p.example?q=1",
        ] {
            assert!(ProxyUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_environment_names_the_proxy_of_tls() {
        let find = |set: &[(&str, &str)]| {
            let found = of_environment(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            });
            found.map(|found| found.map(|proxy| format!("{proxy:?}")))
        };
        let named = |text: &str| Ok(Some(format!("ProxyUrl({text})")));
        assert_eq!(find(&[]), Ok(None));
        assert_eq!(
            find(&[("HTTP_PROXY", "p:1")]),
            Ok(None),
            "registries are spoken to over TLS"
        );
        assert_eq!(find(&[("ALL_PROXY", "a:1"), ("HTTPS_PROXY", "p:2")]), named("p:2"));
        assert_eq!(find(&[("HTTPS_PROXY", " "), ("all_proxy", "a:1")]), named("a:1"));
        assert_eq!(find(&[("HTTPS_PROXY", "ftp://p")]), Err(ProxyUrlError));
    }
}
