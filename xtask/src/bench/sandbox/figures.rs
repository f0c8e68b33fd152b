//! From what was measured to figures, goals, tables and drawings.

use std::fmt::Write as _;

use anyhow::Context;

use super::drawing::{Axis, Row, draw};
use super::found::{Found, nearest_rank};
use crate::bench::{Goal, Measured, Wanted};

/// Ourselves, as the measurement calls us.
const NATIVE: &str = "native";

/// Whoever starts a program: its name, the figure of its middle, and that of ours against it.
const STARTS: [(&str, &str, Option<&str>); 6] = [
    (NATIVE, "start_native_ms", None),
    ("crun", "start_crun_ms", Some("native_over_crun")),
    ("runc", "start_runc_ms", Some("native_over_runc")),
    ("bubblewrap", "start_bubblewrap_ms", Some("native_over_bubblewrap")),
    ("podman", "start_podman_ms", Some("native_over_podman")),
    ("docker", "start_docker_ms", Some("native_over_docker")),
];

/// What is timed of a running job: its series, the figures of its middle and its 99th percentile, and its words.
const STOPS: [(&str, &str, &str, &str); 6] = [
    (
        "freeze_idle",
        "freeze_idle_p50_ms",
        "freeze_idle_p99_ms",
        "frozen, idle",
    ),
    (
        "freeze_loaded",
        "freeze_loaded_p50_ms",
        "freeze_loaded_p99_ms",
        "frozen, 30 inside",
    ),
    (
        "freeze_beside",
        "freeze_beside_p50_ms",
        "freeze_beside_p99_ms",
        "frozen, 30 inside, 30 beside",
    ),
    ("end_idle", "end_idle_p50_ms", "end_idle_p99_ms", "gone, idle"),
    (
        "end_loaded",
        "end_loaded_p50_ms",
        "end_loaded_p99_ms",
        "gone, 30 inside",
    ),
    (
        "end_beside",
        "end_beside_p50_ms",
        "end_beside_p99_ms",
        "gone, 30 inside, 30 beside",
    ),
];

/// Whoever pulls: its name, the figure of its rate, and that of ours against it.
const PULLS: [(&str, &str, Option<&str>); 3] = [
    (NATIVE, "unpack_native_mib_per_s", None),
    ("podman", "unpack_podman_mib_per_s", Some("unpack_over_podman")),
    (
        "skopeo+umoci",
        "unpack_skopeo_umoci_mib_per_s",
        Some("unpack_over_skopeo_umoci"),
    ),
];

/// Work done inside and outside: its series, the figure of what it costs more inside, and its words.
const WORK: [(&str, &str, &str); 5] = [
    ("work_compute", "cpu_overhead_pct", "arithmetic alone"),
    (
        "work_calls",
        "call_overhead_pct",
        "a million of the cheapest calls to the kernel",
    ),
    (
        "work_stream",
        "stream_overhead_pct",
        "128 MiB written to memory (`/tmp`) and read",
    ),
    (
        "work_files",
        "files_overhead_pct",
        "4 000 small files written there, read and removed",
    ),
    (
        "work_read",
        "read_overhead_pct",
        "a file of the image read sixteen times",
    ),
];

const GOALS: [Goal; 7] = [
    goal("native_over_crun", Wanted::AtMost(1.5)),
    goal("native_over_docker", Wanted::AtMost(0.2)),
    goal("freeze_idle_p99_ms", Wanted::AtMost(10.0)),
    goal("unpack_over_podman", Wanted::AtLeast(1.5)),
    goal("cpu_overhead_pct", Wanted::AtMost(1.0)),
    goal("warm_p50_ms", Wanted::AtMost(300.0)),
    goal("warm_p99_ms", Wanted::AtMost(1000.0)),
];

const fn goal(figure: &'static str, wanted: Wanted) -> Goal {
    Goal { figure, wanted }
}

/// What the figures mean, for whoever reads them.
const CONDITIONS: &str = "Release build. Everybody runs the same image of one layer from the same disk, pulled or unpacked beforehand, with two \
     starts before those that count; whoever begins changes each round. Each is asked for what a job of ours gets, as far as it can: ids mapped to the \
     same ones, no capabilities, no new privileges, the same list of system calls, read only root, memory for `/tmp`, `/out` and `/checkpoint`, no network, \
     limits on memory and processes.";

/// Makes all of it.
///
/// # Errors
/// If something that a goal stands on was not measured.
pub(crate) fn measured(found: &Found, rounds: u32) -> anyhow::Result<Measured> {
    let mut measured = Measured {
        conditions: format!(
            "{CONDITIONS} {rounds} rounds; p99 is by nearest rank, so of fewer than a hundred values the worst."
        ),
        goals: GOALS.to_vec(),
        ..Measured::default()
    };
    starts(found, &mut measured).context("starts")?;
    stops(found, &mut measured);
    pulls(found, &mut measured).context("pulls")?;
    work(found, &mut measured);
    warm(found, &mut measured);
    left_out(found, &mut measured);
    Ok(measured)
}

