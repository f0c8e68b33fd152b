//! The thread that owns both databases. Entries are handed over without waiting; what came while one commit ran goes into
//! the next, together. A commit that fails is tried again until it succeeds: nothing that depends on it is said meanwhile.

use super::StoreError;
use super::earnings::{EarningsBook, Entry, Recovered};
use super::strip::StripEntry;
use super::telemetry::{Minute, TelemetryBook};
use sela_protocol::card::CardReading;
use sela_protocol::envelope::PublicKey;
use sela_protocol::local::{Earned, EarningsLine, JobLine, Page, Sample, StripRecord};
use sela_protocol::units::UtcMs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::{mpsc as async_mpsc, oneshot};

/// How long after a failed commit it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// News from the store.
#[derive(Debug)]
pub(crate) enum Committed {
    /// Everything up to this entry is on the disk.
    UpTo(u64),
    /// The owner's sums, after they changed.
    Sums(Earned),
    /// The store cannot write (`Some`), or can again.
    Problem(Option<String>),
}

/// Reads something and answers whoever asked.
type Reading = Box<dyn FnOnce(&EarningsBook, &TelemetryBook) + Send>;

enum Request {
    Append(u64, Box<Entry>),
    Sums,
    Readings(UtcMs, Vec<CardReading>),
    Strip(Vec<StripEntry>),
    Prune(UtcMs),
    Read(Reading),
    /// Finish what was asked before, and end, though readers may still be there.
    End,
}

/// The agent's end of the store. Dropping it lets the thread finish what it has and end.
#[derive(Debug)]
pub(crate) struct Store {
    requests: Option<mpsc::Sender<Request>>,
    appended: u64,
    /// The agent leaves: what cannot be written now is given up.
    leaving: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A store that was opened, what the last run left in it, and its news.
pub(crate) type Opened = (Store, Recovered, async_mpsc::UnboundedReceiver<Committed>);

/// A way to read pages, for the local interface.
#[derive(Debug, Clone)]
pub(crate) struct StoreReader {
    requests: mpsc::Sender<Request>,
}

impl Store {
    /// Opens both databases and starts the thread. `midnight` tells where today began, for the sums.
    ///
    /// # Errors
    /// Where a database cannot be opened.
    pub(crate) fn open(
        folder: &Path,
        exchange: Option<PublicKey>,
        midnight: impl Fn() -> UtcMs + Send + 'static,
    ) -> Result<Opened, StoreError> {
        let earnings = EarningsBook::open(folder)?;
        let telemetry = TelemetryBook::open(folder)?;
        telemetry.close_left_open()?;
        let recovered = earnings.recover(exchange)?;
        let (requests, received) = mpsc::channel();
        // Unbounded, but never long: one message a commit, and the loop reads them before anything that adds more.
        let (news, news_received) = async_mpsc::unbounded_channel();
        let leaving = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            earnings,
            telemetry,
            minute: Minute::default(),
            midnight: Box::new(midnight),
            news,
            leaving: Arc::clone(&leaving),
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .stack_size(512 << 10)
            .spawn(move || worker.work(&received))
            .map_err(|_| StoreError::Stopped)?;
        let store = Self {
            requests: Some(requests),
            appended: 0,
            leaving,
            thread: Some(thread),
        };
        store.ask(Request::Sums);
        Ok((store, recovered, news_received))
    }

    /// Hands over an entry; gives its number, to wait for in [`Committed::UpTo`].
    pub(crate) fn append(&mut self, entry: Entry) -> u64 {
        self.appended += 1;
        self.ask(Request::Append(self.appended, Box::new(entry)));
        self.appended
    }

    /// The number of the last entry handed over.
    pub(crate) const fn appended(&self) -> u64 {
        self.appended
    }

    /// Hands over what the cards report.
    pub(crate) fn readings(&self, now: UtcMs, readings: Vec<CardReading>) {
        self.ask(Request::Readings(now, readings));
    }

    /// Hands over what became of the cards.
    pub(crate) fn strip(&self, entries: Vec<StripEntry>) {
        if !entries.is_empty() {
            self.ask(Request::Strip(entries));
        }
    }

    /// Lets the sums be computed anew (at midnight, say).
    pub(crate) fn sums(&self) {
        self.ask(Request::Sums);
    }

    /// Lets old samples be rolled up.
    pub(crate) fn prune(&self, now: UtcMs) {
        self.ask(Request::Prune(now));
    }

    /// To read from elsewhere.
    pub(crate) fn reader(&self) -> Option<StoreReader> {
        let requests = self.requests.clone()?;
        Some(StoreReader { requests })
    }

    fn ask(&self, request: Request) {
        if let Some(requests) = &self.requests
            && requests.send(request).is_err()
        {
            tracing::error!("the store's thread has ended; nothing is remembered any more");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.leaving.store(true, Ordering::Relaxed);
        // The local interface holds readers as long as it serves, so the thread would never see its queue closed.
        self.ask(Request::End);
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's thread ended by a panic");
        }
    }
}

impl StoreReader {
    /// One page of earnings.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) async fn earnings(&self, cursor: Option<String>) -> Result<Page<EarningsLine>, StoreError> {
        self.read(move |earnings, _| earnings.earnings(cursor.as_deref())).await
    }

