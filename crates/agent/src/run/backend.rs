//! Which backend walls jobs in: what the owner wants, and what this machine has. Asks engines, runs nothing.

use crate::settings::{Backend, Settings};
use sela_protocol::local::IsolationState;
use sela_protocol::node::Isolation;
use sela_sandbox::docker::{self, EngineFound, EngineKind, EnginePlace};
use sela_sandbox::probe::{Machine, Probe};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long an engine may take to say what it is like, and to let go of what an earlier run left.
const PATIENCE: Duration = Duration::from_secs(20);

/// What was chosen.
pub(crate) struct Chosen {
    /// The level that jobs get, or why they get none.
    pub(crate) isolation: IsolationState,
    /// The engine, where one walls jobs in.
    pub(crate) engine: Option<EngineFound>,
}

/// Chooses: what the owner named, or with `auto` the native backend where it can be, else the first engine that is fit.
pub(crate) async fn choose(settings: &Settings, machine: &Machine, found: &Probe, lab: bool) -> Chosen {
    let native = || Chosen {
        isolation: found.state.clone(),
        engine: None,
    };
    let wanted = match settings.backend {
        Backend::Native => return native(),
        Backend::Auto if found.layout.is_some() => return native(),
        Backend::Auto => vec![EngineKind::Docker, EngineKind::Podman],
        Backend::Docker => vec![EngineKind::Docker],
        Backend::Podman => vec![EngineKind::Podman],
    };
    let mut reasons = Vec::new();
    for kind in wanted {
        match look(&place(settings, kind), machine, lab).await {
            Ok(engine) => {
                tracing::info!(%kind, version = engine.version, remapped = engine.remapped, "jobs run in containers");
                return Chosen {
                    isolation: IsolationState::Ready { level: level(kind) },
                    engine: Some(engine),
                };
            }
            Err(why) => reasons.push(why),
        }
    }
    match (settings.backend, &found.state) {
        // With nothing named by the owner, what the native backend lacks is the better advice.
        (Backend::Auto, IsolationState::Missing { .. }) => native(),
        (Backend::Auto | Backend::Native | Backend::Docker | Backend::Podman, _) => Chosen {
            isolation: IsolationState::Missing {
                why: reasons.join("; "),
            },
            engine: None,
        },
    }
}

async fn look(place: &EnginePlace, machine: &Machine, lab: bool) -> Result<EngineFound, String> {
    docker::fits(machine, lab)?;
    match tokio::time::timeout(PATIENCE, docker::look(place)).await {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(format!("{} does not answer", place.kind)),
    }
}

/// Where an engine of the owner's listens.
pub(crate) fn place(settings: &Settings, kind: EngineKind) -> EnginePlace {
    let usual = EnginePlace::usual(kind);
    let named = match (kind, settings.backend) {
        (EngineKind::Docker, Backend::Docker) | (EngineKind::Podman, Backend::Podman) => settings.engine_socket.clone(),
        (EngineKind::Docker | EngineKind::Podman, _) => None,
    };
    EnginePlace {
        socket: named.unwrap_or_else(|| usual.socket.clone()),
        ..usual
    }
}

const fn level(kind: EngineKind) -> Isolation {
    match kind {
        EngineKind::Docker => Isolation::Docker,
        EngineKind::Podman => Isolation::Podman,
    }
}

/// Removes what an earlier run left in any engine, whichever is used now; says whose it was.
pub(super) async fn sweep(settings: &Settings, agent: &str) -> BTreeSet<String> {
    let mut leases = BTreeSet::new();
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let place = place(settings, kind);
        if !place.socket.exists() {
            continue;
        }
        match tokio::time::timeout(PATIENCE, docker::sweep(&place, agent)).await {
            Ok(Ok(found)) => leases.extend(found),
            Ok(Err(error)) => tracing::warn!(%error, "an engine could not be swept"),
            Err(_) => tracing::warn!(%kind, "an engine could not be swept: it does not answer"),
        }
    }
    leases
}
