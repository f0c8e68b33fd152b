//! A login at a registry, as a job brings it among its secrets. It is shown to that registry and to the token server that the
//! registry names, and to nobody else; it never stands in a log, an error or a debug output.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderValue;
use sela_protocol::confidential::SecretValue;

/// The secret of a job that holds the login at its image's registry: `user:password`.
pub const LOGIN_SECRET: &str = "registry-login";

/// User and password, or user and access token, at the registry of one image.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    user: String,
    password: SecretValue,
}

/// A text that is no login. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret {LOGIN_SECRET} reads user:password, each without line breaks")]
pub struct RegistryLoginError;

impl RegistryLogin {
    /// Reads `user:password`; a password may hold further colons.
    ///
    /// # Errors
    /// [`RegistryLoginError`].
    pub fn parse(text: &str) -> Result<Self, RegistryLoginError> {
        // A file's last line break is the editor's.
        let text = text.trim_end_matches(['\r', '\n']);
        let (user, password) = text.split_once(':').ok_or(RegistryLoginError)?;
        if user.is_empty() || password.is_empty() || text.chars().any(char::is_control) {
            return Err(RegistryLoginError);
        }
        Ok(Self {
            user: user.to_owned(),
            password: SecretValue::new(password.to_owned()),
        })
    }

    /// As RFC 7617 has it.
    pub(crate) fn basic(&self) -> HeaderValue {
        let encoded = STANDARD.encode(format!("{}:{}", self.user, self.password.reveal()));
        let mut value =
            HeaderValue::from_str(&format!("Basic {encoded}")).expect("Base64 has only letters of a header");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RegistryLogin(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_read_and_shows_nowhere() {
        let login = RegistryLogin::parse("worker:pass:word\n").expect("a login");
        assert_eq!(login.basic(), "Basic d29ya2VyOnBhc3M6d29yZA==");
        let shown = format!("{login:?} {:?}", login.basic());
        assert!(
            !shown.contains("worker") && !shown.contains("pass") && !shown.contains("d29y"),
            "{shown}"
        );
        for bad in ["", "worker", ":password", "worker:", "a\nb:c", "a:b\nc"] {
            let error = RegistryLogin::parse(bad).expect_err(bad);
            assert!(
                bad.is_empty() || !error.to_string().contains(&format!("\"{bad}\"")),
                "{error}"
            );
        }
    }
}
