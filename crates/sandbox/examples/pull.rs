//! Pulls one image as an agent does, with what the environment says of proxies and certificates, and prints where its layers lie.
//! For tests of just that: a process's environment is read once and for the whole process.
//!
//! `pull CACHE REFERENCE`

use std::io::Write as _;
use std::path::PathBuf;

use sela_protocol::blob::BlobId;
use sela_protocol::job::ImageSource;
use sela_protocol::units::Bytes;
use sela_sandbox::ids::ROOTFUL_RANGE;
use sela_sandbox::image::unpack::UnpackLimits;
use sela_sandbox::image::{
    ArchiveSource, ArchiveStream, Cache, CacheSettings, ImageReference, ProxyChoice, RegistryAccess,
};

/// No image is an archive here.
struct NoArchives;

impl ArchiveSource for NoArchives {
    type Reader = &'static [u8];

    fn name(&self) -> String {
        "none".to_owned()
    }

    async fn allows(&self, _: BlobId) -> std::io::Result<()> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }

    async fn open(&self, _: BlobId, _: u64) -> std::io::Result<ArchiveStream<Self::Reader>> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: pull CACHE REFERENCE";
    let directory: PathBuf = arguments.next().ok_or(usage)?.into();
    let reference = arguments.next().ok_or(usage)?;
    let cache = Cache::open(CacheSettings {
        directory,
        budget: Bytes::from_gib(4),
        free_floor: Bytes(0),
        owners: ROOTFUL_RANGE,
        limits: UnpackLimits::default(),
        registries: RegistryAccess::PublicOnly,
        proxy: ProxyChoice::Environment,
        daily_writes: None,
    })?;
    let image = ImageReference::try_from(&ImageSource::Registry { reference })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ready = runtime.block_on(cache.prepare(&image, None, &NoArchives, |_| {}))?;
    for layer in &ready.layers {
        writeln!(std::io::stdout(), "{}", layer.display())?;
    }
    Ok(())
}
