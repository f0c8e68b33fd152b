//! What a job prints, sent to its tenant: at once after a silence, else gathered for at most half a second; numbered by offset so
//! that sending again changes nothing, kept until the exchange has it. Bounded by the keeper's own limit on a job's log.

use super::blobs::{Blobs, TransferError};
use bytes::{Buf as _, BytesMut};
use sela_protocol::id::LeaseId;
use sela_sandbox::keeper::wire::LogStream;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long bytes are gathered before they are sent.
const GATHER: Duration = Duration::from_millis(400);
/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// How long the end of a lease waits for the rest of its log.
const LAST: Duration = Duration::from_secs(60);
/// Most that one request carries.
const MOST: usize = 512 << 10;

/// The log of one lease on its way.
#[derive(Debug)]
pub(crate) struct LogUpload {
    lines: mpsc::UnboundedSender<(LogStream, Vec<u8>)>,
    task: tokio::task::JoinHandle<()>,
}

impl LogUpload {
    /// Starts to send.
    pub(crate) fn start(blobs: Blobs, lease: LeaseId) -> Self {
        // Unbounded here, bounded at the source: the keeper throws away what goes beyond the job's limit.
        let (lines, received) = mpsc::unbounded_channel();
        let sender = Sender {
            blobs,
            lease,
            out: Pending::new("stdout"),
            err: Pending::new("stderr"),
        };
        let task = tokio::spawn(sender.send_all(received));
        Self { lines, task }
    }

    /// Adds what the job wrote.
    pub(crate) fn add(&self, stream: LogStream, bytes: Vec<u8>) {
        // The task ends only when this is gone, or when the exchange takes no more of this log.
        drop(self.lines.send((stream, bytes)));
    }

    /// Waits until all of it is sent, for a minute at most.
    pub(crate) async fn finish(self) {
        let Self { lines, mut task } = self;
        drop(lines);
        if tokio::time::timeout(LAST, &mut task).await.is_err() {
            tracing::warn!("the end of a job's log was not sent: the exchange did not take it within a minute");
            task.abort();
        }
    }
}

struct Sender {
    blobs: Blobs,
    lease: LeaseId,
    out: Pending,
    err: Pending,
}

/// What of one stream is not at the exchange yet.
struct Pending {
    name: &'static str,
    offset: u64,
    bytes: BytesMut,
    /// The exchange takes no more of it.
    closed: bool,
}

impl Pending {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            offset: 0,
            bytes: BytesMut::new(),
            closed: false,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        if !self.closed {
            self.bytes.extend_from_slice(bytes);
        }
    }
}

impl Sender {
    /// The first bytes after a silence go at once, since somebody may wait for them; what follows is gathered.
    async fn send_all(mut self, mut lines: mpsc::UnboundedReceiver<(LogStream, Vec<u8>)>) {
        let mut open = true;
        while open {
            match lines.recv().await {
                Some((stream, bytes)) => self.add(stream, &bytes),
                None => open = false,
            }
            while let Ok((stream, bytes)) = lines.try_recv() {
                self.add(stream, &bytes);
            }
            while self.has_some() {
                self.flush().await;
                open = open && self.gather(&mut lines).await;
            }
        }
    }

    /// Takes what comes within [`GATHER`]; `false` where nothing more will.
    async fn gather(&mut self, lines: &mut mpsc::UnboundedReceiver<(LogStream, Vec<u8>)>) -> bool {
        let gather = tokio::time::sleep(GATHER);
        let mut gather = std::pin::pin!(gather);
        loop {
            tokio::select! {
                () = &mut gather => return true,
                line = lines.recv() => match line {
                    Some((stream, bytes)) => self.add(stream, &bytes),
                    None => return false,
                },
            }
        }
    }

    fn has_some(&self) -> bool {
        !(self.out.bytes.is_empty() && self.err.bytes.is_empty())
    }

    fn add(&mut self, stream: LogStream, bytes: &[u8]) {
        match stream {
            LogStream::Out => self.out.add(bytes),
            LogStream::Err => self.err.add(bytes),
        }
    }

    async fn flush(&mut self) {
        for pending in [&mut self.out, &mut self.err] {
            while !pending.bytes.is_empty() {
                send_some(&self.blobs, self.lease, pending).await;
            }
        }
    }
}

async fn send_some(blobs: &Blobs, lease: LeaseId, pending: &mut Pending) {
    let length = pending.bytes.len().min(MOST);
    let bytes = bytes::Bytes::copy_from_slice(&pending.bytes[..length]);
    match blobs.append_log(lease, pending.name, pending.offset, bytes).await {
        Ok(next) => {
            // The exchange says how far it is: an answer that was lost shows as more than was expected.
            let taken = usize::try_from(next.saturating_sub(pending.offset)).unwrap_or(usize::MAX);
            pending.bytes.advance(taken.min(pending.bytes.len()));
            pending.offset = pending.offset.max(next);
        }
        Err(error @ TransferError::Network { .. }) => {
            tracing::debug!(%lease, %error, "a log waits");
            tokio::time::sleep(RETRY).await;
        }
        Err(
            error @ (TransferError::Refused { .. } | TransferError::OtherBytes { .. } | TransferError::File { .. }),
        ) => {
            tracing::info!(%lease, %error, "the exchange takes no more of this log");
            pending.bytes.clear();
            pending.closed = true;
        }
    }
}
