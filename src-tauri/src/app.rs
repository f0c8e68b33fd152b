//! The shell around the controller: starts what brings events, carries out effects, lives until told to leave. Decides nothing.

use crate::arguments::{self, Arguments, Panel};
use crate::bridge::{self, Bridge};
use crate::controller::{Controller, Effect, Event, TrayView};
use crate::tray::{self, Tray};
use crate::trouble::Trouble;
use crate::words::{Locale, Words};
use crate::{autostart, link, notifications, supervisor, window};
use anyhow::Context as _;
use sela_client::Client;
use sela_protocol::local::Command;
use sela_protocol::units::Millis;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tauri::{AppHandle, Manager as _, RunEvent, WindowEvent};
use tokio::sync::{mpsc, watch};

/// Clicks, answers and once a second the agent: this many never wait.
const QUEUE: usize = 256;
const NOTICES: usize = 16;

/// Runs until its owner quits.
///
/// # Errors
/// Where there is no display, or no window system that works.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    a_display_is_there()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("the system gives no event loop")?;
    tauri::async_runtime::set(runtime.handle().clone());
    let locale = Locale::find(arguments.language, |name| std::env::var(name).ok());
    let client = Client::at(sela_client::socket());
    let (supervisor, last_said) = watch::channel(None);
    let (events, queue) = mpsc::channel(QUEUE);
    let shell = Shell {
        client: client.clone(),
        events: events.clone(),
        supervisor: Arc::new(supervisor),
        page_language: arguments.language.map(|language| language.tag()),
        panel: arguments.panel,
        tray: Arc::default(),
    };
    let again = events.clone();
    let hidden = arguments.hidden;
    let app = tauri::Builder::default()
        .plugin(tauri_plugin_single_instance::init(move |_, words, _| {
            let hidden = arguments::is_hidden(&words);
            put(&again, Event::StartedAgain { hidden });
        }))
        .manage(Bridge::new(client, last_said))
        .invoke_handler(tauri::generate_handler![
            bridge::agent_watch,
            bridge::agent_unwatch,
            bridge::agent_command,
            bridge::agent_strip
        ])
        .setup(move |app| {
            shell.begin(app.handle(), locale, queue, hidden);
            Ok(())
        })
        .build(tauri::generate_context!())
        .context("the window system does not start")?;
    let code = app.run_return(move |app, event| heard(app, &event, &events));
    // What hangs in a driver or on a bus must not keep the process.
    runtime.shutdown_background();
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Without one, the toolkit ends the program without a word that helps.
fn a_display_is_there() -> anyhow::Result<()> {
    let there = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    anyhow::ensure!(
        !cfg!(target_os = "linux") || there("DISPLAY") || there("WAYLAND_DISPLAY"),
        "there is no display; `sela agent run --listen 127.0.0.1:7351` shows the same pages in a browser"
    );
    Ok(())
}

fn heard(app: &AppHandle, event: &RunEvent, events: &mpsc::Sender<Event>) {
    // The last window is gone, and the tray stays; only `exit` brings a code.
    if let RunEvent::ExitRequested { code: None, api, .. } = event {
        api.prevent_exit();
    }
    let RunEvent::WindowEvent { label, event, .. } = event else {
        return;
    };
    if label == window::LABEL && matches!(event, WindowEvent::Destroyed) {
        app.state::<Bridge>().end_watches();
        put(events, Event::WindowClosed);
    }
}

/// Never waits: it is called on the main thread and inside D-Bus.
fn put(events: &mpsc::Sender<Event>, event: Event) {
    if let Err(error) = events.try_send(event) {
        tracing::error!(%error, "the shell does not keep up; something was not done");
    }
}

/// The hands: what effects are carried out with.
#[derive(Clone)]
struct Shell {
    client: Client,
    events: mpsc::Sender<Event>,
    supervisor: Arc<watch::Sender<Option<String>>>,
    page_language: Option<&'static str>,
    panel: Panel,
    /// Only touched on the main thread.
    tray: Arc<Mutex<Option<Tray>>>,
}

impl Shell {
    /// Starts everything. On the main thread.
    fn begin(self, app: &AppHandle, locale: Locale, queue: mpsc::Receiver<Event>, hidden: bool) {
        let words = Words::of(locale);
        let tray = self.make_tray(app, &words);
        let has_tray = tray.is_some();
        *self.tray() = tray;
        let (notices, shown) = mpsc::channel(NOTICES);
        let controller = Controller::new(words, jiff::tz::TimeZone::system());
        let started = Event::Started {
            hidden,
            tray: has_tray,
            at_login: at_login(),
        };
        put(&self.events, started);
        tauri::async_runtime::spawn(link::keep(self.client.clone(), self.events.clone()));
        tauri::async_runtime::spawn(notifications::keep(shown));
        tauri::async_runtime::spawn(self.work(app.clone(), controller, queue, notices));
    }