fn starts(found: &Found, measured: &mut Measured) -> anyhow::Result<()> {
    let ours = found.middle("start", NATIVE).context("ours were not measured")?;
    measured.more.push_str(
        "## From asking to the first output\n\nFrom the moment that it is asked for to the first byte at whoever asked, in ms. Ours is \
         asked of a keeper that is started for it, as the agent does; the others by their command lines.\n\n\
         ![How long each takes to start](sandbox-starts.svg)\n\n| | p50 | p99 | ours ÷ theirs |\n|---|---:|---:|---:|\n",
    );
    for (peer, figure, ratio) in STARTS {
        let middle = found
            .middle("start", peer)
            .with_context(|| format!("{peer} was not measured"))?;
        measured.figures.insert(figure, middle);
        let mut against = String::new();
        if let Some(ratio) = ratio {
            measured.figures.insert(ratio, ours / middle);
            against = format!("{:.2}", ours / middle);
        }
        let worst = found.quantile("start", peer, 0.99).unwrap_or(middle);
        let _ = writeln!(measured.more, "| {peer} | {middle:.1} | {worst:.1} | {against} |");
    }
    let rows: Vec<Row> = STARTS
        .iter()
        .filter_map(|(peer, ..)| row(found, "start", peer, peer))
        .collect();
    let drawing = draw(
        "From asking to the first output (p5, median, p99)",
        Axis::Log("ms"),
        &rows,
    );
    measured.drawings.push(("sandbox-starts.svg", drawing));
    Ok(())
}

fn row(found: &Found, series: &str, peer: &str, label: &str) -> Option<Row> {
    let at = |quantile| found.quantile(series, peer, quantile);
    Some(Row {
        label: label.to_owned(),
        low: at(0.05)?,
        middle: at(0.5)?,
        high: at(0.99)?,
        ours: peer == NATIVE,
    })
}

fn stops(found: &Found, measured: &mut Measured) {
    measured.more.push_str(
        "\n## Until it stands still, until it is gone\n\nFrom the order (ours to the keeper, theirs by their command lines) to the kernel's saying so \
         in the group's own file, or to the last process being gone, in ms. *30 inside*: so many processes of the job spin; *30 beside*: so many of the owner's do, too. Who looks has a real-time priority, who is looked at has none.\n\n\
         ![How long until a job is frozen or gone](sandbox-stops.svg)\n\n| | whose | times | p50 | p99 |\n|---|---|---:|---:|---:|\n",
    );
    let mut rows = Vec::new();
    for (series, middle_figure, worst_figure, words) in STOPS {
        for (peer, ..) in STARTS {
            let (Some(middle), Some(worst)) = (found.middle(series, peer), found.quantile(series, peer, 0.99)) else {
                continue;
            };
            if peer == NATIVE {
                measured.figures.insert(middle_figure, middle);
                measured.figures.insert(worst_figure, worst);
            }
            let times = found.values(series, peer).len();
            let _ = writeln!(
                measured.more,
                "| {words} | {peer} | {times} | {middle:.2} | {worst:.2} |"
            );
            rows.extend(row(found, series, peer, &format!("{words}: {peer}")));
        }
    }
    let title = "Until it stands still, until it is gone (p5, median, p99)";
    measured
        .drawings
        .push(("sandbox-stops.svg", draw(title, Axis::Log("ms"), &rows)));
}

fn pulls(found: &Found, measured: &mut Measured) -> anyhow::Result<()> {
    let ours = found.middle("pull", NATIVE).context("ours were not measured")?;
    measured.more.push_str(
        "\n## From a registry to the disk\n\nAn image of 1 GiB in four layers of gzip (half of it does not compress, the rest does by two and by three; 17 000 files) from a registry on \
         loopback until it can be run, nothing of it being there. MiB/s of unpacked content; nobody waits for the disk at the end.\n\n\
         ![How fast an image is pulled and unpacked](sandbox-pulls.svg)\n\n| | MiB/s | ours ÷ theirs |\n|---|---:|---:|\n",
    );
    for (peer, figure, ratio) in PULLS {
        let rate = found
            .middle("pull", peer)
            .with_context(|| format!("{peer} was not measured"))?;
        measured.figures.insert(figure, rate);
        let mut against = String::new();
        if let Some(ratio) = ratio {
            measured.figures.insert(ratio, ours / rate);
            against = format!("{:.2}", ours / rate);
        }
        let _ = writeln!(measured.more, "| {peer} | {rate:.0} | {against} |");
    }
    let rows: Vec<Row> = PULLS
        .iter()
        .filter_map(|(peer, ..)| row(found, "pull", peer, peer))
        .collect();
    let drawing = draw(
        "Pulling and unpacking 1 GiB (slowest, median, fastest)",
        Axis::Linear("MiB/s"),
        &rows,
    );
    measured.drawings.push(("sandbox-pulls.svg", drawing));
    Ok(())
}

