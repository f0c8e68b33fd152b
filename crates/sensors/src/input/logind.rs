//! logind: which sessions there are on this machine's seats, and since when each is idle by its own hint. Signals wake it;
//! between them it is read as often as a sign of life is due. No bus is no reason; a bus that breaks is.

use super::{NewestInput, Sighting};
use crate::attention::Attention;
use futures_util::StreamExt;
use sela_protocol::units::BootMs;
use std::time::Duration;
use tokio::sync::mpsc;
use zbus::OwnedObjectPath;
use zbus::proxy;

/// After a failure the bus is tried again this much later.
const RETRY: Duration = Duration::from_secs(5);

#[proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Manager {
    fn list_sessions(&self) -> zbus::Result<Vec<(String, u32, String, String, OwnedObjectPath)>>;

    #[zbus(signal)]
    fn prepare_for_sleep(&self, start: bool) -> zbus::Result<()>;

    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;
}

#[proxy(
    interface = "org.freedesktop.login1.Session",
    default_service = "org.freedesktop.login1"
)]
trait Session {
    #[zbus(property(emits_changed_signal = "false"))]
    fn idle_hint(&self) -> zbus::Result<bool>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn idle_since_hint_monotonic(&self) -> zbus::Result<u64>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn class(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn state(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"), name = "Type")]
    fn kind(&self) -> zbus::Result<String>;
}

/// What logind tells besides input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Power {
    /// The machine goes to sleep (or has woken up).
    Sleep(bool),
    /// The machine shuts down.
    Shutdown,
}

/// What logind reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// About input.
    Input(Sighting),
    /// About power.
    Power(Power),
}

/// Watches logind until the receiver is gone. `display_watched`: this session's X display is watched by `x11`.
pub(crate) async fn watch(
    address: Option<String>,
    display_watched: bool,
    attention: Attention,
    reports: mpsc::Sender<Report>,
) {
    loop {
        let connection = match connect(address.as_deref()).await {
            Ok(connection) => connection,
            Err(error) => {
                // A machine without a system bus never gets one while it runs: nothing to try again.
                let absent = Sighting::Absent(format!("no system bus ({error})"));
                let _ = reports.send(Report::Input(absent)).await;
                return;
            }
        };
        match watch_bus(&connection, display_watched, &attention, &reports).await {
            Ok(()) => return,
            Err(error) if is_absent(&error) => {
                let absent = Sighting::Absent("logind does not run here".into());
                let _ = reports.send(Report::Input(absent)).await;
                return;
            }
            Err(error) => {
                let failed = Sighting::Failed(format!("logind does not answer: {error}"));
                if reports.send(Report::Input(failed)).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn connect(address: Option<&str>) -> zbus::Result<zbus::Connection> {
    match address {
        Some(address) => zbus::connection::Builder::address(address).build().await,
        None => zbus::Connection::system().await,
    }
}

fn is_absent(error: &zbus::Error) -> bool {
    let text = error.to_string();
    text.contains("ServiceUnknown") || text.contains("NameHasNoOwner") || text.contains("Spawn")
}

async fn watch_bus(
    connection: &zbus::Connection,
    display_watched: bool,
    attention: &Attention,
    reports: &mpsc::Sender<Report>,
) -> zbus::Result<()> {
    let manager = ManagerProxy::new(connection).await?;
    let mut sleeps = manager.receive_prepare_for_sleep().await?;
    let mut shutdowns = manager.receive_prepare_for_shutdown().await?;
    let mut changes = attention.changes();
    let mut newest = NewestInput::default();
    loop {
        let sighting = look(connection, &manager, display_watched, &mut newest).await?;
        if reports.send(Report::Input(sighting)).await.is_err() {
            return Ok(());
        }
        let power = tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(attention.period().0)) => None,
            changed = changes.changed() => match changed {
                Ok(()) => None,
                Err(_) => return Ok(()),
            },
            Some(signal) = sleeps.next() => Some(Power::Sleep(*signal.args()?.start())),
            Some(signal) = shutdowns.next() => signal.args()?.start().then_some(Power::Shutdown),
        };
        if let Some(power) = power
            && reports.send(Report::Power(power)).await.is_err()
        {
            return Ok(());
        }
    }
}

/// The newest input over all people's sessions that logind knows, by their idle hints.
async fn look(
    connection: &zbus::Connection,
    manager: &ManagerProxy<'_>,
    display_watched: bool,
    newest: &mut NewestInput,
) -> zbus::Result<Sighting> {
    let mut newest_here: Option<BootMs> = None;
    for (_, _, _, seat, path) in manager.list_sessions().await? {
        let session = SessionProxy::builder(connection).path(path).build().await?;
        let someone = session.class().await? == "user" && session.state().await? != "closing";
        // A session over the network is somebody's work, too, but no hand at this machine: only seats count here.
        if !someone || seat.is_empty() {
            continue;
        }
        // A display that is watched itself is seen more exactly; many desktops never set the hint there.
        if display_watched && session.kind().await? == "x11" {
            continue;
        }
        let at = if session.idle_hint().await? {
            boot_of_monotonic(session.idle_since_hint_monotonic().await?)
        } else {
            sela_clock::now().boot_ms
        };
        newest_here = newest_here.max(Some(at));
    }
    Ok(newest_here.map_or(Sighting::Nobody, |at| Sighting::Seen(newest.polled(at))))
}

/// logind gives moments on `CLOCK_MONOTONIC`, which stands still while the machine sleeps. Read as "so long ago without
/// sleep" it can only be too new, never too old: the safe side.
fn boot_of_monotonic(micros: u64) -> BootMs {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let monotonic_ms =
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
    let ago = monotonic_ms.saturating_sub(micros / 1_000);
    BootMs(sela_clock::now().boot_ms.0.saturating_sub(ago))
}
