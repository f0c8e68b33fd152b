//! Writes an image to disk: an OCI image layout folder and the same as one tar (an OCI archive). Streams: a layer of any
//! size is never held in memory. Written beside its final place and renamed into it, so that a half-written image never
//! stands where a whole one is expected.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::image::{Fault, Image};
use crate::layer::{Compression, Content, Entry, EntryKind, Layer, write_entries};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// An image that stands on disk, in both forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageOnDisk {
    /// Folder with the image layout (`oci-layout`, `index.json`, `blobs/`).
    pub layout: PathBuf,
    /// The same as one tar.
    pub archive: PathBuf,
    /// Digest of the manifest, `sha256:` and 64 hex digits: the name by which a job asks for the image.
    pub manifest_digest: String,
    /// Hash of the whole archive, 64 hex digits: the name by which an exchange stores it.
    pub archive_sha256: String,
    /// Size of the archive in bytes.
    pub bytes: u64,
}

/// A blob that was written: what a descriptor says of it.
#[derive(Debug, Clone)]
struct Blob {
    hash: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": format!("sha256:{}", self.hash), "size": self.size })
    }
}

/// Writes `image` to `folder/layout/` and `folder/image.tar`, replacing what stood there.
pub fn write(image: &Image, folder: &Path) -> Result<ImageOnDisk, Error> {
    let layout = folder.join("layout");
    let archive = folder.join("image.tar");
    let unfinished_layout = folder.join(".layout.unfinished");
    let unfinished_archive = folder.join(".image.tar.unfinished");

    remove_folder(&unfinished_layout)?;
    let written = write_layout(image, &unfinished_layout).and_then(|blobs| {
        let (archive_sha256, bytes) = write_archive(image, &unfinished_layout, &blobs, &unfinished_archive)?;
        Ok((blobs, archive_sha256, bytes))
    });
    let (blobs, archive_sha256, bytes) = match written {
        Ok(written) => written,
        Err(error) => {
            // The first error is the one worth telling; a leftover is removed again by the next write.
            let _ = remove_folder(&unfinished_layout);
            let _ = fs::remove_file(&unfinished_archive);
            return Err(error);
        }
    };

    remove_folder(&layout)?;
    fs::rename(&unfinished_layout, &layout).map_err(|error| Error::io("move into place", &layout, error))?;
    fs::rename(&unfinished_archive, &archive).map_err(|error| Error::io("move into place", &archive, error))?;
    Ok(ImageOnDisk {
        layout,
        archive,
        manifest_digest: format!("sha256:{}", blobs.manifest.hash),
        archive_sha256,
        bytes,
    })
}

/// The blobs of one image in the order in which a reader that streams the archive wants them.
struct Blobs {
    manifest: Blob,
    files: Vec<String>,
}

fn write_layout(image: &Image, folder: &Path) -> Result<Blobs, Error> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(|error| Error::io("create", &blobs, error))?;

    let mut layer_files = Vec::new();
    let mut descriptors = Vec::new();
    let mut diff_ids = Vec::new();
    for layer in &image.layers {
        let (blob, diff_id) = write_layer(layer, &blobs)?;
        descriptors.push(blob.descriptor(layer.compression().media_type()));
        layer_files.push(blob.hash);
        diff_ids.push(diff_id);
    }
    if let Some(first) = layer_files.first() {
        spoil_first_layer(image, &blobs.join(first), &mut descriptors[0])?;
        if image.has(Fault::DiffIdWrong) {
            diff_ids[0] = hex::encode(Sha256::digest(b"another tar"));
        }
    }

    let config = write_json(&blobs, &image.config_json(&diff_ids))?;
    let manifest_json = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.descriptor(CONFIG_TYPE),
        "layers": descriptors,
    });
    let manifest = if image.has(Fault::ManifestNotJson) {
        write_blob(&blobs, b"this is not a manifest\n")?
    } else {
        write_json(&blobs, &manifest_json)?
    };
    spoil_documents(image, &blobs, &config, &manifest)?;
    write_index(image, folder, &manifest)?;

    let mut files = vec![manifest.hash.clone(), config.hash];
    for file in layer_files {
        // Two equal layers are one blob.
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files.retain(|file| blobs.join(file).exists());
    Ok(Blobs { manifest, files })
}

fn write_index(image: &Image, folder: &Path, manifest: &Blob) -> Result<(), Error> {
    let mut entry = manifest.descriptor(MANIFEST_TYPE);
    entry["platform"] = json!({ "architecture": image.architecture, "os": image.os });
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": image.reference_name });
    let manifests = if image.has(Fault::IndexEmpty) {
        json!([])
    } else {
        json!([entry])
    };
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests });
    write_file(&folder.join("index.json"), &to_bytes(&index))?;
    write_file(
        &folder.join("oci-layout"),
        &to_bytes(&json!({ "imageLayoutVersion": "1.0.0" })),
    )
}

fn spoil_first_layer(image: &Image, blob: &Path, descriptor: &mut Value) -> Result<(), Error> {
    for fault in &image.faults {
        match fault {
            Fault::LayerContentAltered => alter(blob)?,
            Fault::LayerTruncated => truncate(blob)?,
            Fault::LayerMissing => fs::remove_file(blob).map_err(|error| Error::io("remove", blob, error))?,
            Fault::LayerSizeUnderstated => {
                let size = descriptor["size"].as_u64().unwrap_or(0);
                descriptor["size"] = json!(size.saturating_sub(1));
            }
            Fault::LayerMediaTypeUnknown => {
                descriptor["mediaType"] = json!("application/vnd.example.not-a-layer");
            }
            Fault::LayerDigestIsPath => descriptor["digest"] = json!("sha256:../../escaped"),
            Fault::DiffIdWrong
            | Fault::DiffIdsMissing
            | Fault::ConfigAltered
            | Fault::ConfigMissing
            | Fault::ManifestAltered
            | Fault::ManifestNotJson
            | Fault::IndexEmpty => {}
        }
    }
    Ok(())
}

