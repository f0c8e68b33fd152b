//! The local interface for `tests/fuzz`: the real routes, guards and HTTP, served to a connection in memory, in front of a real core and
//! a real store. Compiled with the feature `fuzzing` alone; decides nothing and opens nothing to anybody else.

use super::guest::House;
use super::serve::guarded;
use super::{Agent, Ask, routes};
use crate::store::Store;
use axum::Router;
use futures_util::FutureExt as _;
use sela_core::{Effect, Input, Policy, State};
use sela_protocol::local::Command;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{broadcast, mpsc};

/// What a connection in memory holds on its way.
const PIPE: usize = 64 << 10;
/// So often in a row nothing moves before a connection counts as done.
const IDLE: u32 = 64;
/// How long the store's thread may take for a page; a lost answer is only a lost answer.
const STORE: Duration = Duration::from_millis(20);
/// The port that the guarded interface believes to be at.
const PORT: u16 = 7351;

/// The interface, to be asked in memory.
#[derive(Debug)]
pub struct LocalInterface {
    store: Store,
}

/// What came of one connection.
#[derive(Debug)]
pub struct Answered {
    /// All that was answered, as it would stand on the wire.
    pub answer: Vec<u8>,
    /// The commands that reached the core, in order.
    pub commands: Vec<Command>,
}

impl LocalInterface {
    /// Opens one with a store in `folder`.
    ///
    /// # Errors
    /// Where the store cannot be opened.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let (store, _, _) = Store::open(folder, None, || sela_protocol::units::UtcMs(0))?;
        Ok(Self { store })
    }

    /// Sends `bytes` over one connection: to the socket where `token` is `None`, else to the port 7351 that is guarded by it. The core
    /// is as after a start.
    ///
    /// # Panics
    /// If a command is not answered.
    pub fn ask(&self, bytes: &[u8], token: Option<&str>) -> Answered {
        let (asks, asked) = mpsc::channel(8);
        let (events, _) = broadcast::channel(4);
        let agent = Agent {
            asks,
            events,
            store: self.store.reader().expect("open while this lives"),
            doctor: Arc::new(Vec::new),
        };
        let open = routes::router(agent);
        let router = match token {
            Some(token) => guarded(open, &[], &House::new(PORT, token)),
            None => open,
        };
        // One for each connection: what still waits for an event when the peer is gone ends with it, not at the next sign of life.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system gives an event loop");
        let (seen, commands) = std::sync::mpsc::channel();
        let answer = runtime.block_on(async {
            let core = tokio::spawn(core(asked, seen));
            let answer = converse(router, bytes).await;
            assert!(!core.is_finished(), "the core ended before the connection did");
            answer
        });
        drop(runtime);
        Answered {
            answer,
            commands: commands.iter().collect(),
        }
    }
}

/// One connection, then none.
struct Once(Option<DuplexStream>);

impl axum::serve::Listener for Once {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.take() {
            Some(stream) => (stream, ()),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn converse(router: Router, mut left: &[u8]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(PIPE);
    let slow = reads_the_store(left);
    let served = axum::serve(Once(Some(server)), router);
    tokio::spawn(async move { drop(served.await) });
    let mut answer = Vec::new();
    let mut idle = 0;
    while idle < IDLE {
        tokio::task::yield_now().await;
        idle += 1;
        if let Some(Ok(count)) = client.write(left).now_or_never()
            && count > 0
        {
            left = &left[count..];
            idle = 0;
        }
        match client.read_buf(&mut answer).now_or_never() {
            Some(Ok(0) | Err(_)) => break,
            Some(Ok(_)) => idle = 0,
            None if idle == IDLE && slow => {
                let read = tokio::time::timeout(STORE, client.read_buf(&mut answer)).await;
                if matches!(read, Ok(Ok(1..))) {
                    idle = 0;
                }
            }
            None => {}
        }
    }
    answer
}

/// What the store's thread or another answers, not this one.
fn reads_the_store(bytes: &[u8]) -> bool {
    ["/earnings", "/jobs", "/samples", "/strip", "/doctor"]
        .iter()
        .any(|path| bytes.windows(path.len()).any(|window| window == path.as_bytes()))
}

/// Answers as the agent's loop does, and tells the commands that came.
async fn core(mut asked: mpsc::Receiver<Ask>, seen: std::sync::mpsc::Sender<Command>) {
    let mut state = State::new(Policy::default(), sela_clock::now());
    while let Some(ask) = asked.recv().await {
        match ask {
            Ask::Snapshot { reply } => drop(reply.send(Box::new(state.snapshot(sela_clock::now())))),
            Ask::Command { command, reply } => {
                drop(seen.send(command.clone()));
                let effects = state.step(sela_clock::now(), Input::Command { request: 1, command });
                let answer = effects.into_iter().find_map(|effect| {
                    if let Effect::Reply { reply, .. } = effect {
                        return Some(reply);
                    }
                    None
                });
                drop(reply.send(answer.expect("every command is answered")));
            }
        }
    }
}
