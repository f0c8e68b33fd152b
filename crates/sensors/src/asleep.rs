//! Cards that the system has put to sleep, seen in sysfs alone: asking their driver, or opening their device, would wake
//! them. And cards that could sleep if nobody looked.

use crate::look::Look;
use std::path::{Path, PathBuf};

/// Vendors whose drivers are asked here.
const VENDORS: [&str; 1] = ["0x10de"];
/// PCI's class of display controllers.
const DISPLAY: &str = "0x03";

/// The PCI addresses of the cards that sleep.
pub(crate) fn look(sys: &Path) -> Look<Vec<String>> {
    let cards = cards(sys);
    if cards.is_empty() {
        return Look::Absent("no card here is known to the system".into());
    }
    let asleep = |card: &&PathBuf| read(card, "power/runtime_status").as_deref() == Some("suspended");
    let address = |card: &PathBuf| Some(card.file_name()?.to_str()?.to_owned());
    Look::Seen(cards.iter().filter(asleep).filter_map(address).collect())
}

/// Whether a card falls asleep once nobody holds it, so that a driver which stays open would keep it awake.
pub(crate) fn may_sleep(sys: &Path) -> bool {
    let managed = |card: &PathBuf| read(card, "power/control").as_deref() == Some("auto");
    cards(sys).iter().any(managed)
}

fn cards(sys: &Path) -> Vec<PathBuf> {
    let is_card = |device: &PathBuf| {
        read(device, "class").is_some_and(|class| class.starts_with(DISPLAY))
            && read(device, "vendor").is_some_and(|vendor| VENDORS.contains(&vendor.as_str()))
    };
    let mut cards: Vec<PathBuf> = std::fs::read_dir(sys.join("bus/pci/devices"))
        .into_iter()
        .flatten()
        .filter_map(|device| Some(device.ok()?.path()))
        .filter(is_card)
        .collect();
    cards.sort();
    cards
}

fn read(device: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(device.join(name)).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(sys: &Path, address: &str, files: &[(&str, &str)]) {
        let folder = sys.join("bus/pci/devices").join(address);
        std::fs::create_dir_all(folder.join("power")).expect("made");
        for (name, content) in files {
            std::fs::write(folder.join(name), format!("{content}\n")).expect("written");
        }
    }

    #[test]
    fn only_suspended_cards_of_a_known_vendor_sleep() {
        let sys = tempfile::tempdir().expect("a folder");
        assert!(matches!(look(sys.path()), Look::Absent(_)));
        let card = [("class", "0x030200"), ("vendor", "0x10de"), ("power/control", "auto")];
        let with = |status| [&card[..], &[("power/runtime_status", status)]].concat();
        device(sys.path(), "0000:01:00.0", &with("suspended"));
        device(sys.path(), "0000:02:00.0", &with("active"));
        let audio = [
            ("class", "0x040300"),
            ("vendor", "0x10de"),
            ("power/runtime_status", "suspended"),
        ];
        device(sys.path(), "0000:01:00.1", &audio);
        assert_eq!(look(sys.path()), Look::Seen(vec!["0000:01:00.0".to_owned()]));
        assert!(may_sleep(sys.path()));
    }

    #[test]
    fn a_card_that_is_kept_on_does_not_sleep() {
        let sys = tempfile::tempdir().expect("a folder");
        let card = [
            ("class", "0x030000"),
            ("vendor", "0x10de"),
            ("power/control", "on"),
            ("power/runtime_status", "active"),
        ];
        device(sys.path(), "0000:01:00.0", &card);
        assert_eq!(look(sys.path()), Look::Seen(Vec::new()));
        assert!(!may_sleep(sys.path()));
    }
}
