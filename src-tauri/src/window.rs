//! The window: made when it is asked for, gone with its web view when it is closed. What it shows is the page's.

use tauri::{AppHandle, Manager, Url, WebviewUrl, WebviewWindowBuilder};

/// What Tauri calls it; `capabilities/window.json` names it too.
pub(crate) const LABEL: &str = "main";

const TITLE: &str = "Sela";
/// Logical pixels: the size that Home is drawn for.
const SIZE: (f64, f64) = (1040.0, 720.0);
const LEAST: (f64, f64) = (420.0, 360.0);

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
