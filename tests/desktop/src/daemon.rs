//! Who shows notifications: a real daemon (dunst), asked what it has shown; or one that has the name and never answers.

use crate::bus::Caller;
use crate::{Bus, Screen};
use anyhow::Context;
use sela_tests::{Part, wait_for};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use zbus::wire::OwnedVariant;

const NAME: &str = "org.freedesktop.Notifications";
const PATH: &str = "/org/freedesktop/Notifications";
const CONTROL: &str = "org.dunstproject.cmd0";

/// dunst.
#[derive(Debug)]
pub struct Daemon {
    _dunst: Part,
    caller: Caller,
}

/// What dunst keeps of a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Who sent it.
    pub appname: String,
    /// Its title.
    pub summary: String,
    /// Its text.
    pub body: String,
}

impl Daemon {
    /// Starts dunst on this bus and display.
    ///
    /// # Errors
    /// Where it does not come up; `cargo xtask setup` installs it.
    pub fn start(bus: &Bus, screen: &Screen, folder: &Path) -> anyhow::Result<Self> {
        let mut dunst = Part::new("notification daemon", folder.join("logs/dunst.log"));
        let configuration = folder.join("dunstrc");
        std::fs::write(&configuration, "[global]\nhistory_length = 50\nidle_threshold = 0\n")?;
        let mut command = Command::new("dunst");
        command
            .arg("-conf")
            .arg(&configuration)
            .env("DBUS_SESSION_BUS_ADDRESS", bus.address())
            .env("DISPLAY", screen.name())
            .env("HOME", folder)
            .env_remove("WAYLAND_DISPLAY");
        dunst
            .start(&mut command)
            .context("install dunst, or run `cargo xtask setup`")?;
        let caller = bus.connect(|builder| builder)?;
        wait_for("the notification daemon", || {
            dunst.is_up()?;
            let server: anyhow::Result<(String, String, String, String)> =
                caller.call(NAME, PATH, (NAME, "GetServerInformation"), &());
            Ok(server.ok().map(drop))
        })?;
        Ok(Self { _dunst: dunst, caller })
    }

    /// Everything that was shown, newest first.
    ///
    /// # Errors
    /// Where the daemon does not answer.
    pub fn shown(&self) -> anyhow::Result<Vec<Shown>> {
        // Its history holds only what is no longer on the screen.
        let () = self.caller.call(NAME, PATH, (CONTROL, "NotificationCloseAll"), &())?;
        let history: Vec<HashMap<String, OwnedVariant>> =
            self.caller
                .call(NAME, PATH, (CONTROL, "NotificationListHistory"), &())?;
        let text = |of: &HashMap<String, OwnedVariant>, name: &str| {
            let found = of.get(name).and_then(|value| String::try_from(value.clone()).ok());
            found.unwrap_or_default()
        };
        let shown = history.iter().map(|of| Shown {
            appname: text(of, "appname"),
            summary: text(of, "summary"),
            body: text(of, "body"),
        });
        Ok(shown.collect())
    }

    /// Waits until one with this title was shown.
    ///
    /// # Errors
    /// Where that takes too long.
    pub fn wait(&self, summary: &str) -> anyhow::Result<Shown> {
        wait_for(&format!("the notification \"{summary}\""), || {
            Ok(self.shown()?.into_iter().find(|shown| shown.summary == summary))
        })
    }
}

/// Somebody who owns the name of the notification daemon and answers nothing.
#[derive(Debug)]
pub struct SilentDaemon {
    _caller: Caller,
}

struct Silence;

#[zbus::interface(name = "org.freedesktop.Notifications")]
impl Silence {
    #[expect(clippy::too_many_arguments, reason = "the interface has so many")]
    async fn notify(
        &self,
        _app: String,
        _replaces: u32,
        _icon: String,
        _summary: String,
        _body: String,
        _actions: Vec<String>,
        _hints: HashMap<String, OwnedVariant>,
        _timeout: i32,
    ) -> u32 {
        std::future::pending().await
    }

    async fn get_capabilities(&self) -> Vec<String> {
        std::future::pending().await
    }

    async fn get_server_information(&self) -> (String, String, String, String) {
        std::future::pending().await
    }
}

impl SilentDaemon {
    /// Takes the name.
    ///
    /// # Errors
    /// Where somebody has it.
    pub fn start(bus: &Bus) -> anyhow::Result<Self> {
        let caller = bus.connect(|builder| builder.serve_at(PATH, Silence).name(NAME))?;
        Ok(Self { _caller: caller })
    }
}
