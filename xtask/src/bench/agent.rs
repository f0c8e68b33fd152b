//! The agent alone, with nothing to do, beside BOINC's client with nothing to do, in the same minute on the same machine.
//!
//! Both start in empty folders of their own. BOINC is given a network namespace of its own where that can be made, since it asks its
//! project's server for news at start; the agent has no exchange and opens no connection.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use sela_nvml_sim::{CardPlan, FOLDER_VARIABLE, LIBRARY_FILE, Lab};

use crate::bench::Measured;
use crate::bench::process::{self, Cost};
use crate::commands;
use crate::places::{Places, Profile};
use crate::processes::{Processes, tail};

/// Long enough for both to have read their files and to be at rest.
const SETTLE: Duration = Duration::from_secs(15);
/// As long as the project promises its figures for.
const MEASURE: Duration = Duration::from_secs(60);

/// Measures; both bounds are the for the agent alone.
pub(crate) fn measure(places: &Places) -> anyhow::Result<Measured> {
    commands::run(&mut commands::cargo(
        places,
        [
            "build",
            "--release",
            "--locked",
            "-p",
            "sela-agent",
            "-p",
            "sela-nvml-sim",
        ],
    ))?;
    let folder = places.target.join("bench").join("agent");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let logs = folder.join("logs");
    let mut costs = {
        let mut processes = Processes::new(logs.clone())?;
        let agent = processes.start("agent", &mut alone(places, &folder)?)?;
        let boinc = processes.start("boinc", &mut boinc(&folder)?)?;
        at_rest(&mut processes, &[agent, boinc])?
    };
    // Not in the same minute: two agents would share the pages of one program, and each would count for half of them.
    costs.extend({
        let mut processes = Processes::new(logs)?;
        let display = display(&mut processes)?;
        let watchful = processes.start("watchful-agent", &mut watchful(places, &folder, &display)?)?;
        at_rest(&mut processes, &[watchful])?
    });
    let mut measured = Measured {
        conditions: "All idle. `agent`: the agent alone (release build, no settings, no exchange, no card, no display), and side by side with \
                     it for 60 s `boinc`: Debian's BOINC client without a project. `watchful`, in the 60 s after that: the same agent with a \
                     SIMULATED card and an X11 display to watch. PSS is the proportional set size in MiB of the process and its children, \
                     processor time is in percent of one core (one tick of the clock is 0.017), wake-ups are voluntary context switches of \
                     all threads."
            .to_owned(),
        ..Measured::default()
    };
    let names = [
        ["agent_pss_mb", "agent_cpu_pct", "agent_wakeups_per_s"],
        ["boinc_pss_mb", "boinc_cpu_pct", "boinc_wakeups_per_s"],
        ["watchful_pss_mb", "watchful_cpu_pct", "watchful_wakeups_per_s"],
    ];
    for (cost, [pss, cpu, wakeups]) in costs.iter().zip(names) {
        measured
            .figures
            .extend([(pss, cost.pss_mb), (cpu, cost.cpu_pct), (wakeups, cost.wakeups_per_s)]);
    }
    measured.bounds.extend([("agent_pss_mb", 25.0), ("agent_cpu_pct", 0.2)]);
    Ok(measured)
}

/// What the processes cost once they are at rest.
fn at_rest(processes: &mut Processes, ids: &[u32]) -> anyhow::Result<Vec<Cost>> {
    println!(
        "at rest for {} s, then measured for {} s",
        SETTLE.as_secs(),
        MEASURE.as_secs()
    );
    std::thread::sleep(SETTLE);
    processes.all_run()?;
    process::measure(ids, MEASURE)
}

/// The agent with nothing at all.
fn alone(places: &Places, folder: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(places.program(Profile::Release, "sela"));
    command.args(["agent", "run"]);
    for (variable, name) in [
        ("SELA_CONFIG_DIR", "config"),
        ("SELA_DATA_DIR", "data"),
        ("SELA_RUNTIME_DIR", "runtime"),
    ] {
        command.env(variable, made(folder, name)?);
    }
    for session in [
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XDG_SESSION_ID",
        "XDG_SESSION_TYPE",
        "XAUTHORITY",
    ] {
        command.env_remove(session);
    }
    Ok(command)
}

/// The agent with what an owner's machine has: a card and a display, both of which it watches.
fn watchful(places: &Places, folder: &Path, display: &str) -> anyhow::Result<Command> {
    let folder = folder.join("watchful");
    let lab = Lab::create(&folder.join("lab"), &[CardPlan::rtx_3090()]).context("cannot lay out the simulated card")?;
    let mut command = alone(places, &folder)?;
    command
        .arg("--lab")
        .env("DISPLAY", display)
        .env("SELA_NVML_LIBRARY", places.built(Profile::Release).join(LIBRARY_FILE))
        .env(FOLDER_VARIABLE, lab.folder());
    Ok(command)
}

/// A display of its own, which says its number once it is up.
fn display(processes: &mut Processes) -> anyhow::Result<String> {
    processes.start(
        "display",
        Command::new("Xvfb").args(["-displayfd", "1", "-screen", "0", "640x480x24", "-nolisten", "tcp"]),
    )?;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(100));
        processes.all_run()?;
        let log = tail(&processes.log("display"));
        if let Some(number) = log.lines().find(|line| line.parse::<u32>().is_ok()) {
            return Ok(format!(":{number}"));
        }
    }
    bail!("Xvfb does not come up; look at {}", processes.log("display").display())
}

fn boinc(folder: &Path) -> anyhow::Result<Command> {
    let own = made(folder, "boinc")?;
    let mut command = Command::new("unshare");
    command
        .args([
            "--user",
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            "ip link set lo up; exec boinc --dir \"$0\" --allow_multiple_clients",
        ])
        .arg(&own)
        .current_dir(&own);
    Ok(command)
}

fn made(folder: &Path, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let path = folder.join(name);
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}
