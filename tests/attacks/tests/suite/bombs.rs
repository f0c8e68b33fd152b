//! Bombs: what a job takes without end, and what of it a plain process would get. Small ones, each within its own limit.

use crate::control::{Plain, soon};
use crate::ground::Ground;
use crate::outside::Pair;
use sela_attacks::verdict::{Held, Outcome};
use sela_protocol::lease::EndCause;
use sela_protocol::units::{Bytes, Millis};
use sela_sandbox::keeper::wire::{LogStream, Report};
use std::fs;
use std::path::Path;

/// A job may use this much in the bombs of memory.
const MEMORY: Bytes = Bytes::from_mib(32);

pub(crate) async fn forks(ground: &Ground) -> Pair {
    let mut plan = ground.script("bomb() { bomb | bomb & }; (bomb) & while :; do :; done");
    plan.limits.pids = 32;
    plan.limits.wall_ms = Millis(1_500);
    let mut job = ground.start(&plan);
    job.until_started().await;
    let Report::Usage { usage } = job.until_usage().await else {
        unreachable!("that is what was waited for")
    };
    let outcome = job.finish().await;
    let behind = if usage.pids <= plan.limits.pids && outcome.stop().cause == EndCause::WallLimit {
        Err(Held::contained(format!("{} processes, and no more", usage.pids)))
    } else {
        Ok(format!("{} processes; {:?}", usage.pids, outcome.stop().cause))
    };
    let mut plain: Vec<Plain> = (0..plan.limits.pids + 8).map(|_| Plain::probe(&["spare"])).collect();
    let without = if plain.iter_mut().all(Plain::is_alive) {
        Ok(format!("{} processes", plain.len()))
    } else {
        Err(Held::contained("fewer processes than that"))
    };
    Pair::new(without, behind)
}

pub(crate) async fn memory(ground: &Ground) -> Pair {
    // tail keeps a line without end in memory.
    let behind = ended_for_memory(ground, "tail /dev/zero").await;
    let said = Plain::shell("head -c 40000000 /dev/zero | tail | wc -c").finish();
    let without = if said.trim() == "40000000" {
        Ok("40 MB in memory".to_owned())
    } else {
        Err(Held::contained("less than 40 MB"))
    };
    Pair::new(without, behind)
}

pub(crate) async fn scratch(ground: &Ground) -> Pair {
    let behind = ended_for_memory(ground, "dd if=/dev/zero of=/tmp/big bs=1M count=40 && echo whole").await;
    let folder = ground.fresh("scratch-bomb");
    let big = folder.join("big");
    Plain::shell(&format!("dd if=/dev/zero of={} bs=1M count=40", big.display())).finish();
    let without = match fs::metadata(&big) {
        Ok(status) if status.len() == 40 << 20 => Ok("40 MiB on the disk".to_owned()),
        _ => Err(Held::contained("less than 40 MiB")),
    };
    fs::remove_dir_all(folder).unwrap();
    Pair::new(without, behind)
}

/// Held if it never had more than its limit, and did not come to its end.
async fn ended_for_memory(ground: &Ground, script: &str) -> Outcome {
    let mut plan = ground.script(script);
    plan.limits.memory = MEMORY;
    plan.limits.shm_size = Bytes::from_mib(1);
    plan.limits.wall_ms = Millis(20_000);
    let outcome = ground.start(&plan).finish().await;
    // A program may take its memory so soon that the job's init is killed for it before it has said that the program runs.
    if let Some(fault) = outcome.fault() {
        return Err(Held::contained(fault));
    }
    let stop = outcome.stop();
    let peak = stop.memory_peak.unwrap_or(Bytes(0));
    if peak <= MEMORY && !outcome.out.contains("whole") {
        Err(Held::contained(format!("{} at most, then {:?}", peak, stop.cause)))
    } else {
        Ok(format!("{peak} at most; {:?}", stop.cause))
    }
}

/// An empty file is a kilobyte of the kernel's memory: that must count, too.
pub(crate) async fn inodes(ground: &Ground) -> Pair {
    const FILES: u32 = 25_000;
    let script = format!(
        "i=0; while [ $i -lt {FILES} ]; do : > /tmp/a-file-with-a-long-name-$i || break; i=$((i+1)); done; echo made $i"
    );
    let mut plan = ground.script(&script);
    plan.limits.memory = Bytes::from_mib(16);
    plan.limits.shm_size = Bytes::from_mib(1);
    plan.limits.wall_ms = Millis(60_000);
    let outcome = ground.start(&plan).finish().await;
    let behind = if let Some(fault) = outcome.fault() {
        Err(Held::contained(fault))
    } else if outcome.out.contains(&format!("made {FILES}")) {
        Ok(format!("{FILES} files in 16 MiB"))
    } else {
        Err(Held::contained(format!("{:?}", outcome.stop().cause)))
    };
    let folder = ground.fresh("inode-bomb");
    for number in 0..FILES {
        fs::write(folder.join(format!("a-file-with-a-long-name-{number}")), "").unwrap();
    }
    fs::remove_dir_all(folder).unwrap();
    Pair::new(Ok(format!("{FILES} files")), behind)
}