    fn make_tray(&self, app: &AppHandle, words: &Words) -> Option<Tray> {
        if !tray::is_possible() {
            tracing::warn!("no tray: install libayatana-appindicator3-1; closing the window will end this program");
            return None;
        }
        let events = self.events.clone();
        let made = icon_folder(self.client.socket())
            .and_then(|icons| {
                let chose = move |choice| put(&events, Event::Chose(choice));
                Tray::new(app, words, &icons, self.panel, chose).context("the system gives no tray")
            })
            .inspect_err(|error| tracing::warn!("no tray: {error:#}; closing the window will end this program"));
        made.ok()
    }

    async fn work(
        self,
        app: AppHandle,
        mut controller: Controller,
        mut queue: mpsc::Receiver<Event>,
        notices: mpsc::Sender<crate::controller::Notice>,
    ) {
        while let Some(event) = queue.recv().await {
            for effect in controller.step(sela_clock::now(), event) {
                tracing::debug!(?effect);
                match effect {
                    Effect::ShowTray(view) => self.show_tray(&app, view),
                    Effect::Notify(notice) => {
                        if notices.try_send(notice).is_err() {
                            tracing::warn!("too many notifications wait; one was left out");
                        }
                    }
                    Effect::OpenWindow => self.open_window(&app),
                    Effect::Tell(command) => self.tell(command),
                    Effect::AskSupervisor => self.ask_supervisor(),
                    Effect::SetAtLogin(on) => self.set_at_login(on),
                    Effect::Wake(after) => self.wake(after),
                    Effect::Leave => app.exit(0),
                }
            }
        }
    }

    fn tray(&self) -> std::sync::MutexGuard<'_, Option<Tray>> {
        self.tray.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show_tray(&self, app: &AppHandle, view: TrayView) {
        let shell = self.clone();
        on_main_thread(app, "the tray", move || match shell.tray().as_mut() {
            Some(tray) => tray.show(&view),
            None => Ok(()),
        });
    }

    fn open_window(&self, app: &AppHandle) {
        let language = self.page_language;
        let opened = app.clone();
        on_main_thread(app, "the window", move || window::open(&opened, language));
    }

    fn tell(&self, command: Command) {
        let (client, events) = (self.client.clone(), self.events.clone());
        tauri::async_runtime::spawn(async move {
            let answer = client.command(&command).await.map_err(Trouble::from);
            tracing::info!(?command, ?answer, "told the agent");
            put(&events, Event::CommandAnswered { command, answer });
        });
    }

    fn ask_supervisor(&self) {
        let (supervisor, events) = (self.supervisor.clone(), self.events.clone());
        tauri::async_runtime::spawn(async move {
            let answer = supervisor::ask_for_agent().await;
            tracing::info!("the agent is not running: {}", answer.sentence());
            supervisor.send_replace(Some(answer.sentence()));
            put(&events, Event::SupervisorAnswered(answer));
        });
    }

    fn set_at_login(&self, on: bool) {
        let events = self.events.clone();
        tauri::async_runtime::spawn_blocking(move || {
            if let Err(error) = autostart::set(on) {
                tracing::warn!("start at login was not changed: {error:#}");
            }
            put(&events, Event::AtLogin(at_login()));
        });
    }

    fn wake(&self, after: Millis) {
        let events = self.events.clone();
        tauri::async_runtime::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after.0)).await;
            put(&events, Event::Woken);
        });
    }
}

fn on_main_thread(app: &AppHandle, what: &'static str, act: impl FnOnce() -> tauri::Result<()> + Send + 'static) {
    let acted = app.run_on_main_thread(move || {
        if let Err(error) = act() {
            tracing::error!(%error, "{what} could not be shown");
        }
    });
    if let Err(error) = acted {
        tracing::error!(%error, "the main thread is gone");
    }
}

fn at_login() -> Option<bool> {
    autostart::is_on()
        .inspect_err(|error| tracing::warn!("start at login is not offered: {error:#}"))
        .ok()
}

/// Beside the agent's socket, where only this user looks.
fn icon_folder(socket: &Path) -> anyhow::Result<PathBuf> {
    let runtime = socket.parent().context("the socket lies in no folder")?;
    let folder = runtime.join("tray");
    make_private(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(folder)
}

#[cfg(unix)]
fn make_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn make_private(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)
}
