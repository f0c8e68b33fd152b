//! The harness around the desktop shell: a display, a session bus, a panel that hosts trays, a notification daemon and the
//! real `sela-desktop` between them. It looks where a person looks (menu, windows, notifications, files) and clicks where a
//! person clicks; nothing of the shell is linked.
#![allow(
    clippy::print_stderr,
    reason = "what a test measured or skipped is read where it ran"
)]

mod bus;
mod daemon;
mod desk;
mod driver;
mod panel;
mod portal;
mod screen;
mod supervisor;

pub use bus::Bus;
pub use daemon::{Daemon, SilentDaemon};
pub use desk::{Desk, Start, wait_until_gone};
pub use driver::Driver;
pub use panel::{Item, Menu, Panel, Picture};
pub use portal::{Portal, Scheme};
pub use screen::Screen;
pub use supervisor::Supervisor;
