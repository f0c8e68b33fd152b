//! `cargo xtask bindings`: the window's TypeScript types, written from `sela-protocol` into `ui/src/bindings`, or compared with
//! what is there. What the types are is decided in the protocol; nothing here knows one of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::commands;
use crate::places::Places;

/// Where they are committed, from the root of the repository.
const COMMITTED: &str = "ui/src/bindings";

/// Writes them anew: files of types that are gone are removed.
///
/// # Errors
/// If the protocol does not compile or a file cannot be written.
pub(crate) fn write(places: &Places) -> anyhow::Result<()> {
    let fresh = generate(places)?;
    let folder = places.root.join(COMMITTED);
    for name in read(&folder)?.keys().filter(|name| !fresh.contains_key(*name)) {
        let gone = folder.join(name);
        fs::remove_file(&gone).with_context(|| format!("cannot remove {}", gone.display()))?;
    }
    for (name, text) in &fresh {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    println!("{} types are in {COMMITTED}", fresh.len());
    Ok(())
}

/// Holds that those committed are those of the protocol as it is now.
///
/// # Errors
/// If they are not: with the names of the files and the command that mends it.
pub(crate) fn check(places: &Places) -> anyhow::Result<()> {
    let stale = differing(&generate(places)?, &read(&places.root.join(COMMITTED))?);
    if !stale.is_empty() {
        bail!(
            "stale in {COMMITTED}: {}\nrun `cargo xtask bindings` and commit what it writes",
            stale.join(", ")
        );
    }
    Ok(())
}

/// Lets the protocol write its types into the build folder and reads them from there.
fn generate(places: &Places) -> anyhow::Result<BTreeMap<String, String>> {
    let folder = places.target.join("bindings");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let words = [
        "run",
        "--quiet",
        "--locked",
        "-p",
        "sela-protocol",
        "--features",
        "bindings",
    ];
    commands::run(
        commands::cargo(places, words)
            .args(["--example", "bindings", "--"])
            .arg(&folder),
    )?;
    read(&folder)
}

fn read(folder: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let text =
            fs::read_to_string(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), text);
    }
    Ok(found)
}

/// The names of files that are missing, of no type any more, or of another text.
fn differing(fresh: &BTreeMap<String, String>, committed: &BTreeMap<String, String>) -> Vec<String> {
    let changed = fresh.iter().filter(|(name, text)| committed.get(*name) != Some(*text));
    let gone = committed.iter().filter(|(name, _)| !fresh.contains_key(*name));
    changed.chain(gone).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn missing_changed_and_left_over_files_are_all_stale() {
        let fresh = files(&[("A.ts", "1"), ("B.ts", "2"), ("C.ts", "3")]);
        assert_eq!(differing(&fresh, &fresh), Vec::<String>::new());
        let committed = files(&[("A.ts", "1"), ("B.ts", "old"), ("D.ts", "4")]);
        assert_eq!(differing(&fresh, &committed), ["B.ts", "C.ts", "D.ts"]);
    }
}
