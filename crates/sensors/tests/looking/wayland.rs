//! Wayland compositors without a screen: sway, which speaks the older protocol of KDE, KWin, which speaks `ext-idle-notify-v1`,
//! and GNOME's, which tells on the session bus. Used, hung, ended, started again.

use super::peers::*;
use sela_protocol::presence::Signals;
use sela_sensors::Config;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

async fn appears(path: &Path) {
    for _ in 0..600 {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{} does not appear", path.display());
}

fn start_sway(runtime: &Path) -> Ended {
    let settings = runtime.parent().expect("a parent").join("sway");
    std::fs::write(&settings, "xwayland disable\n").expect("written");
    start_as_nobody(
        "sway",
        &["--config", &settings.to_string_lossy()],
        &[
            ("HOME", &runtime.to_string_lossy()),
            ("XDG_RUNTIME_DIR", &runtime.to_string_lossy()),
            ("WLR_BACKENDS", "headless"),
            ("WLR_LIBINPUT_NO_DEVICES", "1"),
            ("WLR_RENDERER", "pixman"),
        ],
    )
}

fn type_a_key(runtime: &Path) {
    let typed = Command::new("wtype")
        .arg("a")
        .env("XDG_RUNTIME_DIR", runtime)
        .env("WAYLAND_DISPLAY", "wayland-1")
        .status()
        .expect("wtype must be installed (cargo xtask setup does it)");
    assert!(typed.success());
}

pub(crate) async fn a_key_typed_under_wayland_is_seen_and_a_compositor_that_hangs_or_dies_is_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime_folder(&folder);
    let socket = runtime.join("wayland-1");
    let sway = start_sway(&runtime);
    appears(&socket).await;
    let mut sight = Sight::open(Config {
        wayland: Some(socket.clone()),
        ..config(&folder)
    });
    let before = idle(&mut sight, "Wayland").await;
    type_a_key(&runtime);
    sight
        .signals("the key", |seen| input_at(seen) > input_at(&before))
        .await;
    sway.hang();
    let hung = sight
        .signals("the hung compositor", |seen| is_unknown(&seen.input))
        .await;
    assert_eq!(input_source(&hung), "Wayland");
    sway.go_on();
    sight.signals("it again", |seen| input_at(seen).is_some()).await;
    drop(sway);
    let gone = sight.signals("the end of it", |seen| is_unknown(&seen.input)).await;
    assert_eq!(input_source(&gone), "Wayland");
    let _again = start_sway(&runtime);
    // What happened meanwhile nobody saw: the new start counts as input.
    sight
        .signals("the next compositor", |seen| input_at(seen) > input_at(&before))
        .await;
}

#[tokio::test]
async fn a_compositor_that_starts_after_the_agent_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime_folder(&folder);
    let mut sight = Sight::open(Config {
        runtime_folder: Some(runtime.clone()),
        ..config(&folder)
    });
    let nothing = |seen: &Signals| matches!(seen.input, sela_protocol::presence::Observed::NotApplicable { .. });
    sight.signals("that there is no session", nothing).await;
    let _sway = start_sway(&runtime);
    appears(&runtime.join("wayland-1")).await;
    // The next change of attention looks anew; without one it takes ten seconds.
    sight.eyes.attend(false);
    sight.eyes.attend(true);
    sight
        .signals("the compositor", |seen| input_source(seen) == "Wayland")
        .await;
}

/// KWin carries a capability on its file that a copy does not.
fn kwin(folder: &tempfile::TempDir) -> PathBuf {
    let copy = folder.path().join("kwin_wayland");
    std::fs::copy("/usr/bin/kwin_wayland", &copy).expect("copied");
    copy
}

#[tokio::test]
async fn under_kwin_activity_is_seen_by_the_standard_protocol() {
    if !is_installed("kwin_wayland", "KWin") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime_folder(&folder);
    let program = kwin(&folder);
    let here = runtime.to_string_lossy().into_owned();
    let mut daemon = start_as_nobody(
        "dbus-daemon",
        &["--session", "--print-address", "--nofork"],
        &[("HOME", &here)],
    );
    let address = first_line(&mut daemon);
    let environment = [
        ("HOME", here.as_str()),
        ("XDG_RUNTIME_DIR", &here),
        ("DBUS_SESSION_BUS_ADDRESS", &address),
        ("KWIN_COMPOSE", "Q"),
    ];
    let arguments = ["--virtual", "--no-global-shortcuts", "--socket", "wayland-kwin"];
    let kwin = start_as_nobody(&program.to_string_lossy(), &arguments, &environment);
    let socket = runtime.join("wayland-kwin");
    appears(&socket).await;
    let mut sight = Sight::open(Config {
        wayland: Some(socket),
        ..config(&folder)
    });
    let before = idle(&mut sight, "Wayland").await;
    let service = "org.freedesktop.ScreenSaver";
    let woken = start_as_nobody(
        "dbus-send",
        &[
            "--session",
            "--print-reply",
            &format!("--dest={service}"),
            "/ScreenSaver",
            &format!("{service}.SimulateUserActivity"),
        ],
        &environment,
    );
    sight
        .signals("the activity", |seen| input_at(seen) > input_at(&before))
        .await;
    drop((woken, kwin));
    sight.signals("the end of KWin", |seen| is_unknown(&seen.input)).await;
}

pub(crate) async fn under_gnome_activity_is_seen_on_the_session_bus_and_a_compositor_that_hangs_or_dies_is_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).expect("made");
    let here = runtime.to_string_lossy().into_owned();
    let bus = Bus::start().await;
    let mutter = start(
        "mutter",
        &[
            "--headless",
            "--virtual-monitor",
            "800x600",
            "--no-x11",
            "--wayland-display",
            "wayland-gnome",
        ],
        &[
            ("HOME", &here),
            ("XDG_RUNTIME_DIR", &here),
            ("DBUS_SESSION_BUS_ADDRESS", &bus.address),
            ("GSETTINGS_BACKEND", "memory"),
            ("MUTTER_DEBUG_RESET_IDLETIME", "1"),
        ],
    );
    let socket = runtime.join("wayland-gnome");
    appears(&socket).await;
    let mut sight = Sight::open(Config {
        wayland: Some(socket),
        session_bus: Some(bus.address.clone()),
        ..config(&folder)
    });
    let before = idle(&mut sight, "Mutter").await;
    let service = "org.gnome.Mutter.IdleMonitor";
    // What a test of GNOME does in place of a hand.
    bus.call(
        service,
        "/org/gnome/Mutter/IdleMonitor/Core",
        service,
        "ResetIdletime",
        &(),
    )
    .await;
    sight
        .signals("the activity", |seen| input_at(seen) > input_at(&before))
        .await;
    mutter.hang();
    sight
        .signals("the hung compositor", |seen| is_unknown(&seen.input))
        .await;
    mutter.go_on();
    sight.signals("it again", |seen| input_at(seen).is_some()).await;
    drop(mutter);
    sight.signals("the end of it", |seen| is_unknown(&seen.input)).await;
}
