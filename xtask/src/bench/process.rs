//! Reads what a tree of processes costs from /proc: memory, processor time, wake-ups. Measures any program from outside, ours and others alike.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// What a tree of processes cost over a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    /// Proportional set size at the end, in MiB (1 048 576 bytes): shared pages count by the share of each process that maps them.
    pub(crate) pss_mb: f64,
    /// Processor time, user and kernel, in percent of one core.
    pub(crate) cpu_pct: f64,
    /// How often a thread gave up the processor by itself, a second: each is followed by a wake-up.
    pub(crate) wakeups_per_s: f64,
}

/// What one process has used since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Use {
    /// Clock ticks, of which there are 100 a second in what Linux shows to programs (USER_HZ).
    ticks: u64,
    /// Voluntary context switches of all its threads that still live.
    switches: u64,
}

/// Measures the trees under several processes side by side for `time`. The order of the answer is that of `roots`.
///
/// # Errors
/// If a root is not there at the end: then it was not this program that was measured.
pub(crate) fn measure(roots: &[u32], time: Duration) -> anyhow::Result<Vec<Cost>> {
    let begun = Instant::now();
    let before: Vec<_> = roots.iter().map(|root| tree(*root)).collect::<Result<_, _>>()?;
    std::thread::sleep(time);
    let mut costs = Vec::new();
    for (root, before) in roots.iter().zip(before) {
        let after = tree(*root)?;
        let seconds = begun.elapsed().as_secs_f64();
        let used = grown(&before, &after);
        let pss_kb: u64 = after.keys().map(|pid| pss(*pid)).sum();
        costs.push(Cost {
            pss_mb: pss_kb as f64 / 1024.0,
            cpu_pct: used.ticks as f64 / USER_HZ / seconds * 100.0,
            wakeups_per_s: used.switches as f64 / seconds,
        });
    }
    Ok(costs)
}

/// USER_HZ, fixed at 100 for what programs see on every architecture that we build for (proc(5), time(7)).
const USER_HZ: f64 = 100.0;

/// What was used between two looks. A process that came in between counts whole; one that went is in its parent's children's time.
fn grown(before: &BTreeMap<u32, Use>, after: &BTreeMap<u32, Use>) -> Use {
    let mut grown = Use::default();
    for (pid, now) in after {
        let then = before.get(pid).copied().unwrap_or_default();
        grown.ticks += now.ticks.saturating_sub(then.ticks);
        grown.switches += now.switches.saturating_sub(then.switches);
    }
    grown
}

/// The process and all its descendants.
fn tree(root: u32) -> anyhow::Result<BTreeMap<u32, Use>> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").context("cannot read /proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that ended while we looked is not there any more, which is no error.
        if let Some(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .as_deref()
            .and_then(parse_stat)
        {
            parents.insert(pid, stat);
        }
    }
    if !parents.contains_key(&root) {
        bail!("process {root} ended while it was measured; look at its log");
    }
    let is_under_root = |pid: u32| {
        std::iter::successors(Some(pid), |pid| parents.get(pid).map(|stat| stat.parent))
            .any(|ancestor| ancestor == root)
    };
    Ok(parents
        .iter()
        .filter(|(pid, _)| is_under_root(**pid))
        .map(|(pid, stat)| {
            (
                *pid,
                Use {
                    ticks: stat.ticks,
                    switches: switches(*pid),
                },
            )
        })
        .collect())
}

/// PSS in KiB; 0 if the process has just ended.
fn pss(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    parse_field(&rollup, "Pss:").unwrap_or(0)
}

/// Voluntary switches of all threads.
fn switches(pid: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")) else {
        return 0;
    };
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok())
        .filter_map(|status| parse_field(&status, "voluntary_ctxt_switches:"))
        .sum()
}

/// The number that follows `field` at the start of a line.
fn parse_field(text: &str, field: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(field))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// What is used of /proc/PID/stat.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// User and kernel time, its own and that of its children that it has waited for.
    ticks: u64,
}

/// The second field is the program's name in brackets and may hold anything, brackets too: what counts is the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    // proc(5): the first of these is field 3, the state. Fields 14 to 17 are utime, stime, cutime, cstime.
    let ticks = (14..=17)
        .map(|field| fields.get(field - 3)?.parse::<u64>().ok())
        .sum::<Option<u64>>()?;
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        ticks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_s_name_may_hold_anything() {
        for (text, expected) in [
            (
                "7 (sela) S 1 7 7 0 -1 4194560 9 0 0 0 11 22 3 4 20 0 9 0 55 1 1",
                Some(Stat { parent: 1, ticks: 40 }),
            ),
            (
                "7 (a) b (c) R 12 7 7 0 -1 4194560 9 0 0 0 1 0 0 0 20 0 9 0 55 1 1",
                Some(Stat { parent: 12, ticks: 1 }),
            ),
            ("7 (cut) S 1 7", None),
            ("", None),
        ] {
            assert_eq!(parse_stat(text), expected, "{text}");
        }
    }

    #[test]
    fn fields_are_read_at_the_start_of_a_line_only() {
        let rollup = "55d0-7ffd ---p 00000000 00:00 0    [rollup]\nRss:   9120 kB\nPss:                4216 kB\nPss_Anon:   10 kB\n";
        assert_eq!(parse_field(rollup, "Pss:"), Some(4216));
        let status = "Name:\tsela\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(parse_field(status, "voluntary_ctxt_switches:"), Some(150));
        assert_eq!(parse_field(status, "missing:"), None);
    }

    #[test]
    fn a_process_that_came_in_between_counts_whole_and_one_that_went_does_not_count_below_zero() {
        let look = |uses: &[(u32, u64)]| {
            uses.iter()
                .map(|(pid, n)| {
                    (
                        *pid,
                        Use {
                            ticks: *n,
                            switches: 2 * n,
                        },
                    )
                })
                .collect()
        };
        assert_eq!(
            grown(&look(&[(1, 10), (2, 50)]), &look(&[(1, 13), (3, 4)])),
            Use { ticks: 7, switches: 14 }
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_tree_holds_children_and_a_root_that_ended_is_an_error() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(
            tree(shell.id()).unwrap().keys().copied().collect::<Vec<_>>(),
            [shell.id()]
        );
        assert!(pss(shell.id()) > 0);
        assert!(tree(std::process::id()).unwrap().contains_key(&shell.id()));
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(
            tree(shell.id())
                .unwrap_err()
                .to_string()
                .contains("ended while it was measured")
        );
    }
}
