//! Pulls from a registry (OCI distribution specification 1.1): documents and blobs by digest, anonymously or with the token
//! that the registry's own token server gives to everybody. A registry is named by a stranger: every answer is read with a
//! limit, and neither it nor its redirects can lead into the owner's network.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, Method, Response, StatusCode, Url};
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use serde::Deserialize;
use tokio::sync::{Mutex, mpsc};

use super::error::{ImageError, Part};
use super::manifest::LARGEST_DOCUMENT;
use super::public_address::{NotPublicHost, PublicResolver, is_public};
use super::reference::{RegistryReference, host_address, is_loopback_host};
use super::source::Deliverer;
use super::stream::Chunk;

/// Which registries may be talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryAccess {
    /// Those on the internet, over TLS. What an owner's machine allows.
    PublicOnly,
    /// Also those on this machine, over plain HTTP. For tests and `--lab`.
    LoopbackToo,
}

const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
const ANYTHING: &str = "*/*";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A transfer may take hours, but not stand still.
const STANDSTILL: Duration = Duration::from_secs(60);
const MOST_REDIRECTS: usize = 5;
/// An image has up to 127 layers, and a registry counts connections.
const QUESTIONS_AT_ONCE: usize = 8;
const LARGEST_TOKEN_ANSWER: u64 = 64 << 10;

/// One registry, for the time of one image.
pub(crate) struct Registry {
    http: Client,
    reference: RegistryReference,
    access: RegistryAccess,
    token: Mutex<Option<String>>,
}

impl Registry {
    /// Talks to nobody yet.
    ///
    /// # Errors
    /// [`ImageError::NotPublic`], or [`ImageError::Registry`] where TLS cannot be set up.
    pub(crate) fn new(reference: &RegistryReference, access: RegistryAccess) -> Result<Self, ImageError> {
        check_host(reference.host(), access).map_err(|NotPublicHost(host)| ImageError::NotPublic { host })?;
        // Ours alone in this process; a second installation answers with an error that means "already there".
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("sela/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STANDSTILL)
            .redirect(Policy::custom(move |attempt| redirect(attempt, access)));
        builder = if reference.is_loopback() {
            builder.no_proxy()
        } else {
            builder.https_only(true).dns_resolver(Arc::new(PublicResolver))
        };
        let http = builder.build().map_err(|error| failed(reference, &error))?;
        Ok(Self {
            http,
            reference: reference.clone(),
            access,
            token: Mutex::new(None),
        })
    }

    /// Who this is to the cache.
    pub(crate) fn deliverer(&self) -> Deliverer {
        Deliverer::registry(&self.reference.authority())
    }

    /// An index or manifest, its digest verified.
    pub(crate) async fn manifest(&self, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        let answer = self.get(Part::Manifest, digest).await?;
        self.document(answer, Part::Manifest, digest).await
    }

    /// A config, its digest verified.
    pub(crate) async fn config(&self, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        let answer = self.get(Part::Config, digest).await?;
        self.document(answer, Part::Config, digest).await
    }

    /// A layer's blob, still to be read and verified.
    pub(crate) async fn layer(&self, digest: BlobId) -> Result<Response, ImageError> {
        self.get(Part::Layer(digest), digest).await
    }

    /// Asks whether all of these would be given to this job now, transferring none of them.
    ///
    /// # Errors
    /// What the registry says of the first that it would not give.
    pub(crate) async fn allows(&self, parts: &[(Part, BlobId)]) -> Result<(), ImageError> {
        let Some((first, rest)) = parts.split_first() else {
            return Ok(());
        };
        // The first one alone fetches the token that the others show.
        self.allows_one(*first).await?;
        let questions: Vec<_> = rest.iter().map(|part| self.allows_one(*part)).collect();
        stream::iter(questions)
            .buffer_unordered(QUESTIONS_AT_ONCE)
            .try_collect()
            .await
    }

    async fn allows_one(&self, (part, digest): (Part, BlobId)) -> Result<(), ImageError> {
        let answer = self.ask(Method::HEAD, part, digest).await?;
        if answer.status() == StatusCode::OK {
            return Ok(());
        }
        // Some registries' stores sign addresses for GET only; of its answer only the head is read.
        self.get(part, digest).await.map(drop)
    }

    /// Sends a layer's bytes to who unpacks them; ends early where nobody listens any more.
    pub(crate) async fn pump(
        reference: RegistryReference,
        mut answer: Response,
        chunks: mpsc::Sender<Chunk>,
        mut count: impl FnMut(u64),
    ) {
        loop {
            let chunk = match answer.chunk().await {
                Ok(Some(bytes)) => {
                    count(bytes.len() as u64);
                    Chunk::Bytes(bytes)
                }
                Ok(None) => Chunk::End,
                Err(error) => Chunk::Failed(failed(&reference, &error)),
            };
            let last = !matches!(chunk, Chunk::Bytes(_));
            if chunks.send(chunk).await.is_err() || last {
                return;
            }
        }
    }

    async fn get(&self, part: Part, digest: BlobId) -> Result<Response, ImageError> {
        let answer = self.ask(Method::GET, part, digest).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            status => Err(self.refused(status, part)),
        }
    }

