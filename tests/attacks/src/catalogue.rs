//! The list of attacks: each by a sentence about what a job would do, with the item of the threat model that it belongs to, the
//! guarantee that it tries, and how it is shown that the attack can go through on this machine. What an attack does lives in
//! `inside` or, where it is seen from outside only, in the suite.

use crate::arena::Arena;
use crate::inside;
use crate::verdict::Outcome;

/// The words of `sela doctor` and `docs/security.md`, so that a misspelt one does not compile.
pub mod promise {
    /// Ids.
    pub const OWN_IDS: &str = "own user namespace, never the owner's uid";
    /// Rights.
    pub const NO_RIGHTS: &str = "no capabilities, no new privileges";
    /// Calls.
    pub const OWN_CALLS: &str = "own list of system calls";
    /// Image.
    pub const IMAGE: &str = "image read only, by digest";
    /// Network.
    pub const NO_NETWORK: &str = "no network";
    /// Processes.
    pub const OWN_PROCESSES: &str = "sees its own processes only";
    /// Card.
    pub const OWN_CARD: &str = "sees its own card only";
    /// Files of the owner's and of other jobs'.
    pub const OWN_FILES: &str = "no file of the owner's, none of another job's";
    /// Memory.
    pub const MEMORY: &str = "memory limit, scratch included";
    /// Swap.
    pub const NO_SWAP: &str = "no swap";
    /// Processes and threads.
    pub const PIDS: &str = "process limit";
    /// Files, log, shared memory, results.
    pub const SIZES: &str = "open files, log and results limited";
    /// Processor.
    pub const IDLE_CPU: &str = "CPU only when idle";
    /// Disk.
    pub const IDLE_DISK: &str = "disk only when idle";
    /// Freezing and ending.
    pub const AS_A_WHOLE: &str = "frozen as a whole, killed as a whole";
    /// Bill.
    pub const BILL: &str = "billed by the kernel's own record of freezes";
    /// Rest.
    pub const NOTHING_STAYS: &str = "nothing of a job stays on the machine";
    /// Results on disk.
    pub const RESULTS: &str = "results unreadable on the owner's disk";
    /// Network through the proxy.
    pub const NAMED_HOSTS: &str = "named hosts only, where a job asked for them";
    /// Scratch on disk.
    pub const SCRATCH: &str = "scratch encrypted, or in memory";
    /// Scratch on a disk of its own.
    pub const DISK: &str = "an encrypted disk where a job asks for one";
    /// The agent's word, without which nothing runs.
    pub const GRANT: &str = "no job outlives its grant";
    /// Secrets.
    pub const SECRETS: &str = "secrets in memory only";
    /// Video memory.
    pub const VIDEO_MEMORY: &str = "video memory wiped before each tenant";
}

/// How it is shown that an attack can go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// As root in mount and host name namespaces of its own, with nothing else around it.
    Bare,
    /// The same, changed into the image's folder and to a plain user.
    InImage,
    /// The same, in a network in which every private range has somebody.
    InNetwork,
    /// As [`Self::Bare`], but on an emulated machine only: it would change this one.
    Emulated,
    /// Where the attack is seen from outside only, the suite has its own.
    Own,
}

/// Where an attack is carried out.
#[derive(Debug, Clone, Copy)]
pub enum Attack {
    /// By the probe program, inside the job.
    Inside(fn(&Arena) -> Outcome),
    /// By the same, as a plain user of the image's.
    InsideAsUser(fn(&Arena) -> Outcome),
    /// By a job of its own, watched from outside.
    Outside,
}

/// One attack.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// A sentence about what a job does.
    pub name: &'static str,
    /// The item of the threat model.
    pub item: &'static str,
    /// The guarantee that it tries.
    pub tries: &'static str,
    /// How it is shown to be able to go through.
    pub control: Control,
    /// How it is carried out.
    pub attack: Attack,
}

impl Probe {
    pub(crate) const fn inside(
        item: &'static str,
        name: &'static str,
        tries: &'static str,
        control: Control,
        attack: fn(&Arena) -> Outcome,
    ) -> Self {
        Self {
            name,
            item,
            tries,
            control,
            attack: Attack::Inside(attack),
        }
    }

    pub(crate) const fn as_user(
        item: &'static str,
        name: &'static str,
        tries: &'static str,
        attack: fn(&Arena) -> Outcome,
    ) -> Self {
        Self {
            name,
            item,
            tries,
            control: Control::InImage,
            attack: Attack::InsideAsUser(attack),
        }
    }

    const fn outside(item: &'static str, name: &'static str, tries: &'static str) -> Self {
        Self {
            name,
            item,
            tries,
            control: Control::Own,
            attack: Attack::Outside,
        }
    }
}

