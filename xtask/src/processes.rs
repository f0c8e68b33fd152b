//! Keeps programs that a verb started: each with its log, all of them ended when the verb ends, in the opposite order, by their own ids.
//!
//! What the programs are for is not known here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long a program may take to end by itself before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Programs that run now. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Processes {
    logs: PathBuf,
    running: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    name: &'static str,
    child: Child,
}

impl Processes {
    /// With a folder for their logs, which is made.
    pub(crate) fn new(logs: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        Ok(Self {
            logs,
            running: Vec::new(),
        })
    }

    /// Starts a program with its output in `NAME.log` and gives its process id.
    ///
    /// It is in a process group of its own, so that Ctrl-C at the terminal reaches only us and we decide who ends first; and it gets SIGTERM
    /// if we are killed.
    pub(crate) fn start(&mut self, name: &'static str, command: &mut Command) -> anyhow::Result<u32> {
        let log = self.logs.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let errors = file.try_clone().context("cannot open the log a second time")?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        apart(command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", command.get_program().display()))?;
        let id = child.id();
        self.running.push(Process { name, child });
        Ok(id)
    }

    /// The log of the program with that name.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// Whether all still run.
    ///
    /// # Errors
    /// Names the first that ended, with the end of its log.
    pub(crate) fn all_run(&mut self) -> anyhow::Result<()> {
        if let Some((name, status)) = self.first_ended()? {
            let log = self.log(name);
            bail!(
                "{name} ended with {status}; the end of {}:\n{}",
                log.display(),
                tail(&log)
            );
        }
        Ok(())
    }

    /// The first that has ended by itself, and how.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn first_ended(&mut self) -> anyhow::Result<Option<(&'static str, ExitStatus)>> {
        for process in &mut self.running {
            let status = process.child.try_wait();
            if let Some(status) = status.with_context(|| format!("cannot ask after {}", process.name))? {
                return Ok(Some((process.name, status)));
            }
        }
        Ok(None)
    }

    /// Ends all, the last that was started first, and gives how each ended.
    pub(crate) fn end(&mut self) -> Vec<(&'static str, ExitStatus)> {
        let mut ended = Vec::new();
        while let Some(mut process) = self.running.pop() {
            if let Some(status) = process.end() {
                ended.push((process.name, status));
            }
        }
        ended
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process {
    /// Asks it to end, waits, then kills it.
    fn end(&mut self) -> Option<ExitStatus> {
        ask_to_end(&self.child);
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Err(_) => break,
            }
        }
        // It may have ended by itself meanwhile; then there is nothing to kill.
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

#[cfg(unix)]
fn ask_to_end(child: &Child) {
    if let Some(id) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // Not yet waited for, so the id is still this child's.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
}

/// Elsewhere there is no polite way to ask a program without a window.
#[cfg(not(unix))]
fn ask_to_end(_child: &Child) {}

#[cfg(target_os = "linux")]
fn apart(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    // SAFETY: between fork and exec only this one system call is made; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
                .map_err(std::io::Error::from)
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn apart(_command: &mut Command) {}

/// The last lines of a log, for an error.
pub(crate) fn tail(log: &Path) -> String {
    const LINES: usize = 20;
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn logs(test: &str) -> PathBuf {
        std::env::temp_dir().join(format!("sela-xtask-processes-{test}-{}", std::process::id()))
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn programs_are_asked_to_end_in_the_opposite_order_and_their_output_is_kept() {
        let logs = logs("order");
        let mut processes = Processes::new(logs.clone()).unwrap();
        let script = "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
        processes.start("first", &mut shell(script)).unwrap();
        processes.start("second", &mut shell(script)).unwrap();
        while [processes.log("first"), processes.log("second")]
            .iter()
            .any(|log| tail(log).is_empty())
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        processes.all_run().unwrap();
        let ended: Vec<_> = processes
            .end()
            .into_iter()
            .map(|(name, status)| (name, status.code()))
            .collect();
        assert_eq!(ended, [("second", Some(7)), ("first", Some(7))]);
        assert_eq!(tail(&logs.join("first.log")), "ready\nasked");
        std::fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn a_program_that_ended_by_itself_is_named_with_the_end_of_its_log() {
        let logs = logs("ended");
        let mut processes = Processes::new(logs.clone()).unwrap();
        processes
            .start("exchange", &mut shell("echo port 7350 is taken >&2; exit 1"))
            .unwrap();
        let error = loop {
            if let Err(error) = processes.all_run() {
                break error.to_string();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(error.starts_with("exchange ended with exit status: 1"), "{error}");
        assert!(error.ends_with("port 7350 is taken"), "{error}");
        std::fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn a_program_that_cannot_be_started_is_named() {
        let logs = logs("absent");
        let mut processes = Processes::new(logs.clone()).unwrap();
        let error = format!(
            "{:#}",
            processes
                .start("agent", &mut Command::new("/no/such/program"))
                .unwrap_err()
        );
        assert!(error.starts_with("cannot start agent (/no/such/program)"), "{error}");
        std::fs::remove_dir_all(logs).unwrap();
    }
}
