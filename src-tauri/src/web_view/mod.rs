//! The window: made when it is asked for, gone with its web view when it is closed. What it shows is the page's. On Linux a
//! program of its own (`sela_window.rs`) holds it, elsewhere the one that also holds the tray.

mod bridge;

use bridge::Bridge;
use sela_client::Client;
use tauri::webview::PageLoadEvent;
use tauri::{AppHandle, Manager as _, RunEvent, Url, WebviewUrl, WebviewWindowBuilder, WindowEvent, Wry};
use tokio::sync::watch;

/// What Tauri calls it; `capabilities/window.json` names it too.
const LABEL: &str = "main";

const TITLE: &str = "Sela";
/// Logical pixels: the size that Home is drawn for.
const SIZE: (f64, f64) = (1040.0, 720.0);
const LEAST: (f64, f64) = (420.0, 360.0);

/// What every program with a window is made of: the page may ask for the agent, and hears what `supervisor` said last.
pub(crate) fn builder(client: Client, supervisor: watch::Receiver<Option<String>>) -> tauri::Builder<Wry> {
    tauri::Builder::default()
        .manage(Bridge::new(client, supervisor))
        .invoke_handler(tauri::generate_handler![
            bridge::agent_watch,
            bridge::agent_unwatch,
            bridge::agent_command,
            bridge::agent_strip,
            bridge::agent_shown
        ])
}

/// The page and its rights, compiled in.
pub(crate) fn context() -> tauri::Context {
    tauri::generate_context!()
}

/// Whether the window has just gone; what its page asked for is given up then.
pub(crate) fn is_closed(app: &AppHandle, event: &RunEvent) -> bool {
    let RunEvent::WindowEvent { label, event, .. } = event else {
        return false;
    };
    let closed = label == LABEL && matches!(event, WindowEvent::Destroyed);
    if closed {
        app.state::<Bridge>().end_watches();
    }
    closed
}

/// Opens the window, or brings it to the front. On the main thread only.
///
/// # Errors
/// Where the system gives no window or no web view.
pub(crate) fn open(app: &AppHandle, language: Option<&str>) -> tauri::Result<()> {
    if let Some(window) = app.get_webview_window(LABEL) {
        window.unminimize()?;
        window.show()?;
        return window.set_focus();
    }
    // The page follows the system by itself; it is only told what was asked for on the command line.
    let page = language.map_or_else(|| "index.html".to_owned(), |tag| format!("index.html?lang={tag}"));
    WebviewWindowBuilder::new(app, LABEL, WebviewUrl::App(page.into()))
        .title(TITLE)
        .inner_size(SIZE.0, SIZE.1)
        .min_inner_size(LEAST.0, LEAST.1)
        .center()
        .on_navigation(is_ours)
        // A web view that is drawn before its page is there waits for it, and the page for the web view: half a second is lost.
        .visible(false)
        .on_page_load(|window, load| {
            if load.event() == PageLoadEvent::Finished
                && let Err(error) = window.show().and_then(|()| window.set_focus())
            {
                tracing::error!(%error, "the window stays hidden");
            }
        })
        .build()
        .map(drop)
}

/// The window shows our page and goes nowhere else.
fn is_ours(address: &Url) -> bool {
    match address.scheme() {
        "tauri" => address.host_str() == Some("localhost"),
        "http" | "https" => address.host_str() == Some("tauri.localhost"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_goes_nowhere_but_to_our_page() {
        for (address, ours) in [
            ("tauri://localhost/index.html?lang=id", true),
            ("http://tauri.localhost/index.html", true),
            ("https://example.org/", false),
            ("http://localhost/", false),
            ("file:///etc/passwd", false),
            ("data:text/html,x", false),
        ] {
            assert_eq!(is_ours(&Url::parse(address).expect("an address")), ours, "{address}");
        }
    }
}
