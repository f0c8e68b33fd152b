//! Where a target begins: inputs that its own code writes. They are made when a target starts, so that none goes stale in the repository.

use std::path::PathBuf;

/// Names the folder that a target writes its seeds to before it begins.
pub const FOLDER: &str = "SELA_FUZZ_SEEDS";

/// Writes `seeds` to the folder named by [`FOLDER`], each under its number. Without that variable nothing is written.
///
/// # Panics
/// If the folder cannot be written: without its seeds a target finds little.
pub fn plant(seeds: &[Vec<u8>]) {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    std::fs::create_dir_all(&folder).expect("the folder of the seeds can be made");
    for (number, seed) in seeds.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number:02}")), seed).expect("a seed can be written");
    }
}
