//! Who may open the agent's socket: the same user, and no process of a job. Decided once, when a connection is accepted.

use std::path::Path;
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};

/// Accepts the owner's connections only; others are closed without a word.
pub(super) struct OwnersOnly {
    listener: UnixListener,
    owner: u32,
}

impl OwnersOnly {
    pub(super) fn new(listener: UnixListener) -> Self {
        Self {
            listener,
            owner: rustix::process::geteuid().as_raw(),
        }
    }
}

impl axum::serve::Listener for OwnersOnly {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        loop {
            // The trait's own accept waits where descriptors have run out.
            let (stream, _) = axum::serve::Listener::accept(&mut self.listener).await;
            match stream.peer_cred() {
                Ok(peer) if self.may(&peer) => return (stream, ()),
                Ok(peer) => {
                    tracing::warn!(uid = peer.uid(), pid = ?peer.pid(), "a stranger knocked at the agent's socket")
                }
                Err(error) => tracing::warn!(%error, "a connection without a peer"),
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<()> {
        Ok(())
    }
}

impl OwnersOnly {
    fn may(&self, peer: &UCred) -> bool {
        peer.uid() == self.owner && peer.pid().is_some_and(|pid| !is_a_jobs(pid, Path::new("/proc")))
    }
}

/// Whether a process is in a job's cgroup. One whose cgroup cannot be read counts as one.
fn is_a_jobs(pid: i32, proc: &Path) -> bool {
    std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup"))
        .map_or(true, |cgroups| cgroups.contains(sela_sensors::JOBS_CGROUP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_process_is_known_by_its_cgroup_in_any_hierarchy() {
        let proc = tempfile::tempdir().expect("a folder");
        for (pid, cgroups, expected) in [
            (1, "0::/user.slice/user-1000.slice\n", false),
            (2, "0::/user.slice/sela-jobs/a/lease_1\n", true),
            (3, "7:memory:/sela-jobs/a/lease_1\n0::/\n", true),
            (4, "0::/my-sela-jobs-notes/x\n", false),
        ] {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir(&folder).expect("made");
            std::fs::write(folder.join("cgroup"), cgroups).expect("written");
            assert_eq!(is_a_jobs(pid, proc.path()), expected, "{cgroups}");
        }
        assert!(is_a_jobs(5, proc.path()), "who cannot be looked at stays out");
    }
}
