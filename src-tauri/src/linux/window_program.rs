//! The window's own program: started when the window is wanted, gone when it is closed. The web view takes more memory than
//! everything else together and never gives all of it back, so this program does not load it (see `docs/adr/0005`).

use crate::controller::Event;
use crate::language::Language;
use crate::orders::{self, Order, Report};
use crate::shell::Events;
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const NAME: &str = "sela-window";

/// A window that was told to go takes no longer than that.
const PATIENCE: Duration = Duration::from_secs(2);

/// Orders are few; a window that takes none hangs.
const ORDERS: usize = 8;

/// Toolkit and web view draw without the graphics card: what is here to lend the card out must not be what uses it, and a
/// page of text and bars needs none. It also halves the memory of the window. Whoever sets the variables otherwise is heard.
const WITHOUT_THE_CARD: [(&str, &str); 2] = [("GDK_GL", "disable"), ("WEBKIT_DISABLE_COMPOSITING_MODE", "1")];

/// The window as the rest of this program sees it.
pub(super) struct WindowProgram {
    language: Option<Language>,
    events: Events,
    /// What the supervisor said last: a window that opens later shows it too.
    said: Option<String>,
    /// To the newest window; nobody listens any more once it was closed.
    orders: Option<mpsc::Sender<Order>>,
    attended: JoinSet<()>,
}

impl WindowProgram {
    pub(super) fn new(language: Option<Language>, events: Events) -> Self {
        Self {
            language,
            events,
            said: None,
            orders: None,
            attended: JoinSet::new(),
        }
    }

    /// Opens the window, or brings it to the front.
    pub(super) fn open(&mut self) {
        if let Some(orders) = self.orders.as_ref().filter(|orders| !orders.is_closed()) {
            give(orders, Order::ComeToFront);
            return;
        }
        // Those that have ended need not be kept.
        while self.attended.try_join_next().is_some() {}
        let child = match start(self.language) {
            Ok(child) => child,
            Err(error) => {
                self.events.put(Event::NoWindow(format!("{error:#}")));
                return;
            }
        };
        let (orders, taken) = mpsc::channel(ORDERS);
        if let Some(sentence) = self.said.clone() {
            give(&orders, Order::SupervisorSaid { sentence });
        }
        self.orders = Some(orders);
        self.attended.spawn(attend(child, taken, self.events.clone()));
    }

    /// Lets the page say what the supervisor said.
    pub(super) fn supervisor_said(&mut self, sentence: String) {
        if let Some(orders) = self.orders.as_ref().filter(|orders| !orders.is_closed()) {
            let sentence = sentence.clone();
            give(orders, Order::SupervisorSaid { sentence });
        }
        self.said = Some(sentence);
    }

    /// Ends the window, and waits for it.
    pub(super) async fn end(mut self) {
        drop(self.orders.take());
        while self.attended.join_next().await.is_some() {}
    }
}

fn give(orders: &mpsc::Sender<Order>, order: Order) {
    if let Err(error) = orders.try_send(order) {
        tracing::warn!(%error, "the window does not take what it is told");
    }
}

fn start(language: Option<Language>) -> anyhow::Result<Child> {
    let program = program()?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the window is this program's other half, and no job: it ends with the pipe that this program holds"
    )]
    let mut command = Command::new(&program);
    if let Some(language) = language {
        command.args(["--language", language.tag()]);
    }
    for (name, value) in WITHOUT_THE_CARD {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command
        .spawn()
        .with_context(|| format!("the window's program {} cannot be started", program.display()))
}

/// Beside this program, wherever that lies.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("this program does not know where it lies")?;
    Ok(own.with_file_name(NAME))
}

/// How a window came to need no attention any more.
enum Gone {
    /// Its owner closed it.
    Closed,
    /// Its program ended without a word.
    Ended(std::io::Result<ExitStatus>),
    /// This program is about to end.
    Left,
}

/// One window from its start to its end.
struct Attended {
    child: Child,
    orders: Option<ChildStdin>,
    reports: Option<Lines<BufReader<ChildStdout>>>,
    /// How often it was told to come to the front and has not answered.
    unanswered: u32,
}

async fn attend(mut child: Child, mut taken: mpsc::Receiver<Order>, events: Events) {
    let mut window = Attended {
        orders: child.stdin.take(),
        reports: child.stdout.take().map(|out| BufReader::new(out).lines()),
        child,
        unanswered: 0,
    };
    let gone = loop {
        if let Some(gone) = window.next(&mut taken).await {
            break gone;
        }
    };
    // From here on it takes no order: who wants a window gets a new one.
    drop(taken);
    if let Gone::Ended(ended) = &gone {
        say_how(ended);
    }
    if window.unanswered > 0 {
        // It was asked for while it was already going.
        events.put(Event::WindowWanted);
    } else {
        events.put(Event::WindowClosed);
    }
    window.see_it_end().await;
}

fn say_how(ended: &std::io::Result<ExitStatus>) {
    match ended {
        // Closed, and gone before that was heard.
        Ok(status) if status.success() => {}
        Ok(status) => tracing::warn!("the window ended by itself ({status}); it can be opened again"),
        Err(error) => tracing::warn!(%error, "the window was lost"),
    }
}

impl Attended {
    async fn next(&mut self, taken: &mut mpsc::Receiver<Order>) -> Option<Gone> {
        tokio::select! {
            order = taken.recv() => match order {
                Some(order) => { self.tell(&order).await; None }
                None => Some(Gone::Left),
            },
            report = next_line(&mut self.reports) => match report {
                Some(line) => self.hear(&line),
                // Its end of the pipe is closed: it ends, or has ended.
                None => { self.reports = None; None }
            },
            status = self.child.wait() => Some(Gone::Ended(status)),
        }
    }

    async fn tell(&mut self, order: &Order) {
        if *order == Order::ComeToFront {
            self.unanswered += 1;
        }
        if let Some(orders) = &mut self.orders
            && let Err(error) = orders.write_all(orders::line(order).as_bytes()).await
        {
            tracing::debug!(%error, "the window hears nothing any more");
        }
    }

    fn hear(&mut self, line: &str) -> Option<Gone> {
        match serde_json::from_str(line) {
            Ok(Report::InFront) => {
                self.unanswered = self.unanswered.saturating_sub(1);
                None
            }
            Ok(Report::Closed) => Some(Gone::Closed),
            // A library may print there, too.
            Err(_) => {
                tracing::debug!(line, "said by the window");
                None
            }
        }
    }

    async fn see_it_end(mut self) {
        drop(self.orders.take());
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) => tracing::debug!(%status, "the window's program has ended"),
            Ok(Err(error)) => tracing::warn!(%error, "the window's program was lost"),
            Err(_) => {
                tracing::warn!("the window's program did not end by itself and is killed");
                if let Err(error) = self.child.kill().await {
                    tracing::warn!(%error, "the window's program cannot be killed");
                }
            }
        }
    }
}

/// The next report; never where none can come.
async fn next_line(reports: &mut Option<Lines<BufReader<ChildStdout>>>) -> Option<String> {
    match reports {
        Some(lines) => lines.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
}
