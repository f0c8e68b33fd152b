//! The one process of a job that speaks to the engine: forked from the keeper, which has to go on listening meanwhile and may
//! start no thread. It creates the container, reads back, starts it and says so; then it waits for the end of its socket, and
//! removes the container. That end comes when the keeper has done with the job, or when the keeper is dead: frozen or not,
//! the container then dies with it, though the keeper can no longer see to it.

use super::engine::EnginePlan;
use super::order;
use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode, JobPlan};
use crate::native::{Side, fork};
use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, RemoveContainerOptionsBuilder,
};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use sela_protocol::confidential::Confidential;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use zeroize::Zeroize as _;

/// How long the engine may take to forget a container, and how often it is asked.
const REMOVAL: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(10);
/// Nice value: that of any program. The keeper's own is lower.
const NICE: i32 = 0;

/// From clerk to keeper: one JSON object a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ClerkSays {
    /// The container's first process is there.
    Born {
        /// The engine's id of the container.
        container: String,
        /// The process, as this machine sees it.
        pid: u32,
    },
    /// The container could not be had.
    CannotStart {
        /// Why.
        fault: Fault,
    },
    /// The engine knows no such container any more.
    Removed,
}

/// The keeper's hold of it.
#[derive(Debug)]
pub(super) struct Clerk {
    pid: Pid,
    socket: OwnedFd,
    inbox: Vec<u8>,
    gone: bool,
}

impl Clerk {
    /// Forks it, and with that asks for the container.
    ///
    /// # Safety
    /// The calling process must have one thread only.
    pub(super) unsafe fn hire(
        plan: &JobPlan,
        engine: &EnginePlan,
        confidential: &mut Confidential,
    ) -> Result<Self, Fault> {
        let body = order::body(plan, engine, !confidential.secrets.is_empty())?;
        let (socket, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
            None,
        )
        .or_fault(FaultCode::Isolation, "make the socket to the engine's clerk")?;
        // SAFETY: one thread, as promised by the caller.
        match unsafe { fork() }.or_fault(FaultCode::Isolation, "fork the engine's clerk")? {
            Side::Child => {
                // This process lives as long as the job, and has no use for what only the job may read.
                confidential.secrets.clear();
                confidential.result_key.zeroize();
                let work = std::panic::AssertUnwindSafe(|| work(theirs, plan, engine, body));
                let status = i32::from(std::panic::catch_unwind(work).is_err());
                // SAFETY: ends this copy of the keeper without running what was meant for the keeper's own end.
                unsafe { libc::_exit(status) }
            }
            Side::Parent { child } => Ok(Self {
                pid: child,
                socket,
                inbox: Vec::new(),
                gone: false,
            }),
        }
    }

    /// Becomes readable when it says something, or is dead.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What it said; `None` where it has not said anything, an error where it is gone.
    pub(super) fn hear(&mut self) -> Result<Option<ClerkSays>, Errno> {
        loop {
            if let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.inbox.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line).ok());
            }
            let mut part = [0; 4096];
            match rustix::io::read(&self.socket, &mut part) {
                Ok(0) => {
                    self.gone = true;
                    return Err(Errno::PIPE);
                }
                Ok(count) => self.inbox.extend_from_slice(&part[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => {
                    self.gone = true;
                    return Err(error);
                }
            }
        }
    }

    /// Asks for the container to be removed, dead or alive.
    pub(super) fn dismiss(&self) {
        // One that is gone has removed it, or cannot any more: that is the sweep's.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Whether it has removed the container, or is gone.
    pub(super) fn is_done(&mut self) -> bool {
        while !self.gone {
            match self.hear() {
                Ok(None) => return false,
                Ok(Some(ClerkSays::Born { .. } | ClerkSays::CannotStart { .. } | ClerkSays::Removed)) | Err(_) => {}
            }
        }
        true
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.dismiss();
        // One that is still at work ends by itself; nobody waits for it then.
        let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
    }
}

