//! The catalogue of images that must be refused, each by name with what it attempts. A test walks the whole list, so
//! that an attack added here is at once tried against every reader of images.

use crate::error::Error;
use crate::image::{Fault, Image};
use crate::layer::{Compression, Content, Entry, EntryKind, Layer};
use crate::{busybox_layer, native_architecture};

/// The latest moment at which the image must have been refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// While the archive's own tar is read. An image pulled from a registry has no archive and does not show this.
    Archive,
    /// When index, manifest, config and digests are read.
    Verify,
    /// While layers are unpacked.
    Unpack,
    /// Before the job's first process runs.
    Start,
}

/// An image that must be refused.
#[derive(Debug, Clone)]
pub struct HostileImage {
    /// Stable name, snake case.
    pub name: &'static str,
    /// What it attempts, as a phrase: "writes beside the root with `..`".
    pub attempts: &'static str,
    /// When it must have been refused at the latest.
    pub refused_by: Stage,
    /// The image.
    pub image: Image,
}

/// What a hostile layer tries to create outside of its root. A test looks for this name everywhere around the root.
pub const ESCAPED: &str = "sela-escaped";

/// Every hostile image except the bombs, which depend on the reader's limits (see [`bomb`] and [`crowd`]).
///
/// # Errors
/// [`Error::NoStaticBusybox`]: each image is whole apart from its attack, so that nothing else can be what is refused.
pub fn all() -> Result<Vec<HostileImage>, Error> {
    let base = busybox_layer()?;
    let mut images = layers(&base);
    images.extend(configs(&base));
    images.extend(faults(&base));
    images.extend(archives(&base));
    Ok(images)
}

/// An image whose only layer unpacks to `bytes` of zeros from about a thousandth of that.
///
/// # Errors
/// [`Error::NoStaticBusybox`].
pub fn bomb(bytes: u64, compression: Compression) -> Result<Image, Error> {
    let layer = busybox_layer()?
        .content("bomb", 0o644, Content::Zeros(bytes))
        .compressed(compression);
    Ok(runnable(vec![layer]))
}

/// An image with `count` empty files.
///
/// # Errors
/// [`Error::NoStaticBusybox`].
pub fn crowd(count: u32) -> Result<Image, Error> {
    let crowd = (0..count).fold(Layer::new().directory("crowd"), |layer, number| {
        layer.raw(Entry::new(
            format!("crowd/{number}"),
            0o644,
            EntryKind::File(Content::Bytes(Vec::new())),
        ))
    });
    Ok(runnable(vec![busybox_layer()?, crowd]))
}

fn runnable(layers: Vec<Layer>) -> Image {
    Image::new(layers, ["/bin/true"])
}

fn file(path: impl Into<String>) -> Entry {
    Entry::new(path, 0o644, EntryKind::File(Content::Bytes(b"escaped\n".to_vec())))
}

fn symlink(path: &str, target: &str) -> Entry {
    Entry::new(path, 0o777, EntryKind::Symlink(target.to_owned()))
}

fn hard_link(path: &str, target: &str) -> Entry {
    Entry::new(path, 0o644, EntryKind::HardLink(target.to_owned()))
}

fn layers(base: &Layer) -> Vec<HostileImage> {
    let attacks: Vec<(&'static str, &'static str, Vec<Entry>)> = vec![
        (
            "parent_path",
            "writes beside the root with `..`",
            vec![file(format!("../{ESCAPED}"))],
        ),
        (
            "parent_path_inside",
            "climbs out with `..` in the middle of a path",
            vec![file(format!("bin/../../{ESCAPED}"))],
        ),
        (
            "absolute_path",
            "writes to an absolute path",
            vec![file(format!("/tmp/{ESCAPED}"))],
        ),
        (
            "hard_link_absolute",
            "links a file of the host into the image by its absolute path",
            vec![hard_link("stolen", "/etc/passwd")],
        ),
        (
            "hard_link_parent",
            "links a file of the host into the image with `..`",
            vec![hard_link("stolen", "../../../../../../../../../../../etc/passwd")],
        ),
        (
            "hard_link_through_symlink",
            "links a file of the host through a symbolic link of its own",
            vec![symlink("door", "/etc"), hard_link("stolen", "door/passwd")],
        ),
        (
            "hard_link_to_nothing",
            "links to an entry that does not exist",
            vec![hard_link("stolen", "nowhere")],
        ),
        (
            "write_through_absolute_symlink",
            "writes to the host through a symbolic link of its own",
            vec![symlink("door", "/tmp"), file(format!("door/{ESCAPED}"))],
        ),
        (
            "write_through_parent_symlink",
            "writes beside the root through a symbolic link of its own",
            vec![symlink("door", ".."), file(format!("door/{ESCAPED}"))],
        ),
        (
            "whiteout_of_parent",
            "removes the folder above the root with a whiteout of `..`",
            vec![file(".wh...")],
        ),
        (
            "whiteout_of_self",
            "removes the root itself with a whiteout of `.`",
            vec![file(".wh..")],
        ),
        (
            "whiteout_through_symlink",
            "removes a file of the host with a whiteout behind a symbolic link",
            vec![symlink("door", "/etc"), file("door/.wh.passwd")],
        ),
        (
            "character_device",
            "brings the machine's memory as a device node",
            vec![Entry::new("mem", 0o666, EntryKind::CharacterDevice(1, 1))],
        ),
        (
            "block_device",
            "brings the machine's first disk as a device node",
            vec![Entry::new("disk", 0o666, EntryKind::BlockDevice(8, 0))],
        ),
    ];
    let mut images: Vec<HostileImage> = attacks
        .into_iter()
        .map(|(name, attempts, entries)| HostileImage {
            name,
            attempts,
            refused_by: Stage::Unpack,
            image: runnable(vec![base.clone(), entries.into_iter().fold(Layer::new(), Layer::raw)]),
        })
        .collect();
    images.push(HostileImage {
        name: "symlink_in_lower_layer",
        attempts: "plants a symbolic link in one layer and writes through it in the next",
        refused_by: Stage::Unpack,
        image: runnable(vec![
            base.clone(),
            Layer::new().raw(symlink("door", "/tmp")),
            Layer::new().raw(file(format!("door/{ESCAPED}"))),
        ]),
    });
    images.push(HostileImage {
        name: "layer_is_no_tar",
        attempts: "brings text where a layer's tar should be",
        refused_by: Stage::Unpack,
        image: runnable(vec![base.clone(), Layer::verbatim("this is not a tar\n".repeat(100))]),
    });
    images.push(HostileImage {
        name: "path_too_deep",
        attempts: "nests folders until no path can name them",
        refused_by: Stage::Unpack,
        image: runnable(vec![
            base.clone(),
            Layer::new().raw(file(format!("{}bottom", "deep/".repeat(4000)))),
        ]),
    });
    images
}

