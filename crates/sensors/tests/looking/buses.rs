//! Mocks of UPower, NetworkManager, GameMode and the desktops' inhibitors on a real bus; one that lies, one that dies.

use super::peers::*;
use sela_protocol::presence::{Observed, Signals};
use sela_protocol::senses::{EngagementKind, PlayKind};
use sela_sensors::{Config, Roots};
use zbus::Variant;

const UPOWER: &str = "org.freedesktop.UPower";
const DEVICE: &str = "org.freedesktop.UPower.Device";

/// Without the kernel's own word on power, which is that of the machine that tests.
fn bare(folder: &tempfile::TempDir) -> Roots {
    Roots {
        sys: folder.path().join("sys"),
        ..Roots::default()
    }
}

#[tokio::test]
async fn a_laptop_without_its_cable_is_on_battery_and_a_ups_on_mains_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let bus = Bus::start().await;
    let _mock = bus.mock(&["--template", "upower"], UPOWER).await;
    let mut sight = Sight::open(Config {
        system_bus: Some(bus.address.clone()),
        roots: bare(&folder),
        ..config(&folder)
    });
    let none = |seen: &Signals| matches!(seen.senses.power, Observed::NotApplicable { .. });
    sight.signals("that there is no battery", none).await;
    let path = "/org/freedesktop/UPower";
    let add = async |method: &str, device: &str| {
        let body = (device, "a model", 57.0, 3_600_i64);
        bus.call(UPOWER, path, MOCK, method, &body).await;
        format!("{path}/devices/{device}")
    };
    let on_battery = |expected: bool| {
        move |seen: &Signals| value(&seen.senses.power).is_some_and(|power| power.on_battery == expected)
    };
    // A UPS that charges, on a desktop without a cable of its own to report.
    let ups = add("AddChargingBattery", "ups").await;
    bus.set(UPOWER, &ups, DEVICE, "Type", Variant::from(3_u32)).await;
    sight.signals("the UPS on mains", on_battery(false)).await;
    bus.set(UPOWER, &ups, DEVICE, "State", Variant::from(2_u32)).await;
    let seen = sight.signals("the UPS alone", on_battery(true)).await;
    let charge = value(&seen.senses.power).and_then(|power| power.charge);
    assert_eq!(charge.map(|charge| charge.0), Some(57));
    bus.call(
        UPOWER,
        path,
        MOCK,
        "RemoveDevice",
        &zbus::ObjectPath::try_from(ups.as_str()).expect("a path"),
    )
    .await;
    let battery = add("AddDischargingBattery", "battery").await;
    sight.signals("the battery", on_battery(true)).await;
    bus.call(UPOWER, path, MOCK, "AddAC", &("cable", "a model")).await;
    sight.signals("the cable", on_battery(false)).await;
    // A word where a number is due.
    bus.set(UPOWER, &battery, DEVICE, "State", Variant::from("full")).await;
    sight.signals("the lie", |seen| is_unknown(&seen.senses.power)).await;
    bus.set(UPOWER, &battery, DEVICE, "State", Variant::from(4_u32)).await;
    sight.signals("the truth", on_battery(false)).await;
}

#[tokio::test]
async fn a_metered_line_is_seen_and_a_service_that_dies_is_a_reason() {
    const NETWORK: &str = "org.freedesktop.NetworkManager";
    let folder = tempfile::tempdir().expect("a folder");
    let bus = Bus::start().await;
    let path = "/org/freedesktop/NetworkManager";
    let mock = bus.mock(&[NETWORK, path, NETWORK], NETWORK).await;
    let metered = async |value: u32| bus.set(NETWORK, path, NETWORK, "Metered", Variant::from(value)).await;
    bus.call(
        NETWORK,
        path,
        MOCK,
        "AddProperty",
        &(NETWORK, "Metered", Variant::from(0_u32)),
    )
    .await;
    let mut sight = Sight::open(Config {
        system_bus: Some(bus.address.clone()),
        ..config(&folder)
    });
    let not_carried = |seen: &Signals| matches!(seen.senses.metered, Observed::NotApplicable { .. });
    sight.signals("that it carries no line", not_carried).await;
    let is = |expected: bool| move |seen: &Signals| value(&seen.senses.metered) == Some(&expected);
    for (told, expected) in [(1, true), (2, false), (3, true), (4, false)] {
        metered(told).await;
        sight.signals("the line", is(expected)).await;
    }
    drop(mock);
    sight
        .signals("the end of the service", |seen| is_unknown(&seen.senses.metered))
        .await;
}

