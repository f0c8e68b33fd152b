//! An X server with a real pointer: moved, hung, ended; and windows that fill its screen.

use super::peers::*;
use sela_protocol::presence::Observed;
use sela_protocol::senses::PlayKind;
use sela_sensors::Config;
use std::process::Command;
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{AtomEnum, ConnectionExt as _, CreateWindowAux, PropMode, WindowClass};
use x11rb::wrapper::ConnectionExt as _;

fn server() -> (Ended, String) {
    let mut server = start(
        "Xvfb",
        &["-displayfd", "1", "-screen", "0", "320x200x24", "-nolisten", "tcp"],
        &[],
    );
    let display = format!(":{}", first_line(&mut server));
    (server, display)
}

/// Relative motion goes through XTEST as a device's would; an absolute one warps the pointer, which is no input.
fn move_pointer(display: &str) {
    let moved = Command::new("xdotool")
        .args(["mousemove_relative", "--", "3", "2"])
        .env("DISPLAY", display)
        .status()
        .expect("xdotool must be installed (cargo xtask setup does it)");
    assert!(moved.success());
}

pub(crate) async fn a_moving_pointer_is_seen_and_an_x_server_that_hangs_or_dies_is_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, display) = server();
    let mut sight = Sight::open(Config {
        display: Some(display.clone()),
        ..config(&folder)
    });
    let mut before = sight.signals("the display", |seen| input_at(seen).is_some()).await;
    for _ in 1..3 {
        move_pointer(&display);
        let after = sight
            .signals("the pointer", |seen| input_at(seen) > input_at(&before))
            .await;
        // What follows within a tenth of a second is the same movement: the next one comes after a look in between.
        before = sight
            .signals("a later look", |seen| {
                looked_at(seen) > input_at(&after).map(|at| at + 200)
            })
            .await;
    }
    server.hang();
    let hung = sight.signals("the hung server", |seen| is_unknown(&seen.input)).await;
    assert_eq!(input_source(&hung), "X11");
    server.go_on();
    sight.signals("the server again", |seen| input_at(seen).is_some()).await;
    drop(server);
    let gone = sight.signals("the end of it", |seen| is_unknown(&seen.input)).await;
    assert_eq!(input_source(&gone), "X11");
}

#[tokio::test]
async fn under_wayland_the_x_display_is_never_asked_for_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, display) = server();
    let mut sight = Sight::open(Config {
        display: Some(display.clone()),
        wayland: Some(folder.path().join("wayland-0")),
        ..config(&folder)
    });
    let tells = |source: &'static str| move |seen: &sela_protocol::presence::Signals| matches!(&seen.input, Observed::Unknown { source: from, why } if from == source && why.contains("reach"));
    sight.signals("that the compositor is missing", tells("Wayland")).await;
    move_pointer(&display);
    // XWayland's pointer moved, and is not what is looked at.
    sight.signals("that it still is", tells("Wayland")).await;
}

#[tokio::test]
async fn a_window_that_fills_the_screen_is_seen_until_it_is_hidden_or_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, display) = server();
    let mut sight = Sight::open(Config {
        display: Some(display.clone()),
        ..config(&folder)
    });
    let program = |seen: &sela_protocol::presence::Signals| {
        let playing = value(&seen.senses.playing)?.first()?;
        (playing.kind == PlayKind::Fullscreen).then(|| playing.program.clone())
    };
    sight
        .signals("an empty screen", |seen| {
            value(&seen.senses.playing).is_some_and(Vec::is_empty)
        })
        .await;
    // What a window manager says of its windows.
    let (connection, screen) = x11rb::connect(Some(&display)).expect("the display");
    let root = connection.setup().roots[screen].root;
    let atom = |name: &str| {
        let asked = connection.intern_atom(false, name.as_bytes()).expect("asked");
        asked.reply().expect("an atom").atom
    };
    let window = connection.generate_id().expect("a window");
    connection
        .create_window(
            0,
            window,
            root,
            0,
            0,
            320,
            200,
            0,
            WindowClass::INPUT_OUTPUT,
            0,
            &CreateWindowAux::new(),
        )
        .expect("made");
    let replace = PropMode::REPLACE;
    connection
        .change_property8(replace, window, AtomEnum::WM_CLASS, AtomEnum::STRING, b"doom\0Doom\0")
        .expect("named");
    let states = |names: &[&str]| {
        let states: Vec<u32> = names.iter().map(|name| atom(name)).collect();
        let changed = connection.change_property32(replace, window, atom("_NET_WM_STATE"), AtomEnum::ATOM, &states);
        changed.expect("changed");
        connection.flush().expect("sent");
    };
    connection
        .change_property32(replace, root, atom("_NET_CLIENT_LIST"), AtomEnum::WINDOW, &[window])
        .expect("listed");
    states(&["_NET_WM_STATE_FULLSCREEN"]);
    sight
        .signals("the full screen", |seen| program(seen).as_deref() == Some("Doom"))
        .await;
    states(&["_NET_WM_STATE_FULLSCREEN", "_NET_WM_STATE_HIDDEN"]);
    sight.signals("the hidden window", |seen| program(seen).is_none()).await;
    states(&["_NET_WM_STATE_FULLSCREEN"]);
    sight.signals("it again", |seen| program(seen).is_some()).await;
    connection.destroy_window(window).expect("closed");
    connection
        .change_property32(replace, root, atom("_NET_CLIENT_LIST"), AtomEnum::WINDOW, &[])
        .expect("listed");
    connection.flush().expect("sent");
    sight.signals("the closed window", |seen| program(seen).is_none()).await;
}
