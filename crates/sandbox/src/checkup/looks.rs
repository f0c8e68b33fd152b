//! What each part of a checkup's evidence says of one wall: that it stood, or how it did not. `judge` has the table of which belongs to
//! which guarantee.

use super::SECRET;
use super::ask::{Answer, Answers, names};
use super::questions::{self, SPINNING, WRITABLE};
use super::rounds::{Around, Evidence, LOG, MEMORY, Proxied, STANDSTILL, Seen, Standing};
use super::run::Outcome;
use crate::keeper::wire::{Collected, FREEZE_LIMIT, FrozenSource};
use sela_protocol::lease::EndCause;

/// What `statfs` says of memory, and of a disk that can be encrypted.
pub(super) const TMPFS: u64 = 0x0102_1994;
pub(super) const EXT4: u64 = 0xef53;
/// Nodes that reveal nothing and act on nothing.
const HARMLESS: [&str; 10] = [
    "null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm",
];
/// What an engine adds of its own: terminals of the container's, and a link to nothing.
const ENGINES: [&str; 6] = ["core", "pts", "ptmx", "mqueue", "tty", "console"];
/// Variables that a job's environment may have without having asked for any.
const VARIABLES: [&str; 4] = ["PATH", "HOME", "HOSTNAME", "container"];
/// Processor time, in microseconds, that may be accounted for a moment late.
const LATE: u64 = 20_000;

pub(super) enum Came {
    /// Every wall stood.
    Held(String),
    /// One did not, or was not seen to.
    Broken(String),
    /// No job was there to look at.
    Unseen(String),
    /// Nothing can be tried from here.
    NotTried(&'static str),
}

/// One thing after the other, and what is wrong with any of them.
#[derive(Default)]
pub(super) struct Looks {
    held: Vec<String>,
    broken: Vec<String>,
}

impl Looks {
    pub(super) fn at(mut self, holds: bool, what: impl Into<String>) -> Self {
        let list = if holds { &mut self.held } else { &mut self.broken };
        list.push(what.into());
        self
    }

    pub(super) fn came(self) -> Came {
        if self.broken.is_empty() {
            Came::Held(self.held.join(", "))
        } else {
            Came::Broken(self.broken.join(", "))
        }
    }
}

/// What a look gives, where there was anything to look at.
pub(super) fn seen<T>(found: &Result<T, String>, look: &dyn Fn(&T) -> Came) -> Came {
    match found {
        Ok(found) => look(found),
        Err(why) => Came::Unseen(format!("the job that tries it could not be run: {why}")),
    }
}

/// The worse of two.
pub(super) fn both(one: Came, other: Came) -> Came {
    match (one, other) {
        (Came::Broken(one), Came::Broken(other)) => Came::Broken(format!("{one}, {other}")),
        (worse @ Came::Broken(_), Came::Held(_) | Came::Unseen(_) | Came::NotTried(_))
        | (Came::Held(_) | Came::Unseen(_) | Came::NotTried(_), worse @ Came::Broken(_))
        | (worse @ Came::Unseen(_), Came::Held(_) | Came::Unseen(_) | Came::NotTried(_))
        | (Came::Held(_) | Came::NotTried(_), worse @ Came::Unseen(_))
        | (worse @ Came::NotTried(_), Came::Held(_) | Came::NotTried(_))
        | (Came::Held(_), worse @ Came::NotTried(_)) => worse,
        (Came::Held(one), Came::Held(other)) if other.is_empty() => Came::Held(one),
        (Came::Held(one), Came::Held(other)) => Came::Held(format!("{one}, {other}")),
    }
}

pub(super) fn word(holds: bool, good: &str, bad: &str) -> String {
    if holds { good.to_owned() } else { bad.to_owned() }
}

/// What was shown for a question.
fn shown<'a>(answers: &'a Answers, name: &str) -> Option<&'a [u8]> {
    match answers.get(name)? {
        Answer::Done { shown, .. } => Some(shown),
        Answer::Refused { .. } | Answer::Killed { .. } => None,
    }
}