fn spoil_documents(image: &Image, blobs: &Path, config: &Blob, manifest: &Blob) -> Result<(), Error> {
    if image.has(Fault::ConfigAltered) {
        alter(&blobs.join(&config.hash))?;
    }
    if image.has(Fault::ConfigMissing) {
        let path = blobs.join(&config.hash);
        fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
    }
    if image.has(Fault::ManifestAltered) {
        alter(&blobs.join(&manifest.hash))?;
    }
    Ok(())
}

/// Changes the last byte, and with it the hash but not the size.
fn alter(path: &Path) -> Result<(), Error> {
    let mut bytes = fs::read(path).map_err(|error| Error::io("read", path, error))?;
    if let Some(last) = bytes.last_mut() {
        *last ^= 0x01;
    }
    write_file(path, &bytes)
}

fn truncate(path: &Path) -> Result<(), Error> {
    let file = File::options()
        .write(true)
        .open(path)
        .map_err(|error| Error::io("open", path, error))?;
    file.metadata()
        .and_then(|metadata| file.set_len(metadata.len() / 2))
        .map_err(|error| Error::io("shorten", path, error))
}

/// Writes a layer's blob; answers with it and the hash of its uncompressed tar.
fn write_layer(layer: &Layer, blobs: &Path) -> Result<(Blob, String), Error> {
    let unfinished = blobs.join(".layer");
    let failed = |error| Error::io("write layer", &unfinished, error);

    let file = File::create(&unfinished).map_err(failed)?;
    let compressed = Hashing::new(BufWriter::new(file));
    let (compressed, diff_id) = match layer.compression() {
        Compression::None => {
            let mut plain = Hashing::new(compressed);
            layer.write_tar(&mut plain).map_err(failed)?;
            let (compressed, hash, _) = plain.finish();
            (compressed, hash)
        }
        Compression::Gzip => {
            // Time 0 in the gzip header is flate2's default: the same tar gives the same bytes.
            let encoder = flate2::write::GzEncoder::new(compressed, flate2::Compression::fast());
            let mut plain = Hashing::new(encoder);
            layer.write_tar(&mut plain).map_err(failed)?;
            let (encoder, hash, _) = plain.finish();
            (encoder.finish().map_err(failed)?, hash)
        }
        Compression::Zstd => {
            let encoder = zstd::Encoder::new(compressed, 1).map_err(failed)?;
            let mut plain = Hashing::new(encoder);
            layer.write_tar(&mut plain).map_err(failed)?;
            let (encoder, hash, _) = plain.finish();
            (encoder.finish().map_err(failed)?, hash)
        }
    };
    let (mut file, hash, size) = compressed.finish();
    file.flush().map_err(failed)?;
    drop(file);
    let path = blobs.join(&hash);
    fs::rename(&unfinished, &path).map_err(|error| Error::io("name", &path, error))?;
    Ok((Blob { hash, size }, diff_id))
}

fn write_json(blobs: &Path, value: &Value) -> Result<Blob, Error> {
    write_blob(blobs, &to_bytes(value))
}

fn write_blob(blobs: &Path, bytes: &[u8]) -> Result<Blob, Error> {
    let hash = hex::encode(Sha256::digest(bytes));
    write_file(&blobs.join(&hash), bytes)?;
    Ok(Blob {
        hash,
        size: bytes.len() as u64,
    })
}

/// serde_json orders an object's keys (its `preserve_order` feature or not, the order is the same in every run).
fn to_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    fs::write(path, bytes).map_err(|error| Error::io("write", path, error))
}

fn remove_folder(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("remove", path, error)),
    }
}

/// Writes the layout as one tar: the index first, layers last, so that a reader can refuse before it has read much.
fn write_archive(image: &Image, layout: &Path, blobs: &Blobs, archive: &Path) -> Result<(String, u64), Error> {
    let mut entries = image.archive_entries.clone();
    for file in ["oci-layout", "index.json"] {
        entries.push(file_entry(file, layout.join(file)));
    }
    for folder in ["blobs/", "blobs/sha256/"] {
        entries.push(Entry::new(folder, 0o755, EntryKind::Directory));
    }
    for file in &blobs.files {
        let name = format!("blobs/sha256/{file}");
        entries.push(file_entry(&name, layout.join(&name)));
    }

    let failed = |error| Error::io("write", archive, error);
    let file = File::create(archive).map_err(failed)?;
    let mut out = Hashing::new(BufWriter::new(file));
    write_entries(&entries, &mut out).map_err(failed)?;
    let (_, hash, size) = out.finish();
    Ok((hash, size))
}

fn file_entry(name: &str, source: PathBuf) -> Entry {
    Entry::new(name, 0o644, EntryKind::File(Content::File(source)))
}

/// Passes bytes on, and hashes and counts them on the way.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Hashing<W> {
    fn new(inner: W) -> Self {
        Hashing {
            inner,
            hash: Sha256::new(),
            size: 0,
        }
    }

    fn finish(self) -> (W, String, u64) {
        (self.inner, hex::encode(self.hash.finalize()), self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn hashing_counts_what_went_through() {
        let mut out = Hashing::new(Vec::new());
        io::copy(&mut io::repeat(0).take(3), &mut out).expect("a vector takes bytes");
        let (bytes, hash, size) = out.finish();
        assert_eq!((bytes.len(), size), (3, 3));
        assert_eq!(hash, hex::encode(Sha256::digest([0, 0, 0])));
    }
}
