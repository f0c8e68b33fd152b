//! What the walls cost once a job runs: the same program inside and outside, in turn, by its own clock.

use std::process::Command;

use anyhow::Context;
use tokio::runtime::Runtime;

use crate::image::{FILE, Small};
use crate::native::Planner;
use crate::peers::said;
use crate::{say, series};

/// Work, and where it is done inside. Outside it is done in memory, too, or on the very file that the image's is.
const KINDS: [(&str, &str); 5] = [
    ("compute", "/tmp"),
    ("calls", "/tmp"),
    ("stream", "/tmp"),
    ("files", "/tmp"),
    ("read", FILE),
];

pub(crate) fn measure(runtime: &Runtime, small: &Small, rounds: usize) -> anyhow::Result<()> {
    let mut planner = Planner::new(small)?;
    let outside = tempfile::Builder::new()
        .prefix("sela-measure-")
        .tempdir_in("/dev/shm")?;
    let program = sela_tests::program("sela-measure-work")?;
    for (kind, place) in KINDS {
        say(&format!("the work \"{kind}\" inside and outside"));
        let place_outside = match kind {
            "read" => small.root()?.join(place.trim_start_matches('/')),
            _ => outside.path().to_owned(),
        };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for round in 0..rounds.div_ceil(3) {
            let mut inside = || {
                let said = planner.run(runtime, &["/bin/work", kind, place])?;
                micros(&said).map(|took| with.push(took))
            };
            let mut outside = || {
                let said = said(Command::new(&program).arg(kind).arg(&place_outside))?;
                micros(&said).map(|took| without.push(took))
            };
            // Whoever comes second finds a warmer processor.
            if round % 2 == 0 {
                inside()?;
                outside()?;
            } else {
                outside()?;
                inside()?;
            }
        }
        series(&format!("work_{kind}"), "inside", "us", &with);
        series(&format!("work_{kind}"), "outside", "us", &without);
    }
    Ok(())
}

fn micros(said: &str) -> anyhow::Result<f64> {
    said.trim().parse().with_context(|| format!("the work said \"{said}\""))
}
