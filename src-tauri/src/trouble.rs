//! How the agent was not reached, as one closed list that the tray, the notifications and the window's page all take. What to
//! do about it is decided in the controller.

use sela_client::ClientError;
use serde::Serialize;

/// What kind of trouble. The page's transport knows the same words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Nobody listens.
    NotRunning,
    /// The socket is another user's.
    NotAllowed,
    /// The agent said no.
    Refused,
    /// What came does not read, or broke off.
    Broken,
}

/// Why the agent did not answer as hoped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Trouble {
    /// What kind.
    #[serde(rename = "trouble")]
    pub(crate) kind: Kind,
    /// What was tried and what came of it, for people.
    pub(crate) message: String,
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Self {
        let kind = match &error {
            ClientError::NotRunning { .. } => Kind::NotRunning,
            ClientError::NotAllowed { .. } => Kind::NotAllowed,
            ClientError::Refused(_) => Kind::Refused,
            ClientError::OtherVersion { .. } | ClientError::Broken { .. } => Kind::Broken,
        };
        Self {
            kind,
            message: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_gets_the_kind_by_the_name_that_it_knows() {
        let trouble = Trouble::from(ClientError::NotRunning {
            socket: "/nowhere/agent.sock".into(),
        });
        let json = serde_json::to_value(&trouble).expect("writes");
        assert_eq!(json["trouble"], "not_running");
        assert!(json["message"].as_str().expect("text").contains("/nowhere/agent.sock"));
    }
}
