//! A cache in a folder of its own, images written beside it, and a listing that shows whatever was left behind.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use sela_oci_images::{Image, ImageOnDisk, Layer};
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use sela_sandbox::ids::IdRange;
use sela_sandbox::image::unpack::UnpackLimits;
use sela_sandbox::image::{
    ArchiveSource, ArchiveStream, Cache, CacheSettings, ImageError, ImageReference, PreparedImage, Progress,
    ProxyChoice, RegistryAccess, RegistryLogin,
};
use tempfile::TempDir;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, ReadBuf};

pub(crate) const OWNERS: IdRange = IdRange {
    first: 700_000,
    count: 65_536,
};

/// Says so by name and answers `true` where a test cannot run.
pub(crate) fn skipped_without_root(test: &str) -> bool {
    let skipped = !rustix::process::geteuid().is_root();
    if skipped {
        eprintln!("SKIPPED {test}: giving files to other ids needs root");
    }
    skipped
}

pub(crate) struct Workbench {
    folder: TempDir,
    images: AtomicU32,
}

impl Workbench {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            images: AtomicU32::new(0),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn cache_path(&self) -> PathBuf {
        self.path().join("cache")
    }

    /// Roomy; tests narrow what they are about.
    pub(crate) fn settings(&self) -> CacheSettings {
        CacheSettings {
            directory: self.cache_path(),
            budget: Bytes::from_gib(4),
            free_floor: Bytes(0),
            owners: OWNERS,
            limits: UnpackLimits::default(),
            registries: RegistryAccess::LoopbackToo,
            proxy: ProxyChoice::default(),
            daily_writes: None,
        }
    }

    pub(crate) fn cache(&self) -> Cache {
        Cache::open(self.settings()).unwrap()
    }

    pub(crate) fn write(&self, image: &Image) -> ImageOnDisk {
        let folder = self
            .path()
            .join(format!("image-{}", self.images.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&folder).unwrap();
        sela_oci_images::write(image, &folder).unwrap()
    }
}

pub(crate) fn archive_reference(image: &ImageOnDisk) -> ImageReference {
    ImageReference::Archive(format!("sha256:{}", image.archive_sha256).parse().unwrap())
}

pub(crate) async fn prepare_archive(cache: &Cache, image: &ImageOnDisk) -> Result<PreparedImage, ImageError> {
    prepare_archive_as(cache, &archive_reference(image), image).await
}

pub(crate) async fn prepare_archive_as(
    cache: &Cache,
    reference: &ImageReference,
    image: &ImageOnDisk,
) -> Result<PreparedImage, ImageError> {
    cache
        .prepare(reference, None, &Archives::with(reference.digest(), image), |_| {})
        .await
}

/// For images that the cache has and the exchange need not send again.
pub(crate) async fn prepare_known(cache: &Cache, image: &ImageOnDisk) -> PreparedImage {
    let archives = Archives::of(image);
    let ready = cache.prepare(&archive_reference(image), None, &archives, |_| {}).await;
    assert_eq!(archives.opened(), 0, "no archive was to be sent");
    ready.unwrap()
}

/// For images of a registry.
pub(crate) async fn prepare_without_archive(
    cache: &Cache,
    reference: &ImageReference,
    report: impl Fn(Progress) + Send + Sync + 'static,
) -> Result<PreparedImage, ImageError> {
    cache.prepare(reference, None, &Archives::default(), report).await
}

/// For images of a registry that asks for a login.
pub(crate) async fn prepare_with_login(
    cache: &Cache,
    reference: &ImageReference,
    login: Option<&RegistryLogin>,
) -> Result<PreparedImage, ImageError> {
    cache.prepare(reference, login, &Archives::default(), |_| {}).await
}

/// An exchange, as far as the cache knows one: what it gives to the job at hand, and how often it was asked to send.
#[derive(Default)]
pub(crate) struct Archives {
    name: &'static str,
    given: Vec<(BlobId, PathBuf)>,
    opened: AtomicU32,
    /// After so many bytes of the first answer, of the second, …, the connection is gone.
    pub(crate) breaks: Vec<u64>,
    /// It cannot go on in the middle.
    pub(crate) from_the_start: bool,
    /// Where each answer began.
    pub(crate) asked: Mutex<Vec<u64>>,
}

impl Archives {
    pub(crate) fn of(image: &ImageOnDisk) -> Self {
        Self::with(archive_reference(image).digest(), image)
    }

    /// What is given under another digest than its own, too.
    pub(crate) fn with(digest: BlobId, image: &ImageOnDisk) -> Self {
        Self {
            given: vec![(digest, image.archive.clone())],
            ..Self::default()
        }
    }

    /// Says that the job may have it, and then cannot send it.
    pub(crate) fn that_only_allow(image: &ImageOnDisk) -> Self {
        Self {
            given: vec![(archive_reference(image).digest(), PathBuf::from("/nowhere"))],
            ..Self::default()
        }
    }

    pub(crate) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    pub(crate) fn opened(&self) -> u32 {
        self.opened.load(Ordering::Relaxed)
    }

    fn path(&self, archive: BlobId) -> io::Result<&Path> {
        let found = self.given.iter().find(|(digest, _)| *digest == archive);
        let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "this token opens no such blob");
        found.map(|(_, path)| path.as_path()).ok_or_else(refused)
    }
}

impl ArchiveSource for Archives {
    type Reader = Box<dyn AsyncRead + Send + Unpin>;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    async fn allows(&self, archive: BlobId) -> io::Result<()> {
        self.path(archive).map(drop)
    }

    async fn open(&self, archive: BlobId, from: u64) -> io::Result<ArchiveStream<Self::Reader>> {
        let opened = self.opened.fetch_add(1, Ordering::Relaxed);
        let mut file = File::open(self.path(archive)?).await?;
        let size = file.metadata().await?.len();
        let from = if self.from_the_start { 0 } else { from };
        file.seek(io::SeekFrom::Start(from)).await?;
        self.asked.lock().unwrap().push(from);
        let reader: Self::Reader = match self.breaks.get(opened as usize) {
            None => Box::new(file),
            Some(after) => Box::new(file.take(*after).chain(Gone)),
        };
        Ok(ArchiveStream {
            reader,
            from,
            bytes: Some(Bytes(size)),
        })
    }
}

/// What is read of a connection that is gone.
struct Gone;

impl AsyncRead for Gone {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

/// An image of these layers that runs `/run`.
pub(crate) fn image(layers: Vec<Layer>) -> Image {
    Image::new(layers, ["/run"])
}

/// Every path below `folder` and what it is, but not what changes by being used.
pub(crate) fn listing(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            let letter = match () {
                () if kind.is_dir() => 'd',
                () if kind.is_symlink() => 'l',
                () if kind.is_char_device() => 'c',
                () if kind.is_file() => 'f',
                () => '?',
            };
            found.insert(format!("{letter} {}", path.strip_prefix(folder).unwrap().display()));
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}
