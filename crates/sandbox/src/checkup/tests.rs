//! Each finding of a checkup made bad by taking one wall away from what was seen; nothing is run here: `tests/checkup.rs` does.

use super::ask::{self, Answers};
use super::judge::judge;
use super::questions::{self, WRITABLE};
use super::rounds::{self, Around, Evidence, Proxied, Seen, Standing};
use super::run::Outcome;
use super::{FindingVerdict, MARK, SECRET};
use crate::keeper::wire::{CgroupLayout, Collected, FrozenSource, Stop};
use crate::probe::{Guarantee, Strength, promised};
use sela_protocol::lease::EndCause;
use sela_protocol::units::{BootUs, Bytes, Microseconds, Millis};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A line of the program's: done, with what is shown.
fn shows(name: &str, bytes: &[u8]) -> String {
    let hex = bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    format!("{name} = {} {hex}\n", bytes.len())
}

/// What `getdents64` writes.
fn entries(names: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        let length = u16::try_from((20 + name.len()).next_multiple_of(8)).unwrap();
        let mut entry = vec![0; usize::from(length)];
        entry[16..18].copy_from_slice(&length.to_ne_bytes());
        entry[19..19 + name.len()].copy_from_slice(name.as_bytes());
        bytes.extend(entry);
    }
    bytes
}

/// What a job behind every wall answers, a line each.
fn behind_walls() -> String {
    const STATUS: &str = "Name:\tasks\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
    let refused = questions::refused().map(|name| format!("{name} ! 0 1\n"));
    let memory = 0x0102_1994_u64.to_ne_bytes();
    let lines = [
        shows("ids", b"         0 1879048192      65536\n"),
        shows("status", STATUS.as_bytes()),
        "setresuid ! 0 1\nmknod ! 0 1\nwrite_image ! 0 30\n".to_owned(),
        shows("processes", &entries(&[".", "..", "version", "1", "2", "7"])),
        shows("devices", &entries(&["null", "zero", "shm"])),
        "init_memory ! 0 13\nshadow ! 0 2\n".to_owned(),
        "owners_file ! 0 2\nowners_file_above ! 0 2\nowners_file_by_init ! 0 13\n".to_owned(),
        shows("descriptors", &entries(&["0", "1", "2", "3"])),
        shows("environment", b"PATH=/bin\0HOME=/tmp\0"),
        shows("secret", SECRET.as_bytes()),
        shows("secrets_kind", &memory),
        "owners_port ! 1 111\nowners_name ! 1 111\nway_out ! 1 101\n".to_owned(),
        shows("interfaces", b"Inter-| Receive\n face |bytes\n    lo: 0 0\n"),
        "fork ! 9 11\nopen ! 45 24\npriority = 1\ndisk_priority = 24576\n".to_owned(),
    ];
    let places = WRITABLE.map(|(name, _)| shows(name, &memory));
    refused.chain(lines).chain(places).collect()
}

fn answers(lines: &str) -> Answers {
    ask::read(lines.as_bytes())
}

fn outcome(cause: EndCause, lines: &str) -> Outcome {
    Outcome {
        answers: answers(lines),
        printed: lines.len(),
        stop: Ok(Stop { cause, ..stop() }),
        outputs: Collected::Nothing,
    }
}

fn stop() -> Stop {
    Stop {
        cause: EndCause::OwnerCommand,
        exit: None,
        started_boot_us: BootUs(1_000_000),
        ended_boot_us: BootUs(1_700_000),
        frozen_us: Microseconds(300_000),
        frozen_source: FrozenSource::Kernel,
        thawed_ms: Millis(400),
        gone_after_us: Microseconds(2_000),
        cpu_us: Microseconds(100_000),
        memory_peak: Some(Bytes::from_mib(48)),
    }
}

