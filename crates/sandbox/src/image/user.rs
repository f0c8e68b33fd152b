//! Who a job runs as: the config's `User`, as numbers or as names of the image's own `/etc/passwd` and `/etc/group`. Those
//! files are the image author's: they are read with a limit, never through a symbolic link, and never from the host.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::below;
use super::error::ImageError;
use crate::ids::IdRange;

/// Ids as the job sees them, before the subordinate range is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageUser {
    /// User id inside of the container.
    pub uid: u32,
    /// Group id inside of the container.
    pub gid: u32,
}

/// An `/etc/passwd` of an honest image has some kilobytes.
const LARGEST_PASSWD: u64 = 1 << 20;

/// Resolves the config's `User` (`user`, `user:group`, each a number or a name) against the layers, lowest first.
///
/// # Errors
/// [`ImageError::UnknownUser`], [`ImageError::OwnerOutsideRange`].
pub(crate) fn resolve(user: &str, layers: &[PathBuf], owners: IdRange) -> Result<ImageUser, ImageError> {
    let unknown = || ImageError::UnknownUser { user: user.to_owned() };
    let found = match parse(user) {
        (Name::Number(uid), Some(Name::Number(gid))) => ImageUser { uid, gid },
        (name, group) => {
            let passwd = read_from_top(layers, "passwd")?.unwrap_or_default();
            let entry = find_user(&passwd, &name);
            let (uid, primary) = match (name, entry) {
                (Name::Number(uid), entry) => (uid, entry.map_or(0, |found| found.gid)),
                (Name::Text(_), Some(found)) => (found.uid, found.gid),
                (Name::Text(_), None) => return Err(unknown()),
            };
            let gid = match group {
                None => primary,
                Some(Name::Number(gid)) => gid,
                Some(Name::Text(group)) => {
                    let groups = read_from_top(layers, "group")?.unwrap_or_default();
                    find_group(&groups, group).ok_or_else(unknown)?
                }
            };
            ImageUser { uid, gid }
        }
    };
    for id in [found.uid, found.gid] {
        if id >= owners.count {
            return Err(ImageError::OwnerOutsideRange {
                path: format!("USER {user}"),
                id: u64::from(id),
                count: owners.count,
            });
        }
    }
    Ok(found)
}

#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    Number(u32),
    Text(&'a str),
}

/// An empty user is root, as in Docker; an empty group is no group.
fn parse(user: &str) -> (Name<'_>, Option<Name<'_>>) {
    let name = |text: &'_ str| text.parse().map_or_else(|_| None, |number| Some(Name::Number(number)));
    let (user, group) = user
        .split_once(':')
        .map_or((user, None), |(user, group)| (user, Some(group)));
    let user = if user.is_empty() {
        Name::Number(0)
    } else {
        name(user).unwrap_or(Name::Text(user))
    };
    let group = group.filter(|group| !group.is_empty());
    (user, group.map(|group| name(group).unwrap_or(Name::Text(group))))
}

/// The line of passwd(5) that has this name or this number.
fn find_user(passwd: &str, name: &Name<'_>) -> Option<ImageUser> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (login, _password) = (fields.next()?, fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let matches = match name {
            Name::Number(number) => uid == *number,
            Name::Text(text) => login == *text,
        };
        matches.then_some(ImageUser { uid, gid })
    })
}

/// The id of this name in group(5).
fn find_group(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (group, _password, gid) = (fields.next()?, fields.next()?, fields.next()?);
        (group == name).then(|| gid.parse().ok()).flatten()
    })
}

/// Reads `/etc/NAME` as overlayfs would show it, without mounting.
fn read_from_top(layers: &[PathBuf], name: &str) -> Result<Option<String>, ImageError> {
    let read = || {
        let Some(file) = below::open_file(layers, b"etc", name.as_bytes())? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.take(LARGEST_PASSWD).read_to_end(&mut bytes)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    };
    read().map_err(|error| ImageError::io("read", Path::new("/etc").join(name), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const OWNERS: IdRange = IdRange {
        first: 100_000,
        count: 65_536,
    };
    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\nworker:x:1000:1001::/:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nvideo:x:44:worker\n";

    fn check(layers: &[PathBuf], user: &str, expected: Result<(u32, u32), &str>) {
        match (resolve(user, layers, OWNERS), expected) {
            (Ok(found), Ok((uid, gid))) => assert_eq!(found, ImageUser { uid, gid }, "{user}"),
            (Err(error), Err(sentence)) => assert!(error.to_string().contains(sentence), "{user}: {error}"),
            (found, expected) => panic!("{user}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn users_are_resolved_by_the_image_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let [lower, upper] = ["lower", "upper"].map(|name| folder.path().join(name));
        fs::create_dir_all(lower.join("etc")).expect("a layer");
        fs::create_dir_all(&upper).expect("a layer");
        fs::write(lower.join("etc/passwd"), PASSWD).expect("passwd");
        fs::write(lower.join("etc/group"), GROUP).expect("group");
        let layers = [lower, upper.clone()];

        check(&layers, "", Ok((0, 0)));
        check(&layers, "1000", Ok((1000, 1001)));
        check(&layers, "4242", Ok((4242, 0)));
        check(&layers, "4242:7", Ok((4242, 7)));
        check(&layers, "worker", Ok((1000, 1001)));
        check(&layers, "worker:", Ok((1000, 1001)));
        check(&layers, "worker:video", Ok((1000, 44)));
        check(&layers, "worker:9", Ok((1000, 9)));
        check(&layers, "nobody-here", Err("do not name"));
        check(&layers, "worker:nobody-here", Err("do not name"));
        check(&layers, "broken", Err("do not name"));
        check(&layers, "-1", Err("do not name"));
        check(&layers, "65536", Err("maps only ids below 65536"));
        check(&layers, "1:65536", Err("maps only ids below 65536"));

        // A link to the host's own file must not be followed, although it exists and names root.
        fs::create_dir_all(upper.join("etc")).expect("a layer");
        std::os::unix::fs::symlink("/etc/passwd", upper.join("etc/passwd")).expect("a link");
        check(&layers, "worker", Err("do not name"));
        check(&layers, "1:2", Ok((1, 2)));
    }
}
