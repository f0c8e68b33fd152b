//! "Start at login": the entry that starts this program, with only its tray, when its owner logs in. Off until asked for.

use crate::arguments::HIDDEN;
use anyhow::Context as _;
use auto_launch::{AutoLaunch, AutoLaunchBuilder};

fn entry() -> anyhow::Result<AutoLaunch> {
    let program = std::env::current_exe().context("this program does not know where it lies")?;
    let program = program
        .to_str()
        .filter(|path| !path.contains(char::is_whitespace))
        .with_context(|| {
            format!(
                "{} has a space or is no Unicode, which the entry for login cannot name; move it",
                program.display()
            )
        })?;
    AutoLaunchBuilder::new()
        .set_app_name("Sela")
        .set_app_path(program)
        .set_args(&[HIDDEN])
        .build()
        .context("the entry for login cannot be made")
}

/// Whether the entry is there. Blocking.
///
/// # Errors
/// Where that cannot be told.
pub(crate) fn is_on() -> anyhow::Result<bool> {
    entry()?.is_enabled().context("the entry for login cannot be looked at")
}

/// Makes or removes the entry. Blocking.
///
/// # Errors
/// Where the entry cannot be written or removed.
pub(crate) fn set(on: bool) -> anyhow::Result<()> {
    let entry = entry()?;
    if on {
        entry.enable().context("the entry for login cannot be written")
    } else {
        entry.disable().context("the entry for login cannot be removed")
    }
}
