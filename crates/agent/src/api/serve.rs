//! Opens the socket and, where the owner asked for it, a loopback port, and serves both until it is dropped.

use super::guest::{House, let_in, let_see};
use super::peer::OwnersOnly;
use super::{Agent, page, routes};
use crate::keys::write_private;
use anyhow::{Context as _, bail};
use axum::Router;
use axum::middleware::from_fn_with_state;
use rustix::fs::Mode;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

/// The open interface. Dropping it closes it and removes its socket and token.
#[derive(Debug)]
pub(crate) struct Listening {
    tasks: Vec<JoinHandle<()>>,
    files: Vec<PathBuf>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for file in &self.files {
            if let Err(error) = std::fs::remove_file(file) {
                tracing::debug!(%error, file = %file.display(), "was gone already");
            }
        }
    }
}

/// Opens the interface. The caller holds the lock that says that no other agent uses this folder, so a socket that is there is
/// a leftover.
///
/// # Errors
/// A folder that cannot be written, an address that is taken or is not of this machine.
pub(crate) async fn listen(
    agent: Agent,
    socket: &Path,
    port: Option<SocketAddr>,
    token: &Path,
) -> anyhow::Result<Listening> {
    let mut listening = Listening {
        tasks: Vec::new(),
        files: vec![socket.to_owned()],
    };
    if socket.exists() {
        std::fs::remove_file(socket)
            .with_context(|| format!("the old socket {} cannot be removed", socket.display()))?;
    }
    // 0600 from the first moment: nobody can connect before the mode is set.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(socket);
    rustix::process::umask(before);
    let listener = bound.with_context(|| {
        let length = socket.as_os_str().len();
        format!(
            "the socket {} ({length} bytes; a path may have 107) cannot be opened; SELA_RUNTIME_DIR can name another folder",
            socket.display()
        )
    })?;
    let router = routes::router(agent);
    let served = axum::serve(OwnersOnly::new(listener), router.clone());
    listening.tasks.push(tokio::spawn(async move { drop(served.await) }));
    if let Some(address) = port {
        if !address.ip().is_loopback() {
            bail!("--listen {address}: only addresses of this machine may be used, like 127.0.0.1:7351");
        }
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("--listen {address} cannot be opened; another program may use the port"))?;
        let address = listener.local_addr()?;
        let secret = new_token()?;
        write_private(token, secret.as_bytes())?;
        listening.files.push(token.to_owned());
        let served = axum::serve(
            listener,
            guarded(router, page::FILES, &House::new(address.port(), &secret)),
        );
        listening.tasks.push(tokio::spawn(async move { drop(served.await) }));
        tell(address, token, &secret);
    }
    Ok(listening)
}

/// What is served at the port: the page for whoever came by the right name, everything else for who has the token.
pub(super) fn guarded(interface: Router, files: page::Files, house: &House) -> Router {
    let shown = page::router(files).layer(from_fn_with_state(house.clone(), let_see));
    interface.layer(from_fn_with_state(house.clone(), let_in)).merge(shown)
}

/// Whoever started the agent at a terminal may open the page; a log that is kept somewhere gets no token.
fn tell(address: SocketAddr, file: &Path, secret: &str) {
    if std::io::stderr().is_terminal() {
        tracing::info!("the window is at http://{address}/#token={secret}");
    } else {
        tracing::info!(token = %file.display(), "the window is at http://{address}/#token=…, with the token from its file");
    }
}

fn new_token() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("the system gives no randomness for a token: {error}"))?;
    Ok(hex::encode(bytes))
}
