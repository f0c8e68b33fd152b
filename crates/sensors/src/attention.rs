//! How closely to look: by the second while a job runs, else as rarely as promises allow. One switch, heard by every
//! watcher, be it a thread or a task.

use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use sela_protocol::units::Millis;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The switch. Clones share it.
#[derive(Debug, Clone)]
pub struct Attention {
    shared: Arc<Shared>,
    changes: tokio::sync::watch::Sender<bool>,
}

#[derive(Debug)]
struct Shared {
    high: AtomicBool,
}

/// One thread's ear for the switch: a file descriptor that becomes readable on a change.
#[derive(Debug)]
pub(crate) struct Bell {
    attention: Attention,
    bell: Arc<OwnedFd>,
}

impl Attention {
    /// Starts low.
    pub fn new() -> Self {
        let (changes, _) = tokio::sync::watch::channel(false);
        Self {
            shared: Arc::new(Shared {
                high: AtomicBool::new(false),
            }),
            changes,
        }
    }

    /// Looks closely, or no longer.
    pub fn set(&self, high: bool) {
        self.shared.high.store(high, Ordering::Release);
        self.changes.send_replace(high);
    }

    /// Whether to look closely now.
    pub fn is_high(&self) -> bool {
        self.shared.high.load(Ordering::Acquire)
    }

    /// How often each watcher must report that it lives.
    pub fn period(&self) -> Millis {
        Self::period_when(self.is_high())
    }

    /// How often they must, once they have heard that the switch stands so.
    pub(crate) const fn period_when(high: bool) -> Millis {
        if high { Millis(1_000) } else { Millis(10_000) }
    }

    /// To wait for a change in a task.
    pub(crate) fn changes(&self) -> tokio::sync::watch::Receiver<bool> {
        self.changes.subscribe()
    }

    /// To wait for a change in a thread that polls file descriptors.
    pub(crate) fn bell(&self) -> std::io::Result<Bell> {
        let bell = Arc::new(rustix::event::eventfd(
            0,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?);
        let mut changes = self.changes();
        let ringer = Arc::downgrade(&bell);
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(bell) = ringer.upgrade() else { break };
                // The counter can only fail to grow where it is full: then the bell rings already.
                let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
            }
        });
        Ok(Bell {
            attention: self.clone(),
            bell,
        })
    }
}

impl Default for Attention {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    pub(crate) const fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Makes it silent until the next change.
    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
