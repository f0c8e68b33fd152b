//! Steam's own word on which game runs: `RunningAppID` in its `registry.vdf`, for each way in which Steam is installed.
//! Believed only while Steam runs: one that was killed leaves the number of its last game.

use crate::look::Look;
use sela_protocol::senses::{Play, PlayKind};
use sela_protocol::units::{BootMs, Millis};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where the file is under a home, as Valve, Flatpak and Snap put it.
const PLACES: [&str; 3] = [
    ".steam/registry.vdf",
    ".var/app/com.valvesoftware.Steam/.steam/registry.vdf",
    "snap/steam/common/.steam/registry.vdf",
];
/// Where the number is in it.
const PATH: [&str; 6] = ["Registry", "HKCU", "Software", "Valve", "Steam", "RunningAppID"];
/// Steam writes the file anew in place: one that cannot be understood for longer than this is broken.
const PATIENCE: Millis = Millis(2_000);
/// A registry is some tens of kilobytes.
const MOST: u64 = 4 << 20;

/// The registries of one home.
#[derive(Debug)]
pub(crate) struct Steam {
    registries: Vec<Registry>,
}

#[derive(Debug)]
struct Registry {
    path: PathBuf,
    written: Option<SystemTime>,
    game: Option<u64>,
    broken_since: Option<BootMs>,
}

impl Steam {
    pub(crate) fn of(home: &Path) -> Self {
        let registry = |place: &&str| Registry {
            path: home.join(place),
            written: None,
            game: None,
            broken_since: None,
        };
        Self {
            registries: PLACES.iter().map(registry).collect(),
        }
    }

    /// Looks. `runs`: whether Steam does.
    pub(crate) fn look(&mut self, runs: bool, now: BootMs) -> Look<Vec<Play>> {
        let mut there = false;
        let mut playing = Vec::new();
        for registry in &mut self.registries {
            match registry.read(now) {
                Ok(true) => there = true,
                Ok(false) => continue,
                Err(why) => return Look::Failed(format!("{}: {why}", registry.path.display())),
            }
            if let Some(game) = registry.game.filter(|game| *game != 0 && runs) {
                playing.push(Play {
                    kind: PlayKind::Steam,
                    program: format!("Steam game {game}"),
                    pid: None,
                });
            }
        }
        if there {
            Look::Seen(playing)
        } else {
            Look::Absent("Steam is not installed here".into())
        }
    }
}

impl Registry {
    /// Reads it where it has changed; whether it is there.
    fn read(&mut self, now: BootMs) -> Result<bool, String> {
        let Ok(described) = std::fs::metadata(&self.path) else {
            *self = Self {
                path: std::mem::take(&mut self.path),
                written: None,
                game: None,
                broken_since: None,
            };
            return Ok(false);
        };
        let written = described.modified().ok();
        if written.is_some() && written == self.written && self.broken_since.is_none() {
            return Ok(true);
        }
        let text = if described.len() > MOST {
            Err("is far too large".to_owned())
        } else {
            std::fs::read(&self.path)
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .map_err(|error| error.to_string())
        };
        match text.and_then(|text| running_game(&text)) {
            Ok(game) => {
                self.game = game;
                self.written = written;
                self.broken_since = None;
                Ok(true)
            }
            Err(why) => {
                let since = *self.broken_since.get_or_insert(now);
                if now.since(since).0 > PATIENCE.0 {
                    Err(why)
                } else {
                    Ok(true)
                }
            }
        }
    }
}

/// The number of the running game in a registry; `None` where it has none.
fn running_game(text: &str) -> Result<Option<u64>, String> {
    let mut words = Words {
        rest: text.chars().peekable(),
    };
    let mut path: Vec<String> = Vec::new();
    let mut key: Option<String> = None;
    let mut found = None;
    while let Some(word) = words.next()? {
        match (word, key.take()) {
            (Word::Open, Some(name)) if path.len() < 64 => path.push(name),
            (Word::Open, _) => return Err("a bracket opens without a name, or too deep".into()),
            (Word::Close, None) => {
                path.pop().ok_or("a bracket closes that was not opened")?;
            }
            (Word::Close, Some(_)) => return Err("a name without a value".into()),
            (Word::Text(name), None) => key = Some(name),
            (Word::Text(value), Some(name)) => {
                let here = path.iter().map(String::as_str).chain([name.as_str()]);
                if here.eq_ignore_case(&PATH) {
                    found = Some(value.parse().map_err(|_| "RunningAppID is no number".to_owned())?);
                }
            }
        }
    }
    if path.is_empty() && key.is_none() {
        Ok(found)
    } else {
        Err("it ends in the middle".into())
    }
}