/// In the child.
fn work(socket: OwnedFd, plan: &JobPlan, engine: &EnginePlan, body: ContainerCreateBody) {
    let socket = keep_only(socket);
    let _ = rustix::process::setpriority_process(None, NICE);
    // A session of its own: what ends the keeper's must not end what watches over its end.
    let _ = rustix::process::setsid();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    runtime.block_on(async {
        let Ok(mut keeper) = UnixStream::from_std(socket) else {
            return;
        };
        let (container, first) = match bear(plan, engine, body).await {
            Ok((engine, container, pid)) => {
                let first = Pid::from_raw(i32::try_from(pid).unwrap_or(0))
                    .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
                say(&mut keeper, &ClerkSays::Born { container, pid }).await;
                (Some(engine), first)
            }
            Err((engine, fault)) => {
                say(&mut keeper, &ClerkSays::CannotStart { fault }).await;
                (engine, None)
            }
        };
        let mut nothing = [0; 16];
        while keeper.read(&mut nothing).await.is_ok_and(|count| count > 0) {}
        if let Some(first) = first {
            // Before the engine is asked: this one takes no time, and needs nobody.
            let _ = rustix::process::pidfd_send_signal(first, Signal::KILL);
        }
        if let Some(engine) = container {
            remove(&engine, &order::name(plan), REMOVAL).await;
        }
        say(&mut keeper, &ClerkSays::Removed).await;
    });
}

/// Of the keeper's descriptors only this one stays open: the agent must see the keeper's end, whoever lives on.
fn keep_only(socket: OwnedFd) -> std::os::unix::net::UnixStream {
    if let Ok(null) = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    ) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let kept = socket.as_raw_fd();
    for (first, last) in [(3, kept - 1), (kept + 1, RawFd::MAX)] {
        if first <= last {
            // SAFETY: this is a fresh copy of the keeper, which leaves by `_exit`: whatever owned these never runs here.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    // SAFETY: the descriptor was owned until here, and is the one that was kept open.
    unsafe { std::os::unix::net::UnixStream::from_raw_fd(socket.into_raw_fd()) }
}

async fn say(keeper: &mut UnixStream, what: &ClerkSays) {
    let mut line = serde_json::to_vec(what).unwrap_or_default();
    line.push(b'\n');
    // A keeper that does not listen is dead, which is seen next.
    let _ = keeper.write_all(&line).await;
}

/// From the order to the container's first process. With an engine in the error, something may have to be removed from it.
async fn bear(
    plan: &JobPlan,
    engine: &EnginePlan,
    body: ContainerCreateBody,
) -> Result<(Docker, String, u32), (Option<Docker>, Fault)> {
    let connected = engine.place.connect().await;
    let engine = connected.map_err(|error| (None, Fault::new(FaultCode::Isolation, error.to_string())))?;
    match create(&engine, &order::name(plan), body).await {
        Ok((container, pid)) => Ok((engine, container, pid)),
        Err(fault) => Err((Some(engine), fault)),
    }
}

async fn create(engine: &Docker, name: &str, body: ContainerCreateBody) -> Result<(String, u32), Fault> {
    let isolation = FaultCode::Isolation;
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    let created = engine.create_container(Some(options), body.clone()).await;
    let container = created.or_fault(isolation, "have the container created")?.id;
    let inspect = || engine.inspect_container(&container, None::<InspectContainerOptions>);
    let found = inspect().await.or_fault(isolation, "read the container back")?;
    order::read_back(&found, &body)?;
    if found.image != body.image {
        return Err(Fault::new(
            FaultCode::LimitDiffers,
            format!(
                "the engine was asked for the image {:?} and took {:?}",
                body.image, found.image
            ),
        ));
    }
    let started = engine.start_container(&container, None).await;
    started.or_fault(isolation, "have the container started")?;
    let state = inspect()
        .await
        .or_fault(isolation, "ask for the container's process")?
        .state;
    let pid = state
        .and_then(|state| state.pid)
        .and_then(|pid| u32::try_from(pid).ok());
    match pid.filter(|pid| *pid > 0) {
        Some(pid) => Ok((container, pid)),
        None => Err(Fault::new(
            isolation,
            "the container's first process ended before it was looked at",
        )),
    }
}

/// Kills and removes a container until the engine knows none of that name, or `patience` is over; whether it does not.
pub(super) async fn remove(engine: &Docker, name: &str, patience: Duration) -> bool {
    let removal = async {
        loop {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            // It may be removing it already, by itself.
            let _ = engine.remove_container(name, Some(options)).await;
            match engine.inspect_container(name, None::<InspectContainerOptions>).await {
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => return,
                Ok(_) | Err(_) => tokio::time::sleep(GLANCE).await,
            }
        }
    };
    tokio::time::timeout(patience, removal).await.is_ok()
}
