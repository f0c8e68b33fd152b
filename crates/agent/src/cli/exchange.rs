//! The exchange as a tenant speaks to it: addresses, the API key, requests and their errors. What is asked is the commands'.

use super::ExchangeArgs;
use super::end::CliError;
use crate::paths::Paths;
use crate::settings::url_of_market::MarketUrl;
use reqwest::{Client, Method, RequestBuilder, Response};
use sela_protocol::local::Problem;
use sela_protocol::written::{self, Fields};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(15);
const STANDSTILL: Duration = Duration::from_secs(60);
const FIELDS: Fields = Fields::flat(&["exchange", "api_key"]);

/// `tenant.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TenantFile {
    exchange: Option<String>,
    api_key: Option<String>,
}

/// An exchange and the key to a tenant's account there.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    http: Client,
    url: MarketUrl,
    api_key: String,
}

impl Exchange {
    /// From the command line, the environment and `tenant.toml`, in this order.
    ///
    /// # Errors
    /// What is missing, and where it may be set.
    pub(crate) fn of(asked: &ExchangeArgs) -> Result<Self, CliError> {
        let path = Paths::from_environment()?.tenant();
        let file = read_tenant_file(&path)?;
        let url = asked.exchange.clone().or(file.exchange).ok_or_else(|| {
            CliError::Usage(format!(
                "which exchange? Give --exchange URL, or set SELA_EXCHANGE, or write exchange = \"…\" into {}",
                path.display()
            ))
        })?;
        let url = MarketUrl::parse(&url).map_err(|error| CliError::Usage(error.to_string()))?;
        let api_key = std::env::var("SELA_API_KEY").ok().or(file.api_key).ok_or_else(|| {
            CliError::Refused(format!(
                "no API key: set SELA_API_KEY, or write api_key = \"…\" into {} (mode 0600); the exchange's operator gives one",
                path.display()
            ))
        })?;
        Ok(Self {
            http: client()?,
            url,
            api_key,
        })
    }

    /// A request with the key; `path` starts with a slash.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, self.url.http(path))
            .bearer_auth(&self.api_key)
    }

    /// Sends a request; an answer that is no success is an error in the exchange's words.
    ///
    /// # Errors
    /// Refused, or not reached.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, CliError> {
        let response = request.send().await.map_err(|error| self.not_reached(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let problem = response.json::<Problem>().await.unwrap_or_else(|_| Problem {
            code: "unknown".to_owned(),
            status: status.as_u16(),
            detail: format!("the server at {} answered {status}; is it an exchange?", self.url),
        });
        Err(CliError::of_problem(&problem))
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// As [`Self::send`], and an answer that does not read.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, CliError> {
        let response = self.send(request).await?;
        response.json().await.map_err(|error| self.not_reached(&error))
    }

    /// Gets what is at a path.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.ask(self.request(Method::GET, path)).await
    }

    pub(crate) fn not_reached(&self, error: &reqwest::Error) -> CliError {
        let mut why = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            why = cause.to_string();
            source = cause.source();
        }
        CliError::Unavailable(format!("the exchange at {} is not reached: {why}", self.url))
    }
}

/// A client without a key, and without redirects, to which a key might be carried.
///
/// # Errors
/// Where TLS cannot be set up.
pub(crate) fn client() -> Result<Client, CliError> {
    crate::market::install_tls();
    Client::builder()
        .user_agent(concat!("sela/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .read_timeout(STANDSTILL)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| CliError::Failed(format!("TLS could not be set up: {error}")))
}

fn read_tenant_file(path: &Path) -> Result<TenantFile, CliError> {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(TenantFile::default()),
        Err(error) => return Err(CliError::Failed(format!("{shown} cannot be read: {error}"))),
    };
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(CliError::Refused(format!(
            "{shown} holds a key and may be read by others; run `chmod 600 {shown}`"
        )));
    }
    let value: serde_json::Value =
        toml_edit::de::from_str(&text).map_err(|error| CliError::Usage(format!("{shown}: {error}")))?;
    written::from_value(value, &FIELDS).map_err(|error| CliError::Usage(format!("{shown}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_others_may_read_is_not_used_and_a_typo_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tenant.toml");
        assert!(read_tenant_file(&path).expect("no file is no error").api_key.is_none());
        let write = |text: &str, mode| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        write("api_key = \"k\"\n", 0o644);
        let error = read_tenant_file(&path).expect_err("others may read it");
        assert!(
            matches!(&error, CliError::Refused(text) if text.contains("chmod 600")),
            "{error}"
        );
        write("api_kee = \"k\"\n", 0o600);
        let error = read_tenant_file(&path).expect_err("a typo");
        assert!(error.to_string().contains("did you mean \"api_key\""), "{error}");
        write("api_key = \"k\"\nexchange = \"http://127.0.0.1:7350\"\n", 0o600);
        assert_eq!(read_tenant_file(&path).expect("good").api_key.as_deref(), Some("k"));
    }
}