/// What is seen where every wall stands.
fn good() -> Evidence {
    let refused = b"HTTP/1.1 403 Forbidden\r\n";
    let proxied: String = (0..3).map(|at| shows(&format!("proxy_{at}"), refused)).collect();
    let mut noise = outcome(EndCause::Exited { code: 0 }, "results ! 16 28\n");
    noise.outputs = Collected::Refused {
        why: "too much".to_owned(),
    };
    let seen = Seen {
        uid: 1_879_048_192,
        own_namespace: true,
    };
    Evidence {
        engine: false,
        around: Ok(Around {
            answers: answers(&behind_walls()),
            readable: false,
            opens: true,
            secret_on_disk: false,
        }),
        standing: Ok(Standing {
            processes: vec![seen; 4],
            idle: Some("1".to_owned()),
            swap: Some(("0".to_owned(), "0".to_owned())),
            frozen_after_us: 900,
            frozen: true,
            used_frozen_us: 0,
            stop: stop(),
            left: Vec::new(),
        }),
        memory: Ok(outcome(EndCause::OutOfMemory, "memory killed 9\n")),
        scratch: Ok(outcome(EndCause::OutOfMemory, "")),
        noise: Ok(noise),
        proxied: Ok(Proxied {
            answers: answers(&proxied),
            owners_port_was_reached: false,
        }),
        abandoned: Ok(Vec::new()),
        disk: Some(Ok(outcome(EndCause::Exited { code: 0 }, &behind_walls()))),
        left: Vec::new(),
    }
}

/// As `judge` gives them, by name.
fn verdicts(evidence: &Evidence, promised: &[Guarantee]) -> BTreeMap<&'static str, FindingVerdict> {
    let findings = judge(evidence, promised);
    findings
        .iter()
        .map(|finding| (finding.guarantee, finding.verdict))
        .collect()
}

fn expected(guarantee: &Guarantee) -> FindingVerdict {
    match &guarantee.strength {
        // It takes a card.
        Strength::Enforced if guarantee.name.starts_with("video memory") => FindingVerdict::Weaker,
        Strength::Enforced => FindingVerdict::Good,
        Strength::Weaker { .. } => FindingVerdict::Weaker,
        Strength::Absent { .. } => FindingVerdict::Absent,
    }
}

/// Adds lines to what the job that looks around answered, instead of those that it gave.
fn answered(evidence: &mut Evidence, lines: &str) {
    evidence.around.as_mut().unwrap().answers.extend(answers(lines));
}

/// One change to what was seen, and the lines that it makes bad.
type Taken = (fn(&mut Evidence), &'static [&'static str]);

