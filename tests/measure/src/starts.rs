//! From asking for a program of a cached image to its first byte of output at whoever asked: ours and every peer's, in turn.

use std::time::Instant;

use tokio::runtime::Runtime;

use crate::image::Small;
use crate::native::Planner;
use crate::peers::{Peer, Peers, Running};
use crate::{clock, say, series};

/// What everybody runs.
const PROGRAM: [&str; 3] = ["/bin/busybox", "echo", "ready"];
/// Starts of each that do not count: caches fill.
const WARMING: usize = 2;

pub(crate) fn measure(runtime: &Runtime, peers: &Peers, small: &Small, rounds: usize) -> anyhow::Result<()> {
    say(&format!("starts: {rounds} of each"));
    let mut planner = Planner::new(small)?;
    let mut native = Vec::new();
    let mut theirs = vec![Vec::new(); peers.all.len()];
    for round in 0..WARMING + rounds {
        // Each time another one begins, so that none always follows the same.
        for turn in 0..=peers.all.len() {
            let which = (turn + round) % (peers.all.len() + 1);
            match peers.all.get(which) {
                None => native.push(ours(runtime, &mut planner)?),
                Some(peer) => theirs[which].push(of(peer.as_ref(), round)?),
            }
        }
    }
    series("start", "native", "ms", &native[WARMING..]);
    for (peer, values) in peers.all.iter().zip(&theirs) {
        series("start", peer.name(), "ms", &values[WARMING..]);
    }
    Ok(())
}

fn ours(runtime: &Runtime, planner: &mut Planner<'_>) -> anyhow::Result<f64> {
    let plan = planner.plan(&PROGRAM)?;
    let took = runtime.block_on(async {
        let begun = Instant::now();
        let mut job = planner.start(&plan).await?;
        job.first_output().await?;
        let took = clock::ms_since(begun);
        job.gone().await?;
        anyhow::Ok(took)
    })?;
    planner.forget(&plan)?;
    Ok(took)
}

fn of(peer: &dyn Peer, round: usize) -> anyhow::Result<f64> {
    let running = Running::start(&mut peer.run(&format!("sela-start-{round}"), &PROGRAM)?)?;
    let took = running.first_output_ms;
    running.wait()?;
    Ok(took)
}
