//! Which addresses a stranger's image reference may make this machine talk to: those of the internet, and not those of the
//! owner's home. A registry chooses where its redirects and its token server point, so every host is asked about here.

use std::net::SocketAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
pub(crate) use sela_protocol::address::is_public;

/// A host that must not be talked to; found again in the chain of causes that an HTTP client reports.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is not on the public internet")]
pub(crate) struct NotPublicHost(pub(crate) String);

/// Resolves names and keeps the public addresses only, so that no name can point into the owner's network either.
#[derive(Debug, Default)]
pub(crate) struct PublicResolver {
    /// The owner's own proxy, which may stand in the owner's network.
    except: Option<String>,
}

impl PublicResolver {
    pub(crate) fn except(name: Option<String>) -> Self {
        Self { except: name }
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let any = self.except.as_deref() == Some(name.as_str());
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|address| any || is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(NotPublicHost(name.as_str().to_owned()).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// Before a proxy resolves a name by itself: refuses one that leads to any address but public ones. A name that cannot be
/// resolved here is left to the proxy, as there may be no other way out.
///
/// # Errors
/// [`NotPublicHost`].
pub(crate) async fn check_name(host: &str) -> Result<(), NotPublicHost> {
    let Ok(mut found) = tokio::net::lookup_host((host, 0)).await else {
        return Ok(());
    };
    if found.all(|address| is_public(address.ip())) {
        return Ok(());
    }
    Err(NotPublicHost(host.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_looked_at_before_a_proxy_resolves_it() {
        assert!(check_name("localhost").await.is_err(), "it is this machine");
        assert!(check_name("nowhere.invalid").await.is_ok(), "the proxy may know it");
    }
}
