//! Starts every watcher that this machine can have: threads for what blocks, tasks for what is asked on a bus. Which source of
//! input there is depends on what the session is: under Wayland never XWayland.

use crate::Config;
use crate::answers::{Asked, GameMode, GnomeSession, KdePower, NetworkManager, UPower};
use crate::attention::{Attention, Bell};
use crate::bus::{self, Place};
use crate::input::mutter::{MUTTER, Mutter};
use crate::input::{wayland, x11};
use crate::login::Login;
use crate::play::fullscreen;
use crate::signals::{DISPLAY_X11, GAMEMODE, GNOME, KDE, Report, WAYLAND, WINDOWS};
use crate::{cards, files, gamepad};
use tokio::sync::{mpsc, watch};

/// Starts all watchers but that of the cards; the names of the sources of input that there can be.
///
/// # Errors
/// Where no thread or event descriptor can be made.
pub(crate) fn start(
    config: &Config,
    programs: watch::Receiver<Vec<String>>,
    attention: &Attention,
    reports: &mpsc::Sender<Report>,
) -> std::io::Result<Vec<&'static str>> {
    let system = config.system_bus.clone().map_or(Place::System, Place::At);
    let session = config.session_bus.clone().map_or(Place::Nowhere, Place::At);
    let login = Login::new(attention.clone(), reports.clone());
    tokio::spawn(bus::follow(system.clone(), login, attention.clone()));
    let power = Asked::<UPower>::new(reports.clone(), Report::Power);
    tokio::spawn(bus::follow(system.clone(), power, attention.clone()));
    let line = Asked::<NetworkManager>::new(reports.clone(), Report::Metered);
    tokio::spawn(bus::follow(system, line, attention.clone()));
    let games = Asked::<GameMode>::new(reports.clone(), |look| Report::Playing(GAMEMODE, look));
    tokio::spawn(bus::follow(session.clone(), games, attention.clone()));
    let gnome = Asked::<GnomeSession>::new(reports.clone(), |look| Report::Engaged(GNOME, look));
    tokio::spawn(bus::follow(session.clone(), gnome, attention.clone()));
    let kde = Asked::<KdePower>::new(reports.clone(), |look| Report::Engaged(KDE, look));
    tokio::spawn(bus::follow(session.clone(), kde, attention.clone()));
    pads_and_files(config, programs, attention, reports)?;
    if let Some(display) = config.display.clone() {
        let reports = reports.clone();
        thread("windows", attention, move |bell| {
            fullscreen::watch(&display, bell, &|look| {
                reports.blocking_send(Report::Playing(WINDOWS, look)).is_ok()
            });
        })?;
    }
    let mut names = Vec::new();
    let place = match (&config.wayland, &config.display, &config.runtime_folder) {
        (Some(socket), ..) => Some(wayland::Place::Socket(socket.clone())),
        // Neither: the agent was started before the session.
        (None, None, Some(folder)) => Some(wayland::Place::In(folder.clone())),
        (None, ..) => None,
    };
    if let Some(place) = place {
        names.extend([WAYLAND, MUTTER]);
        let wayland_reports = reports.clone();
        thread("wayland", attention, move |bell| {
            wayland::watch(&place, bell, &|sighting| {
                wayland_reports
                    .blocking_send(Report::Display(WAYLAND, sighting))
                    .is_ok()
            });
        })?;
        let mutter = Mutter::new(attention.clone(), reports.clone());
        tokio::spawn(bus::follow(session, mutter, attention.clone()));
    } else if let Some(display) = config.display.clone() {
        names.push(DISPLAY_X11);
        watch_display(display, attention, reports.clone())?;
    }
    Ok(names)
}

/// Watches the input of an X display.
///
/// # Errors
/// Where no thread or event descriptor can be made.
pub(crate) fn watch_display(
    display: String,
    attention: &Attention,
    reports: mpsc::Sender<Report>,
) -> std::io::Result<()> {
    thread("x11", attention, move |bell| {
        x11::watch(&display, bell, &|sighting| {
            reports.blocking_send(Report::Display(DISPLAY_X11, sighting)).is_ok()
        });
    })
}

fn pads_and_files(
    config: &Config,
    programs: watch::Receiver<Vec<String>>,
    attention: &Attention,
    reports: &mpsc::Sender<Report>,
) -> std::io::Result<()> {
    let (roots, pad_reports) = (config.roots.clone(), reports.clone());
    thread("gamepads", attention, move |bell| {
        gamepad::watch(&roots, bell, &|look| {
            pad_reports.blocking_send(Report::Gamepad(look)).is_ok()
        });
    })?;
    let (roots, reports) = (config.roots.clone(), reports.clone());
    let home = config.home.clone();
    thread("files", attention, move |bell| {
        files::watch(&roots, home, programs, bell, &|round| {
            reports.blocking_send(Report::Files(Box::new(round))).is_ok()
        });
    })
}

/// Starts the thread that looks at the cards.
///
/// # Errors
/// Where no thread can be made.
pub(crate) fn watch_cards(
    config: &Config,
    attention: &Attention,
    orders: std::sync::mpsc::Receiver<cards::Order>,
    reports: mpsc::Sender<Report>,
) -> std::io::Result<()> {
    let (library, sys, attention) = (config.nvml_library.clone(), config.roots.sys.clone(), attention.clone());
    std::thread::Builder::new()
        .name("cards".into())
        .stack_size(512 << 10)
        .spawn(move || {
            cards::watch(library, sys, &attention, &orders, &|report| {
                reports.blocking_send(Report::Card(report)).is_ok()
            });
        })?;
    Ok(())
}

fn thread(name: &str, attention: &Attention, watch: impl FnOnce(&Bell) + Send + 'static) -> std::io::Result<()> {
    let bell = attention.bell()?;
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(256 << 10)
        .spawn(move || watch(&bell))?;
    Ok(())
}