/// Every attack, those of one item together.
pub fn all() -> Vec<Probe> {
    [
        inside::files::PROBES,
        inside::processes::PROBES,
        inside::mounts::PROBES,
        inside::calls::PROBES,
        inside::network::PROBES,
        inside::sockets::PROBES,
        inside::devices::PROBES,
        inside::image::PROBES,
        inside::limits::PROBES,
        OUTSIDE,
    ]
    .concat()
}

/// The attack of that name.
pub fn named(name: &str) -> Option<Probe> {
    all().into_iter().find(|probe| probe.name == name)
}

use promise::{
    AS_A_WHOLE, BILL, DISK, GRANT, IDLE_CPU, IMAGE, MEMORY, NAMED_HOSTS, NO_NETWORK, NO_RIGHTS, NOTHING_STAYS,
    OWN_FILES, OWN_IDS, PIDS, RESULTS, SCRATCH, SECRETS, SIZES,
};

const OUTSIDE: &[Probe] = &[
    Probe::outside("user ids", "a job runs under the owner's own user id", OWN_IDS),
    Probe::outside("fork bombs", "a job forks without end", PIDS),
    Probe::outside("memory bombs", "a job takes memory without end", MEMORY),
    Probe::outside("tmpfs bombs", "a job fills its scratch without end", MEMORY),
    Probe::outside("inode bombs", "a job makes files without end", MEMORY),
    Probe::outside("log bombs", "a job writes to its log without end", SIZES),
    Probe::outside("results", "a job leaves a sparse file of a terabyte", SIZES),
    Probe::outside("results", "a job leaves folders within folders without end", SIZES),
    Probe::outside("results", "a job leaves more bytes than it may", SIZES),
    Probe::outside(
        "results",
        "a job leaves pipes and sockets that hold whoever opens them",
        SIZES,
    ),
    Probe::outside(
        "results",
        "a job leaves a link to a file of the owner's among its results",
        OWN_FILES,
    ),
    Probe::outside(
        "results",
        "a job swaps a file for a link to the owner's while its checkpoint is taken",
        OWN_FILES,
    ),
    Probe::outside("results", "a job's results can be read on the owner's disk", RESULTS),
    Probe::outside(
        "private ranges",
        "a job reaches the owner's own machine through its proxy",
        NAMED_HOSTS,
    ),
    Probe::outside(
        "rebinding",
        "a job reaches the owner's machine through its proxy by a name that is bound anew",
        NAMED_HOSTS,
    ),
    Probe::outside(
        "DNS tunnel",
        "a job sends what it knows out in names that its proxy is to resolve",
        NAMED_HOSTS,
    ),
    Probe::outside(
        "deleted scratch",
        "a job's scratch can be read on the owner's disk",
        SCRATCH,
    ),
    Probe::outside(
        "deleted scratch",
        "a job that asks for an encrypted disk is left without one",
        DISK,
    ),
    Probe::outside("secrets", "a job's secrets lie on the owner's disk", SECRETS),
    Probe::outside("core dumps", "a job leaves its memory as a core dump", NOTHING_STAYS),
    Probe::outside("ending", "a job ignores that it is told to end", AS_A_WHOLE),
    Probe::outside(
        "ending",
        "a job leaves a child in a session of its own behind",
        AS_A_WHOLE,
    ),
    Probe::outside(
        "ending",
        "a job outruns its freeze by a child in a session of its own",
        AS_A_WHOLE,
    ),
    Probe::outside(
        "ending",
        "a job closes its standard streams and runs on unseen",
        AS_A_WHOLE,
    ),
    Probe::outside("ending", "a job runs on when its keeper is killed", AS_A_WHOLE),
    Probe::outside("ending", "a job runs on when nobody grants it any more time", GRANT),
    Probe::outside("ending", "a frozen job stays when all that guard it are killed", GRANT),
    Probe::outside("bill", "a job is billed for the time in which it stood still", BILL),
    Probe::outside(
        "processor",
        "a job takes the processor from a program of the owner's",
        IDLE_CPU,
    ),
    Probe::outside("cache", "a job changes what the next job of the same image gets", IMAGE),
    Probe::outside(
        "CVE-2024-21626",
        "an image starts in a folder behind a descriptor of the keeper's",
        OWN_FILES,
    ),
    Probe::outside(
        "CVE-2024-0132",
        "an image's links lead the card's files to a folder of the owner's",
        OWN_FILES,
    ),
    Probe::outside(
        "CVE-2025-23266",
        "an image's variables reach a program outside of the job",
        NO_RIGHTS,
    ),
    Probe::outside("network", "a job is reached from the machine's own network", NO_NETWORK),
    Probe::outside(
        "persistence",
        "a job leaves a marker anywhere on the machine",
        NOTHING_STAYS,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_probe_is_named_once_by_a_sentence_and_there_are_enough() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|probe| probe.name).collect();
        assert_eq!(names.len(), all.len(), "two probes share a name");
        assert!(all.len() >= 80, "{}", all.len());
        for probe in &all {
            assert!(probe.name.split_whitespace().count() >= 4, "{}", probe.name);
        }
    }
}
