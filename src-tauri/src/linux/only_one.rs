//! One of these programs per user: a lock that the kernel lets go of with its holder, and beside it a socket on which a second
//! start asks the first for the window. No bus is needed for it, so it also holds where there is none.

use crate::controller::Event;
use crate::shell::Events;
use anyhow::{Context as _, bail};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// What a second start says, and what it hears.
const SHOW: &[u8; 5] = b"show\n";
const SHOWN: &[u8; 3] = b"ok\n";

/// A first start that has its lock and not yet its socket takes no longer than that; nor does an answer.
const PATIENCE: Duration = Duration::from_secs(5);
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// What came of starting.
pub(super) enum Claim {
    /// Nobody else runs.
    First(First),
    /// The program that runs already has what was wanted.
    Second,
}

/// Holds the place of the one program, until the process ends.
pub(super) struct First {
    _lock: File,
    socket: UnixListener,
}

/// Takes the place of the one program in `folder`, or asks the one that has it for the window unless `hidden`.
///
/// # Errors
/// Where the folder cannot be used, or the other program does not answer.
pub(super) async fn claim(folder: &Path, hidden: bool) -> anyhow::Result<Claim> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("{} cannot be made", folder.display()))?;
    let (lock, socket) = (folder.join("desktop.lock"), folder.join("desktop.sock"));
    let Some(lock) = take(&lock).with_context(|| format!("{} cannot be locked", lock.display()))? else {
        // A hidden start wants only the tray, which is there already.
        if !hidden {
            ask_for_window(&socket).await?;
        }
        return Ok(Claim::Second);
    };
    // Whoever made it had the lock, and is gone.
    let socket = match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => UnixListener::bind(&socket),
    }
    .with_context(|| format!("{} cannot be listened on", socket.display()))?;
    Ok(Claim::First(First { _lock: lock, socket }))
}

fn take(path: &PathBuf) -> std::io::Result<Option<File>> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn ask_for_window(socket: &Path) -> anyhow::Result<()> {
    let asked = tokio::time::timeout(PATIENCE, async {
        let mut stream = loop {
            match UnixStream::connect(socket).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(BETWEEN_TRIES).await,
            }
        };
        stream.write_all(SHOW).await?;
        let mut answer = [0; SHOWN.len()];
        stream.read_exact(&mut answer).await.map(|_| answer)
    });
    match asked.await {
        Ok(Ok(answer)) if answer == *SHOWN => Ok(()),
        Ok(Ok(_)) => bail!("what runs already speaks otherwise; quit it from its tray and start it again"),
        Ok(Err(error)) => Err(error).context("the program that runs already broke off"),
        Err(_) => bail!(
            "this program runs already and does not answer on {}; quit it from its tray, or end its process",
            socket.display()
        ),
    }
}

impl First {
    /// Hears those who start the program again. Runs until the process ends.
    pub(super) async fn keep(self, events: Events) {
        loop {
            match self.socket.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(tokio::time::timeout(PATIENCE, hear(stream, events.clone())));
                }
                Err(error) => {
                    tracing::warn!(%error, "a second start was not heard");
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
            }
        }
    }
}

async fn hear(mut stream: UnixStream, events: Events) {
    let own = rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own) {
        tracing::warn!("somebody else's process asked for the window");
        return;
    }
    let mut said = [0; SHOW.len()];
    // One that broke off, or says something else, wanted nothing that there is.
    if stream.read_exact(&mut said).await.is_ok() && said == *SHOW {
        events.put(Event::WindowWanted);
        if let Err(error) = stream.write_all(SHOWN).await {
            tracing::debug!(%error, "a second start did not wait for its answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn the_second_asks_the_first_and_a_hidden_one_asks_for_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = folder.path().join("runtime");
        // What one that was killed leaves behind does not keep the next from starting.
        std::fs::create_dir(&runtime).expect("made");
        drop(std::os::unix::net::UnixListener::bind(runtime.join("desktop.sock")).expect("bound"));
        let Claim::First(first) = claim(&runtime, false).await.expect("claimed") else {
            panic!("nobody else runs");
        };
        let (events, mut heard) = mpsc::channel(4);
        let kept = tokio::spawn(first.keep(Events::into(events)));
        assert!(matches!(claim(&runtime, true).await.expect("there"), Claim::Second));
        assert!(matches!(claim(&runtime, false).await.expect("told"), Claim::Second));
        assert!(matches!(heard.recv().await, Some(Event::WindowWanted)));
        assert!(heard.try_recv().is_err(), "the hidden one asked too");
        kept.abort();
        assert!(kept.await.is_err());
        assert!(matches!(claim(&runtime, true).await.expect("free"), Claim::First(_)));
    }
}
