//! Starting and stopping the exchange: the data folder, its lock and keys, the store, the floor's loop, the listener.
//! Everything that can be refused is refused before the first request is taken.

use crate::blobs::BlobFolder;
use crate::collect::{Room, collect_for_ever};
use crate::door::{Arrival, door};
use crate::floor_loop::FloorLoop;
use crate::keys;
use crate::listener::{self, Limits};
use crate::logs::LogFolder;
use crate::rest::{Exchange, router};
use crate::session::socket::{CLOSING, Host, Pace};
use crate::store::{Store, StoreError, StoreThread, blob_owners, confidential, records, submissions};
use crate::vault::{Vault, VaultKey};
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sela_market::floor::{Floor, FloorConfig};
use sela_market::secret::SecretHash;
use sela_protocol::envelope::PublicKey;
use sela_protocol::units::Bytes;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The file that tells other programs on this machine where the exchange listens.
pub(crate) const ADDRESS_FILE: &str = "address";
/// How long requests that are being served may take to end when the exchange stops.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// What an exchange is started with.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The folder of everything that it keeps.
    pub(crate) data: PathBuf,
    /// Where to listen; port 0: any that is free.
    pub(crate) listen: SocketAddr,
    /// Whether a proxy in front of it speaks TLS.
    pub(crate) behind_tls_proxy: bool,
    /// Whether simulated cards are admitted, and money has no worth.
    pub(crate) lab: bool,
    /// For people.
    pub(crate) name: String,
    /// The exchange's share, in hundredths of a percent.
    pub(crate) fee_basis_points: u32,
    /// Most that one blob may be.
    pub(crate) blob_limit: Bytes,
    /// How much tenants may store, and for how long.
    pub(crate) room: Room,
    /// Most that one log may be.
    pub(crate) log_limit: Bytes,
    /// Blobs are refused when less than this is free on the disk.
    pub(crate) free_floor: Bytes,
    /// What is expected of nodes.
    pub(crate) pace: Pace,
    /// What one peer may take of the listener.
    pub(crate) limits: Limits,
}

/// Why an exchange cannot be started although nothing is broken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// Keys and money would go over the network in the open.
    #[error(
        "{0} is not a loopback address, and this server speaks no TLS: listen on 127.0.0.1 behind a TLS proxy, or, if a proxy \
         on another machine reaches this address over a network that you trust, add --behind-tls-proxy"
    )]
    NotLoopback(SocketAddr),
    /// Another process has the folder.
    #[error("another sela-exchange is running on {}: stop it first, or choose another folder with --data", .0.display())]
    FolderInUse(PathBuf),
    /// Another process has the port.
    #[error("{0} is taken by another program: stop it, or choose another port with --listen (port 0 takes any)")]
    AddressInUse(SocketAddr),
}

/// An exchange that runs.
pub(crate) struct Running {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    data: PathBuf,
    exchange: Arc<Exchange>,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
    floor: JoinHandle<anyhow::Result<()>>,
    store: StoreThread,
    _lock: File,
}

/// Starts an exchange; when this returns it takes requests.
///
/// # Errors
/// [`StartError`] where it is refused, anything else where it fails; nothing was changed then, but for tables and keys
/// that were made.
pub(crate) async fn start(settings: Settings) -> anyhow::Result<Running> {
    if !settings.listen.ip().is_loopback() && !settings.behind_tls_proxy {
        bail!(StartError::NotLoopback(settings.listen));
    }
    let data = settings.data;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&data)
        .with_context(|| format!("the data folder {} cannot be made", data.display()))?;
    let lock = lock(&data)?;
    let key = keys::signing_key(&data)?;
    let operator = SecretHash::of(keys::operator_key(&data)?.reveal());
    let vault_key = keys::vault_key(&data)?;
    let (store, thread) = Store::open(&data, settings.lab)
        .with_context(|| format!("the store in {} cannot be opened", data.display()))?;
    let config = FloorConfig {
        fee_basis_points: settings.fee_basis_points,
        lab: settings.lab,
    };
    let (floor, submissions) = restore(&store, config).await?;
    let vault = open_vault(&store, &floor, &vault_key).await?;
    let blobs = BlobFolder::open(&data, settings.free_floor).context("the folder of blobs cannot be opened")?;
    sweep(&store, &blobs).await?;
    let logs = LogFolder::open(&data, settings.log_limit).context("the folder of logs cannot be opened")?;
    let listener = listen(settings.listen).await?;
    let address = listener.local_addr().context("the listener has no address")?;

    let (door, inside) = door();
    let (stop, stopping) = watch::channel(false);
    let host = Host {
        door: door.clone(),
        key: PublicKey::of(&key),
        name: settings.name,
        lab: settings.lab,
        pace: settings.pace,
    };
    let floor = tokio::spawn(FloorLoop::new(floor, store.clone(), key, submissions, vault).run(inside));
    let exchange = Arc::new(Exchange::new(
        door,
        store,
        blobs,
        logs,
        operator,
        vault_key,
        settings.blob_limit,
        settings.room,
        host,
        stopping.clone(),
    ));
    let routes = router(Arc::clone(&exchange));
    let server = tokio::spawn(listener::serve(listener, routes, settings.limits, stopping));
    // It ends by itself when the exchange stops.
    drop(tokio::spawn(collect_for_ever(Arc::clone(&exchange))));
    write_address(&data, address).context("the address could not be written to the data folder")?;
    Ok(Running {
        address,
        data,
        exchange,
        stop,
        server,
        floor,
        store: thread,
        _lock: lock,
    })
}

