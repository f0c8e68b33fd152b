//! Where the owner's page is to be had in a browser: the address with the token that opens it.

use std::net::TcpListener;

use anyhow::Context;

use crate::run::folders::Folders;

/// An address of this machine that nobody listens at now.
///
/// # Errors
/// If loopback gives no port.
pub(crate) fn free_address() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("this machine's loopback has no free port")?;
    Ok(listener.local_addr()?.to_string())
}

/// The page's address with the token that opens it.
///
/// # Errors
/// If the agent has written no token.
pub(crate) fn address(folders: &Folders, listens: &str) -> anyhow::Result<String> {
    let file = folders.token();
    let token = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(format!("http://{listens}/#token={}", token.trim()))
}
