//! A keeper that builds no walls, for the test that a checkup finds each of them missing: it says what a keeper says, and runs the
//! program of its plan as a process of this machine's like any other. All of it ends with this process.

#![expect(
    clippy::disallowed_methods,
    reason = "starting a process without walls is what it is for"
)]

use sela_protocol::lease::EndCause;
use sela_protocol::units::{BootUs, Microseconds, Millis};
use sela_sandbox::keeper::wire::{Collected, FrozenSource, JobPlan, LogBytes, LogStream, Order, Report, Stop};
use std::io::{BufRead as _, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};

/// What happens here.
enum Event {
    Ordered(Box<Order>),
    HungUp,
    Printed(Vec<u8>),
    Ended,
}

fn main() {
    let (tell, events) = channel();
    let ordered = tell.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let Some(order) = order else { break };
            drop(ordered.send(Event::Ordered(order)));
        }
        drop(ordered.send(Event::HungUp));
    });
    let mut program = None;
    for event in events {
        match event {
            Event::Ordered(order) => match *order {
                Order::Start { plan, .. } => {
                    program = Some(start(&plan, tell.clone()));
                    say(&Report::Started {
                        init_pid: std::process::id(),
                        started_boot_us: BootUs(0),
                        cgroup: Path::new("/sys/fs/cgroup").to_owned(),
                    });
                }
                Order::Freeze { .. } => say(&Report::Frozen {
                    after_us: Microseconds(0),
                }),
                Order::Thaw => say(&Report::Thawed),
                Order::End { .. } | Order::Save { .. } => break,
                Order::Grant => {}
            },
            Event::Printed(bytes) => say(&Report::Log {
                stream: LogStream::Out,
                bytes: LogBytes(bytes),
            }),
            Event::HungUp | Event::Ended => break,
        }
    }
    if let Some(mut program) = program {
        drop(program.kill());
        drop(program.wait());
    }
    say(&Report::Ended {
        stop: Stop {
            cause: EndCause::Exited { code: 0 },
            exit: None,
            started_boot_us: BootUs(0),
            ended_boot_us: BootUs(0),
            frozen_us: Microseconds(0),
            frozen_source: FrozenSource::Keeper,
            thawed_ms: Millis(0),
            gone_after_us: Microseconds(0),
            cpu_us: Microseconds(0),
            memory_peak: None,
        },
        outputs: Collected::Nothing,
        checkpoint: Collected::Nothing,
    });
}

/// The process ids are a namespace's own, so that whatever leaves its parents ends with this process. Everything else is the machine's.
fn start(plan: &JobPlan, tell: Sender<Event>) -> Child {
    let program = plan.layers[0].join(plan.program.arguments[0].trim_start_matches('/'));
    let mut child = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(program)
        .args(&plan.program.arguments[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut printed = child.stdout.take().expect("a pipe");
    std::thread::spawn(move || {
        let mut part = vec![0; 16 << 10];
        while let Ok(count) = printed.read(&mut part)
            && count > 0
        {
            drop(tell.send(Event::Printed(part[..count].to_vec())));
        }
        drop(tell.send(Event::Ended));
    });
    child
}

fn say(report: &Report) {
    let line = serde_json::to_string(report).expect("a report is JSON");
    let mut out = std::io::stdout().lock();
    // Whoever does not listen is gone.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}
