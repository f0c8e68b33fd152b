//! How the desktop runs on Linux: this program holds the tray and all that decides, without toolkit or web view, and starts
//! another for the window (see `docs/adr/0005`).

mod menu_on_bus;
mod only_one;
mod panel_colour;
mod status_item;
mod tray;
mod window_program;

use crate::arguments::Arguments;
use crate::controller::{Event, TrayView};
use crate::shell::{Events, Face, Shell, at_login};
use crate::words::{Locale, Words};
use anyhow::Context as _;
use only_one::Claim;
use sela_client::Client;
use std::process::ExitCode;
use std::time::Duration;
use tray::Tray;
use window_program::WindowProgram;

/// A start without a window waits this long for a panel: at a login both start at once.
const PANEL_PATIENCE: Duration = Duration::from_secs(20);

/// Runs until its owner quits.
///
/// # Errors
/// Where there is no display, or another of these programs does not answer.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    a_display_is_there()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the system gives no event loop")?;
    let lived = runtime.block_on(live(arguments));
    // What hangs on a bus must not keep the process.
    runtime.shutdown_background();
    lived.map(|()| ExitCode::SUCCESS)
}

/// The window's toolkit would end its program without a word that helps, and the tray alone is no use without one.
fn a_display_is_there() -> anyhow::Result<()> {
    let there = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    anyhow::ensure!(
        there("DISPLAY") || there("WAYLAND_DISPLAY"),
        "there is no display; `sela agent run --listen 127.0.0.1:7351` shows the same pages in a browser"
    );
    Ok(())
}

async fn live(arguments: &Arguments) -> anyhow::Result<()> {
    let client = Client::at(sela_client::socket());
    let folder = client
        .socket()
        .parent()
        .context("the agent's socket lies in no folder")?;
    let first = match only_one::claim(folder, arguments.hidden).await? {
        Claim::First(first) => first,
        Claim::Second => return Ok(()),
    };
    let shell = Shell::new(client);
    tokio::spawn(first.keep(shell.events()));
    let words = Words::of(Locale::find(arguments.language, |name| std::env::var(name).ok()));
    let tray = Tray::start(&words, arguments.panel, shell.events());
    tokio::spawn(say_that_it_started(arguments.hidden, tray.is_taken(), shell.events()));
    let mut face = OnLinux {
        window: WindowProgram::new(arguments.language, shell.events()),
        tray,
    };
    shell.run(words, &mut face).await;
    face.window.end().await;
    Ok(())
}

async fn say_that_it_started(hidden: bool, tray: impl Future<Output = bool>, events: Events) {
    // The window is what its owner waits for; only who wants none has to know whether there is a tray instead.
    let tray = hidden && tokio::time::timeout(PANEL_PATIENCE, tray).await.unwrap_or(false);
    events.put(Event::Started {
        hidden,
        tray,
        at_login: at_login(),
    });
}

/// Tray and window.
struct OnLinux {
    window: WindowProgram,
    tray: Tray,
}

impl Face for OnLinux {
    fn show_tray(&mut self, view: TrayView) {
        self.tray.show(view);
    }

    fn open_window(&mut self) {
        self.window.open();
    }

    fn supervisor_said(&mut self, sentence: String) {
        self.window.supervisor_said(sentence);
    }
}
