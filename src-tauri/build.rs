//! Hands the window's page and its rights to Tauri. The page is built by `npm run build` beforehand: a release without it is
//! refused, a development build gets a page that says what to type. Nothing is built or downloaded here.

use std::path::{Path, PathBuf};
use tauri_build::{AppManifest, Attributes};

/// What the page may ask of this program; each becomes a permission that `capabilities/window.json` must name.
const COMMANDS: &[&str] = &[
    "agent_watch",
    "agent_unwatch",
    "agent_command",
    "agent_strip",
    "agent_shown",
];

const PAGE: &str = "../ui/dist";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PAGE}");
    println!("cargo::rerun-if-env-changed=PROFILE");
    if !Path::new(PAGE).join("index.html").is_file() {
        stand_in();
    }
    let attributes = Attributes::new().app_manifest(AppManifest::new().commands(COMMANDS));
    if let Err(error) = tauri_build::try_build(attributes) {
        println!("cargo::error=the window's configuration does not hold: {error:#}");
    }
}

/// A page in the build folder, never in `ui/`: a page that is there must be the real one.
fn stand_in() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("PROFILE") == "release" {
        println!(
            "cargo::error=the window's page is not built: run `npm ci && npm run build` in the root, then build again"
        );
        return;
    }
    println!("cargo::warning=the window's page is not built; the window will only say so. `npm run build` builds it");
    let folder = PathBuf::from(variable("OUT_DIR")).join("stand-in");
    let page = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sela</title></head><body>\
                <h1>The window's page is not built.</h1><p>Run <code>npm ci &amp;&amp; npm run build</code> in the root of the \
                repository, then build this program again.</p></body></html>";
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join("index.html"), page));
    if let Err(error) = written {
        println!("cargo::error={} cannot be written: {error}", folder.display());
    }
    // The configuration that `generate_context!` reads takes what this variable says over what the file says.
    let folder = folder.display().to_string().replace('\\', "/");
    println!("cargo::rustc-env=TAURI_CONFIG={{\"build\":{{\"frontendDist\":\"{folder}\"}}}}");
}
