//! Holds what came of a checkup's jobs against what is promised: one finding for each guarantee. Looks at evidence only; what was not
//! seen is never taken for good.

use super::looks::{self, Came, EXT4, Looks, TMPFS, both, seen};
use super::questions::{FORKS, OPENS};
use super::rounds::{Around, Evidence, FILES, PIDS, Standing};
use super::{Finding, FindingVerdict};
use crate::probe::{Guarantee, Strength};

/// What was tried for a guarantee, and what came of it.
struct Trial {
    tried: &'static str,
    came: Came,
}

/// A finding for each of them.
pub(super) fn judge(evidence: &Evidence, promised: &[Guarantee]) -> Vec<Finding> {
    promised.iter().map(|guarantee| find(evidence, guarantee)).collect()
}

fn find(evidence: &Evidence, guarantee: &Guarantee) -> Finding {
    let Trial { tried, came } = trial(evidence, guarantee);
    let less = less_remedy(guarantee.name);
    let (came, verdict, remedy) = match (came, &guarantee.strength) {
        (Came::Held(came), Strength::Enforced) => (came, FindingVerdict::Good, None),
        (Came::Held(came), Strength::Weaker { why }) => (format!("{came}; {why}"), FindingVerdict::Weaker, less),
        // What nobody promises cannot be broken.
        (Came::Held(_) | Came::Broken(_) | Came::Unseen(_) | Came::NotTried(_), Strength::Absent { why }) => {
            ((*why).to_owned(), FindingVerdict::Absent, less)
        }
        (Came::Broken(came), Strength::Enforced | Strength::Weaker { .. }) => (came, FindingVerdict::Bad, Some(BROKEN)),
        (Came::Unseen(why), Strength::Enforced | Strength::Weaker { .. }) => (why, FindingVerdict::Bad, Some(UNSEEN)),
        (Came::NotTried(why), Strength::Enforced | Strength::Weaker { .. }) => {
            (why.to_owned(), FindingVerdict::Weaker, None)
        }
    };
    Finding {
        guarantee: guarantee.name,
        tried,
        came,
        verdict,
        remedy,
    }
}

/// What to do where a wall does not stand.
const BROKEN: &str = "share nothing until this is good: `sela pause`, update the system, and report this output";

/// What to do where a job could not be run: a busy machine gives it no time.
const UNSEEN: &str =
    "try again while nothing else runs; what stays is a reason to share nothing, and to report this output";

/// What to do where less is promised than elsewhere.
fn less_remedy(name: &str) -> Option<&'static str> {
    match name {
        "memory limit, scratch included" => Some("boot with systemd.unified_cgroup_hierarchy=1"),
        "no swap" => Some("boot with swapaccount=1"),
        "CPU only when idle" => Some("a kernel from Linux 5.15 on has it"),
        "disk only when idle" => Some("nothing, unless a job's disk is felt: then choose the bfq scheduler"),
        "billed by the kernel's own record of freezes" => Some("nothing: a kernel from Linux 6.18 on keeps it itself"),
        "video memory wiped before each tenant" => Some("close what is confidential before you lend the card"),
        "own user namespace, never the owner's uid" => Some("give the engine userns-remap, or use the native backend"),
        _ => None,
    }
}

