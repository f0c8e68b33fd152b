//! The job's first process. It is forked from the keeper into new namespaces, builds the job's view of the machine, gives up
//! every right, and then does three things only: start the program, pass SIGTERM on to it, and reap. A program that were the
//! first process itself would not get a SIGTERM that it has no handler for, and its orphans would never be reaped.
//!
//! It talks to the keeper over a socket; end of file there means that the keeper is dead, and so is the job.

use super::exec::{self, Executable};
use super::seccomp::Filters;
use super::{checkpoint, limits, mounts, namespaces};
use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode, JobPlan, ProgramEnd};
use crate::network::door;
use crate::scratch::{self, Disk};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use sela_protocol::confidential::Confidential;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use zeroize::Zeroize as _;

/// From init to keeper: one JSON object a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum InitSays {
    /// The mounts stand; the user namespace waits for its id map.
    NeedsIds,
    /// Every wall stands; the program waits to be released.
    Ready,
    /// The program is being executed by the kernel.
    Runs,
    /// The program ended. What it left behind is being killed.
    ProgramEnded {
        /// How.
        end: ProgramEnd,
    },
    /// The job cannot be started.
    CannotStart {
        /// Why.
        fault: Fault,
    },
}

/// From keeper to init: go on to the next step. One byte a packet.
pub(crate) const GO_ON: &[u8] = b"g";

/// Longest packet.
pub(crate) const LONGEST_PACKET: usize = 64 << 10;

/// What the child needs of the keeper's.
pub(super) struct Inherited {
    pub(super) channel: OwnedFd,
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
    pub(super) checkpoint: Option<OwnedFd>,
    /// Where the listening socket of the proxy is sent, for a job that has one.
    pub(super) agent: Option<OwnedFd>,
}

/// Everything from birth to death. Returns the exit status, with which the caller must leave at once.
pub(super) fn live(
    plan: &JobPlan,
    confidential: &mut Confidential,
    disk: Option<&Disk>,
    filters: &Filters,
    inherited: Inherited,
) -> i32 {
    let channel = match inherited.channel.try_clone() {
        Ok(channel) => channel,
        Err(_) => return 1,
    };
    match set_up(plan, confidential, disk, filters, inherited) {
        Ok(Some(program)) => reap(&channel, program),
        // The keeper is gone.
        Ok(None) => 1,
        Err(fault) => {
            say(&channel, &InitSays::CannotStart { fault });
            1
        }
    }
}

/// `None` where the keeper is gone.
fn set_up(
    plan: &JobPlan,
    confidential: &mut Confidential,
    disk: Option<&Disk>,
    filters: &Filters,
    inherited: Inherited,
) -> Result<Option<Pid>, Fault> {
    let Inherited {
        channel,
        out,
        err,
        checkpoint,
        agent,
    } = inherited;
    die_with_keeper()?;
    block_signals()?;
    if !go_on(&channel) {
        return Ok(None);
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let open_files = limits::apply(&plan.limits)?;
    let (root, sealed) = mounts::build(plan, &confidential.secrets, disk)?;
    // Handed over. This process lives as long as the job, which may try to read it.
    confidential.secrets.clear();
    mounts::enter(&root)?;
    mounts::verify(plan, sealed)?;
    namespaces::furnish_network().or_fault(FaultCode::Isolation, "furnish the job's network")?;
    if let Some(agent) = agent {
        door::open(agent).or_fault(FaultCode::Isolation, "open the job's way to the network")?;
    }
    // SAFETY: this process was forked from one with a single thread, and has made none since.
    unsafe { namespaces::leave_user_namespace() }.or_fault(FaultCode::Isolation, "make a user namespace")?;
    say(&channel, &InitSays::NeedsIds);
    if !go_on(&channel) {
        return Ok(None);
    }
    give_up_rights(plan)?;
    // Changing ids forgets whose death to die.
    die_with_keeper()?;
    if let Some(archive) = checkpoint {
        checkpoint::unpack(archive, &confidential.result_key, plan.limits.output)?;
    }
    confidential.result_key.zeroize();
    limits::verify(open_files)?;
    if sealed.is_some() {
        scratch::refuse_attributes()?;
    }
    filters.install()?;
    say(&channel, &InitSays::Ready);
    if !go_on(&channel) {
        return Ok(None);
    }
    let program = start(plan, out, err)?;
    say(&channel, &InitSays::Runs);
    Ok(Some(program))
}

/// The kernel kills this process, and with it its PID namespace, when the keeper dies. A keeper that died before is noticed by
/// `go_on`, which follows each call of this.
fn die_with_keeper() -> Result<(), Fault> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .or_fault(FaultCode::Isolation, "tie the job's life to the keeper's")
}

