//! Pads made of pipes, and programs of the owner's list among the machine's real processes.

use super::peers::*;
use sela_protocol::presence::{Observed, Signals};
use sela_protocol::senses::PlayKind;
use sela_sensors::{Config, Roots};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A gamepad as the kernel describes it, whose events come out of a pipe.
struct Pad {
    events: File,
    device: PathBuf,
}

impl Pad {
    fn plug_in(root: &Path, name: &str) -> Self {
        let described = root.join("sys/class/input").join(name).join("device/capabilities");
        std::fs::create_dir_all(&described).expect("made");
        std::fs::write(described.join("key"), "7cdb000000000000 0 0 0 0\n").expect("written");
        let device = root.join("dev/input").join(name);
        let made = std::process::Command::new("mkfifo").arg(&device).status();
        assert!(made.expect("mkfifo").success());
        // Read and write: a pipe that nobody writes to any more would count as unplugged.
        let events = File::options().read(true).write(true).open(&device).expect("opens");
        Self { events, device }
    }

    fn sends(&mut self, kind: u16, code: u16, value: i32) {
        let mut event = vec![0; 2 * size_of::<usize>()];
        event.extend(kind.to_ne_bytes());
        event.extend(code.to_ne_bytes());
        event.extend(value.to_ne_bytes());
        self.events.write_all(&event).expect("written");
    }
}

fn pad_at(seen: &Signals) -> Option<u64> {
    value(&seen.senses.gamepad).map(|activity| activity.last_input_boot_ms.0)
}

fn pad_looked_at(seen: &Signals) -> Option<u64> {
    match &seen.senses.gamepad {
        Observed::Value { seen_boot_ms, .. } => Some(seen_boot_ms.0),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}

#[tokio::test]
async fn a_pad_is_followed_from_plugging_in_to_pulling_out_and_a_drifting_stick_is_no_input() {
    const KEY: u16 = 1;
    const STICK: u16 = 3;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(folder.path().join("dev/input")).expect("made");
    let roots = Roots {
        dev: folder.path().join("dev"),
        sys: folder.path().join("sys"),
        ..Roots::default()
    };
    let mut first = Pad::plug_in(folder.path(), "event3");
    let mut sight = Sight::open(Config {
        roots,
        ..config(&folder)
    });
    let untouched = sight.signals("the pad", |seen| pad_at(seen) == Some(0)).await;
    first.sends(KEY, 0x130, 1);
    let pressed = sight
        .signals("a button", |seen| pad_at(seen) > pad_at(&untouched))
        .await;
    // A tremble, then a slow drift: looked at later than all of it was sent, nothing was pressed.
    for value in [900, -900, 1_200, -700, 2_000, 3_000, 4_000] {
        first.sends(STICK, 0, value);
    }
    let later = |than: &Signals| {
        let than = pad_looked_at(than).map(|at| at + 1_500);
        move |seen: &Signals| pad_looked_at(seen) > than
    };
    let drifted = sight.signals("a later look", later(&pressed)).await;
    assert_eq!(pad_at(&drifted), pad_at(&pressed));
    first.sends(STICK, 0, 30_000);
    let moved = sight.signals("the stick", |seen| pad_at(seen) > pad_at(&drifted)).await;
    // One that is plugged in was plugged in by a hand.
    let second = Pad::plug_in(folder.path(), "event4");
    sight
        .signals("the second pad", |seen| pad_at(seen) > pad_at(&moved))
        .await;
    for pad in [&first, &second] {
        std::fs::remove_file(&pad.device).expect("unplugged");
    }
    let none = |seen: &Signals| matches!(seen.senses.gamepad, Observed::NotApplicable { .. });
    sight.signals("that none is left", none).await;
}

#[tokio::test]
async fn a_program_of_the_owners_list_is_seen_among_all_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("a-game-of-this-test");
    std::fs::copy("/bin/sleep", &program).expect("copied");
    let mut sight = Sight::open(config(&folder));
    let plays = |seen: &Signals| {
        value(&seen.senses.playing).is_some_and(|playing| playing.iter().any(|play| play.kind == PlayKind::Listed))
    };
    sight
        .signals("that it does not run", |seen| {
            value(&seen.senses.playing).is_some() && !plays(seen)
        })
        .await;
    let game = start(&program.to_string_lossy(), &["1000"], &[]);
    // Listed only now, while it runs: the list may change under a running agent.
    sight.eyes.treat_as_games(vec!["a-game-of-this-test".into()]);
    sight.signals("the game", plays).await;
    drop(game);
    sight.signals("its end", |seen| !plays(seen)).await;
}
