//! Real peers for the watchers: programs that end with the test, private buses with mocks on them, and waiting for what is
//! seen. Waits have a long time-out and make no point about time.

use sela_core::Input;
use sela_protocol::presence::{Observed, Signals};
use sela_sensors::{Config, Eyes};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;

/// A child that ends with the test.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.go_on();
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Makes it hang.
    pub(crate) fn hang(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw);
        // One that has ended already takes no signal.
        let _ = rustix::process::kill_process(pid.expect("a process has a number"), signal);
    }
}

/// Starts a program; what it writes can be read.
pub(crate) fn start(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied());
    launch(command)
}

/// The same, as nobody where the test runs as root: some programs refuse root.
pub(crate) fn start_as_nobody(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment.iter().copied());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    launch(command)
}

pub(crate) const NOBODY: u32 = 65_534;

fn launch(mut command: Command) -> Ended {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{name} must be installed (cargo xtask setup does it): {error}"));
    Ended(child)
}

/// The first line that a program writes.
pub(crate) fn first_line(child: &mut Ended) -> String {
    let output = child.0.stdout.take().expect("piped");
    let mut lines = BufReader::new(output);
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    // Read on: a program that writes more would be ended by a closed pipe, and hang at a full one.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    line.trim().to_owned()
}

/// Takes what a program writes, so that it does not hang at a full pipe.
fn let_talk(child: &mut Ended) {
    let mut output = child.0.stdout.take().expect("piped");
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
}

/// A folder that only its owner may enter, nobody's where the test runs as root.
pub(crate) fn runtime_folder(folder: &tempfile::TempDir) -> std::path::PathBuf {
    use std::os::unix::fs::{PermissionsExt, chown};
    let allow = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    allow(folder.path(), 0o711).expect("allowed");
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).expect("made");
    allow(&runtime, 0o700).expect("allowed");
    if rustix::process::getuid().is_root() {
        chown(&runtime, Some(NOBODY), Some(NOBODY)).expect("given");
    }
    runtime
}

/// Whether a program is installed; says that its test is skipped where not.
pub(crate) fn is_installed(program: &str, of: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !there {
        println!("skipped: {of} is not installed (see docs/untested.md)");
    }
    there
}

/// What the eyes see.
pub(crate) struct Sight {
    pub(crate) eyes: Eyes,
    inputs: mpsc::Receiver<Input>,
    last: Option<Signals>,
}

impl Sight {
    /// Opens the eyes and looks closely.
    pub(crate) fn open(config: Config) -> Self {
        let (sender, inputs) = mpsc::channel(256);
        let eyes = Eyes::open(config, sender).expect("opens");
        eyes.attend(true);
        Self {
            eyes,
            inputs,
            last: None,
        }
    }

    /// The first input that fulfils a condition.
    pub(crate) async fn input(&mut self, what: &str, wanted: impl Fn(&Input) -> bool) -> Input {
        let last = &mut self.last;
        let inputs = &mut self.inputs;
        let found = tokio::time::timeout(Duration::from_secs(40), async {
            loop {
                let input = inputs.recv().await.expect("the eyes are open");
                if wanted(&input) {
                    return input;
                }
                if let Input::Signals(signals) = input {
                    *last = Some(signals);
                }
            }
        })
        .await;
        found.unwrap_or_else(|_| panic!("{what} was not seen; last: {:?}", self.last))
    }

    /// The first signals that fulfil a condition.
    pub(crate) async fn signals(&mut self, what: &str, wanted: impl Fn(&Signals) -> bool) -> Signals {
        let is_it = |input: &Input| matches!(input, Input::Signals(signals) if wanted(signals));
        match self.input(what, is_it).await {
            Input::Signals(signals) => signals,
            _ => unreachable!("waited for"),
        }
    }
}

