//! The watchers against real peers: an X server with a real pointer, a mock of logind on a real bus, the simulated driver
//! with real holders. Each waits for an event with a long time-out; none makes a point about time.

#![expect(
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "a test starts its peers itself and looks for one kind of input among all"
)]

use sela_core::Input;
use sela_nvml_sim::{CardPlan, FOLDER_VARIABLE, Lab};
use sela_protocol::presence::{Observed, Signals};
use sela_sensors::{Config, Eyes};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;

/// A child that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &str, arguments: &[&str]) -> Ended {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} must be installed (cargo xtask setup does it): {error}"));
    Ended(child)
}

fn first_line(child: &mut Ended) -> String {
    let output = child.0.stdout.take().expect("piped");
    let mut lines = BufReader::new(output);
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    // Kept open: a program that writes on would be ended by a closed pipe.
    std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
    line.trim().to_owned()
}

/// Waits for the first signals that fulfil a condition.
async fn signals(inputs: &mut mpsc::Receiver<Input>, what: &str, wanted: impl Fn(&Signals) -> bool) -> Signals {
    let mut last = None;
    let found = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            match inputs.recv().await.expect("the eyes are open") {
                Input::Signals(signals) if wanted(&signals) => return signals,
                Input::Signals(signals) => last = Some(signals),
                _ => {}
            }
        }
    })
    .await;
    found.unwrap_or_else(|_| panic!("{what} was not seen; last: {last:?}"))
}