#[tokio::test]
async fn a_game_that_told_gamemode_is_seen_from_start_to_end() {
    const GAMEMODE: &str = "com.feralinteractive.GameMode";
    let folder = tempfile::tempdir().expect("a folder");
    let bus = Bus::start().await;
    let path = "/com/feralinteractive/GameMode";
    let _mock = bus.mock(&[GAMEMODE, path, GAMEMODE], GAMEMODE).await;
    let pid = std::process::id();
    let games = async |code: &str| {
        bus.call(
            GAMEMODE,
            path,
            MOCK,
            "AddMethod",
            &(GAMEMODE, "ListGames", "", "a(io)", code),
        )
        .await;
    };
    let ring = async |signal: &str| {
        let number = Variant::from(i32::try_from(pid).expect("a number"));
        let game = Variant::from(zbus::ObjectPath::try_from("/game").expect("a path"));
        let body = (GAMEMODE, signal, "io", vec![number, game]);
        bus.call(GAMEMODE, path, MOCK, "EmitSignal", &body).await;
    };
    games("ret = dbus.Array([], signature='(io)')").await;
    let mut sight = Sight::open(Config {
        session_bus: Some(bus.address.clone()),
        ..config(&folder)
    });
    let plays = |seen: &Signals| {
        value(&seen.senses.playing).is_some_and(|playing| {
            playing
                .iter()
                .any(|play| play.kind == PlayKind::GameMode && play.pid == Some(pid))
        })
    };
    sight
        .signals("that nobody plays", |seen| {
            value(&seen.senses.playing).is_some() && !plays(seen)
        })
        .await;
    games(&format!("ret = [({pid}, dbus.ObjectPath('/game'))]")).await;
    ring("GameRegistered").await;
    sight.signals("the game", plays).await;
    games("ret = dbus.Array([], signature='(io)')").await;
    ring("GameUnregistered").await;
    sight.signals("its end", |seen| !plays(seen)).await;
}

#[tokio::test]
async fn what_asks_a_desktop_to_keep_the_screen_on_is_seen() {
    const GNOME: &str = "org.gnome.SessionManager";
    const KDE: &str = "org.kde.Solid.PowerManagement.PolicyAgent";
    let folder = tempfile::tempdir().expect("a folder");
    let bus = Bus::start().await;
    let (gnome, kde) = (
        "/org/gnome/SessionManager",
        "/org/kde/Solid/PowerManagement/PolicyAgent",
    );
    let _gnome = bus.mock(&[GNOME, gnome, GNOME], GNOME).await;
    let inhibitor = "/org/gnome/SessionManager/Inhibitor1";
    let methods = vec![
        ("GetFlags", "", "u", "ret = 8"),
        ("GetAppId", "", "s", "ret = 'firefox'"),
    ];
    let none = std::collections::HashMap::<&str, Variant<'_>>::new();
    let body = (inhibitor, "org.gnome.SessionManager.Inhibitor", none, methods);
    bus.call(GNOME, gnome, MOCK, "AddObject", &body).await;
    let code = format!("ret = [dbus.ObjectPath('{inhibitor}')]");
    let list = (GNOME, "GetInhibitors", "", "ao", code.as_str());
    bus.call(GNOME, gnome, MOCK, "AddMethod", &list).await;
    let mut sight = Sight::open(Config {
        session_bus: Some(bus.address.clone()),
        ..config(&folder)
    });
    let has = |program: &'static str| {
        move |seen: &Signals| {
            let wanted = |engaged: &sela_protocol::senses::Engagement| {
                engaged.kind == EngagementKind::KeepsAwake && engaged.program == program
            };
            value(&seen.senses.engaged).is_some_and(|engaged| engaged.iter().any(wanted))
        }
    };
    sight.signals("GNOME's", has("firefox")).await;
    let _kde = bus.mock(&[KDE, kde, KDE], KDE).await;
    let list = (KDE, "ListInhibitions", "", "a(ss)", "ret = [('vlc', 'a film')]");
    bus.call(KDE, kde, MOCK, "AddMethod", &list).await;
    let asked = (KDE, "HasInhibition", "u", "b", "ret = args[0] == 4");
    bus.call(KDE, kde, MOCK, "AddMethod", &asked).await;
    sight.signals("KDE's", has("vlc")).await;
}
