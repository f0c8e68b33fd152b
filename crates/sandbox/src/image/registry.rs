//! Pulls from a registry (OCI distribution specification 1.1): documents and blobs by digest, with the job's login or with none,
//! shown as the registry asks for it: a token of its token server's, or the login itself. A registry is named by a stranger:
//! every answer is read with a limit, and neither it nor its redirects can lead into the owner's network.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, HeaderValue, LOCATION, RANGE, WWW_AUTHENTICATE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode, Url};
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use super::error::{ImageError, Part};
use super::login::{LOGIN_SECRET, RegistryLogin};
use super::manifest::{LARGEST_DOCUMENT, Layer};
use super::proxy::Proxy;
use super::public_address::{NotPublicHost, check_name, is_public};
use super::reference::{RegistryReference, host_address, is_loopback_host};
use super::source::Deliverer;

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

const UNANSWERABLE: &str = "it asks for a login in a way that cannot be answered; use another registry";

/// One registry, for the time of one image.
pub(crate) struct Registry {
    http: Client,
    reference: RegistryReference,
    access: RegistryAccess,
    proxied: bool,
    login: Option<RegistryLogin>,
    /// What is shown with each request: nothing before it was asked for.
    shown: Mutex<Option<HeaderValue>>,
}

/// One request, to be sent with this login or that.
struct Asking {
    method: Method,
    url: Url,
    accept: &'static str,
    from: u64,
}