fn configs(base: &Layer) -> Vec<HostileImage> {
    let honest = runnable(vec![base.clone()]);
    let other_architecture = if native_architecture() == "arm64" {
        "amd64"
    } else {
        "arm64"
    };
    vec![
        HostileImage {
            name: "other_architecture",
            attempts: "is built for another processor",
            refused_by: Stage::Verify,
            image: Image {
                architecture: other_architecture.to_owned(),
                ..honest.clone()
            },
        },
        HostileImage {
            name: "other_system",
            attempts: "is built for another operating system",
            refused_by: Stage::Verify,
            image: Image {
                os: "windows".to_owned(),
                ..honest.clone()
            },
        },
        HostileImage {
            name: "no_entrypoint",
            attempts: "names no program to start",
            refused_by: Stage::Start,
            image: Image {
                entrypoint: Vec::new(),
                ..honest.clone()
            },
        },
        HostileImage {
            name: "entrypoint_missing",
            attempts: "names a program that is not in it",
            refused_by: Stage::Start,
            image: Image {
                entrypoint: vec!["/bin/not-there".to_owned()],
                ..honest
            },
        },
    ]
}

fn faults(base: &Layer) -> Vec<HostileImage> {
    let table = [
        (
            "layer_altered",
            "has a layer whose bytes are not those of its digest",
            Fault::LayerContentAltered,
        ),
        ("layer_truncated", "has a layer that ends early", Fault::LayerTruncated),
        ("layer_missing", "lacks a layer", Fault::LayerMissing),
        (
            "layer_size_understated",
            "claims a layer is smaller than it is",
            Fault::LayerSizeUnderstated,
        ),
        (
            "layer_media_type_unknown",
            "has a layer of an unknown kind",
            Fault::LayerMediaTypeUnknown,
        ),
        (
            "layer_digest_is_path",
            "names a layer by a path in place of a digest",
            Fault::LayerDigestIsPath,
        ),
        (
            "diff_id_wrong",
            "has a config that names another content for its layer",
            Fault::DiffIdWrong,
        ),
        (
            "diff_ids_missing",
            "has a config that names no content for its layers",
            Fault::DiffIdsMissing,
        ),
        (
            "config_altered",
            "has a config whose bytes are not those of its digest",
            Fault::ConfigAltered,
        ),
        ("config_missing", "lacks its config", Fault::ConfigMissing),
        (
            "manifest_altered",
            "has a manifest whose bytes are not those of its digest",
            Fault::ManifestAltered,
        ),
        (
            "manifest_not_json",
            "has text where its manifest should be",
            Fault::ManifestNotJson,
        ),
        ("index_empty", "has an index without a manifest", Fault::IndexEmpty),
    ];
    table
        .into_iter()
        .map(|(name, attempts, fault)| HostileImage {
            name,
            attempts,
            // A layer's digest is only known to be wrong once the layer has been read, which may be while unpacking.
            refused_by: Stage::Unpack,
            image: runnable(vec![base.clone()]).with_fault(fault),
        })
        .collect()
}

fn archives(base: &Layer) -> Vec<HostileImage> {
    let attacks: Vec<(&'static str, &'static str, Vec<Entry>)> = vec![
        (
            "archive_parent_path",
            "has an archive entry beside the archive's root",
            vec![file(format!("../{ESCAPED}"))],
        ),
        (
            "archive_absolute_path",
            "has an archive entry with an absolute path",
            vec![file(format!("/tmp/{ESCAPED}"))],
        ),
        (
            "archive_symlink",
            "has an archive whose blobs folder is a symbolic link to the host",
            vec![symlink("blobs", "/tmp")],
        ),
        (
            "archive_hard_link",
            "has an archive that links a file of the host",
            vec![hard_link("blobs/sha256/stolen", "/etc/passwd")],
        ),
    ];
    attacks
        .into_iter()
        .map(|(name, attempts, archive_entries)| HostileImage {
            name,
            attempts,
            refused_by: Stage::Archive,
            image: Image {
                archive_entries,
                ..runnable(vec![base.clone()])
            },
        })
        .collect()
}
