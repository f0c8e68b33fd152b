//! Measures the sandbox beside its peers for `cargo xtask bench sandbox`: the same image, the same program, one after another in
//! turn. Prints what it found as lines of JSON, each a series of values; what they mean for whom is the reader's.
//!
//! `image` makes the images and puts them where each peer looks, `peers` is how each peer is asked, `native` how we are;
//! `starts`, `stops`, `pulls`, `work` and `warm` are the measurements. Nothing of the product is decided or repeated here.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "standard output is how it speaks to who measures, standard error how to who waits"
)]

mod clock;
mod engines;
mod image;
mod native;
mod peers;
mod pulls;
mod runtimes;
mod starts;
mod stops;
mod warm;
mod work;

use std::process::ExitCode;

use anyhow::{Context, ensure};
use serde_json::json;

use crate::image::Images;
use crate::peers::Peers;

/// How often each thing is measured.
#[derive(Debug, Clone)]
struct Counts {
    /// Starts of each peer, and jobs through the whole system; the others follow from it.
    rounds: usize,
    /// Size of the large image.
    image_mib: u64,
    /// The measurements that are wanted; all, where none is named.
    parts: Vec<String>,
}

impl Counts {
    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "run this as root: the sandbox needs it"
    );
    let counts = counts()?;
    clock::go_first();
    let folder = tempfile::Builder::new()
        .prefix("sela-measure-")
        .tempdir_in("/var/tmp")?;
    open_to_all(folder.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    say("the small image goes to a registry, and from there to every peer");
    let images = Images::new(folder.path())?;
    let small = images.small(&runtime)?;
    {
        let peers = Peers::begin(folder.path(), &small)?;
        for (peer, version) in peers.versions() {
            line(&json!({ "peer": peer, "version": version }));
        }
        if counts.wants("starts") {
            starts::measure(&runtime, &peers, &small, counts.rounds)?;
        }
        if counts.wants("stops") {
            stops::measure(&runtime, &peers, &small, counts.rounds)?;
        }
        if counts.wants("work") {
            work::measure(&runtime, &small, counts.rounds)?;
        }
        if counts.wants("pulls") {
            say("the large image is made and pushed");
            let rounds = (counts.rounds / 20).clamp(1, 3);
            pulls::measure(&runtime, &peers, &images, counts.image_mib, rounds)?;
        }
    }
    drop(images);
    if counts.wants("warm") {
        warm::measure(counts.rounds)?;
    }
    Ok(())
}

fn counts() -> anyhow::Result<Counts> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, image_mib, parts @ ..] = words.as_slice() else {
        anyhow::bail!("usage: sela-measure-sandbox ROUNDS IMAGE_MIB [PART…]; `cargo xtask bench sandbox` runs it");
    };
    Ok(Counts {
        rounds: rounds.parse().context("ROUNDS is a number")?,
        image_mib: image_mib.parse().context("IMAGE_MIB is a number")?,
        parts: parts.to_vec(),
    })
}

/// Some peers look at the folder with the job's ids.
fn open_to_all(folder: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711))
}

/// One series of values: which measurement, of whom, in which unit.
fn series(what: &str, who: &str, unit: &str, values: &[f64]) {
    line(&json!({ "series": what, "peer": who, "unit": unit, "values": values }));
}

fn line(value: &serde_json::Value) {
    println!("{value}");
}

/// For whoever waits.
fn say(text: &str) {
    eprintln!("{text}");
}
