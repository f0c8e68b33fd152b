//! The proxy of one job: takes its connections, lets through what may pass, answers the rest with the reason. It runs outside of the
//! job, as tasks of the agent; dropping it closes every connection at once.

use super::bucket::Bucket;
use super::budget::{Budget, OwnersLine};
use super::reach::{Uplink, reach};
use super::refusal::{Refusal, RefusalBook};
use super::request::{self, Request, Target};
use super::tunnel::tunnel;
use sela_protocol::network::{HostRule, JobNetwork, NetworkUse};
use sela_protocol::units::{Bytes, Microseconds};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Connections of one job at once.
const MOST_CONNECTIONS: usize = 64;
/// Further ones that are told so before they are closed.
const MOST_TURNED_AWAY: usize = 16;
/// New connections of one job in a second: each may ask the owner's resolver.
const CONNECTIONS_PER_S: Bytes = Bytes(64);
/// Names of one job that are resolved at once: each may hold a thread of the agent's.
const LOOKUPS: usize = 4;
/// How long a request may take to come.
const REQUEST: Duration = Duration::from_secs(10);
/// How long a refused program may take to read why, and how much it may still say.
const FAREWELL: Duration = Duration::from_secs(2);
const LAST_WORDS: u64 = 64 << 10;
/// When the system gives no connection for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(200);

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// See the module.
#[derive(Debug)]
pub struct Gateway {
    account: Arc<Account>,
    lines: mpsc::UnboundedReceiver<String>,
    serving: JoinHandle<()>,
}

/// What is known of one job's use of the network.
#[derive(Debug)]
struct Account {
    hosts: Vec<HostRule>,
    line: OwnersLine,
    budget: Budget,
    book: Mutex<RefusalBook>,
    /// Bounded by the book, which lists few.
    lines: mpsc::UnboundedSender<String>,
}

/// Why a connection came to nothing.
enum Failed {
    /// The program is gone.
    Gone,
    Refused(Refusal),
}

impl From<io::Error> for Failed {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Gateway {
    /// Serves what comes to `listener`, within what the tenant asked for and the owner lends. Must be called within a runtime.
    ///
    /// # Errors
    /// Where the runtime cannot watch the socket.
    pub fn open(
        listener: std::net::TcpListener,
        network: &JobNetwork,
        line: &OwnersLine,
        uplink: impl Uplink,
    ) -> io::Result<Self> {
        let listener = TcpListener::from_std(listener)?;
        let (send, lines) = mpsc::unbounded_channel();
        let account = Arc::new(Account {
            hosts: network.hosts.clone(),
            line: line.clone(),
            budget: Budget::new(network, line.clone()),
            book: Mutex::default(),
            lines: send,
        });
        let serving = tokio::spawn(serve(listener, Arc::new(uplink), Arc::clone(&account)));
        Ok(Self {
            account,
            lines,
            serving,
        })
    }

    /// Holds everything up, or lets it go on: nothing passes while the job stands frozen.
    pub fn halt(&self, on: bool) {
        self.account.budget.halt(on);
    }

    /// What was used so far.
    pub fn used(&self) -> NetworkUse {
        let (down, up) = self.account.budget.used();
        let book = self.account.book();
        NetworkUse {
            hosts: self.account.hosts.iter().map(ToString::to_string).collect(),
            down,
            up,
            refused: book.total,
            last_refusal: book.last.clone(),
        }
    }

    /// The next line for the job's log, line feed included. Safe to drop half-way (`select!`).
    pub async fn line(&mut self) -> String {
        match self.lines.recv().await {
            Some(line) => line,
            // This holds a sender itself.
            None => std::future::pending().await,
        }
    }

