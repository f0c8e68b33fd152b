//! The shell around the controller: starts what brings events, carries out effects, lives until told to leave. Decides nothing.
//! What each system does in its own way (tray, window, how the program begins) stands behind [`Face`].

use crate::controller::{Controller, Effect, Event, Notice, TrayView};
use crate::supervisor::{self, Answer};
use crate::trouble::Trouble;
use crate::words::Words;
use crate::{autostart, link, notifications};
use sela_client::Client;
use sela_protocol::local::Command;
use sela_protocol::units::Millis;
use std::time::Duration;
use tokio::sync::mpsc;

/// Clicks, answers and once a second the agent: this many never wait.
const QUEUE: usize = 256;
const NOTICES: usize = 16;

/// What the owner sees of the shell: a tray and a window, in the way of one system. None of it may wait.
pub(crate) trait Face {
    /// Lets the tray show this, where there is one.
    fn show_tray(&mut self, view: TrayView);
    /// Opens the window, or brings it to the front.
    fn open_window(&mut self);
    /// Lets a page that misses the agent say what the supervisor said.
    fn supervisor_said(&mut self, sentence: String);
}

/// Where events go in.
#[derive(Debug, Clone)]
pub(crate) struct Events(mpsc::Sender<Event>);

impl Events {
    pub(crate) const fn into(queue: mpsc::Sender<Event>) -> Self {
        Self(queue)
    }

    /// Never waits: it is called on main threads and inside D-Bus.
    pub(crate) fn put(&self, event: Event) {
        if let Err(error) = self.0.try_send(event) {
            tracing::error!(%error, "the shell does not keep up; something was not done");
        }
    }
}

/// The shell before it runs.
pub(crate) struct Shell {
    client: Client,
    events: mpsc::Sender<Event>,
    queue: mpsc::Receiver<Event>,
}

impl Shell {
    pub(crate) fn new(client: Client) -> Self {
        let (events, queue) = mpsc::channel(QUEUE);
        Self { client, events, queue }
    }

    pub(crate) fn events(&self) -> Events {
        Events::into(self.events.clone())
    }

    /// Runs until told to leave. Inside a runtime.
    pub(crate) async fn run(self, words: Words, face: &mut impl Face) {
        let (notices, shown) = mpsc::channel(NOTICES);
        tokio::spawn(notifications::keep(shown));
        tokio::spawn(link::keep(self.client.clone(), self.events.clone()));
        let mut controller = Controller::new(words, jiff::tz::TimeZone::system());
        let hands = Hands {
            client: self.client,
            events: Events::into(self.events),
            notices,
        };
        let mut queue = self.queue;
        while let Some(event) = queue.recv().await {
            if let Event::SupervisorAnswered(answer) = &event {
                face.supervisor_said(answer.sentence());
            }
            for effect in controller.step(sela_clock::now(), event) {
                tracing::debug!(?effect);
                match effect {
                    Effect::ShowTray(view) => face.show_tray(view),
                    Effect::OpenWindow => face.open_window(),
                    Effect::Notify(notice) => hands.notify(notice),
                    Effect::Tell(command) => hands.tell(command),
                    Effect::AskSupervisor => hands.ask_supervisor(),
                    Effect::SetAtLogin(on) => hands.set_at_login(on),
                    Effect::Wake(after) => hands.wake(after),
                    Effect::Leave => return,
                }
            }
        }
    }
}

/// What effects are carried out with that is the same on every system.
struct Hands {
    client: Client,
    events: Events,
    notices: mpsc::Sender<Notice>,
}

impl Hands {
    fn notify(&self, notice: Notice) {
        if self.notices.try_send(notice).is_err() {
            tracing::warn!("too many notifications wait; one was left out");
        }
    }

    fn tell(&self, command: Command) {
        let (client, events) = (self.client.clone(), self.events.clone());
        tokio::spawn(async move {
            let answer = client.command(&command).await.map_err(Trouble::from);
            tracing::info!(?command, ?answer, "told the agent");
            events.put(Event::CommandAnswered { command, answer });
        });
    }

    fn ask_supervisor(&self) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let answer: Answer = supervisor::ask_for_agent().await;
            tracing::info!("the agent is not running: {}", answer.sentence());
            events.put(Event::SupervisorAnswered(answer));
        });
    }

    fn set_at_login(&self, on: bool) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = autostart::set(on) {
                tracing::warn!("start at login was not changed: {error:#}");
            }
            events.put(Event::AtLogin(at_login()));
        });
    }

    fn wake(&self, after: Millis) {
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after.0)).await;
            events.put(Event::Woken);
        });
    }
}

/// Whether this program starts at login; `None` where that cannot be told. Blocking.
pub(crate) fn at_login() -> Option<bool> {
    autostart::is_on()
        .inspect_err(|error| tracing::warn!("start at login is not offered: {error:#}"))
        .ok()
}
