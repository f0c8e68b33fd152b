//! The unprotected side: plain processes of this machine's root, started, read and ended here. Each that is started is ended by its
//! id, whatever happens in between.

use sela_attacks::arena::{ARENA_VARIABLE, Arena};
use sela_attacks::verdict::Said;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::job::program;

/// A process that is ended with this value.
#[derive(Debug)]
pub(crate) struct Plain(pub(crate) Child);

impl Plain {
    /// `sela-probe` with these words; its output is read here.
    pub(crate) fn probe(words: &[&str]) -> Self {
        Self::start(Command::new(program("sela-probe")).args(words))
    }

    /// busybox' shell with a script.
    pub(crate) fn shell(script: &str) -> Self {
        Self::start(Command::new("/bin/busybox").args(["sh", "-c", script]))
    }

    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The first line that it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        line
    }

    /// Everything that it says, to its end.
    pub(crate) fn finish(mut self) -> String {
        drop(self.0.stdin.take());
        let mut said = Vec::new();
        self.0.stdout.take().unwrap().read_to_end(&mut said).unwrap();
        self.0.wait().unwrap();
        String::from_utf8_lossy(&said).into_owned()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A signal to one process by its id; one that is gone needs none.
pub(crate) fn send(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// Whether a process runs; one that is dead and not yet reaped does not.
pub(crate) fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Processes whose command line holds a word that nobody else's does.
pub(crate) fn with_word(word: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_it = String::from_utf8_lossy(&line).contains(word);
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        found.extend(pid.filter(|pid| is_it && *pid != std::process::id()));
    }
    found
}

/// Carries attacks out without walls.
pub(crate) fn attacks(arena: &Arena, names: &[&str]) -> Vec<Said> {
    let mut command = Command::new(program("sela-probe"));
    command
        .arg("control")
        .args(names)
        .env(ARENA_VARIABLE, serde_json::to_string(arena).unwrap());
    said(&Plain::start(&mut command).finish())
}

/// The lines of a probe program.
pub(crate) fn said(output: &str) -> Vec<Said> {
    output
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Waits for what the kernel or another process is about to do, and says whether it did.
pub(crate) async fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    for _ in 0..2_000 {
        if is_so() {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    false
}

/// A file of the owner's that only root may read.
pub(crate) fn private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