impl Running {
    /// Waits until it cannot go on.
    ///
    /// # Errors
    /// Why. Always.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        let ended = tokio::select! {
            floor = &mut self.floor => floor.map_err(anyhow::Error::from).and_then(|ended| ended),
            server = &mut self.server => server.map_err(anyhow::Error::from),
        };
        ended
            .err()
            .unwrap_or_else(|| anyhow::anyhow!("a part of the exchange ended by itself"))
    }

    /// Everything that requests share, for tests that look into it.
    #[cfg(test)]
    pub(crate) fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// The database, for tests that look into it.
    #[cfg(test)]
    pub(crate) fn store(&self) -> &Store {
        &self.exchange.store
    }

    /// Waits until a request stays that ends with the exchange: one more than when this was called.
    #[cfg(test)]
    pub(crate) async fn one_more_stays(&self) {
        let before = self.stop.receiver_count();
        while self.stop.receiver_count() <= before {
            tokio::task::yield_now().await;
        }
    }

    /// Ends requests, sessions and the loop in this order, and closes the store.
    ///
    /// # Errors
    /// Where the loop could not commit what was still in its queue.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let _ = std::fs::remove_file(self.data.join(ADDRESS_FILE));
        self.stop.send_replace(true);
        let abort = self.server.abort_handle();
        if tokio::time::timeout(LAST_REQUESTS, self.server).await.is_err() {
            abort.abort();
        }
        // Where the loop is gone already, its end below says why.
        let _ = self.exchange.door.send(Arrival::Stop).await;
        let ended = self.floor.await.map_err(anyhow::Error::from).and_then(|ended| ended);
        let _ = tokio::time::timeout(CLOSING, self.exchange.sockets_closed()).await;
        self.exchange.store.close().await;
        tokio::task::spawn_blocking(move || self.store.join()).await?;
        ended
    }
}

fn lock(data: &Path) -> anyhow::Result<File> {
    let path = data.join("exchange.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("{} cannot be opened", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => bail!(StartError::FolderInUse(data.to_owned())),
        Err(error) => Err(error).with_context(|| format!("{} cannot be locked", path.display())),
    }
}

async fn restore(store: &Store, config: FloorConfig) -> anyhow::Result<(Floor, Vec<submissions::Submission>)> {
    let now = sela_clock::now();
    let (records, submissions) = store
        .run(move |connection| Ok((records::load(connection)?, submissions::load(connection, now.utc_ms)?)))
        .await
        .context("what happened before cannot be read")?;
    let count = records.len();
    let floor = Floor::restore(config, now, records).context("what happened before cannot be taken up")?;
    tracing::info!(records = count, "floor restored");
    Ok((floor, submissions))
}

/// What is kept of each job that has not ended.
async fn open_vault(store: &Store, floor: &Floor, key: &VaultKey) -> anyhow::Result<Vault> {
    let unfinished = floor.unfinished_jobs();
    let any = store.run(|connection| confidential::any(connection)).await;
    if let Some(kept) = any.context("what is kept of jobs cannot be read")? {
        // Of an ended job too: its tenant may still want to open what it made.
        key.open(kept.job, &kept.sealed)?;
    }
    let kept = store
        .run(move |connection| {
            let of = |job| Ok((job, confidential::of(connection, job)?));
            unfinished.into_iter().map(of).collect::<Result<Vec<_>, StoreError>>()
        })
        .await
        .context("what is kept of jobs cannot be read")?;
    let mut jobs = HashMap::new();
    for (job, sealed) in kept {
        if let Some(sealed) = sealed {
            jobs.insert(job, key.open(job, &sealed)?);
        }
    }
    Ok(Vault::new(key.clone(), jobs))
}

/// An exchange that was killed between putting a blob in place and giving it an owner leaves a blob that nobody can open.
async fn sweep(store: &Store, blobs: &BlobFolder) -> anyhow::Result<()> {
    for blob in blobs.list().context("the folder of blobs cannot be read")? {
        let owned = store
            .run(move |connection| blob_owners::is_owned(connection, blob))
            .await?;
        if !owned {
            blobs
                .remove(blob)
                .await
                .context("a blob that nobody owns cannot be removed")?;
        }
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> anyhow::Result<tokio::net::TcpListener> {
    tokio::net::TcpListener::bind(address).await.map_err(|error| {
        if error.kind() == ErrorKind::AddrInUse {
            StartError::AddressInUse(address).into()
        } else {
            anyhow::Error::from(error).context(format!("{address} cannot be listened on"))
        }
    })
}

/// Whole or not at all: a reader never sees half an address.
fn write_address(data: &Path, address: SocketAddr) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(data)?;
    writeln!(file, "{address}")?;
    file.persist(data.join(ADDRESS_FILE)).map_err(|error| error.error)?;
    Ok(())
}

/// Whether an error is one of those after which a program exits with "unavailable" or "refused by policy".
pub(crate) fn start_error(error: &anyhow::Error) -> Option<&StartError> {
    error.downcast_ref()
}

/// Whether an error comes from the store, wherever in the chain it stands.
pub(crate) fn is_other_kind(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<StoreError>())
        .any(|cause| matches!(cause, StoreError::OtherKind { .. }))
}
