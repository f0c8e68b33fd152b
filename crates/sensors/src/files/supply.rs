//! The power supply as the kernel tells it, for machines without UPower: mains, batteries, UPS.

use crate::look::Look;
use sela_protocol::senses::PowerSource;
use sela_protocol::units::Percent;
use std::path::Path;

/// What the machine runs on.
pub(super) fn look(sys: &Path) -> Look<PowerSource> {
    let (mut mains, mut drains, mut charge, mut carried) = (false, false, None::<u8>, false);
    let supplies = std::fs::read_dir(sys.join("class/power_supply"));
    for supply in supplies.into_iter().flatten().flatten() {
        let read = |name: &str| {
            let text = std::fs::read_to_string(supply.path().join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        // The battery of a mouse does not carry the machine.
        if read("scope").as_deref() == Some("Device") {
            continue;
        }
        match read("type").as_deref() {
            Some("Mains" | "USB" | "Wireless") => mains |= read("online").as_deref() == Some("1"),
            Some("Battery" | "UPS") if read("present").as_deref() != Some("0") => {
                carried = true;
                drains |= read("status").as_deref() == Some("Discharging");
                let left = read("capacity")
                    .and_then(|text| text.parse().ok())
                    .filter(|left| *left <= 100);
                charge = charge.into_iter().chain(left).min();
            }
            Some(_) | None => {}
        }
    }
    if !carried {
        return Look::Absent("there is no battery".into());
    }
    Look::Seen(PowerSource {
        on_battery: drains && !mains,
        charge: charge.map(Percent),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(supplies: &[(&str, &[(&str, &str)])], expected: Option<(bool, Option<u8>)>) {
        let sys = tempfile::tempdir().expect("a folder");
        for (name, files) in supplies {
            let folder = sys.path().join("class/power_supply").join(name);
            std::fs::create_dir_all(&folder).expect("made");
            for (file, content) in *files {
                std::fs::write(folder.join(file), format!("{content}\n")).expect("written");
            }
        }
        let found = match look(sys.path()) {
            Look::Seen(power) => Some((power.on_battery, power.charge.map(|charge| charge.0))),
            Look::Absent(_) => None,
            Look::Failed(why) => panic!("{why}"),
        };
        assert_eq!(found, expected, "{supplies:?}");
    }

    const MAINS: (&str, &[(&str, &str)]) = ("AC", &[("type", "Mains"), ("online", "1")]);
    const UNPLUGGED: (&str, &[(&str, &str)]) = ("AC", &[("type", "Mains"), ("online", "0")]);
    const DRAINS: (&str, &[(&str, &str)]) = (
        "BAT0",
        &[("type", "Battery"), ("status", "Discharging"), ("capacity", "57")],
    );
    const FULL: (&str, &[(&str, &str)]) = ("BAT0", &[("type", "Battery"), ("status", "Full"), ("capacity", "100")]);
    const MOUSE: (&str, &[(&str, &str)]) = (
        "hid",
        &[("type", "Battery"), ("scope", "Device"), ("status", "Discharging")],
    );
    const UPS_ON_MAINS: (&str, &[(&str, &str)]) = ("ups", &[("type", "UPS"), ("status", "Charging")]);
    const UPS_ALONE: (&str, &[(&str, &str)]) = ("ups", &[("type", "UPS"), ("status", "Discharging")]);

    #[test]
    fn a_desktop_is_never_on_battery_and_a_laptop_without_its_cable_is() {
        check(&[], None);
        check(&[MAINS], None);
        check(&[MAINS, MOUSE], None);
        check(&[UPS_ON_MAINS], Some((false, None)));
        check(&[UPS_ALONE], Some((true, None)));
        check(&[MAINS, FULL], Some((false, Some(100))));
        check(&[MAINS, DRAINS], Some((false, Some(57))));
        check(&[UNPLUGGED, DRAINS], Some((true, Some(57))));
    }
}
