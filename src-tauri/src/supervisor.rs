//! Asks the system's supervisor for the agent: on Linux the user's systemd, over the session bus. No process is started here:
//! whoever has no such supervisor is told what to type.

use std::time::Duration;

/// The unit that runs the agent.
const UNIT: &str = "sela-agent.service";

/// Longer than that no supervisor takes to queue a start.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The agent is being started.
    Starting,
    /// There is nobody who could start it, or no unit of it.
    Cannot {
        /// What was said.
        why: String,
        /// What to type instead.
        remedy: Remedy,
    },
}

/// What an owner can type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Look at the unit, which is there and does not start.
    StartUnit,
    /// Run the agent by hand.
    RunAgent,
}

impl Remedy {
    /// The command that starts the agent.
    pub(crate) const fn start(self) -> &'static str {
        match self {
            Self::StartUnit => "systemctl --user start sela-agent.service",
            Self::RunAgent => "sela agent run",
        }
    }
}

impl Answer {
    /// What came of asking, to follow the client's own words, which say how to run the agent by hand.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Starting => format!("the system was asked to start {UNIT}"),
            Self::Cannot { why, .. } => why.clone(),
        }
    }
}

/// Asks for the agent; answers within a few seconds, whatever happens.
pub(crate) async fn ask_for_agent() -> Answer {
    match tokio::time::timeout(PATIENCE, start_unit()).await {
        Ok(answer) => answer,
        Err(_) => Answer::Cannot {
            why: format!("the system did not answer within {} s", PATIENCE.as_secs()),
            remedy: Remedy::StartUnit,
        },
    }
}

#[cfg(target_os = "linux")]
async fn start_unit() -> Answer {
    let asked = async {
        let bus = zbus::Connection::session().await?;
        bus.call_method(
            Some("org.freedesktop.systemd1"),
            "/org/freedesktop/systemd1",
            Some("org.freedesktop.systemd1.Manager"),
            "StartUnit",
            &(UNIT, "replace"),
        )
        .await
    };
    match asked.await {
        Ok(_job) => Answer::Starting,
        Err(error) => refused(&error),
    }
}

#[cfg(target_os = "linux")]
fn refused(error: &zbus::Error) -> Answer {
    // Only systemd's own errors come by name; a bus that does not know systemd answers with one of its own.
    let (name, said) = if let zbus::Error::MethodError(name, said, _) = error {
        (name.as_str(), said.clone())
    } else {
        ("", None)
    };
    let told = said.unwrap_or_else(|| error.to_string());
    if name.starts_with("org.freedesktop.systemd1.") && !name.ends_with("NoSuchUnit") {
        return Answer::Cannot {
            why: format!("systemd does not start {UNIT}: {told}"),
            remedy: Remedy::StartUnit,
        };
    }
    let why = if name.ends_with("NoSuchUnit") {
        format!("{UNIT} is not installed")
    } else {
        format!("no systemd of this user answers: {told}")
    };
    Answer::Cannot {
        why,
        remedy: Remedy::RunAgent,
    }
}

/// The logon task of Windows and the LaunchAgent of macOS come with their installers; until then the owner is told.
#[cfg(not(target_os = "linux"))]
async fn start_unit() -> Answer {
    Answer::Cannot {
        why: "nothing on this system starts the agent by itself yet".to_owned(),
        remedy: Remedy::RunAgent,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_start_it_says_what_to_type() {
        let answer = refused(&zbus::Error::InterfaceNotFound);
        assert!(matches!(
            &answer,
            Answer::Cannot {
                remedy: Remedy::RunAgent,
                ..
            }
        ));
        assert!(
            answer.sentence().starts_with("no systemd of this user answers"),
            "{answer:?}"
        );
    }
}
