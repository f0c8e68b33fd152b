//! The images that are measured with: a small one that every peer runs, and a large one that every peer pulls; both at a real
//! registry on loopback. And our own cache of them.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sela_oci_images::{Content, Image, Layer, busybox_layer, libraries_of};
use sela_protocol::blob::BlobId;
use sela_protocol::job::ImageSource;
use sela_protocol::units::Bytes;
use sela_sandbox::ids::ROOTFUL_RANGE;
use sela_sandbox::image::unpack::UnpackLimits;
use sela_sandbox::image::{
    ArchiveSource, ArchiveStream, Cache, CacheSettings, ImageReference, PreparedImage, ProxyChoice, RegistryAccess,
};
use sela_tests::{Registry, program};
use tokio::runtime::Runtime;

/// Where the small image has its file to read, and how large that is.
pub(crate) const FILE: &str = "/srv/file";
const FILE_BYTES: usize = 16 << 20;
/// Layers of the large image.
const LAYERS: u64 = 4;

/// The registry and what is at it.
pub(crate) struct Images {
    registry: Registry,
    folder: PathBuf,
}

/// The image that is run.
pub(crate) struct Small {
    /// As a registry names it.
    pub(crate) reference: String,
    /// As our cache has it, held there.
    pub(crate) prepared: PreparedImage,
}

impl Small {
    /// The one layer.
    pub(crate) fn root(&self) -> anyhow::Result<&Path> {
        Ok(self.prepared.layers.first().context("an image of one layer")?)
    }
}

impl Images {
    pub(crate) fn new(folder: &Path) -> anyhow::Result<Self> {
        let logs = folder.join("logs");
        std::fs::create_dir_all(&logs)?;
        Ok(Self {
            registry: Registry::start(&folder.join("registry"), &logs)?,
            folder: folder.join("images"),
        })
    }

    /// busybox, the work and what it links, and a file to read: one layer, so that every peer can run it as a plain folder.
    pub(crate) fn small(&self, runtime: &Runtime) -> anyhow::Result<Small> {
        let work = program("sela-measure-work")?;
        let mut layer = busybox_layer()?
            .directory("srv")
            .content(
                FILE.trim_start_matches('/'),
                0o644,
                Content::Bytes(noise(FILE_BYTES, 1)),
            )
            .content("bin/work", 0o755, Content::File(work.clone()));
        for library in libraries_of(&work)? {
            let inside = library
                .to_str()
                .context("a path in UTF-8")?
                .trim_start_matches('/')
                .to_owned();
            layer = layer.content(&inside, 0o755, Content::File(library));
        }
        let mut image = Image::new(vec![layer], ["/bin/busybox", "sh", "-c"]);
        image.user = "0:0".to_owned();
        let folder = self.folder.join("small");
        let reference = self.registry.push(&image, &folder)?;
        std::fs::remove_dir_all(folder)?;
        let cache = open_cache(&self.folder.join("cache"))?;
        let prepared = prepare(runtime, &cache, &reference)?;
        Ok(Small { reference, prepared })
    }

    /// Large files that do not compress, as weights are, some that half do, as programs, and many small ones that do, as
    /// scripts and headers; four layers of the same kind. Gives its name and how many bytes it unpacks to.
    pub(crate) fn large(&self, mib: u64) -> anyhow::Result<(String, u64)> {
        let folder = self.folder.join("large");
        let mut layers = Vec::new();
        let mut bytes = 0;
        for number in 0..LAYERS {
            let files = folder.join(format!("files-{number}"));
            std::fs::create_dir_all(&files)?;
            let (layer, size) = large_layer(&files, number, (mib << 20) / LAYERS)?;
            layers.push(layer);
            bytes += size;
        }
        let reference = self
            .registry
            .push(&Image::new(layers, ["/bin/true"]), &folder.join("written"))?;
        std::fs::remove_dir_all(folder)?;
        Ok((reference, bytes))
    }
}

fn large_layer(folder: &Path, number: u64, size: u64) -> anyhow::Result<(Layer, u64)> {
    let mut layer = Layer::new();
    let mut seed = number << 32;
    let mut written = 0;
    for (kind, share, file_bytes) in [
        ("weights", 2, 16 << 20),
        ("program", 4, 1 << 20),
        ("script", 4, 16 << 10),
    ] {
        layer = layer.directory(&format!("srv/{number}/{kind}"));
        let count = (size / share).div_ceil(file_bytes as u64);
        for each in 0..count {
            seed += 1;
            let mut content = noise(file_bytes, seed);
            match kind {
                "program" => content.iter_mut().step_by(2).for_each(|byte| *byte = 0),
                "script" => content
                    .iter_mut()
                    .for_each(|byte| *byte = b"etaoin shrdlu\n()"[usize::from(*byte & 15)]),
                _ => {}
            }
            let path = folder.join(format!("{kind}-{each}"));
            std::fs::File::create(&path)?.write_all(&content)?;
            layer = layer.content(&format!("srv/{number}/{kind}/{each}"), 0o644, Content::File(path));
            written += content.len() as u64;
        }
    }
    Ok((layer, written))
}

/// Bytes that no compression finds anything in (xorshift64, Marsaglia 2003).
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// A cache as an agent has it.
pub(crate) fn open_cache(directory: &Path) -> anyhow::Result<Cache> {
    std::fs::create_dir_all(directory)?;
    Ok(Cache::open(CacheSettings {
        directory: directory.to_owned(),
        budget: Bytes::from_gib(16),
        free_floor: Bytes(0),
        owners: ROOTFUL_RANGE,
        limits: UnpackLimits::default(),
        registries: RegistryAccess::LoopbackToo,
        proxy: ProxyChoice::Environment,
        daily_writes: None,
    })?)
}

/// Makes an image of a registry's ready to run.
pub(crate) fn prepare(runtime: &Runtime, cache: &Cache, reference: &str) -> anyhow::Result<PreparedImage> {
    let reference = ImageReference::try_from(&ImageSource::Registry {
        reference: reference.to_owned(),
    })?;
    Ok(runtime.block_on(cache.prepare(&reference, None, &NoArchives, |_| {}))?)
}

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
