//! What is written is what the OCI image specification says, and the same every time. Reads with the plain `tar` and
//! `serde_json` crates, apart from the writer's own code.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use sela_oci_images::{
    Compression, Content, Entry, EntryKind, Fault, Image, ImageOnDisk, Layer, busybox_script, hostile, write,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn written(image: &Image) -> (tempfile::TempDir, ImageOnDisk) {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = write(image, folder.path()).unwrap();
    (folder, on_disk)
}

fn blob(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap();
    let hash = digest.strip_prefix("sha256:").unwrap();
    let bytes = fs::read(layout.join("blobs/sha256").join(hash)).unwrap();
    assert_eq!(sha256(&bytes), hash, "the blob's name is its hash");
    assert_eq!(bytes.len() as u64, descriptor["size"].as_u64().unwrap());
    bytes
}

fn manifest_of(image: &ImageOnDisk) -> Value {
    let index: Value = serde_json::from_slice(&fs::read(image.layout.join("index.json")).unwrap()).unwrap();
    let descriptor = &index["manifests"][0];
    assert_eq!(descriptor["digest"], image.manifest_digest.as_str());
    serde_json::from_slice(&blob(&image.layout, descriptor)).unwrap()
}

fn unpacked_tar(media_type: &str, bytes: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    if media_type.ends_with("+gzip") {
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut tar).unwrap();
    } else if media_type.ends_with("+zstd") {
        tar = zstd::decode_all(bytes).unwrap();
    } else {
        tar = bytes.to_vec();
    }
    tar
}

/// Name → (type, link target) of every entry.
fn listing(tar: &[u8]) -> Vec<(String, tar::EntryType, String)> {
    tar::Archive::new(tar)
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let link = entry
                .link_name_bytes()
                .map(|name| String::from_utf8_lossy(&name).into_owned());
            (
                String::from_utf8_lossy(&entry.path_bytes()).into_owned(),
                entry.header().entry_type(),
                link.unwrap_or_default(),
            )
        })
        .collect()
}

fn three_layers() -> Image {
    let layer = |name: &str| Layer::new().file(&format!("opt/sela/{name}"), 0o644, name);
    Image::new(
        vec![
            layer("gzip"),
            layer("zstd").compressed(Compression::Zstd),
            layer("plain").compressed(Compression::None),
        ],
        ["/opt/sela/program", "--flag"],
    )
}

#[test]
fn every_digest_size_and_content_hash_is_right() {
    let (_folder, image) = written(&three_layers());
    let manifest = manifest_of(&image);
    let config: Value = serde_json::from_slice(&blob(&image.layout, &manifest["config"])).unwrap();
    assert_eq!(
        config["config"]["Entrypoint"],
        serde_json::json!(["/opt/sela/program", "--flag"])
    );
    assert_eq!(config["config"]["User"], "65534:65534");

    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3);
    for (index, layer) in layers.iter().enumerate() {
        let tar = unpacked_tar(layer["mediaType"].as_str().unwrap(), &blob(&image.layout, layer));
        assert_eq!(config["rootfs"]["diff_ids"][index], format!("sha256:{}", sha256(&tar)));
        let names: Vec<String> = listing(&tar).into_iter().map(|entry| entry.0).collect();
        assert_eq!(names[..2], ["opt/", "opt/sela/"]);
    }
}

#[test]
fn the_archive_holds_the_same_files_as_the_layout() {
    let (_folder, image) = written(&three_layers());
    let bytes = fs::read(&image.archive).unwrap();
    assert_eq!(sha256(&bytes), image.archive_sha256);
    assert_eq!(bytes.len() as u64, image.bytes);

    let mut in_archive = BTreeMap::new();
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.header().entry_type().is_file() {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            in_archive.insert(entry.path().unwrap().into_owned(), content);
        }
    }
    let mut on_disk: BTreeSet<_> = fs::read_dir(image.layout.join("blobs/sha256"))
        .unwrap()
        .map(|file| Path::new("blobs/sha256").join(file.unwrap().file_name()))
        .collect();
    on_disk.extend(["oci-layout".into(), "index.json".into()]);
    assert_eq!(in_archive.keys().cloned().collect::<BTreeSet<_>>(), on_disk);
    for (path, content) in in_archive {
        assert_eq!(content, fs::read(image.layout.join(path)).unwrap());
    }
}

#[test]
fn the_same_parts_give_the_same_image() {
    let (_first, first) = written(&three_layers());
    let (_second, second) = written(&three_layers());
    assert_eq!(first.manifest_digest, second.manifest_digest);
    assert_eq!(first.archive_sha256, second.archive_sha256);
}

#[test]
fn writing_again_replaces_what_stood_there() {
    let folder = tempfile::tempdir().unwrap();
    write(&three_layers(), folder.path()).unwrap();
    let second = write(
        &Image::new(vec![Layer::new().directory("empty")], ["/x"]),
        folder.path(),
    )
    .unwrap();
    assert_eq!(manifest_of(&second)["layers"].as_array().unwrap().len(), 1);
    let blobs = fs::read_dir(second.layout.join("blobs/sha256")).unwrap();
    assert_eq!(blobs.count(), 3, "manifest, config and one layer");
}

