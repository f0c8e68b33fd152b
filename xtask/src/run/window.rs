//! The owner's window: opened where there is a display. A window that does not come up is told and costs the run nothing: the page
//! is there in a browser too.

use std::path::PathBuf;

use crate::commands;
use crate::places::{Places, Profile};
use crate::processes::{Processes, tail};
use crate::run::parties::Owner;
use crate::run::story::Story;

const NAME: &str = "desktop";

/// Whether a window could be shown to whoever types here.
pub(crate) fn is_possible() -> bool {
    has_display(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

fn has_display(is_set: impl Fn(&str) -> bool) -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(is_set)
}

/// Builds the desktop app, which holds the page: so that comes first.
///
/// # Errors
/// If it does not compile.
pub(crate) fn build(places: &Places) -> anyhow::Result<()> {
    commands::run(&mut commands::cargo(
        places,
        ["build", "--quiet", "--locked", "-p", "sela-desktop"],
    ))
}

/// The window and the tray of a run.
#[derive(Debug)]
pub(crate) struct Window {
    /// A set of its own: that it ends is not the end of the run.
    processes: Processes,
    log: PathBuf,
}

impl Window {
    /// Opens it before the owner's agent, which is up.
    ///
    /// # Errors
    /// If the program is not there.
    pub(crate) fn open(places: &Places, owner: &Owner, logs: PathBuf) -> anyhow::Result<Self> {
        let mut processes = Processes::new(logs)?;
        processes.start(NAME, &mut owner.window(&places.program(Profile::Dev, "sela-desktop")))?;
        let log = processes.log(NAME);
        Ok(Self { processes, log })
    }

    /// Whether it is still up; tells why where it failed.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn is_up(&mut self, story: &Story) -> anyhow::Result<bool> {
        let Some((_, status)) = self.processes.first_ended()? else {
            return Ok(true);
        };
        if !status.success() {
            story.tell(format!("the window ended with {status}: {}", tail(&self.log).trim()));
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_of_either_kind_will_do() {
        for (set, expected) in [
            (&["DISPLAY"][..], true),
            (&["WAYLAND_DISPLAY"], true),
            (&["XDG_SESSION_ID"], false),
            (&[], false),
        ] {
            assert_eq!(has_display(|name| set.contains(&name)), expected, "{set:?}");
        }
    }
}
