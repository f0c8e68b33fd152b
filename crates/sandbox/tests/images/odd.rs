//! Honest images of unusual builders: numbers and names in pax form and in base 256, hard links to what a lower layer holds,
//! indexes without a platform or with attestations beside the image.

use std::fs;
use std::os::unix::fs::MetadataExt;

use sela_oci_images::{Compression, Content, Entry, EntryKind, Image, ImageOnDisk, Layer};
use sela_protocol::blob::BlobId;
use sela_sandbox::image::{ImageReference, PreparedImage};
use serde_json::{Value, json};

use crate::registry::blob_path;
use crate::workbench::{
    OWNERS, Workbench, archive_reference, image, prepare_archive, prepare_archive_as, prepare_known,
    skipped_without_root,
};

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

async fn unpacked(tar: tar::Builder<Vec<u8>>) -> (Workbench, Result<PreparedImage, String>) {
    let bench = Workbench::new();
    let cache = bench.cache();
    let layer = Layer::verbatim(tar.into_inner().unwrap()).compressed(Compression::Zstd);
    let written = bench.write(&image(vec![layer]));
    let ready = prepare_archive(&cache, &written)
        .await
        .map_err(|error| error.to_string());
    (bench, ready)
}

#[tokio::test]
async fn owners_sizes_and_names_are_read_in_pax_form_and_in_base_256() {
    if skipped_without_root("owners_sizes_and_names_are_read_in_pax_form_and_in_base_256") {
        return;
    }
    let long = format!("{}/{}", "folder".repeat(30), "name".repeat(50));
    let mut tar = tar::Builder::new(Vec::new());
    let in_pax = [
        ("uid", &b"1234"[..]),
        ("gid", b"4321"),
        ("size", b"7"),
        ("path", long.as_bytes()),
    ];
    tar.append_pax_extensions(in_pax).unwrap();
    // The header says nothing of this; its size counts for readers that know no pax form.
    let mut short = header(7);
    short.set_path("short").unwrap();
    short.set_cksum();
    tar.append(&short, &b"content"[..]).unwrap();

    let mut big = header(0);
    big.set_path("base-256").unwrap();
    let old = big.as_old_mut();
    // GNU: the highest bit of the first byte, then a big-endian number.
    old.size = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    old.uid = [0x80, 0, 0, 0, 0, 0, 0x03, 0xe8];
    big.set_cksum();
    tar.append(&big, &b"bytes"[..]).unwrap();

    let (_bench, ready) = unpacked(tar).await;
    let ready = ready.unwrap();
    let root = &ready.layers[0];
    let seen = |path: &str| {
        let found = fs::symlink_metadata(root.join(path)).unwrap();
        (found.len(), found.uid() - OWNERS.first, found.gid() - OWNERS.first)
    };
    assert_eq!(seen(&long), (7, 1234, 4321));
    assert_eq!(seen("base-256"), (5, 1000, 0));
    assert!(!root.join("short").exists());

    let mut outside = tar::Builder::new(Vec::new());
    outside.append_pax_extensions([("uid", &b"70000"[..])]).unwrap();
    let mut entry = header(0);
    entry.set_path("var/mail").unwrap();
    entry.set_cksum();
    outside.append(&entry, &b""[..]).unwrap();
    let (_bench, refused) = unpacked(outside).await;
    let sentence = "\"var/mail\" in the image belongs to id 70000, and this machine maps only ids below 65536";
    assert!(refused.as_ref().unwrap_err().contains(sentence), "{refused:?}");
}

/// A lower layer with one file, and the layer that links to it.
fn linking(content: &str) -> Image {
    let file = Entry {
        uid: 5,
        gid: 6,
        ..Entry::new("lib/real", 0o640, EntryKind::File(Content::Bytes(content.into())))
    };
    let upper = Layer::new()
        .hard_link("lib/alias", "lib/real")
        .hard_link("bin/other", "lib/real");
    image(vec![
        Layer::new().raw(file),
        Layer::new().file("between", 0o644, "x"),
        upper,
    ])
}