    /// A line that is there already.
    pub fn waiting_line(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Account {
    fn book(&self) -> MutexGuard<'_, RefusalBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, refusal: &Refusal) {
        let line = self.book().note(refusal);
        tracing::debug!(%refusal, "a job's connection was refused");
        if let Some(line) = line {
            // Nobody listens once the job is over.
            drop(self.lines.send(line));
        }
    }

    fn permit(&self, target: &Target) -> Result<(), Refusal> {
        let allows = |rule: &HostRule| rule.allows(&target.host, target.port);
        let target = target.clone();
        if !self.hosts.iter().any(allows) {
            return Err(Refusal::NotAsked { target });
        }
        if !self.line.allows(allows) {
            return Err(Refusal::NotAllowed { target });
        }
        self.budget.left().map(drop)
    }
}

async fn serve<U: Uplink>(listener: TcpListener, uplink: Arc<U>, account: Arc<Account>) {
    let lookups = Arc::new(Semaphore::new(LOOKUPS));
    let mut pace = Bucket::new(CONNECTIONS_PER_S, sela_clock::boot_us());
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a job's connection could not be taken");
                    sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let open = connections.len();
        if open < MOST_CONNECTIONS {
            let (uplink, lookups, account) = (Arc::clone(&uplink), Arc::clone(&lookups), Arc::clone(&account));
            connections.spawn(async move { connection(stream, &*uplink, &lookups, &account).await });
        } else {
            let refusal = Refusal::TooMany { most: MOST_CONNECTIONS };
            account.refuse(&refusal);
            if open < MOST_CONNECTIONS + MOST_TURNED_AWAY {
                connections.spawn(async move { dismiss(stream, &refusal).await });
            }
        }
        let wait = pace.take(1, sela_clock::boot_us());
        if wait > Microseconds(0) {
            sleep(Duration::from_micros(wait.0)).await;
        }
    }
}

async fn connection(mut stream: TcpStream, uplink: &impl Uplink, lookups: &Semaphore, account: &Account) {
    match establish(&mut stream, uplink, lookups, account).await {
        Ok((host, early)) => {
            if let Err(refusal) = tunnel(stream, host, &early, &account.budget).await {
                account.refuse(&refusal);
            }
        }
        Err(Failed::Gone) => {}
        Err(Failed::Refused(refusal)) => {
            account.refuse(&refusal);
            dismiss(stream, &refusal).await;
        }
    }
}

/// The connection to the host, and what the program sent after its request without waiting for the answer.
async fn establish(
    stream: &mut TcpStream,
    uplink: &impl Uplink,
    lookups: &Semaphore,
    account: &Account,
) -> Result<(TcpStream, Vec<u8>), Failed> {
    let slow = |_| Refusal::Slow {
        seconds: REQUEST.as_secs(),
    };
    let (request, early) = timeout(REQUEST, read_request(stream)).await.map_err(slow)??;
    account.permit(&request.target)?;
    account.budget.go_on().await;
    let host = reach(uplink, &request.target, lookups).await?;
    stream.set_nodelay(true)?;
    host.set_nodelay(true)?;
    stream.write_all(ESTABLISHED).await?;
    Ok((host, early))
}

async fn read_request(stream: &mut TcpStream) -> Result<(Request, Vec<u8>), Failed> {
    let mut bytes = Vec::with_capacity(1 << 10);
    loop {
        if let Some(request) = request::read(&bytes).map_err(Refusal::Request)? {
            let early = bytes.split_off(request.length);
            return Ok((request, early));
        }
        let room = (request::LONGEST - bytes.len()) as u64;
        if stream.take(room).read_buf(&mut bytes).await? == 0 {
            return Err(Failed::Gone);
        }
    }
}

/// Says why, and hears the program out for a moment: closing at once would take the answer away from it again.
async fn dismiss(mut stream: TcpStream, refusal: &Refusal) {
    let say = async {
        stream.write_all(&refusal.answer()).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LAST_WORDS), &mut tokio::io::sink()).await
    };
    // A program that is gone has its answer already.
    drop(timeout(FAREWELL, say).await);
}