impl Registry {
    /// Talks to nobody yet.
    ///
    /// # Errors
    /// [`ImageError::NotPublic`], or [`ImageError::Registry`] where TLS cannot be set up.
    pub(crate) fn new(
        reference: &RegistryReference,
        access: RegistryAccess,
        proxy: &Proxy,
        login: Option<&RegistryLogin>,
    ) -> Result<Self, ImageError> {
        check_host(reference.host(), access).map_err(|NotPublicHost(host)| ImageError::NotPublic { host })?;
        // Ours alone in this process; a second installation answers with an error that means "already there".
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("sela/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STANDSTILL)
            .redirect(Policy::none());
        builder = if reference.is_loopback() {
            builder.no_proxy()
        } else {
            let through = proxy.apply(builder.https_only(true));
            through.map_err(|error| failed(reference, &error))?
        };
        let http = builder.build().map_err(|error| failed(reference, &error))?;
        Ok(Self {
            http,
            reference: reference.clone(),
            access,
            proxied: proxy.is_some() && !reference.is_loopback(),
            login: login.cloned(),
            shown: Mutex::new(None),
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

    /// A layer's blob from byte `from` on, still to be read and verified, and how many bytes before that come first.
    pub(crate) async fn layer(&self, digest: BlobId, from: u64) -> Result<(Response, u64), ImageError> {
        let part = Part::Layer(digest);
        let answer = self.ask(Method::GET, part, digest, from).await?;
        match answer.status() {
            StatusCode::OK => Ok((answer, from)),
            StatusCode::PARTIAL_CONTENT if first_byte_of(&answer) == Some(from) => Ok((answer, 0)),
            StatusCode::PARTIAL_CONTENT => Err(self.error("it sent another part than was asked for; try again", false)),
            status => Err(self.refused(status, part)),
        }
    }

    /// Has a layer sent that the cache has already, and hashes it: it is worth something only as a proof.
    pub(crate) async fn prove(&self, layer: &Layer) -> Result<(), ImageError> {
        let part = Part::Layer(layer.digest);
        let (mut answer, _) = self.layer(layer.digest, 0).await?;
        let (mut hash, mut count) = (Sha256::new(), 0);
        while let Some(bytes) = self.next(&mut answer).await? {
            count += bytes.len() as u64;
            if count > layer.size {
                break;
            }
            hash.update(&bytes);
        }
        let actual = BlobId::from_hash(hash.finalize().into());
        if count != layer.size {
            return Err(ImageError::WrongSize {
                part,
                expected: layer.size,
                actual: count,
            });
        }
        if actual != layer.digest {
            return Err(ImageError::WrongDigest {
                part,
                expected: layer.digest,
                actual,
            });
        }
        Ok(())
    }

    /// What comes next of an answer; `None` at its end.
    pub(crate) async fn next(&self, answer: &mut Response) -> Result<Option<bytes::Bytes>, ImageError> {
        answer.chunk().await.map_err(|error| failed(&self.reference, &error))
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
        let answer = self.ask(Method::HEAD, part, digest, 0).await?;
        if answer.status() == StatusCode::OK {
            return Ok(());
        }
        // Some registries' stores sign addresses for GET only; of its answer only the head is read.
        self.get(part, digest).await.map(drop)
    }

    async fn get(&self, part: Part, digest: BlobId) -> Result<Response, ImageError> {
        let answer = self.ask(Method::GET, part, digest, 0).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            status => Err(self.refused(status, part)),
        }
    }

    /// Asks for a part, from byte `from` on, with a login where one is asked for; whatever the answer.
    async fn ask(&self, method: Method, part: Part, digest: BlobId, from: u64) -> Result<Response, ImageError> {
        let reference = &self.reference;
        let scheme = if reference.is_loopback() { "http" } else { "https" };
        let (place, accept) = match part {
            Part::Manifest | Part::Index => ("manifests", MANIFESTS),
            Part::Archive | Part::Config | Part::Layer(_) | Part::Blob(_) => ("blobs", ANYTHING),
        };
        let (authority, repository) = (reference.authority(), reference.repository());
        let url = format!("{scheme}://{authority}/v2/{repository}/{place}/{digest}");
        let url = url
            .parse()
            .map_err(|_| self.error("its name cannot stand in a URL", true))?;
        let asking = Asking {
            method,
            url,
            accept,
            from,
        };
        let shown = self.shown.lock().await.clone();
        let answer = self.send(&asking, shown.as_ref()).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let challenge = challenge_of(&answer);
        drop(answer);
        // A token lasts for minutes and a transfer for hours: what was shown may have been good before.
        let mut now = self.shown.lock().await;
        if *now == shown {
            *now = Some(self.authorization(challenge).await?);
        }
        let fresh = now.clone();
        drop(now);
        self.send(&asking, fresh.as_ref()).await
    }

    /// Sends a request and follows where it is sent on to, never into a network that is not the internet. What was shown to the
    /// registry is shown to no other host.
    async fn send(&self, asking: &Asking, authorization: Option<&HeaderValue>) -> Result<Response, ImageError> {
        let mut url = asking.url.clone();
        for _ in 0..=MOST_REDIRECTS {
            self.check(&url).await?;
            let mut request = self.http.request(asking.method.clone(), url.clone());
            request = request.header(ACCEPT, asking.accept);
            if asking.from > 0 {
                request = request.header(RANGE, format!("bytes={}-", asking.from));
            }
            if let Some(value) = authorization.filter(|_| url.origin() == asking.url.origin()) {
                request = request.header(AUTHORIZATION, value.clone());
            }
            let answer = request.send().await.map_err(|error| failed(&self.reference, &error))?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            url = next.ok_or_else(|| self.error("it redirects to nowhere; use another registry", true))?;
        }
        Err(self.error("it redirects without end; use another registry", true))
    }

    /// Names are asked about here where a proxy resolves them, else when they are resolved.
    async fn check(&self, url: &Url) -> Result<(), ImageError> {
        let refused = |NotPublicHost(host)| ImageError::NotPublic { host };
        check_url(url, self.access).map_err(refused)?;
        let host = url.host_str().unwrap_or_default();
        if self.proxied && host_address(host).is_none() && !is_loopback_host(host) {
            check_name(host).await.map_err(refused)?;
        }
        Ok(())
    }

    /// What to show a registry that asks for a login.
    async fn authorization(&self, challenge: Option<Challenge>) -> Result<HeaderValue, ImageError> {
        match (challenge, &self.login) {
            (Some(Challenge::Token(challenge)), _) => {
                let token = self.ask_for_token(&challenge).await?;
                let unusable = |_| self.error(UNANSWERABLE, true);
                let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(unusable)?;
                value.set_sensitive(true);
                Ok(value)
            }
            (Some(Challenge::Basic), Some(login)) => Ok(login.basic()),
            (Some(Challenge::Basic) | None, None) | (None, Some(_)) => {
                Err(self.refused(StatusCode::UNAUTHORIZED, Part::Manifest))
            }
        }
    }

    /// The token for this repository: with the job's login where it has one, else the one that anybody gets.
    async fn ask_for_token(&self, challenge: &TokenChallenge) -> Result<String, ImageError> {
        let unusable = || self.error(UNANSWERABLE, true);
        let mut url: Url = challenge.realm.parse().map_err(|_| unusable())?;
        let scope = format!("repository:{}:pull", self.reference.repository());
        url.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = &challenge.service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let asking = Asking {
            method: Method::GET,
            url,
            accept: ANYTHING,
            from: 0,
        };
        let login = self.login.as_ref().map(RegistryLogin::basic);
        let answer = self.send(&asking, login.as_ref()).await?;
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
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.login.is_some() => self.error(
                format!(
                    "it does not let this login pull {}; check user, password and rights",
                    self.reference.repository()
                ),
                true,
            ),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.error(
                format!("it asks for a login; give the job the secret {LOGIN_SECRET} or make the repository public"),
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

/// The first byte of a partial answer (RFC 9110 §14.4: `bytes 7-11/12`).
fn first_byte_of(answer: &Response) -> Option<u64> {
    let range = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

/// How a registry wants to be shown a login.
enum Challenge {
    Token(TokenChallenge),
    Basic,
}

/// A token is preferred: it holds for one repository and a few minutes.
fn challenge_of(answer: &Response) -> Option<Challenge> {
    let values = answer.headers().get_all(WWW_AUTHENTICATE);
    let texts: Vec<&str> = values.iter().filter_map(|value| value.to_str().ok()).collect();
    let token = texts.iter().find_map(|text| TokenChallenge::parse(text));
    let is_basic = |text: &&str| {
        let scheme = text.trim_start().split(' ').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case("basic")
    };
    token
        .map(Challenge::Token)
        .or_else(|| texts.iter().any(is_basic).then_some(Challenge::Basic))
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