fn text(answers: &Answers, name: &str) -> Option<String> {
    shown(answers, name).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

fn value(answers: &Answers, name: &str) -> Option<i64> {
    match answers.get(name)? {
        Answer::Done { value, .. } => Some(*value),
        Answer::Refused { .. } | Answer::Killed { .. } => None,
    }
}

fn in_words(answer: Option<&Answer>) -> String {
    match answer {
        None => "no answer".to_owned(),
        Some(Answer::Done { value, .. }) => format!("allowed ({value})"),
        Some(Answer::Refused { error, .. }) => errno(*error),
        Some(Answer::Killed { signal }) => format!("killed by signal {signal}"),
    }
}

fn errno(error: i32) -> String {
    let text = std::io::Error::from_raw_os_error(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// That each of these was refused, and in the way in which it should be.
pub(super) fn refused_with(answers: &Answers, expected: &[(&str, &[i32])]) -> Came {
    expected
        .iter()
        .fold(Looks::default(), |looks, (name, errors)| {
            let answer = answers.get(*name);
            let holds = matches!(answer, Some(Answer::Refused { error, .. }) if errors.contains(error));
            looks.at(holds, format!("{}: {}", name.replace('_', " "), in_words(answer)))
        })
        .came()
}

pub(super) fn own_ids(answers: &Answers, enforced: bool) -> Came {
    let map = text(answers, "ids").unwrap_or_default();
    let fields: Vec<u64> = map.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // One line: 0 inside is somebody outside who is nobody there, and not everybody is mapped.
    let own = matches!(fields[..], [0, outside, count] if outside > 0 && count < u64::from(u32::MAX));
    let shown = map.split_whitespace().collect::<Vec<_>>().join(" ");
    Looks::default()
        .at(
            own || (!enforced && !map.is_empty()),
            format!("its ids are \"{shown}\""),
        )
        .came()
}

pub(super) fn strangers_ids(processes: &[Seen], enforced: bool) -> Came {
    let own = rustix::process::geteuid().as_raw();
    let ids: Vec<String> = processes.iter().map(|process| process.uid.to_string()).collect();
    let strangers = processes.iter().all(|process| process.uid != 0 && process.uid != own);
    let apart = processes.iter().all(|process| process.own_namespace) || !enforced;
    let count = processes.len();
    // The first process, the program, and those that spin.
    let all = count >= SPINNING as usize + 2;
    let mut ids = ids;
    ids.dedup();
    Looks::default()
        .at(strangers, format!("{count} processes run as {}", ids.join(", ")))
        .at(
            apart,
            word(apart, "in a namespace of their own", "in this machine's user namespace"),
        )
        .at(all, word(all, "all were seen", "not all of its processes were seen"))
        .came()
}

pub(super) fn no_rights(answers: &Answers) -> Came {
    let status = text(answers, "status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(':'))
            .map(str::trim)
            .unwrap_or("?")
    };
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let empty = sets.iter().all(|set| u64::from_str_radix(field(set), 16) == Ok(0));
    let bound = field("NoNewPrivs") == "1";
    let looks = Looks::default()
        .at(empty, word(empty, "all five sets are empty", "it has capabilities"))
        .at(bound, word(bound, "none can be gained", "new privileges can be gained"));
    both(
        looks.came(),
        refused_with(answers, &[("setresuid", &[libc::EPERM]), ("mknod", &[libc::EPERM])]),
    )
}

pub(super) fn own_calls(answers: &Answers) -> Came {
    let filtered = text(answers, "status").is_some_and(|status| status.contains("Seccomp:\t2"));
    let refused = |name: &&str| matches!(answers.get(*name), Some(Answer::Refused { error, .. }) if matches!(*error, libc::EPERM | libc::ENOSYS));
    let through: Vec<String> = questions::refused()
        .filter(|name| !refused(name))
        .map(|name| format!("{name}: {}", in_words(answers.get(name))))
        .collect();
    Looks::default()
        .at(filtered, word(filtered, "a list is in force", "no list is in force"))
        .at(
            through.is_empty(),
            if through.is_empty() {
                format!("{} of {0} were refused", questions::refused().count())
            } else {
                through.join(", ")
            },
        )
        .came()
}

pub(super) fn no_network(answers: &Answers) -> Came {
    let table = text(answers, "interfaces").unwrap_or_default();
    let interfaces: Vec<&str> = table
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim()))
        .collect();
    let alone = interfaces == ["lo"];
    both(
        refused_with(
            answers,
            &[
                ("owners_port", &[libc::ECONNREFUSED]),
                ("owners_name", &[libc::ECONNREFUSED, libc::EPERM, libc::EACCES]),
                ("way_out", &[libc::ENETUNREACH]),
            ],
        ),
        Looks::default()
            .at(alone, format!("interfaces: {}", interfaces.join(" ")))
            .came(),
    )
}

pub(super) fn proxied(found: &Proxied) -> Came {
    let statuses = (0..3).map(|at| {
        let said = text(&found.answers, &format!("proxy_{at}")).unwrap_or_default();
        said.lines().next().unwrap_or("no answer").trim().to_owned()
    });
    let looks = statuses.fold(Looks::default(), |looks, status| {
        looks.at(status.starts_with("HTTP/1.1 403"), status)
    });
    let reached = found.owners_port_was_reached;
    looks
        .at(
            !reached,
            word(!reached, "nobody called this machine", "this machine was called"),
        )
        .came()
}

pub(super) fn own_processes(answers: &Answers) -> Came {
    // The first process, the program, and whoever asks.
    const OWN: usize = 3;
    let entries = shown(answers, "processes").map(names).unwrap_or_default();
    let count = entries.iter().filter(|name| name.parse::<u32>().is_ok()).count();
    both(
        Looks::default()
            .at((1..=OWN).contains(&count), format!("it sees {count} processes"))
            .came(),
        refused_with(answers, &[("init_memory", &[libc::EACCES, libc::EPERM])]),
    )
}

pub(super) fn own_devices(answers: &Answers, engine: bool) -> Came {
    let nodes = shown(answers, "devices").map(names).unwrap_or_default();
    let harmless = |name: &&String| HARMLESS.contains(&name.as_str()) || (engine && ENGINES.contains(&name.as_str()));
    let others: Vec<&str> = nodes
        .iter()
        .filter(|name| !harmless(name))
        .map(String::as_str)
        .collect();
    let count = nodes.len();
    Looks::default()
        .at(count > 0, format!("{count} nodes"))
        .at(
            others.is_empty(),
            if others.is_empty() {
                "none of a card, a disk or an input".to_owned()
            } else {
                format!("also {}", others.join(" "))
            },
        )
        .came()
}

pub(super) fn own_files(answers: &Answers) -> Came {
    let open = shown(answers, "descriptors").map(names).unwrap_or_default();
    // The three streams, and the one that lists.
    let few = (1..=4).contains(&open.len());
    let environment = text(answers, "environment").unwrap_or_default();
    let foreign: Vec<&str> = environment
        .split('\0')
        .filter_map(|pair| Some(pair.split_once('=')?.0))
        .filter(|name| !VARIABLES.contains(name))
        .collect();
    const GONE: &[i32] = &[libc::ENOENT, libc::EACCES, libc::EPERM];
    both(
        refused_with(
            answers,
            &[
                ("owners_file", GONE),
                ("owners_file_above", GONE),
                ("owners_file_by_init", GONE),
                ("shadow", GONE),
            ],
        ),
        Looks::default()
            .at(few, format!("{} descriptors", open.len()))
            .at(
                foreign.is_empty() && !environment.is_empty(),
                if foreign.is_empty() {
                    "no variable of yours".to_owned()
                } else {
                    format!("variables {}", foreign.join(" "))
                },
            )
            .came(),
    )
}

/// Killed for its memory, or refused more on the way, before it had all.
pub(super) fn stopped_in_memory(outcome: &Outcome, name: &str) -> Came {
    let Ok(stop) = &outcome.stop else {
        return Came::Broken("it never ran".to_owned());
    };
    let answer = outcome.answers.get(name);
    let full = matches!(
        answer,
        Some(Answer::Refused {
            error: libc::ENOSPC,
            ..
        })
    );
    let killed = stop.cause == EndCause::OutOfMemory && !matches!(answer, Some(Answer::Done { .. }));
    let within = stop.memory_peak.is_none_or(|peak| peak <= MEMORY);
    let peak = stop
        .memory_peak
        .map_or_else(String::new, |peak| format!(", at most {peak} taken"));
    let end = match (killed, full) {
        (true, _) => "killed".to_owned(),
        (false, true) => "no room for more".to_owned(),
        (false, false) => format!("it ended as {:?}", stop.cause),
    };
    Looks::default()
        .at((killed || full) && within, format!("{name}: {end}{peak}"))
        .came()
}

pub(super) fn no_swap(standing: &Standing, enforced: bool) -> Came {
    match &standing.swap {
        Some((reads, expected)) => Looks::default()
            .at(
                reads == expected,
                format!("it reads {reads} and should read {expected}"),
            )
            .came(),
        None if enforced => Came::Broken("there is no such limit".to_owned()),
        None => Came::Held("there is no such limit".to_owned()),
    }
}

pub(super) fn limited(answers: &Answers, name: &str, asked: u64, limit: u64, with: i32) -> Came {
    let answer = answers.get(name);
    let (holds, came) = match answer {
        Some(Answer::Refused { step, error }) => {
            let count = u64::try_from(*step).unwrap_or(0);
            (
                *error == with && count <= limit,
                format!("{name}: {count} more, then {}", errno(*error)),
            )
        }
        Some(Answer::Done { .. } | Answer::Killed { .. }) | None => {
            (false, format!("{name}: {} of {asked}", in_words(answer)))
        }
    };
    Looks::default().at(holds, came).came()
}

pub(super) fn quiet(outcome: &Outcome) -> Came {
    let printed = outcome.printed as u64;
    let refused = matches!(outcome.outputs, Collected::Refused { .. });
    Looks::default()
        .at(
            printed > 0 && printed <= LOG.0,
            format!("its log ends at {printed} of {} bytes", 2 * LOG.0),
        )
        .at(
            refused,
            word(refused, "its results were refused", "its results were taken"),
        )
        .came()
}

pub(super) fn priority(answers: &Answers) -> Came {
    // The call answers 20 less the nice value.
    let nice = value(answers, "priority").map(|answer| 20 - answer);
    Looks::default()
        .at(
            nice == Some(19),
            format!("nice {}", nice.map_or("?".to_owned(), |nice| nice.to_string())),
        )
        .came()
}

pub(super) fn idle(standing: &Standing, enforced: bool) -> Came {
    let reads = standing.idle.as_deref();
    let holds = reads == Some("1") || (!enforced && reads.is_none());
    Looks::default()
        .at(holds, format!("cpu.idle reads {}", reads.unwrap_or("nothing")))
        .came()
}

pub(super) fn disk_priority(answers: &Answers) -> Came {
    const CLASSES: [&str; 4] = ["none", "real time", "best effort", "idle"];
    let class = value(answers, "disk_priority").and_then(|value| usize::try_from(value >> 13).ok());
    let name = class.and_then(|class| CLASSES.get(class)).copied().unwrap_or("unknown");
    Looks::default().at(name == "idle", format!("class {name}")).came()
}

pub(super) fn as_a_whole(standing: &Standing) -> Came {
    let after = standing.frozen_after_us;
    let still = standing.used_frozen_us < LATE;
    Looks::default()
        .at(
            standing.frozen && after <= FREEZE_LIMIT.0 * 1000,
            format!("frozen after {:.1} ms", after as f64 / 1000.0),
        )
        .at(
            still,
            word(still, "used no processor then", "went on using the processor"),
        )
        .at(
            standing.left.is_empty(),
            format!("gone after {:.1} ms", standing.stop.gone_after_us.0 as f64 / 1000.0),
        )
        .came()
}

pub(super) fn billed(standing: &Standing, enforced: bool) -> Came {
    let stop = &standing.stop;
    let whole = stop.ended_boot_us.since(stop.started_boot_us).0;
    let right = whole.checked_sub(stop.frozen_us.0).map(|thawed| thawed / 1000) == Some(stop.thawed_ms.0);
    let kernel = stop.frozen_source == FrozenSource::Kernel;
    // It stood still for that long at least.
    let counted = stop.frozen_us.0 >= STANDSTILL.as_micros() as u64;
    Looks::default()
        .at(
            right && counted,
            format!(
                "{} ms of {} ms, {} ms frozen",
                stop.thawed_ms.0,
                whole / 1000,
                stop.frozen_us.0 / 1000
            ),
        )
        .at(
            kernel || !enforced,
            word(kernel, "the kernel's record", "the keeper's measurement"),
        )
        .came()
}

pub(super) fn secrets(around: &Around) -> Came {
    let given = text(&around.answers, "secret").is_some_and(|secret| secret.contains(SECRET));
    let hidden = !around.secret_on_disk;
    both(
        memory_at(&around.answers, "secrets_kind", "/run/secrets", &[TMPFS]),
        Looks::default()
            .at(given, word(given, "the job reads it", "the job does not find it"))
            .at(hidden, word(hidden, "the disk does not hold it", "the disk holds it"))
            .came(),
    )
}

pub(super) fn nothing_stays(evidence: &Evidence) -> Came {
    let own = Looks::default().at(
        evidence.left.is_empty(),
        if evidence.left.is_empty() {
            "no file of theirs".to_owned()
        } else {
            evidence.left.join(", ")
        },
    );
    both(
        own.came(),
        both(
            seen(&evidence.standing, &|standing| nothing(&standing.left)),
            seen(&evidence.abandoned, &|left| nothing(left)),
        ),
    )
}

pub(super) fn nothing(left: &[String]) -> Came {
    if left.is_empty() {
        Came::Held("no group, no mount".to_owned())
    } else {
        Came::Broken(format!("left: {}", left.join(", ")))
    }
}

pub(super) fn kinds(answers: &Answers, allowed: &[u64]) -> Came {
    let each = WRITABLE
        .iter()
        .map(|(question, path)| memory_at(answers, question, path, allowed));
    each.reduce(both).unwrap_or(Came::Held(String::new()))
}

pub(super) fn memory_at(answers: &Answers, question: &str, path: &str, allowed: &[u64]) -> Came {
    let kind = shown(answers, question).and_then(|bytes| bytes.first_chunk().copied().map(u64::from_ne_bytes));
    let name = match kind {
        Some(TMPFS) => "memory".to_owned(),
        Some(EXT4) => "an encrypted disk".to_owned(),
        Some(other) => format!("file system {other:#x}"),
        None => in_words(answers.get(question)),
    };
    Looks::default()
        .at(
            kind.is_some_and(|kind| allowed.contains(&kind)),
            format!("{path} is {name}"),
        )
        .came()
}