/// The newest input, where it is seen.
pub(crate) fn input_at(signals: &Signals) -> Option<u64> {
    match &signals.input {
        Observed::Value { value, .. } => Some(value.last_input_boot_ms.0),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}

/// When input was last looked at.
pub(crate) fn looked_at(signals: &Signals) -> Option<u64> {
    match &signals.input {
        Observed::Value { seen_boot_ms, .. } => Some(seen_boot_ms.0),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}

/// The source that saw input, or cannot.
pub(crate) fn input_source(signals: &Signals) -> &str {
    match &signals.input {
        Observed::Value { source, .. } | Observed::Unknown { source, .. } => source,
        Observed::NotApplicable { .. } => "",
    }
}

/// Seen by one source, and idle: the newest input stands still over two looks.
pub(crate) async fn idle(sight: &mut Sight, source: &str) -> Signals {
    let by_it = |seen: &Signals| input_at(seen).is_some() && input_source(seen) == source;
    let mut before = sight.signals("the source", by_it).await;
    loop {
        let after = sight
            .signals("a later look", |seen| {
                by_it(seen) && looked_at(seen) > looked_at(&before).map(|at| at + 300)
            })
            .await;
        if input_at(&after) == input_at(&before) {
            return after;
        }
        before = after;
    }
}

/// Whether a signal is unknown, by its source.
pub(crate) fn is_unknown<T>(observed: &Observed<T>) -> bool {
    matches!(observed, Observed::Unknown { .. })
}

/// The value, where there is one.
pub(crate) fn value<T>(observed: &Observed<T>) -> Option<&T> {
    match observed {
        Observed::Value { value, .. } => Some(value),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}

/// No card, no bus but the ones given: what is not under test is absent.
pub(crate) fn config(folder: &tempfile::TempDir) -> Config {
    let nowhere = format!("unix:path={}", folder.path().join("no-bus").display());
    Config {
        nvml_library: Some(folder.path().join("no-driver.so")),
        system_bus: Some(nowhere),
        ..Config::default()
    }
}

/// A private bus.
pub(crate) struct Bus {
    pub(crate) address: String,
    pub(crate) daemon: Ended,
    connection: zbus::Connection,
}

impl Bus {
    pub(crate) async fn start() -> Self {
        let mut daemon = start("dbus-daemon", &["--session", "--print-address", "--nofork"], &[]);
        let address = first_line(&mut daemon);
        let builder = zbus::connection::Builder::address(address.as_str());
        Self {
            connection: builder.build().await.expect("the bus"),
            address,
            daemon,
        }
    }

    /// A mock by one of python-dbusmock's templates, or an empty one at a name.
    pub(crate) async fn mock(&self, arguments: &[&str], name: &str) -> Ended {
        let addresses = [
            ("DBUS_SYSTEM_BUS_ADDRESS", self.address.as_str()),
            ("DBUS_SESSION_BUS_ADDRESS", self.address.as_str()),
        ];
        let arguments: Vec<&str> = ["-m", "dbusmock", "--system"]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        let mut mock = start("/usr/bin/python3", &arguments, &addresses);
        let_talk(&mut mock);
        let bus = "org.freedesktop.DBus";
        for _ in 0..400 {
            if self.ask::<_, bool>(bus, "/", bus, "NameHasOwner", &name).await == Some(true) {
                return mock;
            }
            // The mock takes a moment to own its name.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the mock of {name} does not start (python3-dbusmock must be installed; cargo xtask setup does it)");
    }

    /// Calls a method; `None` where that fails.
    pub(crate) async fn ask<B, R>(
        &self,
        service: &str,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Option<R>
    where
        B: serde::Serialize + zbus::wire::DynamicType + Sync,
        R: serde::de::DeserializeOwned + zbus::Type,
    {
        let call = self
            .connection
            .call_method(Some(service), path, Some(interface), method, body);
        call.await.ok()?.body().deserialize().ok()
    }

    /// Calls a method that must work.
    pub(crate) async fn call<B>(&self, service: &str, path: &str, interface: &str, method: &str, body: &B)
    where
        B: serde::Serialize + zbus::wire::DynamicType + Sync,
    {
        let call = self
            .connection
            .call_method(Some(service), path, Some(interface), method, body);
        call.await.unwrap_or_else(|error| panic!("{service} {method}: {error}"));
    }

    /// Sets a property of a mock, and tells of it as the service itself would.
    pub(crate) async fn set(
        &self,
        service: &str,
        path: &str,
        interface: &str,
        property: &str,
        value: zbus::Variant<'_>,
    ) {
        let properties = std::collections::HashMap::from([(property, value)]);
        let body = (interface, properties);
        self.call(service, path, MOCK, "UpdateProperties", &body).await;
    }
}

/// The interface by which a mock is told what to be.
pub(crate) const MOCK: &str = "org.freedesktop.DBus.Mock";
