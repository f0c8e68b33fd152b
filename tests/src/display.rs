//! An X display of its own with a mouse that moves: input as the kernel would deliver it, not a cursor that jumps.

use crate::{Part, run, wait_for};
use anyhow::Context;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

/// A display that nobody looks at.
#[derive(Debug)]
pub struct Display {
    _server: Part,
    name: String,
}

impl Display {
    /// Starts Xvfb on a display number that is free.
    ///
    /// # Errors
    /// Where it does not come up; `cargo xtask setup` installs it.
    pub fn start(logs: &Path) -> anyhow::Result<Self> {
        Self::of_size(logs, "640x480x24")
    }

    /// The same, with a screen of this width, height and depth.
    ///
    /// # Errors
    /// Where it does not come up; `cargo xtask setup` installs it.
    pub fn of_size(logs: &Path, size: &str) -> anyhow::Result<Self> {
        let mut server = Part::new("display", logs.join("display.log"));
        let (mut reader, writer) = std::io::pipe()?;
        // Inherited on purpose: the server writes the number that it found free.
        rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty())?;
        let mut command = Command::new("Xvfb");
        command.args([
            "-displayfd",
            &writer.as_raw_fd().to_string(),
            "-screen",
            "0",
            size,
            "-nolisten",
            "tcp",
        ]);
        server
            .start(&mut command)
            .context("install xvfb, or run `cargo xtask setup`")?;
        drop(writer);
        let mut number = String::new();
        std::io::Read::read_to_string(&mut reader, &mut number)?;
        let name = format!(":{}", number.trim());
        wait_for("the display", || {
            server.is_up()?;
            Ok(
                run(Command::new("xdotool").env("DISPLAY", &name).arg("getmouselocation"))?
                    .good()
                    .ok()
                    .map(drop),
            )
        })?;
        Ok(Self { _server: server, name })
    }

    /// What DISPLAY is set to.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the mouse a little, as a hand does. Only a relative motion is input: a warp of the pointer is not.
    ///
    /// # Errors
    /// Where xdotool cannot be run.
    pub fn move_mouse(&self) -> anyhow::Result<()> {
        let mut command = Command::new("xdotool");
        command
            .env("DISPLAY", &self.name)
            .args(["mousemove_relative", "--", "3", "-2"]);
        run(&mut command)?.good().map(drop)
    }
}
