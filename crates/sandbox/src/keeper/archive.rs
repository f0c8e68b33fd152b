//! Writes a folder that a stranger filled as a tar archive, sealed: only what is sealed already is handed to the disk. Regular files and folders only, opened beneath the folder and
//! through no link; the sum of sizes is checked before a byte is written, so a sparse file of a terabyte costs nothing.

use crate::native::MOST_ENTRIES;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sela_protocol::blob::BlobId;
use sela_protocol::confidential::SealingKey;
use sela_protocol::sealed::{Drawn, Purpose, Sealing};
use sela_protocol::units::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Folders within folders.
const DEEPEST: usize = 64;
/// Paths longer than this cannot be opened in one call.
const LONGEST_PATH: usize = 4000;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Nothing in it, or nothing that was not there before.
    Nothing,
    /// The archive is complete.
    Archived {
        /// Its size.
        size: Bytes,
        /// Its hash.
        blob: BlobId,
        /// Files in it.
        files: u32,
        /// What was left out.
        skipped: u32,
        /// Tells this state of the folder from another, without its content.
        state: BlobId,
    },
    /// Not archived.
    Refused {
        /// Why.
        why: String,
    },
}

/// What an archive is sealed with.
pub(crate) struct Seal<'a> {
    pub(crate) key: &'a SealingKey,
    pub(crate) purpose: Purpose,
    /// Fresh for each archive.
    pub(crate) drawn: Drawn,
}

struct Entry {
    path: PathBuf,
    stat: Stat,
    is_folder: bool,
}

/// Archives `folder` into `target`, unless its state is still `before`.
pub(crate) fn write(
    folder: BorrowedFd<'_>,
    target: File,
    seal: &Seal<'_>,
    limit: Bytes,
    before: Option<BlobId>,
) -> Answer {
    let listed = match list(folder) {
        Ok(listed) => listed,
        Err(why) => return Answer::Refused { why },
    };
    let (entries, skipped) = listed;
    let state = state_of(&entries);
    if entries.is_empty() || Some(state) == before {
        return Answer::Nothing;
    }
    let sum = entries.iter().map(size_of_entry).fold(0_u64, u64::saturating_add);
    if sum > limit.0 {
        return Answer::Refused {
            why: format!("it holds {sum} bytes, more than the job's output_limit of {}", limit.0),
        };
    }
    let files = entries.iter().filter(|entry| !entry.is_folder).count();
    match pack(folder, &entries, target, seal) {
        Ok((size, blob)) => Answer::Archived {
            size,
            blob,
            files: u32::try_from(files).unwrap_or(u32::MAX),
            skipped,
            state,
        },
        Err(error) => Answer::Refused {
            why: format!("it could not be archived: {error}"),
        },
    }
}

/// Everything that will be archived, each folder before what is in it, by name; and how much will not.
fn list(folder: BorrowedFd<'_>) -> Result<(Vec<Entry>, u32), String> {
    let (mut entries, mut skipped) = (Vec::new(), 0);
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let mut names = match names_in(folder, &path) {
            Ok(names) => names,
            Err(error) if is_change(error) => continue,
            Err(error) => return Err(unreadable(&path, error)),
        };
        names.sort();
        let mut folders = Vec::new();
        for name in names {
            let path = path.join(name);
            if path.components().count() > DEEPEST || path.as_os_str().len() > LONGEST_PATH {
                skipped += 1;
                continue;
            }
            let Ok(stat) = stat_beneath(folder, &path) else {
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => entries.push(Entry {
                    path,
                    stat,
                    is_folder: false,
                }),
                FileType::Directory => {
                    folders.push(path.clone());
                    entries.push(Entry {
                        path,
                        stat,
                        is_folder: true,
                    });
                }
                FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => skipped += 1,
            }
            if entries.len() > MOST_ENTRIES as usize {
                return Err(format!("it holds more than {MOST_ENTRIES} files and folders"));
            }
        }
        waiting.extend(folders.into_iter().rev());
    }
    Ok((entries, skipped))
}

