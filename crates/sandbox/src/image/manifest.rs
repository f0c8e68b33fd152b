//! Reads indexes, manifests and configs (OCI image specification 1.1, and Docker's equal ones). Functions over bytes:
//! fetching them and comparing digests is done before, by who brings the bytes.

use sela_protocol::blob::BlobId;
use serde::Deserialize;

use super::error::{ImageError, Part};

/// The largest index, manifest or config that is read: 4 MiB, as registries accept.
pub const LARGEST_DOCUMENT: u64 = 4 << 20;

/// overlayfs takes its lower directories in one mount option of a page; Docker stops at 127 layers too.
const MOST_LAYERS: usize = 127;

/// Where a blob is and how large.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it holds.
    #[serde(default)]
    pub media_type: String,
    /// Its address.
    pub digest: BlobId,
    /// Its size in bytes.
    pub size: u64,
    /// For which machine, in an index.
    #[serde(default)]
    pub platform: Option<Platform>,
}

/// A processor and operating system, in Go's names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// Such as `amd64`.
    pub architecture: String,
    /// Such as `linux`.
    pub os: String,
}

/// How a layer's tar is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

/// One layer of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The blob's address.
    pub digest: BlobId,
    /// The blob's size in bytes.
    pub size: u64,
    /// How it is compressed.
    pub compression: Compression,
}

/// A manifest: the config and the layers, lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The config's descriptor.
    pub config: Descriptor,
    /// Lowest first.
    pub layers: Vec<Layer>,
}

/// What a digest that names an image can lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// A list of manifests, one per platform.
    Index(Vec<Descriptor>),
    /// The manifest itself.
    Manifest(Manifest),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: u32,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

impl Document {
    /// Reads an index or a manifest.
    ///
    /// # Errors
    /// [`ImageError::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let broken = |reason: &str| ImageError::malformed(Part::Manifest, reason);
        let raw: RawDocument =
            serde_json::from_slice(bytes).map_err(|error| ImageError::malformed(Part::Manifest, error))?;
        if raw.schema_version != 2 {
            return Err(broken("it is not of schema version 2"));
        }
        match (raw.manifests, raw.config, raw.layers) {
            (Some(manifests), None, None) => Ok(Self::Index(manifests)),
            (None, Some(config), Some(layers)) => Ok(Self::Manifest(Manifest {
                config,
                layers: read_layers(&layers)?,
            })),
            // Both at once could mean one image to us and another to who looked at it before (CVE-2021-41190).
            (Some(_), _, _) => Err(broken("it is an index and a manifest at once")),
            (None, _, _) => Err(broken("it has neither manifests nor config and layers")),
        }
    }
}

fn read_layers(layers: &[Descriptor]) -> Result<Vec<Layer>, ImageError> {
    if layers.is_empty() || layers.len() > MOST_LAYERS {
        let reason = format!("it has {} layers; 1 to {MOST_LAYERS} can be stacked", layers.len());
        return Err(ImageError::malformed(Part::Manifest, reason));
    }
    layers
        .iter()
        .map(|layer| {
            let compression = compression_of(&layer.media_type).ok_or_else(|| {
                let reason = format!(
                    "\"{}\" is no kind of layer that can be unpacked",
                    layer.media_type.escape_debug()
                );
                ImageError::malformed(Part::Layer(layer.digest), reason)
            })?;
            Ok(Layer {
                digest: layer.digest,
                size: layer.size,
                compression,
            })
        })
        .collect()
}

fn compression_of(media_type: &str) -> Option<Compression> {
    match media_type {
        "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
            Some(Compression::Plain)
        }
        "application/vnd.oci.image.layer.v1.tar+gzip" | "application/vnd.docker.image.rootfs.diff.tar.gzip" => {
            Some(Compression::Gzip)
        }
        "application/vnd.oci.image.layer.v1.tar+zstd" | "application/vnd.docker.image.rootfs.diff.tar.zstd" => {
            Some(Compression::Zstd)
        }
        _ => None,
    }
}

/// The OCI (Go) name of the architecture that this program runs on.
pub fn machine_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Chooses the manifest for this machine.
///
/// # Errors
/// [`ImageError::OtherPlatform`] names what the image offers instead; [`ImageError::Malformed`] where it offers nothing.
pub fn choose_manifest(index: &[Descriptor]) -> Result<&Descriptor, ImageError> {
    let machine = machine_architecture();
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == machine;
    if let Some(found) = index.iter().find(|entry| entry.platform.as_ref().is_some_and(fits)) {
        return Ok(found);
    }
    // Attestations and the like stand beside images under a platform that nobody has.
    let is_image = |entry: &&Descriptor| entry.platform.as_ref().is_none_or(|platform| platform.os != "unknown");
    let mut images = index.iter().filter(is_image);
    // Without a platform the config decides, as long as there is no choice to make.
    if let (Some(only), None) = (images.next(), images.next())
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let mut offered: Vec<String> = index
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .filter(|platform| platform.os != "unknown")
        .map(platform_name)
        .collect();
    offered.dedup();
    if offered.is_empty() {
        return Err(ImageError::malformed(
            Part::Index,
            "it names no manifest with a platform",
        ));
    }
    Err(ImageError::OtherPlatform {
        image: offered.join(", "),
        machine,
    })
}

