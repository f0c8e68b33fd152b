//! The whole exchange on a loopback port, met by scripted nodes over real WebSockets and by tenants over real HTTP.

mod blobs;
mod client;
mod confidential;
mod jobs;
mod listening;
mod path;
mod sessions;
mod starting;

use crate::collect::Room;
use crate::keys;
use crate::listener::Limits;
use crate::serve::{Running, Settings, start};
use crate::session::socket::Pace;
use client::Rest;
use sela_protocol::id::JobId;
use sela_protocol::tenant::LedgerCheck;
use sela_protocol::units::{Bytes, Millis};
use std::net::SocketAddr;
use std::path::Path;

/// An exchange in a folder of its own.
struct Lab {
    running: Running,
    operator: Rest,
    folder: tempfile::TempDir,
}

impl Lab {
    async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    async fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), change).await
    }

    async fn start_in(folder: tempfile::TempDir, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings(folder.path());
        change(&mut settings);
        let running = start(settings).await.expect("starts");
        let key = keys::operator_key(folder.path()).expect("a key");
        Self {
            operator: Rest::new(running.address, key.reveal()),
            running,
            folder,
        }
    }

    fn address(&self) -> SocketAddr {
        self.running.address
    }

    /// Stops it and starts it again on the same folder.
    async fn restart(self) -> Self {
        self.running.stop().await.expect("stops");
        Self::start_in(self.folder, |_| ()).await
    }

    /// What is kept of a job that only the job may read, as it lies in the store.
    async fn running_store_row(&self, job: JobId) -> Vec<u8> {
        let of = move |connection: &mut _| crate::store::confidential::of(connection, job);
        self.running.store().run(of).await.expect("reads").expect("is kept")
    }

    async fn ledger(&self) -> LedgerCheck {
        let check: LedgerCheck = self.operator.get("/v1/admin/ledger/check").await.json();
        assert_eq!(check.postings_sum.0, 0);
        assert!(check.unbalanced.is_empty() && check.overdrawn.is_empty(), "{check:?}");
        check
    }

    /// The balance of an account, zero where it has none.
    async fn balance(&self, account: &str) -> String {
        let check = self.ledger().await;
        let found = check.balances.iter().find(|balance| balance.account == account);
        found.map_or_else(|| "0.000000".to_owned(), |balance| balance.balance.to_string())
    }
}

fn settings(data: &Path) -> Settings {
    Settings {
        data: data.to_owned(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        behind_tls_proxy: false,
        lab: true,
        name: "a lab".to_owned(),
        fee_basis_points: 1_000,
        blob_limit: Bytes::from_mib(1),
        room: Room {
            quota: Bytes::from_mib(64),
            keep: Millis::from_secs(1_000),
        },
        log_limit: Bytes(1_000),
        free_floor: Bytes(0),
        pace: Pace::default(),
        limits: Limits::default(),
    }
}

fn files_under(folder: &Path) -> usize {
    std::fs::read_dir(folder)
        .expect("reads")
        .map(|entry| entry.expect("reads").path())
        .map(|path| if path.is_dir() { files_under(&path) } else { 1 })
        .sum()
}