    /// One page of leases.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) async fn jobs(&self, cursor: Option<String>) -> Result<Page<JobLine>, StoreError> {
        self.read(move |earnings, _| earnings.jobs(cursor.as_deref())).await
    }

    /// One page of samples.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) async fn samples(&self, cursor: Option<String>) -> Result<Page<Sample>, StoreError> {
        self.read(move |_, telemetry| telemetry.samples(cursor.as_deref()))
            .await
    }

    /// What became of the cards from `from` up to `to`, told at `now`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) async fn strip(&self, from: UtcMs, to: UtcMs, now: UtcMs) -> Result<StripRecord, StoreError> {
        self.read(move |_, telemetry| telemetry.strip(from, to, now)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&EarningsBook, &TelemetryBook) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Read(Box::new(move |earnings, telemetry| {
            // Nobody waits any more where the client has gone; then the answer is for nobody.
            drop(answer.send(work(earnings, telemetry)));
        }));
        self.requests.send(request).map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }
}

struct Worker {
    earnings: EarningsBook,
    telemetry: TelemetryBook,
    minute: Minute,
    midnight: Box<dyn Fn() -> UtcMs + Send>,
    news: async_mpsc::UnboundedSender<Committed>,
    leaving: Arc<AtomicBool>,
}

impl Worker {
    fn work(mut self, requests: &mpsc::Receiver<Request>) {
        let mut ends = false;
        while !ends && let Ok(first) = requests.recv() {
            let mut batch = Vec::new();
            let mut later = Vec::new();
            let mut sort = |request| match request {
                Request::Append(number, entry) => batch.push((number, *entry)),
                Request::End => ends = true,
                other @ (Request::Sums
                | Request::Readings(..)
                | Request::Strip(_)
                | Request::Prune(_)
                | Request::Read(_)) => later.push(other),
            };
            sort(first);
            requests.try_iter().for_each(sort);
            self.commit(batch);
            for request in later {
                self.serve(request);
            }
        }
    }

    fn commit(&mut self, batch: Vec<(u64, Entry)>) {
        let Some((last, _)) = batch.last() else {
            return;
        };
        let last = *last;
        let entries: Vec<Entry> = batch.into_iter().map(|(_, entry)| entry).collect();
        let mut failed_before = false;
        while let Err(error) = self.earnings.commit(&entries) {
            if !failed_before {
                tracing::error!(%error, "earnings cannot be written; no job is taken until they can");
                self.tell(Committed::Problem(Some(error.to_string())));
            }
            failed_before = true;
            // The loop is gone or leaves: nobody is told anything that depends on these entries, so they may be given up. What
            // they say of a lease is made up for at the next start.
            if self.news.is_closed() || self.leaving.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(RETRY);
        }
        if failed_before {
            self.tell(Committed::Problem(None));
        }
        self.tell(Committed::UpTo(last));
        if entries.iter().any(Entry::changes_sums) {
            self.serve(Request::Sums);
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Append(number, entry) => self.commit(vec![(number, *entry)]),
            Request::Sums => match self.earnings.sums((self.midnight)()) {
                Ok(sums) => self.tell(Committed::Sums(sums)),
                Err(error) => tracing::warn!(%error, "the sums could not be read"),
            },
            Request::Readings(now, readings) => {
                let samples = self.minute.add(now, &readings);
                if let Err(error) = self.telemetry.keep(&samples) {
                    tracing::warn!(%error, "a minute of readings was not kept");
                }
            }
            Request::Strip(entries) => {
                if let Err(error) = self.telemetry.keep_strip(&entries) {
                    tracing::warn!(%error, "what became of the cards was not kept");
                }
            }
            Request::Prune(now) => {
                if let Err(error) = self.telemetry.prune(now) {
                    tracing::warn!(%error, "old readings were not rolled up");
                }
            }
            Request::Read(work) => work(&self.earnings, &self.telemetry),
            Request::End => {}
        }
    }

    fn tell(&self, news: Committed) {
        // The loop is gone at the very end; then there is nobody to tell.
        drop(self.news.send(news));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::local::Pause;

    #[tokio::test]
    async fn entries_are_reported_in_order_and_are_there_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut store, recovered, mut news) = Store::open(folder.path(), None, || UtcMs(0)).expect("opens");
        assert_eq!(recovered, Recovered::default());
        let pause = Pause {
            since_utc_ms: UtcMs(7),
            until_utc_ms: None,
        };
        for _ in 0..100 {
            store.append(Entry::Pause { pause: Some(pause) });
        }
        let mut committed = 0;
        while committed < store.appended() {
            if let Committed::UpTo(number) = news.recv().await.expect("the store lives") {
                assert!(number > committed, "numbers only rise");
                committed = number;
            }
        }
        drop(store);
        let (_store, recovered, _news) = Store::open(folder.path(), None, || UtcMs(0)).expect("opens again");
        assert_eq!(recovered.pause, Some(pause));
    }

    #[tokio::test]
    async fn an_agent_that_leaves_does_not_wait_for_a_disk_that_takes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut store, _, news) = Store::open(folder.path(), None, || UtcMs(0)).expect("opens");
        let broken = rusqlite::Connection::open(folder.path().join("earnings.db")).expect("opens");
        broken
            .execute_batch("DROP TABLE pauses")
            .expect("whatever is wrong with it");
        store.append(Entry::Pause { pause: None });
        let (gone, left) = mpsc::channel();
        std::thread::spawn(move || {
            drop(store);
            gone.send(()).expect("somebody waits");
        });
        left.recv_timeout(Duration::from_secs(20)).expect("the store ends");
        drop(news);
    }

    #[tokio::test]
    async fn what_was_handed_over_is_committed_even_if_the_agent_leaves_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut store, _, news) = Store::open(folder.path(), None, || UtcMs(0)).expect("opens");
        let pause = Pause {
            since_utc_ms: UtcMs(7),
            until_utc_ms: None,
        };
        store.append(Entry::Pause { pause: Some(pause) });
        drop(store);
        drop(news);
        let (_store, recovered, _news) = Store::open(folder.path(), None, || UtcMs(0)).expect("opens again");
        assert_eq!(recovered.pause, Some(pause));
    }
}
