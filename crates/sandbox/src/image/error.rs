//! Why an image could not be made ready, in sentences that say what to do. No decision whether to try again lives here;
//! [`ImageError::blame`] only says whose move it is.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;

/// A part of an image, as errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The OCI archive as a whole.
    Archive,
    /// The index that lists a manifest per platform.
    Index,
    /// The manifest.
    Manifest,
    /// The config.
    Config,
    /// A layer, named by the digest of its blob.
    Layer(BlobId),
    /// A blob of an archive before it is known what it is.
    Blob(BlobId),
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive => formatter.write_str("archive"),
            Self::Index => formatter.write_str("index"),
            Self::Manifest => formatter.write_str("manifest"),
            Self::Config => formatter.write_str("config"),
            Self::Layer(digest) => write!(formatter, "layer {digest}"),
            Self::Blob(digest) => write!(formatter, "blob {digest}"),
        }
    }
}

/// Whose move it is after an [`ImageError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The image or its reference: it fails the same on every machine, so the tenant must act. An image for another processor
    /// counts as that: nearly all nodes are alike, and each of the rest would be tried for nothing.
    Image,
    /// This machine: another one may run the image.
    Machine,
    /// The way between: trying again later may do.
    Network,
}

/// Why an image could not be made ready. Whatever the variant, nothing of the failed image is left on disk.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A reference without `@sha256:…`.
    #[error("\"{reference}\" names no digest: write host/repository@sha256:… so that nobody can change what runs")]
    NoDigest {
        /// As given.
        reference: String,
    },
    /// A reference that cannot be read.
    #[error("\"{reference}\" is no image reference ({reason}): write host[:port]/repository@sha256:…")]
    BadReference {
        /// As given.
        reference: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The bytes are not those that were asked for.
    #[error(
        "the image's {part} is not what its digest says: expected {expected}, got {actual}; \
         push the image again and submit the job with the digest that the push printed"
    )]
    WrongDigest {
        /// What was read.
        part: Part,
        /// The digest asked for.
        expected: BlobId,
        /// The digest of what came.
        actual: BlobId,
    },
    /// A blob is longer or shorter than its descriptor says.
    #[error("the image's {part} has {actual} bytes where its manifest says {expected}: build and push the image again")]
    WrongSize {
        /// What was read.
        part: Part,
        /// As the descriptor says.
        expected: u64,
        /// How many came; where more came than expected, the count at which reading stopped.
        actual: u64,
    },
    /// Built for another processor or operating system.
    #[error("the image is for {image}, this node is {machine}: build it for linux/{machine}")]
    OtherPlatform {
        /// The platforms that the image offers.
        image: String,
        /// The OCI name of this machine's architecture.
        machine: &'static str,
    },
    /// A part that does not follow the OCI image specification.
    #[error("the image's {part} is broken ({reason}): build the image again with a current tool")]
    Malformed {
        /// Which part.
        part: Part,
        /// What is wrong with it.
        reason: String,
    },
    /// Neither the image nor the job says what to run.
    #[error("image names no program to run: set ENTRYPOINT or CMD, or give the job a command")]
    NoProgram,
    /// The config's user is not in the image's `/etc/passwd` or `/etc/group`.
    #[error(
        "the image runs as \"{user}\", whom its own /etc/passwd and /etc/group do not name: add them or write USER as numbers"
    )]
    UnknownUser {
        /// As the config says.
        user: String,
    },
    /// An entry of a tar that must not be unpacked.
    #[error("the image's {part} is refused: \"{path}\" {reason}; build the image without this entry")]
    UnsafeEntry {
        /// The tar that holds it.
        part: Part,
        /// The entry's name, lossily as text.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An owner that does not fit in the subordinate range.
    #[error(
        "\"{path}\" in the image belongs to id {id}, and this machine maps only ids below {count}: \
         change the owner in the image, or give the agent a larger subordinate range"
    )]
    OwnerOutsideRange {
        /// The entry's name, or `USER` of the config.
        path: String,
        /// The uid or gid.
        id: u64,
        /// How many ids the range has.
        count: u32,
    },
    /// Something that unpacks to far more than it is.
    #[error(
        "the image's {part} unpacks to more than {ratio} times its size: it looks like a decompression bomb and is refused"
    )]
    Bomb {
        /// Which part.
        part: Part,
        /// The ratio that was passed.
        ratio: u64,
    },
    /// More entries than one image may have.
    #[error("the image has more than {limit} files and folders: merge or leave out some")]
    TooManyEntries {
        /// The limit.
        limit: u64,
    },
    /// A document that is larger than any honest one.
    #[error("the image's {part} is larger than {}: it is refused", Size(*.limit))]
    DocumentTooLarge {
        /// Which part.
        part: Part,
        /// The limit.
        limit: Bytes,
    },
    /// Does not fit in the cache's budget beside what is running.
    #[error(
        "image needs {} or more, the disk budget leaves {}: raise the disk budget in agent.toml or use a smaller image",
        Size(*.needed), Size(*.left)
    )]
    OverBudget {
        /// What is known to be needed.
        needed: Bytes,
        /// What can be made free under the budget.
        left: Bytes,
    },
    /// The disk would get fuller than its owner allows.
    #[error(
        "image needs {} more, and the disk has {} free of which {} must stay free: free some space or lower the floor in agent.toml",
        Size(*.needed), Size(*.free), Size(*.floor)
    )]
    FreeSpaceFloor {
        /// What is known to be needed.
        needed: Bytes,
        /// Free space of the file system now.
        free: Bytes,
        /// What must stay free.
        floor: Bytes,
    },
    /// More would be written than the owner lets be written in one day.
    #[error(
        "image needs {} more to be written, and of the {} a day that this machine lets images write {} are left: try again after midnight UTC, or raise daily_writes in agent.toml",
        Size(*.needed), Size(*.cap), Size(*.left)
    )]
    DailyWrites {
        /// What is known to be needed.
        needed: Bytes,
        /// Most of a day.
        cap: Bytes,
        /// What is left of today's.
        left: Bytes,
    },
    /// The file system has no room left.
    #[error("the disk that holds the image cache ({}) is full: free some space", directory.display())]
    DiskFull {
        /// The cache.
        directory: PathBuf,
    },
    /// The registry could not be reached or refused.
    #[error("registry {host}: {reason}")]
    Registry {
        /// Host and port.
        host: String,
        /// What happened and what to do.
        reason: String,
        /// Whether the image's reference is at fault rather than the network.
        reference_at_fault: bool,
    },
    /// An address that a stranger's job must not make this machine talk to.
    #[error("\"{host}\" is not a public address: an image may only come from a registry on the internet")]
    NotPublic {
        /// Host as named by the reference, a redirect or a token realm.
        host: String,
    },
    /// The transfer ended before the image did.
    #[error("the transfer of the image stopped early: try again")]
    TransferStopped,
    /// The exchange would not give the archive to this job.
    #[error("the image's archive is not given to this job ({reason}): submit the job again")]
    ArchiveRefused {
        /// In its words.
        reason: String,
    },
    /// The process may not do what unpacking needs.
    #[error(
        "not permitted to {doing} while unpacking the image: the agent needs root, or a range of subordinate ids, to give files to the job's user"
    )]
    NotPermitted {
        /// The operation, as a verb.
        doing: &'static str,
    },
    /// The proxy that the environment names cannot be used.
    #[error("the proxy of HTTPS_PROXY or ALL_PROXY cannot be used: {reason}")]
    BadProxy {
        /// What would be right.
        reason: String,
    },
    /// Another agent has the cache open.
    #[error("the image cache {} is in use by another agent: stop it, or give this one another data folder", directory.display())]
    CacheInUse {
        /// The cache.
        directory: PathBuf,
    },
    /// Reading or writing the cache failed.
    #[error("could not {doing} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl ImageError {
    /// Whose move it is.
    pub fn blame(&self) -> Blame {
        match self {
            Self::NoDigest { .. }
            | Self::BadReference { .. }
            | Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::Malformed { .. }
            | Self::NoProgram
            | Self::UnknownUser { .. }
            | Self::UnsafeEntry { .. }
            | Self::Bomb { .. }
            | Self::TooManyEntries { .. }
            | Self::DocumentTooLarge { .. }
            | Self::OtherPlatform { .. }
            | Self::NotPublic { .. }
            | Self::Registry {
                reference_at_fault: true,
                ..
            } => Blame::Image,
            Self::OwnerOutsideRange { .. }
            | Self::OverBudget { .. }
            | Self::FreeSpaceFloor { .. }
            | Self::DailyWrites { .. }
            | Self::DiskFull { .. }
            | Self::ArchiveRefused { .. }
            | Self::NotPermitted { .. }
            | Self::BadProxy { .. }
            | Self::CacheInUse { .. }
            | Self::Io { .. } => Blame::Machine,
            Self::Registry {
                reference_at_fault: false,
                ..
            }
            | Self::TransferStopped => Blame::Network,
        }
    }

    /// An error of the file system, told apart where a person would act differently.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull { directory: path },
            Some(Errno::PERM) => Self::NotPermitted { doing },
            Some(_) | None => Self::Io { doing, path, source },
        }
    }

    pub(crate) fn malformed(part: Part, reason: impl fmt::Display) -> Self {
        Self::Malformed {
            part,
            reason: reason.to_string(),
        }
    }

    /// What a reader said while `part` was read through it: our own readers carry an `ImageError` inside; anything else
    /// comes from a decoder that could not understand the bytes.
    pub(crate) fn from_reader(part: Part, error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(carried) => carried,
            Err(other) => Self::malformed(part, other),
        }
    }

    /// Carried through a reader that can only say `io::Error`; [`ImageError::from_reader`] takes it out again.
    pub(crate) fn into_reader_error(self) -> io::Error {
        io::Error::other(self)
    }
}

/// Shows bytes as people read disk sizes: decimal, one digit after the point.
struct Size(Bytes);

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
        let bytes = self.0.0;
        match STEPS.iter().find(|(step, _)| bytes >= *step) {
            Some((step, unit)) => write!(formatter, "{}.{} {unit}", bytes / step, bytes % step / (step / 10)),
            None => write!(formatter, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1_000, "1.0 kB"),
            (3_250_000_000, "3.2 GB"),
            (999_999_999, "999.9 MB"),
        ] {
            assert_eq!(Size(Bytes(bytes)).to_string(), text);
        }
    }

    #[test]
    fn an_error_survives_its_way_through_a_reader() {
        let error = ImageError::Bomb {
            part: Part::Archive,
            ratio: 9,
        }
        .into_reader_error();
        assert!(matches!(
            ImageError::from_reader(Part::Config, error),
            ImageError::Bomb { ratio: 9, .. }
        ));
    }
}
