//! The simulated driver with real holders, and a card that sleeps: its driver's library must not even be loaded.

use super::peers::*;
use sela_core::Input;
use sela_nvml_sim::{CardPlan, FOLDER_VARIABLE, Lab};
use sela_protocol::presence::{ForeignUse, Observed, Signals};
use sela_sensors::{Config, Roots};
use std::path::PathBuf;

fn lab(folder: &tempfile::TempDir) -> (Lab, PathBuf) {
    let lab = Lab::create(&folder.path().join("lab"), &[CardPlan::rtx_4070()]).expect("a lab");
    // SAFETY: nextest gives each test a process of its own; the eyes, which start threads, are not open yet.
    unsafe { std::env::set_var(FOLDER_VARIABLE, lab.folder()) };
    (
        lab,
        sela_nvml_sim::find_library().expect("cargo builds the library with this test"),
    )
}

#[tokio::test]
async fn a_foreign_program_on_the_card_is_seen_by_name_until_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let (lab, library) = lab(&folder);
    let mut sight = Sight::open(Config {
        nvml_library: Some(library),
        ..config(&folder)
    });
    let holder = sela_nvml_sim::find_holder().expect("cargo build -p sela-nvml-sim builds it");
    let node = lab.device_node(0);
    let game = start(
        &holder.to_string_lossy(),
        &["--device", &node.to_string_lossy(), "--mib", "512", "--spin"],
        &[],
    );
    let pid = game.pid();
    let on_it = |seen: &Signals| match &seen.foreign {
        Observed::Value { value, .. } => value.iter().any(|process| process.pid == pid),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => false,
    };
    let seen = sight.signals("the game", on_it).await;
    let Observed::Value { value, .. } = &seen.foreign else {
        unreachable!("waited for")
    };
    assert_eq!(value[0].vram_used.map(|bytes| bytes.0 >> 20), Some(512));
    assert_eq!(value[0].name.as_deref(), Some("sela-sim-hold"));
    // Its share comes with the driver's next sample.
    let works = |seen: &Signals| {
        let of_game =
            |process: &&ForeignUse| process.pid == pid && process.utilisation.is_some_and(|share| share.0 > 0);
        super::peers::value(&seen.foreign).is_some_and(|all| all.iter().any(|process| of_game(&process)))
    };
    sight.signals("its share of the card", works).await;
    drop(game);
    sight.signals("the end of the game", |seen| !on_it(seen)).await;
}

/// Whether this process has the driver's library in its memory.
fn is_loaded(library: &std::path::Path) -> bool {
    let name = library.file_name().expect("a name").to_string_lossy().into_owned();
    std::fs::read_to_string("/proc/self/maps")
        .expect("maps")
        .contains(&name)
}

#[tokio::test]
async fn looking_at_a_sleeping_card_does_not_wake_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_lab, library) = lab(&folder);
    let sys = folder.path().join("sys");
    let card = sys.join("bus/pci/devices/0000:01:00.0");
    std::fs::create_dir_all(card.join("power")).expect("made");
    let write = |file: &str, content: &str| std::fs::write(card.join(file), content).expect("written");
    write("class", "0x030200\n");
    write("vendor", "0x10de\n");
    write("power/control", "auto\n");
    write("power/runtime_status", "suspended\n");
    let mut sight = Sight::open(Config {
        nvml_library: Some(library.clone()),
        roots: Roots {
            sys,
            ..Roots::default()
        },
        ..config(&folder)
    });
    let says = |input: &Input| matches!(input, Input::CardUnreadable { gpu: None, why } if why.contains("sleeps"));
    for _ in 0..3 {
        sight.input("that the card sleeps", says).await;
    }
    let asleep =
        |seen: &Signals| value(&seen.senses.sleeping_cards).is_some_and(|cards| cards == &["0000:01:00.0".to_owned()]);
    sight.signals("which card sleeps", asleep).await;
    assert!(!is_loaded(&library), "it was looked at through its driver");
    write("power/runtime_status", "active\n");
    sight
        .input(
            "the card",
            |input| matches!(input, Input::Cards(cards) if cards.len() == 1),
        )
        .await;
    assert!(is_loaded(&library));
    // Nothing runs any more: the driver is let go, so that the card may sleep again.
    sight.eyes.attend(false);
    for _ in 0..600 {
        if !is_loaded(&library) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the driver stays open");
}
