//! The exchange's REST interface as somebody with a key sees it, good replies and bad ones.

use crate::PATIENCE;
use anyhow::{Context, bail, ensure};
use sela_protocol::local::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Most that is read of one reply.
const LONGEST_REPLY: u64 = 64 << 20;

/// A client with a key.
#[derive(Debug, Clone)]
pub struct Rest {
    url: String,
    key: String,
    http: ureq::Agent,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    path: String,
}

impl Rest {
    /// Speaks to `url` with `key`.
    pub fn new(url: &str, key: &str) -> Self {
        let http = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .timeout_connect(Some(Duration::from_secs(5)))
            .http_status_as_error(false)
            .proxy(None)
            .build()
            .into();
        Self {
            url: url.to_owned(),
            key: key.to_owned(),
            http,
        }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// `GET`, whatever the reply.
    ///
    /// # Errors
    /// Where nobody answers.
    pub fn ask(&self, path: &str) -> anyhow::Result<Reply> {
        let reply = self
            .http
            .get(self.at(path))
            .header("authorization", self.bearer())
            .call();
        self.reply(path, reply)
    }

    /// `POST` of a text, whatever the reply.
    ///
    /// # Errors
    /// Where nobody answers.
    pub fn post_text(&self, path: &str, body: &str) -> anyhow::Result<Reply> {
        let request = self.http.post(self.at(path)).header("authorization", self.bearer());
        self.reply(path, request.content_type("application/json").send(body))
    }

    /// `PUT` of bytes, whatever the reply.
    ///
    /// # Errors
    /// Where nobody answers.
    pub fn put(&self, path: &str, bytes: &[u8]) -> anyhow::Result<Reply> {
        let request = self.http.put(self.at(path)).header("authorization", self.bearer());
        self.reply(path, request.send(bytes))
    }

    /// `GET` of JSON.
    ///
    /// # Errors
    /// Where nobody answers or the answer is no good.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(path)?.json()
    }

    /// `POST` of JSON.
    ///
    /// # Errors
    /// Where nobody answers or the answer is no good.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.post_text(path, &serde_json::to_string(body)?)?.json()
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }

    fn reply(&self, path: &str, reply: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Reply> {
        let mut reply = reply.with_context(|| format!("the exchange at {} does not answer {path}", self.url))?;
        let body = reply.body_mut().with_config().limit(LONGEST_REPLY).read_to_vec();
        Ok(Reply {
            status: reply.status().as_u16(),
            body: body.with_context(|| format!("the reply to {path} breaks off"))?,
            path: path.to_owned(),
        })
    }
}

impl Reply {
    /// The body of a good reply as JSON.
    ///
    /// # Errors
    /// Where it is not good, or not what was expected.
    pub fn json<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let text = self.good()?;
        serde_json::from_slice(text)
            .with_context(|| format!("the reply to {} reads {}", self.path, String::from_utf8_lossy(text)))
    }

    /// The body of a good reply.
    ///
    /// # Errors
    /// Where it is not good.
    pub fn good(&self) -> anyhow::Result<&[u8]> {
        if (200..300).contains(&self.status) {
            return Ok(&self.body);
        }
        bail!(
            "{} was refused with {}: {}",
            self.path,
            self.status,
            String::from_utf8_lossy(&self.body)
        )
    }

    /// That it was refused with this status and code, in these words.
    ///
    /// # Errors
    /// Where it was not.
    pub fn refused(&self, status: u16, code: &str, words: &[&str]) -> anyhow::Result<()> {
        let problem: Problem = serde_json::from_slice(&self.body)
            .with_context(|| format!("{}: {}", self.status, String::from_utf8_lossy(&self.body)))?;
        ensure!(
            self.status == status && problem.code == code,
            "{}: {} {} instead of {status} {code}: {}",
            self.path,
            self.status,
            problem.code,
            problem.detail
        );
        for word in words {
            ensure!(
                problem.detail.contains(word),
                "should say \"{word}\": {}",
                problem.detail
            );
        }
        Ok(())
    }
}