/// Gone, or replaced by something else, since it was listed.
fn is_change(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

fn unreadable(path: &Path, error: Errno) -> String {
    format!("could not read {}: {error}", path.display())
}

fn names_in(folder: BorrowedFd<'_>, path: &Path) -> Result<Vec<PathBuf>, Errno> {
    let open = open_beneath(folder, path, OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    for entry in Dir::new(open)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
        }
        if names.len() > MOST_ENTRIES as usize {
            break;
        }
    }
    Ok(names)
}

/// The empty path is the folder itself.
fn open_beneath(folder: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    // Non-blocking, so that a pipe put in a file's place does not hold us.
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)
}

fn stat_beneath(folder: BorrowedFd<'_>, path: &Path) -> Result<Stat, Errno> {
    let parent = open_beneath(folder, path.parent().unwrap_or(Path::new("")), OFlags::DIRECTORY)?;
    let name = path.file_name().ok_or(Errno::INVAL)?;
    rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn size_of_entry(entry: &Entry) -> u64 {
    if entry.is_folder {
        0
    } else {
        u64::try_from(entry.stat.st_size).unwrap_or(0)
    }
}

/// Names, places, sizes and times: a program that renames a new file into place changes it.
fn state_of(entries: &[Entry]) -> BlobId {
    let mut hash = Sha256::new();
    for entry in entries {
        let stat = &entry.stat;
        hash.update(entry.path.as_os_str().as_bytes());
        hash.update([0]);
        if !entry.is_folder {
            hash.update(stat.st_ino.to_le_bytes());
            hash.update(stat.st_size.to_le_bytes());
            hash.update(stat.st_mtime.to_le_bytes());
            hash.update(stat.st_mtime_nsec.to_le_bytes());
        }
    }
    BlobId::from_hash(hash.finalize().into())
}

fn pack(folder: BorrowedFd<'_>, entries: &[Entry], target: File, seal: &Seal<'_>) -> io::Result<(Bytes, BlobId)> {
    let hashing = Hashing {
        file: io::BufWriter::new(target),
        hash: Sha256::new(),
        size: 0,
    };
    let mut builder = tar::Builder::new(Sealing::begin(hashing, seal.key, seal.purpose, &seal.drawn)?);
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(entry.stat.st_mode & 0o777);
        header.set_mtime(u64::try_from(entry.stat.st_mtime).unwrap_or(0));
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(size_of_entry(entry));
        if entry.is_folder {
            header.set_entry_type(tar::EntryType::Directory);
            builder.append_data(&mut header, &entry.path, io::empty())?;
            continue;
        }
        header.set_entry_type(tar::EntryType::Regular);
        let mut file = File::from(open_beneath(folder, &entry.path, OFlags::empty())?);
        let unchanged = |stat: &Stat| {
            (stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
                == (
                    entry.stat.st_ino,
                    entry.stat.st_size,
                    entry.stat.st_mtime,
                    entry.stat.st_mtime_nsec,
                )
        };
        builder.append_data(&mut header, &entry.path, (&mut file).take(size_of_entry(entry)))?;
        if !unchanged(&rustix::fs::fstat(&file)?) {
            return Err(io::Error::other(format!(
                "{} changed while it was read",
                entry.path.display()
            )));
        }
    }
    let mut written = builder.into_inner()?.finish()?;
    written.file.flush()?;
    Ok((Bytes(written.size), BlobId::from_hash(written.hash.finalize().into())))
}

struct Hashing {
    file: io::BufWriter<File>,
    hash: Sha256,
    size: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::sealed;
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    const KEY: SealingKey = SealingKey::from_bytes([9; 32]);

    struct Fixture {
        _whole: tempfile::TempDir,
        folder: PathBuf,
        target: PathBuf,
    }

    fn fixture() -> Fixture {
        let whole = tempfile::tempdir().unwrap();
        let folder = whole.path().join("out");
        fs::create_dir(&folder).unwrap();
        Fixture {
            target: whole.path().join("out.sealed"),
            folder,
            _whole: whole,
        }
    }

    impl Fixture {
        fn archive(&self, limit: u64, before: Option<BlobId>) -> Answer {
            let folder = File::open(&self.folder).unwrap();
            let seal = Seal {
                key: &KEY,
                purpose: Purpose::Output,
                drawn: [7; 19],
            };
            write(
                folder.as_fd(),
                File::create(&self.target).unwrap(),
                &seal,
                Bytes(limit),
                before,
            )
        }

        fn names(&self) -> Vec<String> {
            let opened = sealed::open(&KEY, Purpose::Output, &fs::read(&self.target).unwrap()).unwrap();
            let mut archive = tar::Archive::new(opened.as_slice());
            archive
                .entries()
                .unwrap()
                .map(|entry| entry.unwrap().path().unwrap().display().to_string())
                .collect()
        }
    }

    #[test]
    fn files_and_folders_are_archived_by_name_and_hashed() {
        let fixture = fixture();
        fs::create_dir(fixture.folder.join("b")).unwrap();
        fs::write(fixture.folder.join("b/inner"), "inner").unwrap();
        fs::write(fixture.folder.join("a"), "first").unwrap();
        fs::write(fixture.folder.join("x".repeat(200)), "long name").unwrap();
        let Answer::Archived {
            size,
            blob,
            files,
            skipped,
            ..
        } = fixture.archive(100, None)
        else {
            panic!()
        };
        let bytes = fs::read(&fixture.target).unwrap();
        assert_eq!((size.0, blob), (bytes.len() as u64, BlobId::of(&bytes)));
        assert_eq!((files, skipped), (3, 0));
        let shows = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
        assert!(!shows(b"inner") && !shows(b"long name") && !shows(b"ustar"));
        assert_eq!(fixture.names(), ["a", "b", &"x".repeat(200), "b/inner"]);
    }

    #[test]
    fn links_pipes_and_sockets_are_left_out_and_counted() {
        let fixture = fixture();
        fs::write(fixture.folder.join("real"), "real").unwrap();
        symlink("/etc/passwd", fixture.folder.join("link")).unwrap();
        symlink("/etc", fixture.folder.join("folder-link")).unwrap();
        let _listener = UnixListener::bind(fixture.folder.join("socket")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            fixture.folder.join("pipe"),
            FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let answer = fixture.archive(100, None);
        let Answer::Archived { files, skipped, .. } = &answer else {
            panic!("{answer:?}")
        };
        assert_eq!((*files, *skipped), (1, 4));
        assert_eq!(fixture.names(), ["real"]);
    }

    #[test]
    fn a_huge_sparse_file_is_refused_before_a_byte_is_written() {
        let fixture = fixture();
        File::create(fixture.folder.join("sparse"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        let answer = fixture.archive(1 << 20, None);
        let Answer::Refused { why } = &answer else {
            panic!("{answer:?}")
        };
        assert!(why.contains("output_limit"), "{why}");
        assert_eq!(fs::metadata(&fixture.target).unwrap().len(), 0);
    }

    #[test]
    fn what_lies_too_deep_is_left_out() {
        let fixture = fixture();
        let mut deep = fixture.folder.clone();
        for _ in 0..DEEPEST + 3 {
            deep.push("d");
            fs::create_dir(&deep).unwrap();
        }
        let answer = fixture.archive(100, None);
        let Answer::Archived { files, skipped, .. } = &answer else {
            panic!("{answer:?}")
        };
        assert_eq!((*files, *skipped), (0, 1));
    }

    #[test]
    fn an_empty_or_unchanged_folder_gives_nothing_and_a_renamed_file_gives_an_archive() {
        let fixture = fixture();
        assert_eq!(fixture.archive(100, None), Answer::Nothing);
        fs::write(fixture.folder.join("model"), "one").unwrap();
        let answer = fixture.archive(100, None);
        let Answer::Archived { state, .. } = &answer else {
            panic!("{answer:?}")
        };
        assert_eq!(fixture.archive(100, Some(*state)), Answer::Nothing);
        fs::write(fixture.folder.join("model.part"), "two").unwrap();
        fs::rename(fixture.folder.join("model.part"), fixture.folder.join("model")).unwrap();
        assert!(matches!(
            fixture.archive(100, Some(*state)),
            Answer::Archived { files: 1, .. }
        ));
    }
}
