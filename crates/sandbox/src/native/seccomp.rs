//! Which system calls a job may make. A list of what is allowed: Docker's default (moby's profiles/seccomp/default.json) without
//! ptrace, process_vm_*, io_uring, userfaultfd, keyctl, name_to_handle_at, memfd_secret, fanotify, modify_ldt, clock
//! adjusting, and personalities but the plain one. Everything else answers ENOSYS, so that libraries fall back as they do on
//! an older kernel; calls that programs would take an ENOSYS for a broken kernel on answer EPERM. Nothing is killed for
//! asking: an errno tells a tenant what happened, and gains an attacker nothing.

use super::calls::{ALLOWED, OF_THIS_ARCHITECTURE, REFUSED};
use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Flags of `clone` that would make a namespace.
pub(crate) const NAMESPACE_FLAGS: [i32; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    0x80, // CLONE_NEWTIME, which only clone3 and unshare take; refused here too, should that change.
];

/// Address families that a job may use. In its network namespace there is loopback only. Of netlink only what lists addresses and
/// routes: by others the kernel tells each network namespace of the machine's owner about the devices that are plugged in.
pub(crate) const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// What `personality` may be asked for: the plain one, or what it is.
pub(crate) const PERSONALITIES: [u64; 2] = [0, 0xffff_ffff];

/// Terminal requests that put words into another program's mouth.
pub(crate) const TERMINAL_INJECTION: [u64; 2] = [libc::TIOCSTI, 0x541c /* TIOCLINUX */];

/// The filters, compiled; to be installed in this order. The last one's errno is the one that counts.
pub(crate) struct Filters(Vec<BpfProgram>);

impl Filters {
    /// Compiles them for the architecture that this program was built for. Programs of another one are killed.
    pub(crate) fn compile() -> Result<Self, Fault> {
        let build = || -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
            let filter = |rules, mismatch, matched| {
                SeccompFilter::new(rules, mismatch, matched, ARCHITECTURE).and_then(BpfProgram::try_from)
            };
            let errno = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
            Ok(vec![
                filter(allowed()?, errno(libc::ENOSYS), SeccompAction::Allow)?,
                filter(refused()?, SeccompAction::Allow, errno(libc::EPERM))?,
                // glibc falls back to clone, whose flags can be looked at, while clone3's lie behind a pointer.
                filter(
                    Rules::from([(libc::SYS_clone3, vec![])]),
                    SeccompAction::Allow,
                    errno(libc::ENOSYS),
                )?,
            ])
        };
        build()
            .map(Self)
            .or_fault(FaultCode::Isolation, "compile the list of system calls")
    }

    /// Installs them on the calling thread and what it forks, for ever. Sets no-new-privileges.
    pub(crate) fn install(&self) -> Result<(), Fault> {
        for program in &self.0 {
            seccompiler::apply_filter(program).or_fault(FaultCode::Isolation, "install the list of system calls")?;
        }
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

fn allowed() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = ALLOWED
        .iter()
        .chain(OF_THIS_ARCHITECTURE)
        .map(|call| (call.number, vec![]))
        .collect();
    let none: u64 = NAMESPACE_FLAGS
        .iter()
        .fold(0, |flags, flag| flags | u64::from(flag.unsigned_abs()));
    rules.insert(libc::SYS_clone, vec![rule(0, Qword, MaskedEq(none), 0)?]);
    let mut families = FAMILIES
        .iter()
        .map(|family| rule(0, Dword, Eq, u64::from(family.unsigned_abs())))
        .collect::<Result<Vec<_>, _>>()?;
    let netlink = SeccompCondition::new(0, Dword, Eq, u64::from(libc::AF_NETLINK.unsigned_abs()))?;
    let routes = SeccompCondition::new(2, Dword, Eq, u64::from(libc::NETLINK_ROUTE.unsigned_abs()))?;
    families.push(SeccompRule::new(vec![netlink, routes])?);
    rules.insert(libc::SYS_socket, families);
    let plain = PERSONALITIES.iter().map(|persona| rule(0, Dword, Eq, *persona));
    rules.insert(libc::SYS_personality, plain.collect::<Result<_, _>>()?);
    Ok(rules)
}

/// What answers EPERM rather than ENOSYS.
fn refused() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = REFUSED.iter().map(|call| (call.number, vec![])).collect();
    let namespaces = NAMESPACE_FLAGS.iter().map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        rule(0, Qword, MaskedEq(flag), flag)
    });
    rules.insert(libc::SYS_clone, namespaces.collect::<Result<_, _>>()?);
    let injection = TERMINAL_INJECTION.iter().map(|request| rule(1, Dword, Eq, *request));
    rules.insert(libc::SYS_ioctl, injection.collect::<Result<_, _>>()?);
    // Of itself a process may read and lower every limit but that of core dumps: see `limits`. Of others, none: a job could kill
    // the init that guards it by giving it too little, and the node would be blamed.
    let dumps = u64::from(libc::RLIMIT_CORE);
    let set_dumps = SeccompRule::new(vec![
        SeccompCondition::new(1, Dword, Eq, dumps)?,
        SeccompCondition::new(2, Qword, Ne, 0)?,
    ])?;
    rules.insert(libc::SYS_prlimit64, vec![rule(0, Dword, Ne, 0)?, set_dumps]);
    for call in OF_THIS_ARCHITECTURE.iter().filter(|call| call.name() == "setrlimit") {
        rules.insert(call.number, vec![rule(0, Dword, Eq, dumps)?]);
    }
    Ok(rules)
}

fn rule(
    argument: u8,
    length: seccompiler::SeccompCmpArgLen,
    operator: seccompiler::SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_both_allowed_and_refused() {
        let allowed = allowed().unwrap();
        for call in REFUSED {
            assert!(!allowed.contains_key(&call.number), "system call {}", call.name());
        }
    }

    #[test]
    fn what_dockers_default_forbids_is_not_allowed() {
        let allowed = allowed().unwrap();
        for call in [
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_bpf,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_ptrace,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_open_by_handle_at,
            libc::SYS_pidfd_getfd,
            libc::SYS_move_pages,
        ] {
            assert!(!allowed.contains_key(&call), "system call {call}");
        }
    }

    #[test]
    fn the_filters_fit_into_the_kernel() {
        for program in Filters::compile().unwrap().0 {
            assert!(program.len() <= 4096, "{}", program.len());
        }
    }
}