fn work(found: &Found, measured: &mut Measured) {
    measured.more.push_str(
        "\n## What the walls cost once it runs\n\nThe same program inside a job and outside, in turn, by its own clock; the middle of the pairs' ratios.\n\n\
         | | inside, ms | outside, ms | more inside |\n|---|---:|---:|---:|\n",
    );
    for (series, figure, words) in WORK {
        let (inside, outside) = (found.values(series, "inside"), found.values(series, "outside"));
        let ratios: Vec<f64> = inside
            .iter()
            .zip(outside)
            .map(|(inside, outside)| inside / outside)
            .collect();
        let (Some(ratio), Some(with), Some(without)) = (
            nearest_rank(&ratios, 0.5),
            found.middle(series, "inside"),
            found.middle(series, "outside"),
        ) else {
            continue;
        };
        let more = (ratio - 1.0) * 100.0;
        measured.figures.insert(figure, more);
        let (with, without) = (with / 1_000.0, without / 1_000.0);
        let _ = writeln!(measured.more, "| {words} | {with:.1} | {without:.1} | {more:.2} % |");
    }
}

fn warm(found: &Found, measured: &mut Measured) {
    let at = |quantile| found.quantile("warm", "sela", quantile);
    let (Some(middle), Some(worst)) = (at(0.5), at(0.99)) else {
        return;
    };
    measured
        .figures
        .extend([("warm_p50_ms", middle), ("warm_p99_ms", worst)]);
    let times = found.values("warm", "sela").len();
    let _ = write!(
        measured.more,
        "\n## The whole way\n\nA tenant types `sela job submit`, then `sela job logs --follow`; until the first byte of the job's output is there. A real exchange, agent \
         and keeper on one machine, a SIMULATED card that is free, an image that is in the cache. {times} jobs one after another: p50 {middle:.0} ms, p99 {worst:.0} ms.\n",
    );
}

fn left_out(found: &Found, measured: &mut Measured) {
    measured
        .more
        .push_str("\n## Who took part, and what each leaves out\n\n");
    for (peer, version) in &found.versions {
        let less = match peer.as_str() {
            "crun" | "runc" => {
                ": one process asks and stays; nobody guards, reads limits back, meters, or ends it when whoever asked dies; no layers are stacked"
            }
            "bubblewrap" => ": no cgroups, so no limits and no freezing; one id only; no list of system calls",
            "podman" => ": as its runtime, with a watcher for each container",
            "docker" => ": a daemon that everybody asks; containers outlive whoever asked",
            "umoci" => ": unpacks only, one layer after another",
            "skopeo" => ": fetches only",
            _ => "",
        };
        let _ = writeln!(measured.more, "- {peer}: {version}{less}.");
    }
    measured.more.push_str(
        "- native: all of the above, and a keeper of its own for each job that reads every limit back before the program begins.\n",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(without: &str) -> Found {
        let mut found = Found::default();
        let mut say = |series: &str, peer: &str, values: &[f64]| {
            if series != without {
                let line = serde_json::json!({ "series": series, "peer": peer, "unit": "ms", "values": values });
                found.take(&line.to_string()).unwrap();
            }
        };
        for (peer, ..) in STARTS {
            say(
                "start",
                peer,
                if peer == NATIVE {
                    &[12.0, 10.0, 11.0]
                } else {
                    &[44.0, 40.0, 50.0]
                },
            );
        }
        say("freeze_idle", NATIVE, &[0.5, 1.5, 0.7]);
        for (peer, ..) in PULLS {
            say("pull", peer, if peer == NATIVE { &[300.0] } else { &[150.0] });
        }
        say("work_compute", "inside", &[1_010.0, 3_000.0, 1_010.0]);
        say("work_compute", "outside", &[1_000.0, 3_000.0, 1_000.0]);
        say("warm", "sela", &[100.0, 200.0, 300.0]);
        found
    }

    #[test]
    fn figures_are_ratios_of_middles_and_the_worst_of_few() {
        let figures = measured(&found(""), 3).unwrap().figures;
        for (figure, value) in [
            ("native_over_crun", 0.25),
            ("native_over_docker", 0.25),
            ("freeze_idle_p99_ms", 1.5),
            ("unpack_over_podman", 2.0),
            ("warm_p50_ms", 200.0),
            ("warm_p99_ms", 300.0),
        ] {
            assert_eq!(figures.get(figure), Some(&value), "{figure}");
        }
        assert!((figures["cpu_overhead_pct"] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_measured_is_an_error_or_no_figure_and_never_nothing() {
        assert!(measured(&found("start"), 3).is_err());
        assert!(!measured(&found("warm"), 3).unwrap().figures.contains_key("warm_p50_ms"));
    }
}
