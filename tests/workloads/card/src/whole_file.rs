//! Leaving a file whole: a reader sees the old content or the new, never a part, also when the process or the machine ends
//! in the middle.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Writes `path` by way of a neighbour that is renamed over it once its bytes are on disk. `write` is given the
/// neighbour's path and fills it.
///
/// # Errors
/// Whatever `write` or the disk says, with the path; the old content stands then, and no neighbour is left.
pub fn write_whole(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut neighbour = path.as_os_str().to_owned();
    neighbour.push(".unfinished");
    let neighbour = Path::new(&neighbour);

    let written = write(neighbour)
        .and_then(|()| File::open(neighbour)?.sync_all())
        .and_then(|()| fs::rename(neighbour, path))
        .and_then(|()| sync_folder(path));
    written.map_err(|error| {
        // The first error is the one worth telling.
        let _ = fs::remove_file(neighbour);
        io::Error::new(error.kind(), format!("could not write {}: {error}", path.display()))
    })
}

/// Makes the rename itself last.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_old_content_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        write_whole(&path, |unfinished| fs::write(unfinished, "old")).unwrap();
        let error = write_whole(&path, |unfinished| {
            fs::write(unfinished, "half of the new")?;
            Err(io::Error::other("disk on fire"))
        })
        .unwrap_err();
        assert!(error.to_string().contains("answers"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