#[tokio::test]
async fn a_hard_link_to_a_lower_layers_file_becomes_a_copy_for_this_stack_alone() {
    if skipped_without_root("a_hard_link_to_a_lower_layers_file_becomes_a_copy_for_this_stack_alone") {
        return;
    }
    let bench = Workbench::new();
    let cache = bench.cache();
    let (mine, theirs) = (bench.write(&linking("mine")), bench.write(&linking("theirs")));
    let my_ready = prepare_archive(&cache, &mine).await.unwrap();
    let their_ready = prepare_archive(&cache, &theirs).await.unwrap();
    for (ready, content) in [(&my_ready, "mine"), (&their_ready, "theirs")] {
        let upper = &ready.layers[2];
        let found = fs::metadata(upper.join("lib/alias")).unwrap();
        assert_eq!(fs::read_to_string(upper.join("lib/alias")).unwrap(), content);
        let owner = (
            found.mode() & 0o7777,
            found.uid() - OWNERS.first,
            found.gid() - OWNERS.first,
        );
        assert_eq!(owner, (0o640, 5, 6));
        assert_eq!(
            found.ino(),
            fs::metadata(upper.join("bin/other")).unwrap().ino(),
            "still one file"
        );
        let lower = fs::metadata(ready.layers[0].join("lib/real")).unwrap();
        assert!(
            lower.nlink() == 1 && lower.ino() != found.ino(),
            "what images share is linked to by none"
        );
    }
    assert_ne!(my_ready.layers[2], their_ready.layers[2], "one layer, two stacks");
    assert_eq!(my_ready.layers[1], their_ready.layers[1], "what is the same is shared");
    // Each is found again in the cache, also as a part of a new image.
    assert_eq!(prepare_known(&cache, &mine).await.layers, my_ready.layers);
    let renamed = bench.write(&Image {
        command: vec!["--more".to_owned()],
        ..linking("mine")
    });
    assert_eq!(prepare_archive(&cache, &renamed).await.unwrap().layers, my_ready.layers);
}

#[tokio::test]
async fn a_hard_link_finds_no_file_that_layers_between_have_hidden() {
    if skipped_without_root("a_hard_link_finds_no_file_that_layers_between_have_hidden") {
        return;
    }
    let hidings = [
        Layer::new().whiteout("lib/real"),
        Layer::new().whiteout("lib"),
        Layer::new().opaque("lib"),
        Layer::new().symlink("lib", "/etc"),
        Layer::new().symlink("lib/real", "/etc/passwd"),
        Layer::new().directory("lib/real"),
    ];
    for hiding in hidings {
        let bench = Workbench::new();
        let mut image = linking("hidden");
        image.layers[1] = hiding;
        let error = prepare_archive(&bench.cache(), &bench.write(&image)).await.unwrap_err();
        let sentence = "is a hard link to what neither this layer before it nor one below holds";
        assert!(error.to_string().contains(sentence), "{error}");
        assert_eq!(fs::read_dir(bench.cache_path().join("layers")).unwrap().count(), 0);
    }
}

/// What an index lists, made of its one honest entry.
type Entries<'a> = &'a dyn Fn(Value) -> Vec<Value>;

/// The same archive with another index.
fn with_index(image: &mut ImageOnDisk, entries: impl Fn(Value) -> Vec<Value>) -> ImageReference {
    let mut index: Value = serde_json::from_slice(&fs::read(image.layout.join("index.json")).unwrap()).unwrap();
    let own = index["manifests"][0].clone();
    index["manifests"] = Value::Array(entries(own));
    let mut tar = tar::Builder::new(Vec::new());
    let mut append = |name: &str, bytes: &[u8]| {
        let mut header = header(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes).unwrap();
    };
    append("index.json", index.to_string().as_bytes());
    for entry in fs::read_dir(image.layout.join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("blobs/sha256/{}", path.file_name().unwrap().to_str().unwrap());
        append(&name, &fs::read(path).unwrap());
    }
    let bytes = tar.into_inner().unwrap();
    image.archive_sha256 = BlobId::of(&bytes).hex();
    fs::write(&image.archive, bytes).unwrap();
    archive_reference(image)
}

#[tokio::test]
async fn an_index_may_name_no_platform_and_may_list_attestations() {
    if skipped_without_root("an_index_may_name_no_platform_and_may_list_attestations") {
        return;
    }
    let attestation = |own: &Value| {
        let mut entry = own.clone();
        entry["platform"] = json!({ "os": "unknown", "architecture": "unknown" });
        entry["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest",
                                       "vnd.docker.reference.digest": own["digest"] });
        entry
    };
    let bare = |own: &Value| {
        let mut entry = own.clone();
        entry.as_object_mut().unwrap().remove("platform");
        entry
    };
    let mine = |own: &Value| {
        let mut entry = own.clone();
        entry["platform"] = json!({ "os": "linux", "architecture": sela_oci_images::native_architecture() });
        entry
    };
    let indexes: [(Entries<'_>, bool); 5] = [
        (&|own| vec![bare(&own)], true),
        (&|own| vec![attestation(&own), bare(&own)], true),
        (&|own| vec![attestation(&own), mine(&own), attestation(&own)], true),
        (&|own| vec![attestation(&own)], false),
        (&|own| vec![bare(&own), bare(&own)], false),
    ];
    for (number, (entries, good)) in indexes.into_iter().enumerate() {
        let bench = Workbench::new();
        let mut written = bench.write(&image(vec![Layer::new().file("run", 0o755, "x")]));
        assert!(blob_path(&written.layout, &written.manifest_digest).exists());
        let reference = with_index(&mut written, entries);
        match prepare_archive_as(&bench.cache(), &reference, &written).await {
            Ok(ready) => assert!(good && ready.layers[0].join("run").exists(), "{number}"),
            Err(error) => {
                let says_so = error.to_string().contains("names no manifest with a platform");
                assert!(!good && says_so, "{number}: {error}");
            }
        }
    }
}