#[test]
fn with_one_wall_taken_away_its_line_is_bad_and_no_other() {
    const ALL: [Taken; 40] = [
        (|_| {}, &[]),
        (
            |seen| answered(seen, &shows("ids", b"0 0 4294967295\n")),
            &["own user namespace, never the owner's uid"],
        ),
        (
            |seen| answered(seen, &shows("status", b"CapEff:\t0000000000000400\nSeccomp:\t2\n")),
            &["no capabilities, no new privileges"],
        ),
        (
            |seen| answered(seen, "mknod = 0\n"),
            &["no capabilities, no new privileges"],
        ),
        (
            |seen| answered(seen, "setresuid = 0\n"),
            &["no capabilities, no new privileges"],
        ),
        (|seen| answered(seen, "mount ! 0 14\n"), &["own list of system calls"]),
        (|seen| answered(seen, "unshare = 0\n"), &["own list of system calls"]),
        (
            |seen| answered(seen, "write_image = 0\n"),
            &["image read only, by digest"],
        ),
        (|seen| answered(seen, "owners_port = 0\n"), &["no network"]),
        (|seen| answered(seen, "owners_name = 0\n"), &["no network"]),
        (|seen| answered(seen, "way_out = 0\n"), &["no network"]),
        (
            |seen| answered(seen, &shows("interfaces", b"lo: 0\neth0: 0\n")),
            &["no network"],
        ),
        (
            |seen| answered(seen, &shows("processes", &entries(&["1", "2", "3", "4", "5"]))),
            &["sees its own processes only"],
        ),
        (
            |seen| answered(seen, "init_memory = 3\n"),
            &["sees its own processes only"],
        ),
        (
            |seen| answered(seen, &shows("devices", &entries(&["null", "nvidia0"]))),
            &["sees its own card only"],
        ),
        (
            |seen| answered(seen, "owners_file = 3\n"),
            &["no file of the owner's, none of another job's"],
        ),
        (
            |seen| answered(seen, &shows("environment", b"PATH=/bin\0SSH_AUTH_SOCK=/x\0")),
            &["no file of the owner's, none of another job's"],
        ),
        (|seen| answered(seen, "fork = 24\n"), &["process limit"]),
        (
            |seen| answered(seen, "open = 96\n"),
            &["open files, log and results limited"],
        ),
        (|seen| answered(seen, "priority = 20\n"), &["CPU only when idle"]),
        (
            |seen| answered(seen, "disk_priority = 16384\n"),
            &["disk only when idle"],
        ),
        (
            |seen| seen.around.as_mut().unwrap().readable = true,
            &["results unreadable on the owner's disk"],
        ),
        (
            |seen| seen.around.as_mut().unwrap().secret_on_disk = true,
            &["secrets in memory only"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().processes[0].uid = 0,
            &["own user namespace, never the owner's uid"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().processes.truncate(1),
            &["own user namespace, never the owner's uid"],
        ),
        (
            |seen| seen.proxied.as_mut().unwrap().owners_port_was_reached = true,
            &["named hosts only, where a job asked for them"],
        ),
        (
            |seen| {
                seen.proxied = Ok(Proxied {
                    answers: ask::read(b"proxy_0 = 5 485454502f312e3120323030204f4b"),
                    owners_port_was_reached: false,
                });
            },
            &["named hosts only, where a job asked for them"],
        ),
        (
            |seen| seen.memory.as_mut().unwrap().stop.as_mut().unwrap().cause = EndCause::Exited { code: 0 },
            &["memory limit, scratch included"],
        ),
        (
            |seen| {
                let scratch = seen.scratch.as_mut().unwrap();
                scratch.stop.as_mut().unwrap().memory_peak = Some(Bytes::from_mib(96));
            },
            &["memory limit, scratch included"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().swap = Some(("max".to_owned(), "0".to_owned())),
            &["no swap"],
        ),
        (
            |seen| seen.noise.as_mut().unwrap().outputs = Collected::Nothing,
            &["open files, log and results limited"],
        ),
        (
            |seen| seen.noise.as_mut().unwrap().printed = 1 << 20,
            &["open files, log and results limited"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().idle = Some("0".to_owned()),
            &["CPU only when idle"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().frozen = false,
            &["frozen as a whole, killed as a whole"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().used_frozen_us = 150_000,
            &["frozen as a whole, killed as a whole"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().stop.thawed_ms = Millis(0),
            &["billed by the kernel's own record of freezes"],
        ),
        (
            |seen| seen.standing.as_mut().unwrap().left = vec!["a group".to_owned()],
            &[
                "frozen as a whole, killed as a whole",
                "nothing of a job stays on the machine",
            ],
        ),
        (
            |seen| seen.abandoned = Ok(vec!["a folder".to_owned()]),
            &["nothing of a job stays on the machine", "no job outlives its grant"],
        ),
        (
            |seen| seen.left = vec!["a file".to_owned()],
            &["nothing of a job stays on the machine"],
        ),
        (
            |seen| seen.disk = Some(Err("no".to_owned())),
            &[
                "scratch encrypted, or in memory",
                "an encrypted disk where a job asks for one",
            ],
        ),
    ];
    let promised = promised(CgroupLayout::V2);
    for (index, (take_away, bad)) in ALL.into_iter().enumerate() {
        let mut evidence = good();
        take_away(&mut evidence);
        let verdicts = verdicts(&evidence, &promised);
        for guarantee in &promised {
            // What nobody promises cannot be broken.
            let is_promised = !matches!(guarantee.strength, Strength::Absent { .. });
            let expected = if is_promised && bad.contains(&guarantee.name) {
                FindingVerdict::Bad
            } else {
                expected(guarantee)
            };
            assert_eq!(verdicts[guarantee.name], expected, "{}, case {index}", guarantee.name);
        }
    }
}

#[test]
fn what_could_not_be_run_is_bad_and_never_good() {
    let why = || "no keeper".to_owned();
    let evidence = Evidence {
        engine: false,
        around: Err(why()),
        standing: Err(why()),
        memory: Err(why()),
        scratch: Err(why()),
        noise: Err(why()),
        proxied: Err(why()),
        abandoned: Err(why()),
        disk: Some(Err(why())),
        left: Vec::new(),
    };
    let promised = promised(CgroupLayout::V2);
    for (finding, guarantee) in judge(&evidence, &promised).iter().zip(&promised) {
        let expected = if guarantee.name.starts_with("video memory") {
            expected(guarantee)
        } else {
            FindingVerdict::Bad
        };
        assert_eq!(finding.verdict, expected, "{finding:?}");
    }
    let unknown = [Guarantee {
        name: "something new",
        strength: Strength::Enforced,
    }];
    assert_eq!(judge(&evidence, &unknown)[0].verdict, FindingVerdict::Bad);
}

#[test]
fn a_text_is_found_in_any_file_below_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("below")).unwrap();
    std::fs::write(folder.path().join("below/x"), format!("before{MARK}after")).unwrap();
    assert_eq!(rounds::found_in(folder.path(), MARK).len(), 1);
    assert_eq!(rounds::found_in(folder.path(), SECRET).len(), 0);
}