    /// Asks for a part, with a token where one is asked for; whatever the answer.
    async fn ask(&self, method: Method, part: Part, digest: BlobId) -> Result<Response, ImageError> {
        let reference = &self.reference;
        let scheme = if reference.is_loopback() { "http" } else { "https" };
        let (place, accept) = match part {
            Part::Manifest | Part::Index => ("manifests", MANIFESTS),
            Part::Archive | Part::Config | Part::Layer(_) | Part::Blob(_) => ("blobs", ANYTHING),
        };
        let (authority, repository) = (reference.authority(), reference.repository());
        let url = format!("{scheme}://{authority}/v2/{repository}/{place}/{digest}");
        let shown = self.token.lock().await.clone();
        let answer = self.send(&method, &url, accept, shown.as_deref()).await?;
        if answer.status() == StatusCode::UNAUTHORIZED
            && shown.is_none()
            && let Some(challenge) = challenge_of(&answer)
        {
            let mut token = self.token.lock().await;
            let fresh = match token.take() {
                Some(fetched_meanwhile) => fetched_meanwhile,
                None => self.ask_for_token(&challenge).await?,
            };
            *token = Some(fresh.clone());
            drop(token);
            return self.send(&method, &url, accept, Some(&fresh)).await;
        }
        Ok(answer)
    }

    async fn send(
        &self,
        method: &Method,
        url: &str,
        accept: &str,
        token: Option<&str>,
    ) -> Result<Response, ImageError> {
        let mut request = self.http.request(method.clone(), url).header(ACCEPT, accept);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.map_err(|error| failed(&self.reference, &error))
    }

    /// The token that anybody gets: no password of anybody's is ever sent.
    async fn ask_for_token(&self, challenge: &TokenChallenge) -> Result<String, ImageError> {
        let unusable = || {
            self.error(
                "it asks for a login in a way that cannot be answered; use another registry",
                true,
            )
        };
        let mut url: Url = challenge.realm.parse().map_err(|_| unusable())?;
        check_url(&url, self.access).map_err(|NotPublicHost(host)| ImageError::NotPublic { host })?;
        let scope = format!("repository:{}:pull", self.reference.repository());
        url.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = &challenge.service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let answer = self
            .http
            .get(url)
            .send()
            .await
            .map_err(|error| failed(&self.reference, &error))?;
        if answer.status() != StatusCode::OK {
            return Err(self.refused(answer.status(), Part::Manifest));
        }
        let bytes = self
            .read_all(answer, LARGEST_TOKEN_ANSWER)
            .await?
            .ok_or_else(unusable)?;
        let token: TokenAnswer = serde_json::from_slice(&bytes).map_err(|_| unusable())?;
        token.token.or(token.access_token).ok_or_else(unusable)
    }

    async fn document(&self, answer: Response, part: Part, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        let too_large = ImageError::DocumentTooLarge {
            part,
            limit: Bytes(LARGEST_DOCUMENT),
        };
        let bytes = self.read_all(answer, LARGEST_DOCUMENT).await?.ok_or(too_large)?;
        let actual = BlobId::of(&bytes);
        if actual != digest {
            return Err(ImageError::WrongDigest {
                part,
                expected: digest,
                actual,
            });
        }
        Ok(bytes)
    }

    /// `None` where the answer is longer than `limit`.
    async fn read_all(&self, mut answer: Response, limit: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| failed(&self.reference, &error))? {
            if (bytes.len() + chunk.len()) as u64 > limit {
                return Ok(None);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Some(bytes))
    }

    fn refused(&self, status: StatusCode, part: Part) -> ImageError {
        match status {
            StatusCode::NOT_FOUND => {
                let reason = format!(
                    "it has no such {part} in {}; check the reference",
                    self.reference.repository()
                );
                self.error(reason, true)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.error(
                "it asks for a login, and jobs bring none; make the repository public",
                true,
            ),
            StatusCode::TOO_MANY_REQUESTS => self.error("it asks to wait; try again later", false),
            status if status.is_server_error() => self.error(format!("it answered {status}; try again later"), false),
            status => self.error(
                format!("it answered {status} for the {part}; use another registry"),
                true,
            ),
        }
    }

    fn error(&self, reason: impl Into<String>, reference_at_fault: bool) -> ImageError {
        ImageError::Registry {
            host: self.reference.authority(),
            reason: reason.into(),
            reference_at_fault,
        }
    }
}

/// What an HTTP client says, without its URL (which may hold a token) and with the cause that a person understands.
fn failed(reference: &RegistryReference, error: &reqwest::Error) -> ImageError {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    loop {
        if let Some(NotPublicHost(host)) = cause.downcast_ref::<NotPublicHost>() {
            return ImageError::NotPublic { host: host.clone() };
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => break,
        }
    }
    let reason = match cause.is::<reqwest::Error>() {
        true if error.is_timeout() => "no answer in time; check the network".to_owned(),
        true => "the answer could not be understood; use another registry".to_owned(),
        false => format!("{cause}; check the network and the registry's name"),
    };
    ImageError::Registry {
        host: reference.authority(),
        reason,
        reference_at_fault: false,
    }
}

fn redirect(attempt: Attempt<'_>, access: RegistryAccess) -> reqwest::redirect::Action {
    if attempt.previous().len() > MOST_REDIRECTS {
        return attempt.error(std::io::Error::other("it redirects without end"));
    }
    match check_url(attempt.url(), access) {
        Ok(()) => attempt.follow(),
        Err(error) => attempt.error(error),
    }
}

/// Plain HTTP only to this machine, and this machine only where it is allowed.
fn check_url(url: &Url, access: RegistryAccess) -> Result<(), NotPublicHost> {
    let host = url.host_str().unwrap_or_default();
    check_host(host, access)?;
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_loopback_host(host) => Ok(()),
        _ => Err(NotPublicHost(format!("{}://{host}", url.scheme()))),
    }
}