pub(crate) async fn log(ground: &Ground) -> Pair {
    const ALL: usize = 3_000_000;
    let script = format!("yes 0123456789abcde | head -c {ALL}");
    let mut plan = ground.script(&script);
    plan.limits.log = Bytes(100_000);
    let outcome = ground.start(&plan).finish().await;
    let reports = outcome.seen.iter().filter_map(|report| match report {
        Report::Log {
            stream: LogStream::Out,
            bytes,
        } => Some(bytes.0.len()),
        _ => None,
    });
    let passed: usize = reports.sum();
    let behind = if passed as u64 <= plan.limits.log.0 {
        Err(Held::contained(format!("{passed} bytes of {ALL}")))
    } else {
        Ok(format!("{passed} bytes"))
    };
    let without = Plain::shell(&script).finish().len();
    let without = if without == ALL {
        Ok(format!("{without} bytes"))
    } else {
        Err(Held::contained(format!("{without} bytes")))
    };
    Pair::new(without, behind)
}

/// Where an emulated machine has the kernel's dumps written: by a program that it starts as root, outside of every job.
pub(crate) const PIPED_DUMPS: &str = "/tmp/piped-dumps";

pub(crate) async fn core_dump(ground: &Ground) -> Pair {
    let is_ours = std::env::var_os("SELA_ATTACK_MODULE").is_some();
    if is_ours {
        pipe_dumps();
    }
    let plan = ground.plan(&["/bin/sela-probe", "do", "crash", "/out"]);
    let outcome = ground.start(&plan).finish().await;
    let dumps = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.metadata().is_ok_and(|status| status.len() > 0))
            .count()
    };
    let piped = dumps(Path::new(PIPED_DUMPS));
    let crashed = outcome.out.contains("crashing");
    let behind = match (crashed, outcome.archive(), piped) {
        (true, None, 0) => Err(Held::nothing("it crashed, and nothing was written")),
        (true, Some(_), _) => Ok("a dump is among its results".to_owned()),
        (true, None, piped) => Ok(format!("{piped} dumps were handed to a program of the machine's")),
        (false, ..) => panic!("it did not crash: {outcome:?}"),
    };
    let folder = ground.fresh("crash");
    Plain::probe(&["do", "crash", folder.to_str().unwrap()]).finish();
    let written = soon(|| dumps(&folder) + dumps(Path::new(PIPED_DUMPS)) > piped).await;
    let without = if written {
        Ok("a dump was written".to_owned())
    } else if fs::read_to_string("/proc/sys/kernel/core_pattern")
        .unwrap()
        .starts_with(['|', '@', '/'])
    {
        // Some program of this machine's has it: where it keeps it is its own business.
        Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP).into())
    } else {
        Err(Held::nothing("this machine writes no dumps"))
    };
    fs::remove_dir_all(folder).unwrap();
    Pair::new(without, behind)
}

/// Only on an emulated machine: what is set here holds for all of it.
fn pipe_dumps() {
    use std::os::unix::fs::PermissionsExt as _;
    fs::create_dir_all(PIPED_DUMPS).unwrap();
    let program = "/bin/take-dump";
    fs::write(program, format!("#!/bin/sh\ncat > {PIPED_DUMPS}/$1\n")).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write("/proc/sys/kernel/core_pattern", format!("|{program} %P")).unwrap();
}

/// Ticks of processor time until a program of the owner's has had this many.
const TICKS: u64 = 40;

pub(crate) async fn processor(ground: &Ground) -> Pair {
    let plan = ground.plan(&["/bin/sela-probe", "do", "spin", "0"]);
    let mut job = ground.start(&plan);
    let (init, _) = job.until_started().await;
    job.until_says("spinning").await;
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
    let inside = children.split_whitespace().next().unwrap().parse().unwrap();
    let behind = share(inside).await;
    job.end();
    job.finish().await;
    let mut plain = Plain::probe(&["do", "spin", "0"]);
    plain.line();
    let without = share(plain.pid()).await;
    Pair::new(without, behind)
}

/// How much a process takes from one of the owner's on the same processor. What others do meanwhile costs both alike.
async fn share(of: u32) -> Outcome {
    let mut owner = Plain::probe(&["do", "spin", "0"]);
    owner.line();
    let (began, owner_began) = (ticks(of), ticks(owner.pid()));
    let mut had = 0;
    let enough = soon(|| {
        had = ticks(owner.pid()) - owner_began;
        had >= TICKS
    });
    enough.await;
    let took = ticks(of) - began;
    let words = format!("{took} ticks beside {had} of the owner's");
    if took * 4 > had {
        Ok(words)
    } else {
        Err(Held::contained(words))
    }
}

/// Processor time of a process in the machine's ticks (proc_pid_stat(5), fields 14 and 15).
fn ticks(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = text.rsplit(')').next().unwrap().split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
