//! Windows that fill the screen of an X display (XWayland's too: Proton's games are there): told by the window manager in
//! `_NET_WM_STATE`, followed by property events. One thread per display, asleep between them. Titles are never read.

use crate::attention::Bell;
use crate::input::x11::{Fault, wait};
use crate::look::Look;
use sela_protocol::senses::{Play, PlayKind};
use sela_protocol::units::Millis;
use std::collections::HashSet;
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{AtomEnum, ChangeWindowAttributesAux, ConnectionExt as _, EventMask, Window};
use x11rb::rust_connection::RustConnection;

x11rb::atom_manager! {
    /// The properties that are read.
    Atoms: AtomsCookie {
        _NET_CLIENT_LIST,
        _NET_WM_STATE,
        _NET_WM_STATE_FULLSCREEN,
        _NET_WM_STATE_HIDDEN,
        _NET_WM_PID,
    }
}

/// After a change the next look comes no sooner.
const BREATH: Millis = Millis(100);
/// How long after a failed connection the next is tried.
const RETRY: Millis = Millis(2_000);
/// More windows than this are not looked at.
const MOST: u32 = 1_024;

/// Watches a display until the receiver is gone.
pub(crate) fn watch(display: &str, bell: &Bell, report: &impl Fn(Look<Vec<Play>>) -> bool) {
    let mut was_there = false;
    loop {
        let why = match Screens::open(display) {
            Ok(mut screens) => {
                was_there = true;
                match screens.watch(bell, report) {
                    Ok(()) => return,
                    Err(fault) => format!("the X server broke off: {fault}"),
                }
            }
            Err(fault) => format!("cannot watch X display {display}: {fault}"),
        };
        // A display that never was there is none: input, which needs one, tells of it.
        let look = if was_there {
            Look::Failed(why)
        } else {
            Look::Absent(why)
        };
        if !report(look) || wait(bell, None, Some(RETRY)).is_err() {
            return;
        }
    }
}

struct Screens {
    connection: RustConnection,
    atoms: Atoms,
    watched: HashSet<Window>,
}

impl Screens {
    fn open(display: &str) -> Result<Self, Fault> {
        let (connection, _) = x11rb::connect(Some(display))?;
        let atoms = Atoms::new(&connection)?.reply()?;
        let screens = Self {
            connection,
            atoms,
            watched: HashSet::new(),
        };
        for root in screens.roots() {
            screens.follow(root)?;
        }
        Ok(screens)
    }

    fn watch(&mut self, bell: &Bell, report: &impl Fn(Look<Vec<Play>>) -> bool) -> Result<(), Fault> {
        loop {
            // Events up to here are told by the look; what comes during it rings again.
            while self.connection.poll_for_event()?.is_some() {}
            if !report(Look::Seen(self.look()?)) {
                return Ok(());
            }
            wait(bell, None, Some(BREATH))?;
            if self.connection.poll_for_event()?.is_none() {
                wait(bell, Some(&self.connection), Some(bell.attention().period()))?;
            }
        }
    }

    fn roots(&self) -> Vec<Window> {
        self.connection.setup().roots.iter().map(|screen| screen.root).collect()
    }

    fn follow(&self, window: Window) -> Result<(), Fault> {
        let changes = ChangeWindowAttributesAux::new().event_mask(EventMask::PROPERTY_CHANGE);
        // A window that has gone meanwhile answers with an error, which is dropped with this cookie.
        self.connection
            .change_window_attributes(window, &changes)?
            .ignore_error();
        Ok(())
    }

    fn look(&mut self) -> Result<Vec<Play>, Fault> {
        let mut all = HashSet::new();
        let mut playing = Vec::new();
        for root in self.roots() {
            for window in self.values(root, self.atoms._NET_CLIENT_LIST, AtomEnum::WINDOW)? {
                all.insert(window);
                if !self.watched.contains(&window) {
                    self.follow(window)?;
                }
                let state = self.values(window, self.atoms._NET_WM_STATE, AtomEnum::ATOM)?;
                let is = |atom: u32| state.contains(&atom);
                if is(self.atoms._NET_WM_STATE_FULLSCREEN) && !is(self.atoms._NET_WM_STATE_HIDDEN) {
                    playing.push(self.play(window)?);
                }
            }
        }
        self.watched = all;
        Ok(playing)
    }

    fn values(&self, window: Window, property: u32, kind: AtomEnum) -> Result<Vec<u32>, Fault> {
        let asked = self.connection.get_property(false, window, property, kind, 0, MOST)?;
        // A window may close between the list and the question.
        match asked.reply() {
            Ok(answer) => Ok(answer.value32().map(Iterator::collect).unwrap_or_default()),
            Err(x11rb::errors::ReplyError::X11Error(_)) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn play(&self, window: Window) -> Result<Play, Fault> {
        let class = self
            .connection
            .get_property(false, window, AtomEnum::WM_CLASS, AtomEnum::STRING, 0, 64)?
            .reply();
        let class = class.map(|answer| answer.value).unwrap_or_default();
        // Two names, each ended by a zero: that of the program, then that of its kind.
        let names: Vec<_> = class.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        let program = names.last().map(|name| String::from_utf8_lossy(name).into_owned());
        Ok(Play {
            kind: PlayKind::Fullscreen,
            program: program.unwrap_or_else(|| "a window".into()),
            pid: self
                .values(window, self.atoms._NET_WM_PID, AtomEnum::CARDINAL)?
                .first()
                .copied(),
        })
    }
}
