//! Embeds the window's built page (`ui/dist`) where there is one, so that the agent serves it without any file beside it.
//! Builds nothing itself: cargo needs no Node. The program's own code decides what is served under which path.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let variable = |name| env::var_os(name).map(PathBuf::from).ok_or(io::ErrorKind::NotFound);
    let ui = variable("CARGO_MANIFEST_DIR")?.join("../../ui");
    let dist = ui.join("dist");
    let built = dist.join("index.html").is_file();
    // A watched path that is not there would run this at every build.
    let watched = if built { &dist } else { &ui };
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", watched.display());
    let mut files = Vec::new();
    if built {
        files.extend(["index.html", "sign.svg"].map(String::from));
        files.extend(
            names(&dist.join("assets"))?
                .into_iter()
                .map(|name| format!("assets/{name}")),
        );
        files.retain(|name| dist.join(name).is_file());
    }
    let list = files.iter().try_fold(String::from("&[\n"), |mut list, name| {
        let place = fs::canonicalize(dist.join(name))?;
        let place = place.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        writeln!(list, "    (\"/{}\", include_bytes!({place:?})),", name.escape_default()).map_err(io::Error::other)?;
        Ok::<_, io::Error>(list)
    })?;
    fs::write(variable("OUT_DIR")?.join("page.rs"), format!("{list}]\n"))
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry?.file_name().into_string();
        name.map_err(|name| io::Error::other(format!("{} cannot be part of an address", name.display())))
    };
    let mut names = fs::read_dir(folder)?.map(name).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}
