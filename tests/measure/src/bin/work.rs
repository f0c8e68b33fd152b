//! The work whose cost is compared: the same program runs inside a job and outside of it, and says itself how long it took.
//!
//! `sela-measure-work WHAT PLACE` prints microseconds. WHAT is `compute` (no call to the kernel), `calls` (nothing but them),
//! `stream` (one large file written, read and removed in the folder PLACE), `files` (many small ones), `read` (the file PLACE).
#![expect(clippy::print_stdout, reason = "printing is how it answers")]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Turns of the generator: about a second on a processor of today.
const TURNS: u64 = 600_000_000;
/// Calls to the kernel.
const CALLS: u64 = 1_000_000;
/// Bytes of the large file, and of each write to it.
const LARGE: usize = 128 << 20;
const BLOCK: usize = 1 << 20;
/// Small files, and bytes of each.
const SMALL: usize = 4_000;
const SMALL_BYTES: usize = 4 << 10;
/// How often a file of the image is read.
const READS: usize = 16;

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, what, place] = words.as_slice() else {
        return Err(io::Error::other("usage: sela-measure-work WHAT PLACE"));
    };
    let place = PathBuf::from(place);
    let begun = Instant::now();
    match what.as_str() {
        "compute" => compute(),
        "calls" => calls(),
        "stream" => stream(&place)?,
        "files" => files(&place)?,
        "read" => read(&place)?,
        other => return Err(io::Error::other(format!("{other} is no work"))),
    }
    println!("{}", begun.elapsed().as_micros());
    Ok(())
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn compute() {
    let mut state = 1_u64;
    let mut sum = 0_u64;
    for _ in 0..TURNS {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        sum ^= mixed ^ (mixed >> 31);
    }
    black_box(sum);
}

fn calls() {
    for _ in 0..CALLS {
        // SAFETY: takes nothing and touches no memory of ours.
        black_box(unsafe { libc::syscall(libc::SYS_getppid) });
    }
}

fn stream(folder: &Path) -> io::Result<()> {
    let path = folder.join("large");
    let mut block = vec![7_u8; BLOCK];
    let mut file = File::create(&path)?;
    for _ in 0..LARGE / BLOCK {
        file.write_all(&block)?;
    }
    let mut file = File::open(&path)?;
    while file.read(&mut block)? > 0 {}
    fs::remove_file(&path)
}

fn files(folder: &Path) -> io::Result<()> {
    let content = vec![7_u8; SMALL_BYTES];
    let paths: Vec<PathBuf> = (0..SMALL)
        .map(|number| folder.join(format!("small-{number}")))
        .collect();
    for path in &paths {
        fs::write(path, &content)?;
    }
    for path in &paths {
        black_box(fs::metadata(path)?);
        black_box(fs::read(path)?);
    }
    paths.iter().try_for_each(fs::remove_file)
}

fn read(path: &Path) -> io::Result<()> {
    let mut block = vec![0_u8; BLOCK];
    for _ in 0..READS {
        let mut file = File::open(path)?;
        while file.read(&mut block)? > 0 {}
    }
    Ok(())
}