fn platform_name(platform: &Platform) -> String {
    let (os, architecture) = (platform.os.escape_debug(), platform.architecture.escape_debug());
    if platform.os == "linux" {
        architecture.to_string()
    } else {
        format!("{os}/{architecture}")
    }
}

/// What a config says, its user still as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `Entrypoint`: starts the program; a job's command never replaces it.
    pub entrypoint: Vec<String>,
    /// `Cmd`: follows the entrypoint unless the job brings its own.
    pub command: Vec<String>,
    /// `Env`, in order.
    pub environment: Vec<(String, String)>,
    /// `WorkingDir`: absolute; `/` where the image says nothing.
    pub working_directory: String,
    /// `User`, as written.
    pub user: String,
    /// Hash of each layer's uncompressed tar, lowest first.
    pub diff_ids: Vec<BlobId>,
}

#[derive(Deserialize)]
struct RawConfig {
    architecture: String,
    os: String,
    #[serde(default)]
    config: Option<RawRun>,
    rootfs: RawRootfs,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawRun {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Option<Vec<BlobId>>,
}

impl Config {
    /// Reads the config of a manifest with `layers` layers and checks that it is for this machine.
    ///
    /// # Errors
    /// [`ImageError::OtherPlatform`], [`ImageError::Malformed`].
    pub fn parse(bytes: &[u8], layers: usize) -> Result<Self, ImageError> {
        let broken = |reason: String| ImageError::malformed(Part::Config, reason);
        let raw: RawConfig =
            serde_json::from_slice(bytes).map_err(|error| ImageError::malformed(Part::Config, error))?;
        let machine = machine_architecture();
        if raw.os != "linux" || raw.architecture != machine {
            let platform = Platform {
                architecture: raw.architecture,
                os: raw.os,
            };
            return Err(ImageError::OtherPlatform {
                image: platform_name(&platform),
                machine,
            });
        }
        let diff_ids = raw.rootfs.diff_ids.unwrap_or_default();
        if diff_ids.len() != layers {
            return Err(broken(format!(
                "it names {} layers, the manifest {layers}",
                diff_ids.len()
            )));
        }
        let run = raw.config.unwrap_or_default();
        let config = Self {
            entrypoint: run.entrypoint.unwrap_or_default(),
            command: run.cmd.unwrap_or_default(),
            environment: run
                .env
                .unwrap_or_default()
                .iter()
                .map(|line| read_variable(line))
                .collect::<Result<_, _>>()?,
            working_directory: run
                .working_dir
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| "/".to_owned()),
            user: run.user.unwrap_or_default(),
            diff_ids,
        };
        if !config.working_directory.starts_with('/') {
            return Err(broken(format!(
                "WorkingDir \"{}\" is not absolute",
                config.working_directory.escape_debug()
            )));
        }
        let variables = config.environment.iter().flat_map(|(name, value)| [name, value]);
        let texts = config
            .entrypoint
            .iter()
            .chain(&config.command)
            .chain([&config.working_directory])
            .chain(variables);
        // exec takes C strings: what follows a zero would be lost in silence.
        if texts.into_iter().any(|text| text.contains('\0')) {
            return Err(broken("a text in it holds a zero byte".to_owned()));
        }
        Ok(config)
    }
}

