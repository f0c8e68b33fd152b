//! One long-running program under test: started with a log, stopped, killed and ended by its process id. It dies with whoever
//! started it.

use crate::wait_for;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A program that runs, or has run.
#[derive(Debug)]
pub struct Part {
    name: &'static str,
    log: PathBuf,
    child: Option<Child>,
}

impl Part {
    /// A program that does not run yet. Its output will go to the end of `log`.
    pub fn new(name: &'static str, log: PathBuf) -> Self {
        Self { name, log, child: None }
    }

    /// Starts it. It is killed when the thread that started it ends.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let open = || OpenOptions::new().create(true).append(true).open(&self.log);
        command
            .stdin(Stdio::null())
            .stdout(open()?)
            .stderr(open()?)
            .process_group(0);
        // SAFETY: between fork and exec only this one system call is made; it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from));
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start the {}", self.name))?;
        self.child = Some(child);
        Ok(())
    }

    /// Its process id.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn pid(&self) -> anyhow::Result<u32> {
        let child = self.child.as_ref();
        child
            .map(Child::id)
            .with_context(|| format!("the {} does not run", self.name))
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// Where it ended by itself: then with how.
    pub fn is_up(&mut self) -> anyhow::Result<bool> {
        let Some(child) = &mut self.child else {
            return Ok(false);
        };
        if let Some(status) = child.try_wait()? {
            self.child = None;
            anyhow::bail!("the {} ended by itself with {status}", self.name);
        }
        Ok(true)
    }

    /// Kills it as a crash would, and takes its exit status so that no zombie stays.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        Ok(())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()?).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process id is positive")?, signal)
            .with_context(|| format!("cannot signal the {}", self.name))
    }

    /// Asks it to end and waits until it has.
    ///
    /// # Errors
    /// Where it does not run, or does not end.
    pub fn end(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Where it does not run, or does not end.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let child = self
            .child
            .as_mut()
            .with_context(|| format!("the {} does not run", self.name))?;
        let status = wait_for(&format!("the end of the {}", self.name), || Ok(child.try_wait()?))?;
        self.child = None;
        Ok(status)
    }

    /// The file that its output goes to.
    pub fn log(&self) -> &Path {
        &self.log
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may be gone already; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