trait EqIgnoreCase {
    fn eq_ignore_case(self, other: &[&str]) -> bool;
}

impl<'a, I: Iterator<Item = &'a str>> EqIgnoreCase for I {
    fn eq_ignore_case(mut self, other: &[&str]) -> bool {
        other
            .iter()
            .all(|word| self.next().is_some_and(|own| own.eq_ignore_ascii_case(word)))
            && self.next().is_none()
    }
}

enum Word {
    Open,
    Close,
    Text(String),
}

/// Valve's text format: names and values in quotes, brackets around what belongs together.
struct Words<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

impl Words<'_> {
    fn next(&mut self) -> Result<Option<Word>, String> {
        loop {
            match self.rest.next() {
                None => return Ok(None),
                Some('{') => return Ok(Some(Word::Open)),
                Some('}') => return Ok(Some(Word::Close)),
                Some('"') => return self.text().map(|text| Some(Word::Text(text))),
                Some('/') => while self.rest.next_if(|letter| *letter != '\n').is_some() {},
                Some(letter) if letter.is_whitespace() => {}
                Some(letter) => return Err(format!("{letter:?} stands outside of quotes")),
            }
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.extend(self.rest.next()),
                Some(letter) => text.push(letter),
                None => return Err("it ends in the middle".into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(game: &str) -> String {
        format!(
            "\"Registry\"\n{{\n\t\"HKLM\"\n\t{{\n\t}}\n\t\"HKCU\"\n\t{{\n\t\t\"Software\"\n\t\t{{\n\t\t\t\"Valve\"\n\t\t\t{{\n\
             \t\t\t\t\"Steam\"\n\t\t\t\t{{\n\t\t\t\t\t\"Path\"\t\t\"C:\\\\\\\"x\\\"\"\n\
             \t\t\t\t\t\"RunningAppID\"\t\t\"{game}\"\n\t\t\t\t}}\n\t\t\t}}\n\t\t}}\n\t}}\n}}\n"
        )
    }

    #[test]
    fn the_running_game_is_read_wherever_steam_is_installed() {
        for place in PLACES {
            let home = tempfile::tempdir().expect("a folder");
            let path = home.path().join(place);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, registry("570")).expect("written");
            let mut steam = Steam::of(home.path());
            let Look::Seen(playing) = steam.look(true, BootMs(1)) else {
                panic!("{place} is not seen");
            };
            assert_eq!(playing[0].program, "Steam game 570", "{place}");
        }
    }

    #[test]
    fn a_number_that_a_killed_steam_left_is_no_game() {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(home.path().join(".steam")).expect("made");
        std::fs::write(home.path().join(PLACES[0]), registry("570")).expect("written");
        assert_eq!(Steam::of(home.path()).look(false, BootMs(1)), Look::Seen(vec![]));
    }

    #[test]
    fn a_registry_that_stays_broken_is_told_and_one_being_written_is_not() {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(home.path().join(".steam")).expect("made");
        let path = home.path().join(PLACES[0]);
        std::fs::write(&path, registry("0")).expect("written");
        let mut steam = Steam::of(home.path());
        assert_eq!(steam.look(true, BootMs(1_000)), Look::Seen(vec![]));
        std::fs::write(&path, &registry("570")[..60]).expect("written");
        assert_eq!(steam.look(true, BootMs(1_250)), Look::Seen(vec![]));
        assert!(matches!(steam.look(true, BootMs(9_000)), Look::Failed(_)));
        std::fs::write(&path, registry("570")).expect("written");
        assert!(matches!(steam.look(true, BootMs(9_250)), Look::Seen(playing) if playing.len() == 1));
    }

    #[test]
    fn without_steam_it_is_not_there() {
        let home = tempfile::tempdir().expect("a folder");
        assert!(matches!(Steam::of(home.path()).look(true, BootMs(1)), Look::Absent(_)));
    }

    #[test]
    fn what_is_no_registry_is_an_error_and_never_a_panic() {
        let cases = [
            "{",
            "}",
            "\"a\"",
            "\"a\" {",
            "\"a\" \"b\" }",
            "x",
            "\"",
            "\"a\" \"b",
            "\"a\" { \"b\" }",
        ];
        for text in cases.iter().map(|text| (*text).to_owned()).chain([registry("many")]) {
            assert!(running_game(&text).is_err(), "{text}");
        }
        assert_eq!(running_game("// nothing\n"), Ok(None));
    }
}
