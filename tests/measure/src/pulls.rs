//! A large image from a registry on loopback to a state in which it can be run: our cache, skopeo with umoci, podman. All begin
//! without a byte of it, with the registry's own files in memory and nothing waiting to be written.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use sela_sandbox::ids::ROOTFUL_RANGE;
use tokio::runtime::Runtime;

use crate::image::{Images, open_cache, prepare};
use crate::peers::{Peers, said};
use crate::{line, say, series};

pub(crate) fn measure(
    runtime: &Runtime,
    peers: &Peers,
    images: &Images,
    mib: u64,
    rounds: usize,
) -> anyhow::Result<()> {
    let (reference, bytes) = images.large(mib)?;
    line(&serde_json::json!({ "peer": "skopeo", "version": said(Command::new("skopeo").arg("--version"))? }));
    line(&serde_json::json!({ "peer": "umoci", "version": said(Command::new("umoci").arg("--version"))? }));
    let folder = tempfile::Builder::new()
        .prefix("sela-measure-pulls-")
        .tempdir_in("/var/tmp")?;
    let mib = |seconds: f64| bytes as f64 / f64::from(1 << 20) / seconds;
    let (mut native, mut podman, mut umoci) = (Vec::new(), Vec::new(), Vec::new());
    // The first round brings the registry's files into memory.
    for round in 0..=rounds {
        say(&format!("pulling, round {round} of {rounds}"));
        for turn in 0..3 {
            rustix::fs::sync();
            let (name, series, seconds) = match (turn + round) % 3 {
                0 => (
                    "native",
                    &mut native,
                    ours(runtime, &folder.path().join("ours"), &reference)?,
                ),
                1 => ("podman", &mut podman, podmans(peers, &reference)?),
                _ => (
                    "skopeo+umoci",
                    &mut umoci,
                    umocis(&folder.path().join("umoci"), &reference)?,
                ),
            };
            say(&format!("  {name}: {seconds:.1} s"));
            series.push(mib(seconds));
        }
    }
    series("pull", "native", "MiB/s", &native[1..]);
    series("pull", "podman", "MiB/s", &podman[1..]);
    series("pull", "skopeo+umoci", "MiB/s", &umoci[1..]);
    Ok(())
}

fn ours(runtime: &Runtime, folder: &Path, reference: &str) -> anyhow::Result<f64> {
    let cache = open_cache(folder)?;
    let begun = Instant::now();
    let prepared = prepare(runtime, &cache, reference)?;
    let took = begun.elapsed().as_secs_f64();
    drop((prepared, cache));
    std::fs::remove_dir_all(folder)?;
    Ok(took)
}

fn podmans(peers: &Peers, reference: &str) -> anyhow::Result<f64> {
    let begun = Instant::now();
    said(
        peers
            .podman()
            .args(["pull", "--quiet", "--tls-verify=false", reference]),
    )?;
    let took = begun.elapsed().as_secs_f64();
    said(peers.podman().args(["rmi", "--force", reference]))?;
    Ok(took)
}

/// With ids mapped as our cache maps them.
fn umocis(folder: &Path, reference: &str) -> anyhow::Result<f64> {
    std::fs::create_dir(folder)?;
    let map = format!("0:{}:{}", ROOTFUL_RANGE.first, ROOTFUL_RANGE.count);
    let layout = folder.join("layout");
    let begun = Instant::now();
    let from = format!("docker://{reference}");
    let to = format!("oci:{}:image", layout.display());
    said(Command::new("skopeo").args(["copy", "--quiet", "--src-tls-verify=false", &from, &to]))?;
    let mut unpack = Command::new("umoci");
    unpack.args(["unpack", "--uid-map", &map, "--gid-map", &map, "--image"]);
    said(
        unpack
            .arg(format!("{}:image", layout.display()))
            .arg(folder.join("bundle")),
    )?;
    let took = begun.elapsed().as_secs_f64();
    std::fs::remove_dir_all(folder)?;
    Ok(took)
}
