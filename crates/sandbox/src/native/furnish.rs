//! The topmost layer that a job's root gets from us: folders to mount on, a few small files, empty places for the card's
//! files. As it lies above the image's layers, an image that has a link or a file at one of these places cannot redirect a
//! mount. Written before the job exists, by the keeper, into the lease's scratch folder.

use super::namespaces::HOST_NAME;
use crate::error::OrFault as _;
use crate::ids::IdRange;
use crate::keeper::wire::{Fault, FaultCode, JobPlan};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Component, Path, PathBuf};

/// Name of the layer's folder in the scratch folder.
pub(crate) const TOP: &str = "top";
/// Name of the folder in the scratch folder that the job's root is mounted on.
pub(crate) const ROOT: &str = "root";

/// Where the job finds what we put there.
pub(crate) const MOUNT_POINTS: [&str; 7] = ["in", "out", "checkpoint", "tmp", "proc", "dev", "sys"];

/// Where it finds its secrets.
pub(crate) const SECRETS: &str = "run/secrets";

/// Makes the layer and the mount point. What exists already from a failed attempt is an error: a scratch folder serves once.
pub(crate) fn furnish(plan: &JobPlan, with_secrets: bool) -> Result<(), Fault> {
    let top = plan.scratch.join(TOP);
    let what = |path: &Path| format!("prepare {}", path.display());
    fs::create_dir(plan.scratch.join(ROOT)).or_fault(FaultCode::Isolation, what(&plan.scratch))?;
    let furnishing = Furnishing {
        top: top.clone(),
        ids: plan.ids,
    };
    furnishing
        .folder(Path::new(""))
        .or_fault(FaultCode::Isolation, what(&top))?;
    for name in MOUNT_POINTS {
        furnishing
            .folder(Path::new(name))
            .or_fault(FaultCode::Isolation, what(&top.join(name)))?;
    }
    // Only then: an image's own /run is otherwise left as it is.
    for name in ["run", SECRETS].into_iter().filter(|_| with_secrets) {
        furnishing
            .folder(Path::new(name))
            .or_fault(FaultCode::Isolation, what(&top.join(name)))?;
    }
    let hosts = format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n");
    furnishing
        .folder(Path::new("etc"))
        .or_fault(FaultCode::Isolation, what(&top.join("etc")))?;
    for (name, text) in [
        ("etc/hosts", hosts.as_str()),
        ("etc/hostname", &format!("{HOST_NAME}\n")),
    ] {
        furnishing
            .file(Path::new(name), text)
            .or_fault(FaultCode::Isolation, what(&top.join(name)))?;
    }
    let Some(card) = &plan.card else { return Ok(()) };
    for file in &card.files {
        let inside = below_root(&file.inside)?;
        furnishing
            .parents(&inside)
            .and_then(|()| furnishing.file(&inside, ""))
            .or_fault(FaultCode::Card, what(&inside))?;
    }
    Ok(())
}

/// An absolute path inside the job as a path below its root, refused where it would not stay below.
pub(crate) fn below_root(inside: &Path) -> Result<PathBuf, Fault> {
    let mut below = PathBuf::new();
    let mut parts = inside.components();
    let absolute = parts.next() == Some(Component::RootDir);
    for part in parts {
        match part {
            Component::Normal(name) => below.push(name),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
                return Err(bad_place(inside));
            }
        }
    }
    if absolute && !below.as_os_str().is_empty() {
        Ok(below)
    } else {
        Err(bad_place(inside))
    }
}

fn bad_place(inside: &Path) -> Fault {
    Fault::new(
        FaultCode::BadPlan,
        format!(
            "{} is no absolute path without .. for a file of the card",
            inside.display()
        ),
    )
}

struct Furnishing {
    top: PathBuf,
    ids: IdRange,
}

impl Furnishing {
    fn folder(&self, below: &Path) -> io::Result<()> {
        let path = self.top.join(below);
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
            Err(error) => return Err(error),
        }
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        self.give(below)
    }

    fn parents(&self, below: &Path) -> io::Result<()> {
        let mut folders: Vec<&Path> = below.ancestors().skip(1).collect();
        folders.reverse();
        folders.into_iter().try_for_each(|folder| self.folder(folder))
    }

    fn file(&self, below: &Path, text: &str) -> io::Result<()> {
        let path = self.top.join(below);
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        self.give(below)
    }

    /// Owned by root inside the job, like the rest of an image.
    fn give(&self, below: &Path) -> io::Result<()> {
        lchown(self.top.join(below), Some(self.ids.first), Some(self.ids.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_for_a_cards_file_stays_below_the_root() {
        for (inside, below) in [
            ("/usr/lib/libcuda.so.1", Some("usr/lib/libcuda.so.1")),
            ("/dev/nvidia0", Some("dev/nvidia0")),
            ("/", None),
            ("usr/lib", None),
            ("/usr/../../etc", None),
            ("", None),
        ] {
            assert_eq!(below_root(Path::new(inside)).ok(), below.map(PathBuf::from), "{inside}");
        }
    }
}