/// A first process gets a signal only if it has a handler or blocks it: blocked, they are taken one by one in `reap`.
fn block_signals() -> Result<(), Fault> {
    let set = all_signals();
    // SAFETY: `set` is a valid signal set; the old mask is not asked for.
    let result = unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error()).or_fault(FaultCode::Isolation, "block signals")
    }
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: a signal set is plain memory, and sigfillset writes all of it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

/// No capability in any set, none to be had by executing anything, the image's user, nobody's supplementary groups.
fn give_up_rights(plan: &JobPlan) -> Result<(), Fault> {
    use rustix::thread::{CapabilitiesSecureBits as Bits, CapabilitySet, CapabilitySets};
    let give_up = || -> rustix::io::Result<()> {
        rustix::thread::set_capabilities_secure_bits(
            Bits::NO_ROOT
                | Bits::NO_ROOT_LOCKED
                | Bits::NO_SETUID_FIXUP
                | Bits::NO_SETUID_FIXUP_LOCKED
                | Bits::KEEP_CAPS_LOCKED
                | Bits::NO_CAP_AMBIENT_RAISE
                | Bits::NO_CAP_AMBIENT_RAISE_LOCKED,
        )?;
        drop_bounding_set()?;
        rustix::thread::clear_ambient_capability_set()?;
        let (user, group) = (rustix::process::Uid::from_raw(plan.program.user), plan.program.group);
        let group = rustix::process::Gid::from_raw(group);
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        let none = CapabilitySet::empty();
        let none = CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, none)?;
        rustix::thread::set_no_new_privs(true)?;
        // This process is a copy of the keeper: its memory and its descriptors are nothing for the job to read.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        rustix::process::setsid().map(drop)
    };
    give_up().or_fault(FaultCode::Isolation, "give up the job's rights")
}

/// Each capability that this kernel knows; EINVAL says that there are no more.
fn drop_bounding_set() -> rustix::io::Result<()> {
    for number in 0..64_u64 {
        // SAFETY: the call takes numbers only.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
        if dropped != 0 {
            let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
            return if error == Errno::INVAL && number > 0 {
                Ok(())
            } else {
                Err(error)
            };
        }
    }
    Ok(())
}

/// Forks the program and waits until the kernel has taken it over, or says why not.
fn start(plan: &JobPlan, out: OwnedFd, err: OwnedFd) -> Result<Pid, Fault> {
    let executable = Executable::of(plan)?;
    let (reads, writes) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).or_fault(FaultCode::Isolation, "make a pipe")?;
    // SAFETY: this process has one thread.
    match unsafe { namespaces::fork() }.or_fault(FaultCode::Isolation, "start the program")? {
        namespaces::Side::Child => {
            let fault = executable.become_it(&out, &err);
            let _ = rustix::io::write(&writes, &serde_json::to_vec(&fault).unwrap_or_default());
            leave(127)
        }
        namespaces::Side::Parent { child } => {
            drop((writes, out, err));
            exec::outcome(&reads).map(|()| child)
        }
    }
}

/// Ends this process without running anything that the keeper had meant for its own end.
pub(super) fn leave(status: i32) -> ! {
    // SAFETY: ends the process; nothing follows.
    unsafe { libc::_exit(status) }
}

/// Reaps until the program has ended, then kills what it left.
fn reap(channel: &OwnedFd, program: Pid) -> i32 {
    let set = all_signals();
    loop {
        let mut signal = 0;
        // SAFETY: both point to live values of their types.
        if unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {
            continue;
        }
        match signal {
            libc::SIGCHLD => {
                if let Some(end) = reap_all(program) {
                    say(channel, &InitSays::ProgramEnded { end });
                    break;
                }
            }
            libc::SIGTERM => {
                let _ = rustix::process::kill_process(program, Signal::TERM);
            }
            _ => {}
        }
    }
    // Everything in this PID namespace but this process.
    // SAFETY: the call takes numbers only.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::empty()) {}
    0
}

fn reap_all(program: Pid) -> Option<ProgramEnd> {
    let mut end = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == program {
            end = ended(status);
        }
    }
    end
}

fn ended(status: WaitStatus) -> Option<ProgramEnd> {
    let exited = status.exit_status().map(|code| ProgramEnd::Exited { code });
    exited.or_else(|| {
        status
            .terminating_signal()
            .map(|signal| ProgramEnd::Signalled { signal })
    })
}

/// Waits for the keeper's word; `false` where it is dead.
fn go_on(channel: &OwnedFd) -> bool {
    let mut word = [0; 1];
    loop {
        match rustix::net::recv(channel, &mut word, RecvFlags::empty()) {
            Ok((1, _)) => return word == GO_ON,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return false,
        }
    }
}

/// A keeper that does not listen is dead, and then this process is about to be.
fn say(channel: &impl AsFd, what: &InitSays) {
    let packet = serde_json::to_vec(what).unwrap_or_default();
    let _ = rustix::net::send(channel, &packet, SendFlags::NOSIGNAL);
}
