//! The owner's page in a browser: built before the programs, since the agent has it built in, and told with its token when
//! everything is up. A machine without npm runs the path all the same.

use std::net::TcpListener;
use std::process::Command;

use anyhow::Context;

use crate::commands;
use crate::places::Places;
use crate::run::folders::Folders;
use crate::setup;

/// Builds the page. Without npm the agent says on its page how to build it.
///
/// # Errors
/// If npm is there and fails.
pub(crate) fn build(places: &Places) -> anyhow::Result<()> {
    let Ok(npm) = setup::program("npm") else {
        println!("npm is not here, so the owner's page is left out: install Node 20 to have it");
        return Ok(());
    };
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&npm);
        command.current_dir(&places.root).args(arguments).env("NO_COLOR", "1");
        commands::run(&mut command)
    };
    run(&["ci", "--no-audit", "--no-fund", "--silent"])?;
    run(&["run", "--silent", "build"])
}

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
