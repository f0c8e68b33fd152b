//! The exchange's REST interface on loopback, with one key. Requests and replies are words of `sela-protocol`; nothing is decided here.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Body;
use ureq::http::Response;

/// An exchange on this machine, spoken to by one who has a key.
#[derive(Debug)]
pub(crate) struct Rest {
    url: String,
    authorization: String,
    http: ureq::Agent,
}

impl Rest {
    /// Speaks to the exchange at `url` (`http://127.0.0.1:PORT`) with `key`.
    pub(crate) fn new(url: &str, key: &str) -> Self {
        let http = ureq::Agent::config_builder()
            // An image of 100 MB on a busy machine takes a while; nothing here takes longer.
            .timeout_global(Some(Duration::from_secs(120)))
            .http_status_as_error(false)
            // Nothing here may leave the machine, whatever the environment says.
            .proxy(None)
            .build()
            .into();
        Self {
            url: url.to_owned(),
            authorization: format!("Bearer {key}"),
            http,
        }
    }

    /// `GET`, and what came back.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        parse(path, &self.text(path)?)
    }

    /// `GET` of a text.
    pub(crate) fn text(&self, path: &str) -> anyhow::Result<String> {
        let reply = self
            .http
            .get(self.at(path))
            .header("authorization", &self.authorization)
            .call();
        let mut reply = self.good(path, reply)?;
        reply
            .body_mut()
            .read_to_string()
            .with_context(|| format!("the reply to {path} breaks off"))
    }

    /// `GET` of bytes, as a stream.
    pub(crate) fn stream(&self, path: &str) -> anyhow::Result<impl std::io::Read + use<>> {
        let reply = self
            .http
            .get(self.at(path))
            .header("authorization", &self.authorization)
            .call();
        Ok(self.good(path, reply)?.into_body().into_reader())
    }

    /// `POST` of a JSON body, and what came back.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        let reply = self
            .http
            .post(self.at(path))
            .header("authorization", &self.authorization)
            .send_json(body);
        let mut reply = self.good(path, reply)?;
        parse(
            path,
            &reply
                .body_mut()
                .read_to_string()
                .with_context(|| format!("the reply to {path} breaks off"))?,
        )
    }

    /// `PUT` of a file.
    pub(crate) fn put_file<T: DeserializeOwned>(&self, path: &str, file: &Path) -> anyhow::Result<T> {
        let file = std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let reply = self
            .http
            .put(self.at(path))
            .header("authorization", &self.authorization)
            .send(file);
        let mut reply = self.good(path, reply)?;
        parse(
            path,
            &reply
                .body_mut()
                .read_to_string()
                .with_context(|| format!("the reply to {path} breaks off"))?,
        )
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// A reply that is good; of any other, what it says.
    fn good(&self, path: &str, reply: Result<Response<Body>, ureq::Error>) -> anyhow::Result<Response<Body>> {
        let mut reply = reply.with_context(|| format!("the exchange at {} does not answer {path}", self.url))?;
        if !reply.status().is_success() {
            let said = reply.body_mut().read_to_string().unwrap_or_default();
            bail!("the exchange refused {path} with {}: {said}", reply.status());
        }
        Ok(reply)
    }
}

fn parse<T: DeserializeOwned>(path: &str, text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).with_context(|| format!("the reply to {path} is not what the protocol says: {text}"))
}