#[test]
fn a_part_that_is_missing_is_named_and_leaves_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let layer = Layer::new().content("model", 0o644, Content::File("/not/there.gguf".into()));
    let error = write(&Image::new(vec![layer], ["/x"]), folder.path()).unwrap_err();
    assert!(error.to_string().contains("/not/there.gguf"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn names_too_long_for_a_header_survive() {
    let long = format!("{}end", "folder/".repeat(40));
    let layer = Layer::new().raw(Entry::new(long.clone(), 0o777, EntryKind::Symlink(long.clone())));
    let (_folder, image) = written(&Image::new(vec![layer.compressed(Compression::None)], ["/x"]));
    let manifest = manifest_of(&image);
    let entries = listing(&blob(&image.layout, &manifest["layers"][0]));
    assert_eq!(entries, [(long.clone(), tar::EntryType::Symlink, long)]);
}

#[test]
fn whiteouts_are_written_as_the_specification_names_them() {
    let layer = Layer::new().whiteout("etc/motd").whiteout("top").opaque("var");
    let (_folder, image) = written(&Image::new(vec![layer], ["/x"]));
    let manifest = manifest_of(&image);
    let tar = unpacked_tar("+gzip", &blob(&image.layout, &manifest["layers"][0]));
    let names: Vec<String> = listing(&tar).into_iter().map(|entry| entry.0).collect();
    assert_eq!(names, ["etc/", "etc/.wh.motd", ".wh.top", "var/", "var/.wh..wh..opq"]);
}

#[test]
fn the_busybox_image_holds_a_shell() {
    let (_folder, image) = written(&busybox_script("echo hello").unwrap());
    let manifest = manifest_of(&image);
    let tar = unpacked_tar("+gzip", &blob(&image.layout, &manifest["layers"][0]));
    let entries = listing(&tar);
    assert!(entries.contains(&("bin/sh".to_owned(), tar::EntryType::Symlink, "busybox".to_owned())));
    assert!(entries.iter().any(|entry| entry.0 == "bin/busybox"));
}

#[test]
fn hostile_names_stand_in_the_tar_exactly_as_given() {
    let images = hostile::all().unwrap();
    let names: BTreeSet<_> = images.iter().map(|image| image.name).collect();
    assert_eq!(names.len(), images.len(), "names are unique");

    let last_entries = |name: &str| {
        let hostile = images.iter().find(|image| image.name == name).unwrap();
        let (_folder, image) = written(&hostile.image);
        let manifest = manifest_of(&image);
        let layers = manifest["layers"].as_array().unwrap();
        let layer = layers.last().unwrap();
        listing(&unpacked_tar("+gzip", &blob(&image.layout, layer)))
    };
    assert_eq!(last_entries("parent_path")[0].0, format!("../{}", hostile::ESCAPED));
    assert_eq!(last_entries("absolute_path")[0].0, format!("/tmp/{}", hostile::ESCAPED));
    assert_eq!(
        last_entries("hard_link_absolute")[0],
        ("stolen".to_owned(), tar::EntryType::Link, "/etc/passwd".to_owned())
    );
    assert_eq!(last_entries("character_device")[0].1, tar::EntryType::Char);
}

#[test]
fn every_hostile_image_can_be_written() {
    for hostile in hostile::all().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        write(&hostile.image, folder.path()).unwrap_or_else(|error| panic!("{}: {error}", hostile.name));
    }
}

#[test]
fn a_fault_breaks_exactly_what_it_says() {
    let honest = three_layers();
    let (_folder, image) = written(&honest.clone().with_fault(Fault::LayerContentAltered));
    let manifest = manifest_of(&image);
    let altered = manifest["layers"][0]["digest"].as_str().unwrap();
    let hash = altered.strip_prefix("sha256:").unwrap();
    let bytes = fs::read(image.layout.join("blobs/sha256").join(hash)).unwrap();
    assert_ne!(sha256(&bytes), hash);
    assert_eq!(bytes.len() as u64, manifest["layers"][0]["size"].as_u64().unwrap());
    blob(&image.layout, &manifest["layers"][1]);
    blob(&image.layout, &manifest["config"]);

    let (_folder, image) = written(&honest.with_fault(Fault::DiffIdWrong));
    let manifest = manifest_of(&image);
    let config: Value = serde_json::from_slice(&blob(&image.layout, &manifest["config"])).unwrap();
    let tar = unpacked_tar("+gzip", &blob(&image.layout, &manifest["layers"][0]));
    assert_ne!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(&tar)));
}

#[test]
fn a_bomb_is_small_on_disk_and_large_unpacked() {
    let size = 64 * 1024 * 1024;
    let (_folder, image) = written(&hostile::bomb(size, Compression::Gzip).unwrap());
    let packed = File::open(&image.archive).unwrap().metadata().unwrap().len();
    assert!(packed < size / 10, "{packed} bytes");
    let manifest = manifest_of(&image);
    let tar = unpacked_tar("+gzip", &blob(&image.layout, &manifest["layers"][0]));
    assert!(tar.len() as u64 > size);
}
