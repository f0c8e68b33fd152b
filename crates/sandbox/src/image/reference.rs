//! How a job names its image: in a registry by digest, or as an OCI archive by hash. Only reading of names; no network.

use std::fmt;
use std::net::IpAddr;

use sela_protocol::blob::BlobId;
use sela_protocol::job::ImageSource;

use super::error::ImageError;

/// Longest `repository` that registries accept (OCI distribution specification).
const LONGEST_REPOSITORY: usize = 255;

/// An image, named so that nobody can change what the name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageReference {
    /// In a registry.
    Registry(RegistryReference),
    /// An OCI archive (an image layout as one tar) by the sha256 of its bytes.
    Archive(BlobId),
}

impl ImageReference {
    /// The digest that stands for the whole image: of the manifest or index, or of the archive.
    pub fn digest(&self) -> BlobId {
        match self {
            Self::Registry(reference) => reference.digest,
            Self::Archive(digest) => *digest,
        }
    }
}

impl TryFrom<&ImageSource> for ImageReference {
    type Error = ImageError;

    fn try_from(source: &ImageSource) -> Result<Self, ImageError> {
        match source {
            ImageSource::Registry { reference } => RegistryReference::parse(reference).map(Self::Registry),
            ImageSource::Archive { blob } => Ok(Self::Archive(*blob)),
        }
    }
}

/// `host[:port]/repository@sha256:…`. A tag beside the digest is refused too: it would only pretend to matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryReference {
    host: String,
    port: Option<u16>,
    repository: String,
    digest: BlobId,
}

impl RegistryReference {
    /// Reads a reference.
    ///
    /// # Errors
    /// [`ImageError::NoDigest`] for a tag or a bare name, [`ImageError::BadReference`] for everything else.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let bad = |reason| ImageError::BadReference {
            reference: text.to_owned(),
            reason,
        };
        let Some((name, digest)) = text.split_once('@') else {
            return Err(ImageError::NoDigest {
                reference: text.to_owned(),
            });
        };
        let digest: BlobId = digest
            .parse()
            .map_err(|_| bad("the digest is not sha256: and 64 hex digits"))?;
        let (authority, repository) = name.split_once('/').ok_or_else(|| bad("it names no registry"))?;
        let (host, port) = split_authority(authority).ok_or_else(|| bad("the registry's name is not host[:port]"))?;
        if !(host.contains('.') || host == "localhost" || port.is_some() || host.starts_with('[')) {
            return Err(bad("the first part must be the registry's host"));
        }
        if repository.contains(':') {
            return Err(bad("a tag beside a digest has no meaning; leave it out"));
        }
        if repository.len() > LONGEST_REPOSITORY || !repository.split('/').all(is_path_component) {
            return Err(bad("the repository is not lower-case names divided by /"));
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            repository: repository.to_owned(),
            digest,
        })
    }

    /// Host without port; an IPv6 address stands in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The path below the host.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Digest of the manifest or index.
    pub fn digest(&self) -> BlobId {
        self.digest
    }

    /// Host and port as they stand in a URL.
    pub fn authority(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// Whether the registry is on this machine: only there is plain HTTP spoken.
    pub fn is_loopback(&self) -> bool {
        is_loopback_host(&self.host)
    }
}

impl fmt::Display for RegistryReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}@{}", self.authority(), self.repository, self.digest)
    }
}

/// Whether a URL's host is this machine. Names other than `localhost` are not resolved: they could change.
pub(crate) fn is_loopback_host(host: &str) -> bool {
    host == "localhost" || host_address(host).is_some_and(|address| address.is_loopback())
}

/// The address that a URL's host spells, if it spells one.
pub(crate) fn host_address(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host)
        .parse()
        .ok()
}

fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.rsplit_once(':') {
        // A colon inside brackets belongs to an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
        Some(_) | None => (authority, None),
    };
    let plain = |host: &str| {
        !host.is_empty()
            && !host.starts_with(['-', '.'])
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
    };
    let bracketed = host.starts_with('[') && host.ends_with(']') && host_address(host).is_some();
    (plain(host) || bracketed).then_some((host, port))
}

/// OCI distribution: `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`, here without counting separators, which cannot do harm.
fn is_path_component(component: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = component.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-'))
        && !component.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest() -> String {
        BlobId::of(b"manifest").to_string()
    }

    #[test]
    fn references_with_a_digest_read_back_as_written() {
        for name in [
            "registry.example/library/tool",
            "registry.example:5000/tool",
            "localhost:5000/a/b-c/d_e.f",
            "127.0.0.1:5000/tool",
            "[::1]:5000/tool",
            "[::1]/tool",
        ] {
            let text = format!("{name}@{}", digest());
            let reference = RegistryReference::parse(&text).expect(name);
            assert_eq!(reference.to_string(), text);
        }
    }

    #[test]
    fn everything_that_could_change_its_meaning_is_refused() {
        let digest = digest();
        for (text, sentence) in [
            ("registry.example/tool".to_owned(), "names no digest"),
            ("registry.example/tool:latest".to_owned(), "names no digest"),
            (
                format!("registry.example/tool:latest@{digest}"),
                "a tag beside a digest",
            ),
            ("registry.example/tool@sha256:abc".to_owned(), "64 hex digits"),
            ("registry.example/tool@sha512:abc".to_owned(), "64 hex digits"),
            (format!("tool@{digest}"), "names no registry"),
            (format!("library/tool@{digest}"), "must be the registry's host"),
            (format!("registry.example/Tool@{digest}"), "lower-case"),
            (format!("registry.example/../tool@{digest}"), "lower-case"),
            (format!("registry.example/a//b@{digest}"), "lower-case"),
            (format!("registry.example/a?b=c@{digest}"), "lower-case"),
            (format!("user:pw@registry.example/a@{digest}"), "64 hex digits"),
            (format!("registry.example:99999/a@{digest}"), "host[:port]"),
            (format!("-evil.example/a@{digest}"), "host[:port]"),
        ] {
            let error = RegistryReference::parse(&text).expect_err(&text);
            assert!(error.to_string().contains(sentence), "{text}: {error}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (host, expected) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("[::1]", true),
            ("localhost.example", false),
            ("10.0.0.1", false),
            ("[::2]", false),
        ] {
            assert_eq!(is_loopback_host(host), expected, "{host}");
        }
    }
}