fn read_variable(line: &str) -> Result<(String, String), ImageError> {
    match line.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => {
            let reason = format!("Env \"{}\" is not NAME=value", line.escape_debug());
            Err(ImageError::malformed(Part::Config, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn digest() -> String {
        BlobId::of(b"blob").to_string()
    }

    fn descriptor(media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": digest(), "size": 4 })
    }

    fn check_document(value: &Value, expected: Result<usize, &str>) {
        let parsed = Document::parse(value.to_string().as_bytes());
        match (parsed, expected) {
            (Ok(Document::Manifest(manifest)), Ok(layers)) => assert_eq!(manifest.layers.len(), layers, "{value}"),
            (Ok(Document::Index(index)), Ok(entries)) => assert_eq!(index.len(), entries, "{value}"),
            (Err(error), Err(sentence)) => assert!(error.to_string().contains(sentence), "{value}: {error}"),
            (parsed, expected) => panic!("{value}: {parsed:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_document_is_an_index_or_a_manifest_and_never_both() {
        let gzip = descriptor("application/vnd.oci.image.layer.v1.tar+gzip");
        let config = descriptor("application/vnd.oci.image.config.v1+json");
        let layers = |layers: Vec<Value>| json!({ "schemaVersion": 2, "config": config, "layers": layers });
        check_document(&layers(vec![gzip.clone(), gzip.clone()]), Ok(2));
        check_document(&json!({ "schemaVersion": 2, "manifests": [gzip] }), Ok(1));
        check_document(
            &json!({ "schemaVersion": 2, "manifests": [], "config": config, "layers": [] }),
            Err("at once"),
        );
        check_document(
            &json!({ "schemaVersion": 2, "manifests": [], "layers": [] }),
            Err("at once"),
        );
        check_document(&json!({ "schemaVersion": 2 }), Err("neither"));
        check_document(
            &json!({ "schemaVersion": 1, "config": config, "layers": [] }),
            Err("schema version"),
        );
        check_document(&json!({ "config": config, "layers": [] }), Err("schemaVersion"));
        check_document(&layers(vec![]), Err("has 0 layers"));
        check_document(&layers(vec![gzip; 128]), Err("has 128 layers"));
        check_document(&layers(vec![descriptor("text/plain")]), Err("no kind of layer"));
        check_document(
            &layers(vec![json!({ "digest": "sha256:../../x", "size": 1 })]),
            Err("blob address"),
        );
        check_document(&layers(vec![json!({ "digest": digest(), "size": -1 })]), Err("-1"));
    }

    fn entry(platform: Option<(&str, &str)>) -> Descriptor {
        let platform = platform.map(|(os, architecture)| Platform {
            architecture: architecture.into(),
            os: os.into(),
        });
        Descriptor {
            media_type: String::new(),
            digest: BlobId::of(b"blob"),
            size: 4,
            platform,
        }
    }

    fn check_choice(index: &[Descriptor], expected: Result<usize, &str>) {
        match (choose_manifest(index), expected) {
            (Ok(found), Ok(place)) => assert!(std::ptr::eq(found, &raw const index[place]), "{index:?}"),
            (Err(error), Err(sentence)) => assert!(error.to_string().contains(sentence), "{error}"),
            (chosen, expected) => panic!("{index:?}: {chosen:?}, not {expected:?}"),
        }
    }

    #[test]
    fn the_manifest_of_this_machine_is_chosen() {
        let (mine, other) = match machine_architecture() {
            "arm64" => ("arm64", "amd64"),
            mine => (mine, "arm64"),
        };
        check_choice(&[entry(Some(("linux", other))), entry(Some(("linux", mine)))], Ok(1));
        check_choice(&[entry(None)], Ok(0));
        let refused = format!("the image is for {other}, this node is {mine}: build it for linux/{mine}");
        check_choice(
            &[entry(Some(("linux", other))), entry(Some(("unknown", "unknown")))],
            Err(&refused),
        );
        check_choice(&[entry(Some(("windows", mine)))], Err("image is for windows/"));
        check_choice(&[entry(Some(("unknown", "unknown"))), entry(None)], Ok(1));
        check_choice(&[entry(Some(("unknown", "unknown")))], Err("names no manifest"));
        check_choice(&[entry(None), entry(None)], Err("names no manifest"));
        check_choice(&[], Err("names no manifest"));
    }

    fn check_config(change: impl FnOnce(&mut Value), expected: Result<(), &str>) {
        let mut value = json!({
            "architecture": machine_architecture(), "os": "linux",
            "config": { "Env": ["A=b=c"], "Entrypoint": ["/run"], "Cmd": null, "WorkingDir": "", "User": "1:2" },
            "rootfs": { "type": "layers", "diff_ids": [digest()] },
        });
        change(&mut value);
        match (Config::parse(value.to_string().as_bytes(), 1), expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(sentence)) => assert!(error.to_string().contains(sentence), "{value}: {error}"),
            (parsed, expected) => panic!("{value}: {parsed:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_config_is_read_or_refused_with_the_field_at_fault() {
        check_config(|_| {}, Ok(()));
        check_config(|config| config["config"] = Value::Null, Ok(()));
        check_config(
            |config| config["architecture"] = json!("sparc"),
            Err("the image is for sparc, this node is"),
        );
        check_config(|config| config["os"] = json!("windows"), Err("image is for windows/"));
        check_config(
            |config| config["rootfs"]["diff_ids"] = json!([]),
            Err("names 0 layers, the manifest 1"),
        );
        check_config(
            |config| config["rootfs"]["diff_ids"] = json!(["md5:0"]),
            Err("blob address"),
        );
        check_config(|config| config["config"]["Env"] = json!(["A"]), Err("not NAME=value"));
        check_config(
            |config| config["config"]["WorkingDir"] = json!("here"),
            Err("not absolute"),
        );
        check_config(|config| config["config"]["Cmd"] = json!(["a\u{0}b"]), Err("zero byte"));
        check_config(|config| config["config"]["Cmd"] = json!("sh"), Err("invalid type"));
    }
}