/// Names are asked about again when they are resolved.
fn check_host(host: &str, access: RegistryAccess) -> Result<(), NotPublicHost> {
    let allowed = match host_address(host) {
        _ if is_loopback_host(host) => access == RegistryAccess::LoopbackToo,
        Some(address) => is_public(address),
        None => !host.is_empty(),
    };
    if allowed {
        Ok(())
    } else {
        Err(NotPublicHost(host.to_owned()))
    }
}

fn challenge_of(answer: &Response) -> Option<TokenChallenge> {
    let values = answer.headers().get_all(WWW_AUTHENTICATE);
    values
        .iter()
        .find_map(|value| TokenChallenge::parse(value.to_str().ok()?))
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// Where a registry says that tokens are to be had: `WWW-Authenticate: Bearer realm="…",service="…"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenChallenge {
    /// URL of the token server.
    pub realm: String,
    /// Which of its services is meant.
    pub service: Option<String>,
}

impl TokenChallenge {
    /// Reads the header's value (RFC 9110 §11.6.1, one challenge); `None` for anything but a Bearer challenge with a realm.
    pub fn parse(value: &str) -> Option<Self> {
        let (scheme, mut rest) = value.trim_start().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                break;
            }
            let (name, after) = rest.split_once('=')?;
            let (text, after) = read_value(after)?;
            match name.trim().to_ascii_lowercase().as_str() {
                "realm" => realm = Some(text),
                "service" => service = Some(text),
                _ => {}
            }
            rest = after;
        }
        Some(Self { realm: realm?, service })
    }
}

/// A token or a quoted string, and what follows it.
fn read_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(',').unwrap_or(text.len());
        return Some((text[..end].trim().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_challenge_is_read_in_every_spelling() {
        let check = |value, expected: Option<(&str, Option<&str>)>| {
            let parsed = TokenChallenge::parse(value);
            let expected = expected.map(|(realm, service)| TokenChallenge {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
            });
            assert_eq!(parsed, expected, "{value}");
        };
        check(
            r#"Bearer realm="https://a/t",service="s",scope="x:y""#,
            Some(("https://a/t", Some("s"))),
        );
        check(
            r#"bearer scope="a,b" , realm="https://a/t""#,
            Some(("https://a/t", None)),
        );
        check(
            r#"Bearer realm=https://a/t,service=s"#,
            Some(("https://a/t", Some("s"))),
        );
        check(r#"Bearer realm="a\"b""#, Some(("a\"b", None)));
        check(r#"Bearer realm="unfinished"#, None);
        check(r#"Bearer service="s""#, None);
        check(r#"Basic realm="r""#, None);
        check("Bearer", None);
        check("", None);
    }

    #[test]
    fn neither_redirects_nor_token_servers_lead_into_the_owners_network() {
        let check = |url: &str, access, expected: bool| {
            let parsed = url.parse().expect(url);
            assert_eq!(check_url(&parsed, access).is_ok(), expected, "{url} {access:?}");
        };
        use RegistryAccess::{LoopbackToo, PublicOnly};
        check("https://cdn.example/x", PublicOnly, true);
        check("https://1.1.1.1/x", PublicOnly, true);
        check("http://cdn.example/x", PublicOnly, false);
        check("https://192.168.1.1/reboot", PublicOnly, false);
        check("https://[fe80::1]/x", PublicOnly, false);
        check("https://169.254.169.254/latest", PublicOnly, false);
        check("https://localhost/x", PublicOnly, false);
        check("http://127.0.0.1:5000/x", PublicOnly, false);
        check("http://127.0.0.1:5000/x", LoopbackToo, true);
        check("http://[::1]:5000/x", LoopbackToo, true);
        check("http://192.168.1.1/x", LoopbackToo, false);
        check("ftp://cdn.example/x", LoopbackToo, false);
    }
}
