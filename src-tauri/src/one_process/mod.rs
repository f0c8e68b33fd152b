//! How the desktop runs on Windows and macOS: tray and window in one process. Their web views live in processes of the system's
//! and leave with the window, so there is nothing to be won by a second program.
#![cfg_attr(
    target_os = "linux",
    allow(dead_code, reason = "compiled into the tests there, so that it does not rot unseen")
)]

mod tray;

use crate::arguments::Arguments;
use crate::controller::{Event, TrayView};
use crate::shell::{Events, Face, Shell, at_login};
use crate::sign::Panel;
use crate::web_view;
use crate::words::{Locale, Words};
use anyhow::Context as _;
use sela_client::Client;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use tauri::{AppHandle, RunEvent};
use tokio::sync::watch;
use tray::Tray;

/// Runs until its owner quits.
///
/// # Errors
/// Where there is no window system that works.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("the system gives no event loop")?;
    tauri::async_runtime::set(runtime.handle().clone());
    let client = Client::at(sela_client::socket());
    let (supervisor, last_said) = watch::channel(None);
    let shell = Shell::new(client.clone());
    let events = shell.events();
    let wanted = arguments.clone();
    let app = only_one(web_view::builder(client, last_said), shell.events())
        .setup(move |app| {
            begin(app.handle(), shell, supervisor, &wanted);
            Ok(())
        })
        .build(web_view::context())
        .context("the window system does not start")?;
    let code = app.run_return(move |app, event| {
        // The last window is gone, and the tray stays; only `exit` brings a code.
        if let RunEvent::ExitRequested { code: None, api, .. } = &event {
            api.prevent_exit();
        }
        if web_view::is_closed(app, &event) {
            events.put(Event::WindowClosed);
        }
    });
    // What hangs in a driver must not keep the process.
    runtime.shutdown_background();
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

#[cfg(not(target_os = "linux"))]
fn only_one(builder: tauri::Builder<tauri::Wry>, events: Events) -> tauri::Builder<tauri::Wry> {
    builder.plugin(tauri_plugin_single_instance::init(move |_, words, _| {
        if !crate::arguments::is_hidden(&words) {
            events.put(Event::WindowWanted);
        }
    }))
}

/// Never run there: `linux/only_one.rs` is that system's way.
#[cfg(target_os = "linux")]
fn only_one(builder: tauri::Builder<tauri::Wry>, _events: Events) -> tauri::Builder<tauri::Wry> {
    builder
}

/// Starts everything. On the main thread.
fn begin(app: &AppHandle, shell: Shell, supervisor: watch::Sender<Option<String>>, arguments: &Arguments) {
    let words = Words::of(Locale::find(arguments.language, |name| std::env::var(name).ok()));
    let tray = make_tray(app, &words, arguments.panel.unwrap_or_default(), shell.events());
    shell.events().put(Event::Started {
        hidden: arguments.hidden,
        tray: tray.is_some(),
        at_login: at_login(),
    });
    let mut face = InOneProcess {
        app: app.clone(),
        tray: Arc::new(Mutex::new(tray)),
        language: arguments.language.map(|language| language.tag()),
        supervisor,
    };
    tauri::async_runtime::spawn(async move {
        shell.run(words, &mut face).await;
        face.app.exit(0);
    });
}

fn make_tray(app: &AppHandle, words: &Words, panel: Panel, events: Events) -> Option<Tray> {
    let chose = move |choice| events.put(Event::Chose(choice));
    Tray::new(app, words, panel, chose)
        .inspect_err(|error| tracing::warn!("no tray: {error}; closing the window will end this program"))
        .ok()
}

/// Tray and window.
struct InOneProcess {
    app: AppHandle,
    /// Only touched on the main thread.
    tray: Arc<Mutex<Option<Tray>>>,
    language: Option<&'static str>,
    supervisor: watch::Sender<Option<String>>,
}

impl Face for InOneProcess {
    fn show_tray(&mut self, view: TrayView) {
        let tray = self.tray.clone();
        self.on_main_thread("the tray", move |_| {
            match tray.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                Some(tray) => tray.show(&view),
                None => Ok(()),
            }
        });
    }

    fn open_window(&mut self) {
        let language = self.language;
        self.on_main_thread("the window", move |app| web_view::open(app, language));
    }

    fn supervisor_said(&mut self, sentence: String) {
        self.supervisor.send_replace(Some(sentence));
    }
}

impl InOneProcess {
    fn on_main_thread(&self, what: &'static str, act: impl FnOnce(&AppHandle) -> tauri::Result<()> + Send + 'static) {
        let app = self.app.clone();
        let acted = self.app.run_on_main_thread(move || {
            if let Err(error) = act(&app) {
                tracing::error!(%error, "{what} could not be shown");
            }
        });
        if let Err(error) = acted {
            tracing::error!(%error, "the main thread is gone");
        }
    }
}
