//! The agent alone, with nothing to do, beside BOINC's client with nothing to do, in the same minute on the same machine.
//!
//! Both start in empty folders of their own. BOINC is given a network namespace of its own where that can be made, since it asks its
//! project's server for news at start; the agent has no exchange and opens no connection.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::bench::{Measured, process};
use crate::commands;
use crate::places::{Places, Profile};
use crate::processes::Processes;

/// Long enough for both to have read their files and to be at rest.
const SETTLE: Duration = Duration::from_secs(15);
/// As long as the project promises its figures for.
const MEASURE: Duration = Duration::from_secs(60);

pub(crate) fn measure(places: &Places) -> anyhow::Result<Measured> {
    commands::run(&mut commands::cargo(
        places,
        ["build", "--release", "--locked", "-p", "sela-agent"],
    ))?;
    let folder = places.target.join("bench").join("agent");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let mut processes = Processes::new(folder.join("logs"))?;
    let agent = processes.start("agent", &mut agent(places, &folder)?)?;
    let boinc = processes.start("boinc", &mut boinc(&folder)?)?;
    println!(
        "both at rest for {} s, then measured for {} s",
        SETTLE.as_secs(),
        MEASURE.as_secs()
    );
    std::thread::sleep(SETTLE);
    processes.all_run()?;
    let costs = process::measure(&[agent, boinc], MEASURE)?;
    let mut measured = Measured {
        conditions: "The agent alone (release build, no settings, no exchange, no display) and Debian's BOINC client (no project), both idle, \
                     side by side for 60 s. PSS is proportional set size in MiB of the process and its children, processor time is in percent of \
                     one core, wake-ups are voluntary context switches of all threads."
            .to_owned(),
        ..Measured::default()
    };
    let names = [
        ["agent_pss_mb", "agent_cpu_pct", "agent_wakeups_per_s"],
        ["boinc_pss_mb", "boinc_cpu_pct", "boinc_wakeups_per_s"],
    ];
    for (cost, [pss, cpu, wakeups]) in costs.iter().zip(names) {
        measured
            .figures
            .extend([(pss, cost.pss_mb), (cpu, cost.cpu_pct), (wakeups, cost.wakeups_per_s)]);
    }
    measured.bounds.extend([("agent_pss_mb", 25.0), ("agent_cpu_pct", 0.2)]);
    Ok(measured)
}

fn agent(places: &Places, folder: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(places.program(Profile::Release, "sela"));
    command.args(["agent", "run"]);
    for (variable, name) in [
        ("SELA_CONFIG_DIR", "config"),
        ("SELA_DATA_DIR", "data"),
        ("SELA_RUNTIME_DIR", "runtime"),
    ] {
        command.env(variable, made(folder, name)?);
    }
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    Ok(command)
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