fn input_at(signals: &Signals) -> Option<u64> {
    match &signals.input {
        Observed::Value { value, .. } => Some(value.last_input_boot_ms.0),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}

fn looked_at(signals: &Signals) -> Option<u64> {
    match &signals.input {
        Observed::Value { seen_boot_ms, .. } => Some(seen_boot_ms.0),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}

/// No card, no bus but the one given: what is not under test is absent.
fn config(folder: &tempfile::TempDir) -> Config {
    Config {
        nvml_library: Some(folder.path().join("no-driver.so")),
        system_bus: Some(format!("unix:path={}", folder.path().join("no-bus").display())),
        ..Config::default()
    }
}

#[tokio::test]
async fn a_moving_pointer_is_seen_and_a_dying_x_server_is_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start(
        "Xvfb",
        &["-displayfd", "1", "-screen", "0", "320x200x24", "-nolisten", "tcp"],
    );
    let display = format!(":{}", first_line(&mut server));
    let (sender, mut inputs) = mpsc::channel(64);
    let eyes = Eyes::open(
        Config {
            display: Some(display.clone()),
            ..config(&folder)
        },
        sender,
    )
    .expect("opens");
    eyes.attend(true);
    let mut before = signals(&mut inputs, "the display", |signals| input_at(signals).is_some()).await;
    // Relative motion goes through XTEST as a device's would; an absolute one warps the pointer, which is no input.
    for _ in 1..4 {
        let moved = Command::new("xdotool")
            .args(["mousemove_relative", "--", "3", "2"])
            .env("DISPLAY", &display)
            .status()
            .expect("xdotool must be installed (cargo xtask setup does it)");
        assert!(moved.success());
        let after = signals(&mut inputs, "the pointer", |signals| {
            input_at(signals) > input_at(&before)
        })
        .await;
        // What follows within a tenth of a second is the same movement: the next one comes after a look in between.
        before = signals(&mut inputs, "a later look", |signals| {
            looked_at(signals) > input_at(&after).map(|at| at + 200)
        })
        .await;
    }
    drop(server);
    let gone = signals(&mut inputs, "the end of the X server", |signals| {
        matches!(signals.input, Observed::Unknown { .. })
    })
    .await;
    let Observed::Unknown { source, .. } = gone.input else {
        unreachable!("waited for")
    };
    assert_eq!(source, "X11");
}

/// A private bus with a mock of logind, driven by its own D-Bus calls.
struct Login {
    address: String,
    _bus: Ended,
    _mock: Ended,
}

impl Login {
    fn start() -> Self {
        let mut bus = start("dbus-daemon", &["--session", "--print-address", "--nofork"]);
        let address = first_line(&mut bus);
        let mock = Command::new("/usr/bin/python3")
            .args(["-m", "dbusmock", "--system", "--template", "logind"])
            .env("DBUS_SYSTEM_BUS_ADDRESS", &address)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3-dbusmock must be installed (cargo xtask setup does it)");
        Self {
            address,
            _bus: bus,
            _mock: Ended(mock),
        }
    }

    async fn call(&self, path: &str, interface: &str, method: &str, body: impl Into<Call>) {
        let body: Call = body.into();
        let connection = zbus::connection::Builder::address(self.address.as_str())
            .build()
            .await
            .expect("the bus");
        let service = "org.freedesktop.login1";
        for _ in 0..200 {
            let result = match &body {
                Call::Session { id, user } => {
                    let arguments = (id, "seat0", 1_000_u32, user, true);
                    connection
                        .call_method(Some(service), path, Some(interface), method, &arguments)
                        .await
                }
                Call::Idle { hint, since } => {
                    let properties = std::collections::HashMap::from([
                        ("IdleHint", zbus::Variant::from(*hint)),
                        ("IdleSinceHintMonotonic", zbus::Variant::from(*since)),
                    ]);
                    let arguments = ("org.freedesktop.login1.Session", properties);
                    connection
                        .call_method(Some(service), path, Some(interface), method, &arguments)
                        .await
                }
            };
            if result.is_ok() {
                return;
            }
            // The mock takes a moment to own its name: an event that D-Bus itself would have to be watched for.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the mock of logind does not answer {method}");
    }
}

enum Call {
    Session { id: &'static str, user: &'static str },
    Idle { hint: bool, since: u64 },
}

#[tokio::test]
async fn logind_tells_that_nobody_is_there_that_somebody_is_and_since_when_they_are_idle() {
    let folder = tempfile::tempdir().expect("a folder");
    let login = Login::start();
    let manager = ("/org/freedesktop/login1", "org.freedesktop.DBus.Mock");
    login
        .call(
            manager.0,
            manager.1,
            "AddSession",
            Call::Session { id: "c1", user: "joe" },
        )
        .await;
    let (sender, mut inputs) = mpsc::channel(64);
    let eyes = Eyes::open(
        Config {
            system_bus: Some(login.address.clone()),
            ..config(&folder)
        },
        sender,
    )
    .expect("opens");
    eyes.attend(true);
    let active = signals(&mut inputs, "a session that is not idle", |signals| {
        input_at(signals).is_some()
    })
    .await;
    let session = "/org/freedesktop/login1/session/c1";
    let idle = Call::Idle {
        hint: true,
        since: 1_000,
    };
    login
        .call(session, "org.freedesktop.DBus.Mock", "UpdateProperties", idle)
        .await;
    // Idle for as long as this machine runs: the hint's moment lies far before the activity seen first, but what was seen
    // is not unseen, so the newest input stands still from now on.
    let still = signals(&mut inputs, "an idle session", |signals| input_at(signals).is_some()).await;
    assert!(input_at(&still) >= input_at(&active));
    let first = signals(&mut inputs, "a sign of life", |signals| input_at(signals).is_some()).await;
    let second = signals(&mut inputs, "another", |signals| input_at(signals).is_some()).await;
    assert_eq!(
        input_at(&first),
        input_at(&second),
        "nobody moves: the newest input stands still"
    );
}

#[tokio::test]
async fn where_there_is_no_session_and_no_display_input_is_not_applicable() {
    let folder = tempfile::tempdir().expect("a folder");
    let (sender, mut inputs) = mpsc::channel(64);
    let _eyes = Eyes::open(config(&folder), sender).expect("opens");
    let seen = signals(&mut inputs, "that there is nothing to see", |signals| {
        matches!(signals.input, Observed::NotApplicable { .. })
    })
    .await;
    let Observed::NotApplicable { why } = seen.input else {
        unreachable!("waited for")
    };
    assert!(why.contains("no system bus"), "{why}");
}

#[tokio::test]
async fn a_foreign_program_on_the_card_is_seen_by_name_until_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let lab = Lab::create(&folder.path().join("lab"), &[CardPlan::rtx_4070()]).expect("a lab");
    // SAFETY: nextest gives each test a process of its own; the eyes, which start threads, are not open yet.
    unsafe { std::env::set_var(FOLDER_VARIABLE, lab.folder()) };
    let (sender, mut inputs) = mpsc::channel(64);
    let library: PathBuf = sela_nvml_sim::find_library().expect("cargo builds the library with this test");
    let eyes = Eyes::open(
        Config {
            nvml_library: Some(library),
            ..config(&folder)
        },
        sender,
    )
    .expect("opens");
    eyes.attend(true);
    let holder = sela_nvml_sim::find_holder().expect("cargo build -p sela-nvml-sim builds it");
    let node = lab.device_node(0);
    let game = start(
        &holder.to_string_lossy(),
        &["--device", &node.to_string_lossy(), "--mib", "512"],
    );
    let pid = game.0.id();
    let on_it = |signals: &Signals| match &signals.foreign {
        Observed::Value { value, .. } => value.iter().any(|process| process.pid == pid),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => false,
    };
    let seen = signals(&mut inputs, "the game", on_it).await;
    let Observed::Value { value, .. } = &seen.foreign else {
        unreachable!("waited for")
    };
    assert_eq!(value[0].vram_used.map(|bytes| bytes.0 >> 20), Some(512));
    assert_eq!(value[0].name.as_deref(), Some("sela-sim-hold"));
    drop(game);
    signals(&mut inputs, "the end of the game", |signals| !on_it(signals)).await;
}
