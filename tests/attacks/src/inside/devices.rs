//! Nodes of /dev: other cards', the machine's, and what lies in the memory of the job's own card.

use super::{ask, at};
use crate::arena::Arena;
use crate::catalogue::Control::Bare;
use crate::catalogue::Probe;
use crate::catalogue::promise::{NO_RIGHTS, OWN_CARD, VIDEO_MEMORY};
use crate::verdict::{Held, Outcome};
use sela_nvml_sim::Allocation;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;

const NODES: &str = "other cards' nodes";

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside(
        NODES,
        "a job opens another card's node by its path",
        OWN_CARD,
        Bare,
        |arena| {
            File::options().read(true).write(true).open(&arena.other_card)?;
            Ok("opened it".to_owned())
        },
    ),
    Probe::inside(
        NODES,
        "a job makes a node of another card of NVIDIA's",
        OWN_CARD,
        Bare,
        |arena| make_node(arena, "nvidia1", libc::makedev(195, 1)),
    ),
    Probe::inside(
        NODES,
        "a job makes a node of another card's renderer",
        OWN_CARD,
        Bare,
        |arena| make_node(arena, "renderD129", libc::makedev(226, 129)),
    ),
    Probe::inside(
        NODES,
        "a job makes a node of the machine's memory",
        NO_RIGHTS,
        Bare,
        |arena| make_node(arena, "mem", libc::makedev(1, 1)),
    ),
    Probe::inside(
        NODES,
        "a job opens a node of the machine that it was not given",
        OWN_CARD,
        Bare,
        |arena| {
            for node in &arena.machine_nodes {
                // Non-blocking: a terminal or a pipe must not hold the probe.
                let mut options = File::options();
                std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
                if options.read(true).open(node).is_ok() {
                    return Ok(format!("opened {}", node.display()));
                }
            }
            Err(Held::nothing(format!(
                "none of {} could be opened",
                arena.machine_nodes.len()
            )))
        },
    ),
    Probe::inside(
        NODES,
        "a job finds other cards in /sys or /proc",
        OWN_CARD,
        Bare,
        |_| {
            for folder in [
                "/sys/class/drm",
                "/sys/bus/pci/devices",
                "/sys/module/nvidia",
                "/sys/class/mem",
            ] {
                if let Some(entry) = fs::read_dir(folder).into_iter().flatten().flatten().next() {
                    return Ok(entry.path().display().to_string());
                }
            }
            Err(Held::nothing("no device of the machine's is in its /sys"))
        },
    ),
    Probe::inside(
        "video memory",
        "a job finds in the card's memory what a tenant before it left",
        VIDEO_MEMORY,
        Bare,
        |arena| residue(arena, b'T', "of the last tenant's"),
    ),
    Probe::inside(
        "video memory",
        "a job finds in the card's memory what the owner left",
        VIDEO_MEMORY,
        Bare,
        |arena| residue(arena, b'O', "of the owner's"),
    ),
];

fn make_node(arena: &Arena, name: &str, device: libc::dev_t) -> Outcome {
    let path = arena.writable.join(name);
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| Held::nothing("no such name"))?;
    let kind = libc::c_long::from(libc::S_IFCHR | 0o666);
    ask(
        libc::SYS_mknodat,
        &[
            libc::c_long::from(libc::AT_FDCWD),
            at(text.as_c_str()),
            kind,
            libc::c_long::try_from(device).unwrap_or(0),
        ],
    )?;
    fs::remove_file(&path)?;
    Ok(format!("made {}", path.display()))
}

/// Takes all of the card's memory and counts what others left in it. Simulated: one byte a MiB.
fn residue(arena: &Arena, mark: u8, whose: &str) -> Outcome {
    let mib = fs::metadata(&arena.own_card)?.len();
    let memory = Allocation::take(&arena.own_card, mib).map_err(|error| Held::nothing(error.to_string()))?;
    let left = memory.content()?.iter().filter(|byte| **byte == mark).count();
    if left == 0 {
        return Err(Held::nothing(format!(
            "{mib} MiB of the SIMULATED card, none of them {whose}"
        )));
    }
    Ok(format!("{left} MiB {whose} (SIMULATED card)"))
}
