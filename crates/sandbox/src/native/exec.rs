//! Finds the program in the image and becomes it, or says in words for the tenant why that cannot be.

use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode, JobPlan};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

/// Where a program is looked for if the image sets no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where it is at home if the image does not say.
const DEFAULT_HOME: &str = "/tmp";
/// Variables that list folders: the card's come before the image's.
const SEARCH_PATHS: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// A program, ready to be executed. Made before the fork, so that the child only makes system calls.
pub(crate) struct Executable {
    name: String,
    pub(crate) candidates: Vec<CString>,
    pub(crate) arguments: Vec<CString>,
    pub(crate) environment: Vec<CString>,
    pub(crate) folder: PathBuf,
}

impl Executable {
    /// Resolves the program's places along the job's `PATH`.
    pub(crate) fn of(plan: &JobPlan) -> Result<Self, Fault> {
        let text =
            |text: &str| CString::new(text).or_fault(FaultCode::BadPlan, "pass a text with a zero byte to the program");
        let name = plan
            .program
            .arguments
            .first()
            .filter(|name| !name.is_empty())
            .ok_or_else(|| {
                Fault::new(
                    FaultCode::BadPlan,
                    "neither the image nor the job says which program to run: set \"command\"",
                )
            })?;
        let environment = environment(plan);
        let path = environment
            .iter()
            .find(|(key, _)| key == "PATH")
            .map_or(DEFAULT_PATH, |(_, value)| value.as_str());
        let candidates = if name.contains('/') {
            vec![text(name)?]
        } else {
            path.split(':')
                .map(|folder| text(&format!("{folder}/{name}")))
                .collect::<Result<_, _>>()?
        };
        let environment = environment.iter().map(|(key, value)| text(&format!("{key}={value}")));
        Ok(Self {
            name: name.clone(),
            candidates,
            arguments: plan
                .program
                .arguments
                .iter()
                .map(|argument| text(argument))
                .collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            folder: Path::new("/").join(&plan.program.folder),
        })
    }

    /// Becomes the program. Returns only where it cannot.
    pub(super) fn become_it(&self, out: &OwnedFd, err: &OwnedFd) -> Fault {
        if let Err(fault) = self.prepare(out, err) {
            return fault;
        }
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts
                .iter()
                .map(|text| text.as_ptr())
                .chain([std::ptr::null()])
                .collect()
        };
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        // What is there but cannot be run tells more than what is not there.
        let mut worst = Errno::NOENT;
        for candidate in &self.candidates {
            // SAFETY: both lists end in null, and their texts outlive the call.
            unsafe { libc::execve(candidate.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
            let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
            if !matches!(error, Errno::NOENT | Errno::NOTDIR) || exists(candidate) {
                worst = error;
                break;
            }
        }
        let missing = self.candidates.iter().all(|candidate| !exists(candidate));
        self.why(worst, missing)
    }

    /// Its own session, its outputs, the usual signals, the image's folder.
    fn prepare(&self, out: &OwnedFd, err: &OwnedFd) -> Result<(), Fault> {
        let streams = || -> rustix::io::Result<()> {
            rustix::process::setsid()?;
            let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(out)?;
            rustix::stdio::dup2_stderr(err)
        };
        streams().or_fault(FaultCode::Isolation, "connect the program's outputs")?;
        usual_signals().or_fault(FaultCode::Isolation, "reset the program's signals")?;
        close_others().or_fault(FaultCode::Isolation, "close descriptors")?;
        std::env::set_current_dir(&self.folder).map_err(|error| self.no_folder(&error))
    }

    /// Why the program cannot start where the image says.
    pub(crate) fn no_folder(&self, error: &impl std::fmt::Display) -> Fault {
        Fault::new(
            FaultCode::ProgramUnusable,
            format!("the image's working folder {}: {error}", self.folder.display()),
        )
    }

    /// Why the program cannot be executed; `missing` where no candidate is there at all.
    pub(crate) fn why(&self, error: Errno, missing: bool) -> Fault {
        let name = &self.name;
        let places = || {
            self.candidates
                .iter()
                .map(|place| place.to_string_lossy())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (code, message) = match error {
            Errno::NOENT | Errno::NOTDIR if missing => (
                FaultCode::ProgramMissing,
                format!("the image has no program \"{name}\": looked for {}", places()),
            ),
            Errno::NOENT => (
                FaultCode::ProgramUnusable,
                format!("\"{name}\" is in the image, but the interpreter or loader that it names is not"),
            ),
            Errno::ACCESS => (
                FaultCode::ProgramUnusable,
                format!(
                    "\"{name}\" is in the image, but may not be executed by its user: {}",
                    places()
                ),
            ),
            Errno::NOEXEC => (
                FaultCode::ProgramUnusable,
                format!(
                    "\"{name}\" is no program for this machine ({}), or lacks its #! line",
                    std::env::consts::ARCH
                ),
            ),
            error => (
                FaultCode::ProgramUnusable,
                format!("\"{name}\" could not be executed: {error}"),
            ),
        };
        Fault::new(code, message)
    }
}

fn exists(candidate: &CString) -> bool {
    candidate
        .to_str()
        .is_ok_and(|path| fs::symlink_metadata(Path::new(path)).is_ok())
}

/// What is written on the pipe before it is closed by execution: nothing, where that worked.
pub(super) fn outcome(reads: &OwnedFd) -> Result<(), Fault> {
    let mut said = Vec::new();
    let mut part = [0; 4096];
    loop {
        match rustix::io::read(reads, &mut part) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&part[..count]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).or_fault(FaultCode::Isolation, "hear from the program's start"),
        }
    }
    if said.is_empty() {
        return Ok(());
    }
    Err(serde_json::from_slice(&said)
        .unwrap_or_else(|_| Fault::new(FaultCode::Isolation, "the program's start failed")))
}

/// The plan's variables, the card's where they are not set, both for search paths; `PATH` and `HOME` where missing.
fn environment(plan: &JobPlan) -> Vec<(String, String)> {
    let mut environment = plan.program.environment.clone();
    let own = |environment: &Vec<(String, String)>, key: &str| environment.iter().position(|(name, _)| name == key);
    let mut or_else = |key: &str, value: &str| match own(&environment, key) {
        Some(at) if SEARCH_PATHS.contains(&key) => {
            let before = &environment[at].1;
            environment[at].1 = if before.is_empty() {
                value.to_owned()
            } else {
                format!("{value}:{before}")
            };
        }
        Some(_) => {}
        None => environment.push((key.to_owned(), value.to_owned())),
    };
    if !plan.program.environment.iter().any(|(key, _)| key == "PATH") {
        or_else("PATH", DEFAULT_PATH);
    }
    or_else("HOME", DEFAULT_HOME);
    for (key, value) in plan.card.iter().flat_map(|card| &card.env) {
        or_else(key, value);
    }
    environment
}

fn usual_signals() -> std::io::Result<()> {
    // SAFETY: plain memory and numbers; SIG_DFL is a disposition that every signal but two takes, and those two stay.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// All are close-on-exec already; this makes it certain.
fn close_others() -> std::io::Result<()> {
    // SAFETY: sets a flag on descriptors; none is closed before execution.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
