//! `desktop.toml`, the desktop's own settings, for people: which notifications are shown. It lies beside `agent.toml` and need
//! not be there. It is read whenever there is something to show, so that saving it is enough.

use anyhow::Context as _;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const NAME: &str = "desktop.toml";

/// What a notification is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The first job runs.
    FirstJob,
    /// A card became too hot.
    TooHot,
    /// Something that only the owner can mend.
    Attention,
    /// What came of something that the owner has just asked for. It is always shown.
    Answer,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    notifications: Notifications,
}

/// Each topic by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Notifications {
    first_job: bool,
    too_hot: bool,
    attention: bool,
}

impl Default for Notifications {
    fn default() -> Self {
        Self {
            first_job: true,
            too_hot: true,
            attention: true,
        }
    }
}

impl Notifications {
    const fn has(self, topic: Topic) -> bool {
        match topic {
            Topic::FirstJob => self.first_job,
            Topic::TooHot => self.too_hot,
            Topic::Attention => self.attention,
            Topic::Answer => true,
        }
    }
}

/// Whether its owner wants to be told of this. A file that does not read is said, and switches nothing off. Blocking.
pub(crate) fn wants(topic: Topic) -> bool {
    let Some(file) = file(|name| std::env::var_os(name)) else {
        return true;
    };
    let read = read(&file).inspect_err(|error| tracing::warn!("all notifications are shown: {error:#}"));
    read.unwrap_or_default().notifications.has(topic)
}

fn read(file: &Path) -> anyhow::Result<Settings> {
    match std::fs::read_to_string(file) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("{} has a mistake", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Settings::default()),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
    }
}

/// Where the agent's own settings are looked for, too.
fn file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("SELA_CONFIG_DIR")
        .or_else(|| absolute("XDG_CONFIG_HOME").map(|base| base.join("sela")))
        .or_else(|| absolute("APPDATA").map(|base| base.join("sela")))
        .or_else(|| absolute("HOME").map(|home| home.join(".config/sela")))
        .map(|folder| folder.join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_switched_off_is_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(NAME);
        let has = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(&file, text).expect("written");
            }
            let read = read(&file).map(|settings| settings.notifications);
            read.map(|on| [Topic::FirstJob, Topic::TooHot, Topic::Attention, Topic::Answer].map(|topic| on.has(topic)))
        };
        assert_eq!(has(None).expect("no file"), [true; 4]);
        assert_eq!(has(Some("")).expect("empty"), [true; 4]);
        let off = "[notifications]\nfirst_job = false\nattention = false\n";
        assert_eq!(has(Some(off)).expect("reads"), [false, true, false, true]);
        for wrong in [
            "[notifications]\nfirst = false\n",
            "[notifications]\nfirst_job = 0\n",
            "notifications",
        ] {
            let said = format!("{:#}", has(Some(wrong)).expect_err("wrong"));
            assert!(said.contains("desktop.toml has a mistake"), "{said}");
        }
    }

    #[test]
    fn it_lies_beside_the_settings_of_the_agent() {
        let of = |variables: &[(&str, &str)]| {
            file(|name| {
                let set = variables.iter().find(|(known, _)| *known == name);
                set.map(|(_, value)| OsString::from(value))
            })
        };
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("HOME", "/home/a")]), at("/home/a/.config/sela/desktop.toml"));
        let own = [
            ("HOME", "/home/a"),
            ("XDG_CONFIG_HOME", "/x"),
            ("SELA_CONFIG_DIR", "/s"),
        ];
        assert_eq!(of(&own), at("/s/desktop.toml"));
        assert_eq!(of(&own[..2]), at("/x/sela/desktop.toml"));
    }
}
