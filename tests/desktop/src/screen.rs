//! A display large enough for the window, and the windows on it as the X server knows them.

use anyhow::Context;
use sela_tests::{Display, run, wait_for};
use std::path::Path;
use std::process::Command;
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    Atom, AtomEnum, CLIENT_MESSAGE_EVENT, ClientMessageData, ClientMessageEvent, ConnectionExt as _, EventMask,
    MapState, Window,
};
use x11rb::rust_connection::RustConnection;

/// The display.
#[derive(Debug)]
pub struct Screen {
    display: Display,
    connection: RustConnection,
    root: Window,
}

impl Screen {
    /// Starts it.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn start(logs: &Path) -> anyhow::Result<Self> {
        let display = Display::of_size(logs, "1280x800x24")?;
        let (connection, number) = x11rb::connect(Some(display.name()))?;
        let root = connection.setup().roots[number].root;
        Ok(Self {
            display,
            connection,
            root,
        })
    }

    /// What DISPLAY is set to.
    pub fn name(&self) -> &str {
        self.display.name()
    }

    fn atom(&self, name: &str) -> anyhow::Result<Atom> {
        Ok(self.connection.intern_atom(false, name.as_bytes())?.reply()?.atom)
    }

    /// The windows with this title that can be seen.
    ///
    /// # Errors
    /// Where the display does not answer.
    pub fn windows(&self, title: &str) -> anyhow::Result<Vec<Window>> {
        let mut found = Vec::new();
        let mut to_look_at = vec![self.root];
        while let Some(window) = to_look_at.pop() {
            // One that went between being listed and being looked at is no failure.
            let Ok(tree) = self.connection.query_tree(window)?.reply() else {
                continue;
            };
            to_look_at.extend(tree.children);
            if self.is_seen(window)? && self.title(window)?.as_deref() == Some(title) {
                found.push(window);
            }
        }
        Ok(found)
    }

    fn is_seen(&self, window: Window) -> anyhow::Result<bool> {
        let attributes = self.connection.get_window_attributes(window)?.reply();
        Ok(attributes.is_ok_and(|attributes| attributes.map_state == MapState::VIEWABLE))
    }

    fn title(&self, window: Window) -> anyhow::Result<Option<String>> {
        let property = self
            .connection
            .get_property(false, window, AtomEnum::WM_NAME, AtomEnum::ANY, 0, 64)?
            .reply();
        Ok(property
            .ok()
            .map(|property| String::from_utf8_lossy(&property.value).into_owned()))
    }

    /// Waits until so many windows with this title can be seen.
    ///
    /// # Errors
    /// Where that takes too long.
    pub fn wait_for_windows(&self, title: &str, count: usize) -> anyhow::Result<Vec<Window>> {
        wait_for(&format!("{count} windows called {title}"), || {
            let windows = self.windows(title)?;
            Ok((windows.len() == count).then_some(windows))
        })
    }

    /// Closes a window as its close button does: by asking it to go.
    ///
    /// # Errors
    /// Where the display does not answer.
    pub fn close(&self, window: Window) -> anyhow::Result<()> {
        let (protocols, delete) = (self.atom("WM_PROTOCOLS")?, self.atom("WM_DELETE_WINDOW")?);
        let message = ClientMessageEvent {
            response_type: CLIENT_MESSAGE_EVENT,
            format: 32,
            sequence: 0,
            window,
            type_: protocols,
            data: ClientMessageData::from([delete, x11rb::CURRENT_TIME, 0, 0, 0]),
        };
        self.connection
            .send_event(false, window, EventMask::NO_EVENT, message)?
            .check()?;
        Ok(())
    }

    /// A picture of a part of the screen, given as ImageMagick writes an area: width×height+left+top.
    ///
    /// # Errors
    /// Where ImageMagick cannot be run.
    pub fn picture(&self, file: &Path, area: &str) -> anyhow::Result<()> {
        let mut command = Command::new("import");
        command
            .args(["-display", self.name(), "-window", "root", "-crop", area, "+repage"])
            .arg(file);
        run(&mut command)
            .context("install imagemagick, or run `cargo xtask setup`")?
            .good()
            .map(drop)
    }
}
