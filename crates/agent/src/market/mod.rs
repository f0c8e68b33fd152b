//! The node's way to its exchange: one WebSocket for what is said (`link`), HTTP for what is bulky (`blobs`, `logs`). What
//! is said, and what an answer means, is decided in `sela-core`.

mod blobs;
#[cfg(test)]
mod catching_up_tests;
mod conversation;
mod link;
#[cfg(test)]
mod link_tests;
mod logs;
#[cfg(test)]
mod transfer_tests;

pub(crate) use blobs::{Blobs, TransferError, http_client};
pub(crate) use link::{Link, LinkNews, LinkSettings, SILENCE};
pub(crate) use logs::LogUpload;

/// Installs the one TLS implementation of this program. Called once, before anything connects.
pub(crate) fn install_tls() {
    // A second installation only means that the first one stands.
    drop(rustls::crypto::ring::default_provider().install_default());
}
