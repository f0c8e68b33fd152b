//! The life of the window's program: makes the window, does as it is told through standard input, and ends with either.

use crate::language::Language;
use crate::orders::{self, Order, Report};
use crate::web_view;
use anyhow::Context as _;
use sela_client::Client;
use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;
use tauri::AppHandle;
use tokio::sync::watch;

/// The window of Sela. `sela-desktop` starts it; start that instead.
#[derive(Debug, clap::Parser)]
#[command(name = "sela-window", version)]
pub(crate) struct Arguments {
    /// The language of the page; else the system's
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    language: Option<Language>,
}

/// A toolkit that does not let go of its window within that is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs until the window is closed or standard input ends.
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
    let (supervisor, last_said) = watch::channel(None);
    let language = arguments.language.map(Language::tag);
    let app = web_view::builder(Client::at(sela_client::socket()), last_said)
        .setup(move |app| {
            // What goes wrong in here ends the program with a panic; this ends it with a sentence.
            if let Err(error) = web_view::open(app.handle(), language) {
                tracing::error!(%error, "the window could not be shown");
                app.handle().exit(1);
                return Ok(());
            }
            obey(app.handle().clone(), language, supervisor);
            Ok(())
        })
        .build(web_view::context())
        .context("the window system does not start")?;
    let code = app.run_return(|app, event| {
        if web_view::is_closed(app, &event) {
            report(Report::Closed);
        }
    });
    // What hangs in a driver or on a socket must not keep the process.
    runtime.shutdown_background();
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Reads orders away from everything else, for nothing says when one comes.
fn obey(app: AppHandle, language: Option<&'static str>, supervisor: watch::Sender<Option<String>>) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Order::ComeToFront) => come_to_front(&app, language),
                Ok(Order::SupervisorSaid { sentence }) => {
                    supervisor.send_replace(Some(sentence));
                }
                Err(error) => tracing::warn!(%error, line, "an order that does not read"),
            }
        }
        // Whoever wanted the window is gone, or wants it no longer.
        app.exit(0);
        std::thread::sleep(PATIENCE);
        tracing::warn!("the window does not let go; it is left behind");
        std::process::exit(1);
    });
}

fn come_to_front(app: &AppHandle, language: Option<&'static str>) {
    let opened = app.clone();
    let told = app.run_on_main_thread(move || match web_view::open(&opened, language) {
        Ok(()) => report(Report::InFront),
        Err(error) => tracing::error!(%error, "the window does not come to the front"),
    });
    if let Err(error) = told {
        tracing::error!(%error, "the main thread is gone");
    }
}

fn report(report: Report) {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(orders::line(&report).as_bytes())
        .and_then(|()| out.flush());
    if let Err(error) = written {
        tracing::debug!(%error, "nobody hears of it");
    }
}