fn trial(evidence: &Evidence, guarantee: &Guarantee) -> Trial {
    let enforced = guarantee.strength == Strength::Enforced;
    let of = |tried, came| Trial { tried, came };
    let around = |look: &dyn Fn(&Around) -> Came| seen(&evidence.around, look);
    let standing = |look: &dyn Fn(&Standing) -> Came| seen(&evidence.standing, look);
    match guarantee.name {
        "own user namespace, never the owner's uid" => of(
            "read the job's map of ids, looked at its processes from outside",
            both(
                around(&|around| looks::own_ids(&around.answers, enforced)),
                standing(&|standing| looks::strangers_ids(&standing.processes, enforced)),
            ),
        ),
        "no capabilities, no new privileges" => of(
            "read its capabilities, asked to be another user and for a device node",
            around(&|around| looks::no_rights(&around.answers)),
        ),
        "own list of system calls" => of(
            "asked for twenty calls, of debuggers, mounts, namespaces, keys, rings, raw sockets",
            around(&|around| looks::own_calls(&around.answers)),
        ),
        "image read only, by digest" => of(
            "wrote into its root",
            around(&|around| looks::refused_with(&around.answers, &[("write_image", &[libc::EROFS])])),
        ),
        "no network" => of(
            "called a port and an abstract socket of this machine, looked for interfaces and a way out",
            around(&|around| looks::no_network(&around.answers)),
        ),
        "named hosts only, where a job asked for them" => of(
            "asked its proxy for this machine, for a cloud's own address, and for a host that you did not allow",
            seen(&evidence.proxied, &looks::proxied),
        ),
        "sees its own processes only" => of(
            "listed processes, opened the memory of its first one",
            around(&|around| looks::own_processes(&around.answers)),
        ),
        "sees its own card only" => of(
            "listed /dev of a job without a card",
            around(&|around| looks::own_devices(&around.answers, evidence.engine)),
        ),
        "no file of the owner's, none of another job's" => of(
            "opened a file of yours by three ways, and /etc/shadow; listed its descriptors and variables",
            around(&|around| looks::own_files(&around.answers)),
        ),
        "memory limit, scratch included" => of(
            "took twice its memory, once as such and once as files",
            both(
                seen(&evidence.memory, &|outcome| looks::stopped_in_memory(outcome, "memory")),
                seen(&evidence.scratch, &|outcome| {
                    looks::stopped_in_memory(outcome, "scratch")
                }),
            ),
        ),
        "no swap" => of(
            "read its limit on swap back",
            standing(&|standing| looks::no_swap(standing, enforced)),
        ),
        "process limit" => of(
            "forked twice as often as it may",
            around(&|around| looks::limited(&around.answers, "fork", FORKS.into(), PIDS.into(), libc::EAGAIN)),
        ),
        "open files, log and results limited" => of(
            "opened, printed and left twice as much as it may",
            both(
                around(&|around| looks::limited(&around.answers, "open", OPENS.into(), FILES, libc::EMFILE)),
                seen(&evidence.noise, &looks::quiet),
            ),
        ),
        "CPU only when idle" => of(
            "read its group's cpu.idle and its priority",
            both(
                around(&|around| looks::priority(&around.answers)),
                standing(&|standing| looks::idle(standing, enforced)),
            ),
        ),
        "disk only when idle" => of(
            "read its class at the disk",
            around(&|around| looks::disk_priority(&around.answers)),
        ),
        "frozen as a whole, killed as a whole" => of(
            "froze and ended a job with two spinning processes that had left their parents",
            standing(&looks::as_a_whole),
        ),
        "billed by the kernel's own record of freezes" => of(
            "compared what is billed for that job with the freeze",
            standing(&|standing| looks::billed(standing, enforced)),
        ),
        "results unreadable on the owner's disk" => of(
            "left a word in /out, looked for it on the disk, opened the archive with the job's key",
            around(&|around| {
                Looks::default()
                    .at(
                        !around.readable,
                        looks::word(!around.readable, "the word is nowhere", "the word lies readable"),
                    )
                    .at(
                        around.opens,
                        looks::word(around.opens, "the tenant reads it", "the archive does not open"),
                    )
                    .came()
            }),
        ),
        "secrets in memory only" => of(
            "gave it a secret, looked where it lies and for it on the disk",
            around(&looks::secrets),
        ),
        "nothing of a job stays on the machine" => of(
            "looked for groups, mounts and files of all these jobs, and of one whose agent hung up",
            looks::nothing_stays(evidence),
        ),
        "video memory wiped before each tenant" => of(
            "nothing: it would take your card",
            Came::NotTried("this cannot be tried without a card"),
        ),
        "scratch encrypted, or in memory" => of(
            "asked what /tmp, /out, /checkpoint and /dev/shm are",
            both(
                around(&|around| looks::kinds(&around.answers, &[TMPFS])),
                match &evidence.disk {
                    None => Came::Held(String::new()),
                    Some(disk) => seen(disk, &|outcome| looks::kinds(&outcome.answers, &[EXT4, TMPFS])),
                },
            ),
        ),
        "an encrypted disk where a job asks for one" => of(
            "gave a job one, asked what it is",
            match &evidence.disk {
                None => Came::NotTried("no job is given one"),
                Some(disk) => seen(disk, &|outcome| looks::kinds(&outcome.answers, &[EXT4, TMPFS])),
            },
        ),
        "no job outlives its grant" => of(
            "hung up on a job with two spinning processes",
            seen(&evidence.abandoned, &|left| looks::nothing(left)),
        ),
        _ => of(
            "nothing",
            Came::Broken("this checkup does not know how to try it".to_owned()),
        ),
    }
}
