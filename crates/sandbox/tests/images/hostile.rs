//! Images that must be refused: each with the sentence that says why, and with nothing left behind, in the cache or beside it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use sela_oci_images::hostile::{self, ESCAPED};
use sela_oci_images::{Compression, Content, Entry, EntryKind, Image, Layer};
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use sela_sandbox::image::manifest;
use sela_sandbox::image::unpack::{Below, ExpectedLayer, UnpackLimits, unpack_layer};
use sela_sandbox::image::{Cache, CacheSettings, EntryPath, ImageError, ImageReference};

use crate::workbench::{
    OWNERS, Workbench, archive_reference, image, listing, prepare_archive_as, skipped_without_root,
};

/// What becomes of a hostile image.
#[derive(Clone, Copy)]
enum Outcome {
    /// Refused with a sentence that holds this.
    Refused(&'static str),
    /// Made ready, but there is nothing to run: the sentence that says so.
    NothingToRun(&'static str),
    /// Made ready, since what it attempts does nothing here.
    Harmless,
}
use Outcome::{Harmless, NothingToRun, Refused};

async fn check(name: &str, image: &Image, expected: Outcome) {
    check_with(name, image, |_| {}, expected).await;
}

async fn check_with(name: &str, image: &Image, change: impl FnOnce(&mut CacheSettings), expected: Outcome) {
    let bench = Workbench::new();
    let written = bench.write(image);
    let reference = archive_reference(&written);
    check_reference(name, &bench, &written, &reference, change, expected).await;
}

async fn check_reference(
    name: &str,
    bench: &Workbench,
    written: &sela_oci_images::ImageOnDisk,
    reference: &ImageReference,
    change: impl FnOnce(&mut CacheSettings),
    expected: Outcome,
) {
    let mut settings = bench.settings();
    change(&mut settings);
    let cache = Cache::open(settings).unwrap();
    let before = listing(bench.path());
    let links_before = fs::metadata("/etc/passwd").unwrap().nlink();

    let result = prepare_archive_as(&cache, reference, written).await;

    for place in ["/tmp", "/", "/etc"] {
        assert!(
            !fs::exists(format!("{place}/{ESCAPED}")).unwrap(),
            "{name}: wrote to {place}"
        );
    }
    assert_eq!(
        fs::metadata("/etc/passwd").unwrap().nlink(),
        links_before,
        "{name}: took hold of a host's file"
    );
    match (result, expected) {
        (Err(error), Refused(sentence)) => {
            assert!(
                error.to_string().contains(sentence),
                "{name}: \"{error}\" does not say \"{sentence}\""
            );
            assert_eq!(listing(bench.path()), before, "{name}: left something behind");
        }
        (Ok(ready), NothingToRun(sentence)) => {
            let error = ready.config.arguments(&[]).expect_err(name);
            assert!(error.to_string().contains(sentence), "{name}: {error}");
            assert!(
                ready.config.arguments(&["/bin/true".to_owned()]).is_ok(),
                "{name}: the job may bring a command"
            );
        }
        (Ok(_), Harmless) => {
            let inside = |path: &str| path.contains("layers/") && path.contains("/root/");
            for escaped in listing(bench.path()).iter().filter(|path| path.ends_with(ESCAPED)) {
                assert!(inside(escaped), "{name}: {escaped}");
            }
        }
        (result, Refused(_) | NothingToRun(_) | Harmless) => panic!("{name}: {result:?}"),
    }
}

/// The sentence for each image of the catalogue; a new one there without a line here fails the test.
fn outcome(name: &str) -> Outcome {
    match name {
        "parent_path" | "parent_path_inside" | "archive_parent_path" => Refused("leads out of the image"),
        "absolute_path" | "archive_absolute_path" => Refused("is an absolute path"),
        "hard_link_absolute" | "hard_link_parent" => Refused("is a hard link that leads out of the image"),
        "hard_link_through_symlink" => Refused("is a hard link through a symbolic link"),
        "hard_link_to_nothing" => Refused("is a hard link to what neither this layer before it nor one below holds"),
        "write_through_absolute_symlink" | "write_through_parent_symlink" | "whiteout_through_symlink" => {
            Refused("goes through a symbolic link")
        }
        "whiteout_of_parent" | "whiteout_of_self" => Refused("hides nothing that has a name"),
        "character_device" | "block_device" => Refused("is a device node"),
        // Each layer is unpacked into a folder of its own, where the other one's link does not exist.
        "symlink_in_lower_layer" => Harmless,
        "layer_is_no_tar" => Refused("is broken"),
        "path_too_deep" => Refused("is longer than 4095 bytes"),
        "other_architecture" => Refused("image is for "),
        "other_system" => Refused("image is for windows/"),
        "no_entrypoint" => NothingToRun("image names no program to run: set ENTRYPOINT or CMD"),
        // Whether the program is there is seen when it is started.
        "entrypoint_missing" => Harmless,
        "layer_altered" | "layer_truncated" | "config_altered" | "manifest_altered" => {
            Refused("is not what its digest says")
        }
        "layer_missing" | "config_missing" => Refused("holds no blob"),
        "layer_size_understated" => Refused("bytes where its manifest says"),
        "layer_media_type_unknown" => Refused("is no kind of layer"),
        "layer_digest_is_path" => Refused("is not a blob address"),
        "diff_id_wrong" => Refused("names another content"),
        "diff_ids_missing" => Refused("it names 0 layers, the manifest 1"),
        "manifest_not_json" => Refused("manifest is broken"),
        "index_empty" => Refused("names no manifest"),
        "archive_symlink" | "archive_hard_link" => Refused("is neither a file nor a folder"),
        unknown => panic!("the catalogue has \"{unknown}\", and no sentence is expected of it here"),
    }
}

#[tokio::test]
async fn every_hostile_image_is_refused_with_its_sentence_and_leaves_nothing() {
    if skipped_without_root("every_hostile_image_is_refused_with_its_sentence_and_leaves_nothing") {
        return;
    }
    for hostile in hostile::all().unwrap() {
        check(hostile.name, &hostile.image, outcome(hostile.name)).await;
    }
}

#[tokio::test]
async fn bombs_go_off_against_a_limit() {
    if skipped_without_root("bombs_go_off_against_a_limit") {
        return;
    }
    for compression in [Compression::Gzip, Compression::Zstd] {
        let bench = Workbench::new();
        let written = bench.write(&hostile::bomb(256 << 20, compression).unwrap());
        let reference = archive_reference(&written);
        check_reference(
            "bomb",
            &bench,
            &written,
            &reference,
            |_| {},
            Refused("looks like a decompression bomb"),
        )
        .await;
        let small = |settings: &mut CacheSettings| settings.budget = Bytes::from_mib(32);
        check_reference(
            "bomb, budget",
            &bench,
            &written,
            &reference,
            small,
            Refused("the disk budget leaves 33.5 MB"),
        )
        .await;
    }
    let few = |settings: &mut CacheSettings| settings.limits.entries = 500;
    let crowd = hostile::crowd(1000).unwrap();
    check_with("crowd", &crowd, few, Refused("more than 500 files and folders")).await;
    let split = image(
        (0..6)
            .map(|layer| {
                (0..100).fold(Layer::new(), |files, file| {
                    files.file(&format!("{layer}-{file}"), 0o644, "")
                })
            })
            .collect(),
    );
    check_with(
        "crowd in layers",
        &split,
        few,
        Refused("more than 500 files and folders"),
    )
    .await;
    let small_budget = |settings: &mut CacheSettings| settings.budget = Bytes::from_mib(4);
    check_with(
        "crowd, budget",
        &hostile::crowd(20_000).unwrap(),
        small_budget,
        Refused("the disk budget leaves"),
    )
    .await;
    let header = image(vec![Layer::new().raw(Entry::new(
        "a",
        0o644,
        EntryKind::HardLink("b".repeat(2 << 20)),
    ))]);
    check(
        "endless name",
        &header,
        Refused("name and attributes, or the padding at its end, are too long"),
    )
    .await;
    let padding = image(vec![Layer::verbatim(vec![0; 4 << 20])]);
    check(
        "endless padding",
        &padding,
        Refused("or the padding at its end, are too long"),
    )
    .await;
}

#[tokio::test]
async fn an_archive_under_another_hash_is_refused_whatever_is_in_it() {
    if skipped_without_root("an_archive_under_another_hash_is_refused_whatever_is_in_it") {
        return;
    }
    let wrong = ImageReference::Archive(BlobId::of(b"another archive"));
    let bench = Workbench::new();
    let mut written = bench.write(&image(vec![Layer::new().file("run", 0o755, "x")]));
    check_reference(
        "wrong hash",
        &bench,
        &written,
        &wrong,
        |_| {},
        Refused("the image's archive is not what its digest says"),
    )
    .await;

    let right = archive_reference(&written);
    let whole = fs::read(&written.archive).unwrap();
    let spoilt = |bytes: &[u8]| fs::write(&written.archive, bytes).unwrap();
    spoilt(&whole[..whole.len() / 2]);
    check_reference(
        "half an archive",
        &bench,
        &written,
        &right,
        |_| {},
        Refused("archive is not what its digest says"),
    )
    .await;
    spoilt(b"");
    check_reference(
        "no archive",
        &bench,
        &written,
        &right,
        |_| {},
        Refused("archive is not what its digest says"),
    )
    .await;
    spoilt(&[7; 4096]);
    check_reference(
        "noise",
        &bench,
        &written,
        &right,
        |_| {},
        Refused("archive is not what its digest says"),
    )
    .await;

    // What is no OCI archive at all, under its right hash.
    let mut docker = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(2);
    header.set_mode(0o644);
    docker.append_data(&mut header, "manifest.json", &b"[]"[..]).unwrap();
    for (bytes, sentence) in [
        (
            docker.into_inner().unwrap(),
            "it has no index.json: it is no OCI archive",
        ),
        (b"#!/bin/sh\n".repeat(100), "archive is broken"),
    ] {
        written.archive_sha256 = BlobId::of(&bytes).hex();
        fs::write(&written.archive, bytes).unwrap();
        let reference = archive_reference(&written);
        check_reference(
            "no OCI archive",
            &bench,
            &written,
            &reference,
            |_| {},
            Refused(sentence),
        )
        .await;
    }
}

#[tokio::test]
async fn entries_that_this_machine_cannot_hold_are_named() {
    if skipped_without_root("entries_that_this_machine_cannot_hold_are_named") {
        return;
    }
    let owned = |uid, gid| {
        let entry = Entry {
            uid,
            gid,
            ..Entry::new("var/mail", 0o644, EntryKind::File(Content::Bytes(vec![1])))
        };
        image(vec![Layer::new().raw(entry)])
    };
    for (uid, gid, id) in [
        (65_536, 0, "65536"),
        (0, 70_000, "70000"),
        (3_000_000_000_000, 0, "3000000000000"),
    ] {
        let sentence: &'static str = format!("\"var/mail\" in the image belongs to id {id}").leak();
        check("owner", &owned(uid, gid), Refused(sentence)).await;
    }
    let user = Image {
        user: "100000".to_owned(),
        ..image(vec![Layer::new().file("run", 0o755, "x")])
    };
    check(
        "user",
        &user,
        Refused("\"USER 100000\" in the image belongs to id 100000"),
    )
    .await;
    let user = Image {
        user: "nobody-here".to_owned(),
        ..image(vec![Layer::new().file("run", 0o755, "x")])
    };
    check("unknown user", &user, Refused("do not name")).await;
    let file = |path: &str| Entry::new(path, 0o644, EntryKind::File(Content::Bytes(vec![1])));
    let twice = image(vec![Layer::new().directory("a").raw(file("a"))]);
    check(
        "file for folder",
        &twice,
        Refused("stands where the layer already has a folder"),
    )
    .await;
    let under_file = image(vec![Layer::new().raw(file("a")).raw(file("a/b"))]);
    check(
        "folder for file",
        &under_file,
        Refused("has a folder where the layer already has a file"),
    )
    .await;
    let root = image(vec![Layer::new().raw(Entry::new(
        "./",
        0o777,
        EntryKind::Symlink("/etc".to_owned()),
    ))]);
    check("link for root", &root, Refused("stands where the root must be")).await;
    let link = image(vec![Layer::new().raw(Entry::new(
        "a",
        0o777,
        EntryKind::Symlink(String::new()),
    ))]);
    check("link to nothing", &link, Refused("without a usable target")).await;
    let to_link = image(vec![Layer::new().symlink("a", "/etc/passwd").hard_link("b", "a")]);
    check(
        "hard link to link",
        &to_link,
        Refused("hard link to something that is not a file"),
    )
    .await;
    let to_whiteout = image(vec![Layer::new().whiteout("a").hard_link("b", "a")]);
    check(
        "hard link to whiteout",
        &to_whiteout,
        Refused("hard link to something that is not a file"),
    )
    .await;
}

/// One layer straight from bytes, so that what is wrong with them is under its right digest.
fn unpack_bytes(bytes: &[u8], compression: manifest::Compression) -> Result<(), ImageError> {
    let folder = tempfile::tempdir().unwrap();
    let blob = manifest::Layer {
        digest: BlobId::of(bytes),
        size: bytes.len() as u64,
        compression,
    };
    let layer = ExpectedLayer {
        blob,
        diff_id: BlobId::of(b"never reached"),
    };
    let mut room = |_| Ok(());
    unpack_layer(
        bytes,
        &layer,
        folder.path(),
        OWNERS,
        UnpackLimits::default(),
        Below::NOTHING,
        &mut room,
    )
    .map(drop)
}

#[test]
fn a_stream_that_is_cut_or_spoilt_under_its_right_digest_is_refused() {
    if skipped_without_root("a_stream_that_is_cut_or_spoilt_under_its_right_digest_is_refused") {
        return;
    }
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, "numbers", content.as_slice()).unwrap();
    let tar = tar.into_inner().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(tar.as_slice(), 1).unwrap();

    use manifest::Compression::{Gzip, Plain, Zstd};
    let check = |bytes: &[u8], compression, sentence: &str| {
        let error = unpack_bytes(bytes, compression).expect_err(sentence).to_string();
        assert!(error.contains(sentence), "{error}");
    };
    for (bytes, compression) in [(&gzip, Gzip), (&zstd, Zstd), (&tar, Plain)] {
        check(bytes, compression, "names another content");
        check(&bytes[..bytes.len() / 2], compression, "is broken");
    }
    // The tar is whole, the checksum behind it is not.
    check(&gzip[..gzip.len() - 4], Gzip, "is broken");
    check(&tar, Gzip, "is broken");
    check(&gzip, Plain, "is broken");
    check(b"", Gzip, "is broken");
    check(b"", Zstd, "is broken");
}

#[test]
fn a_sparse_file_in_pax_form_is_refused_instead_of_unpacked_as_rubbish() {
    if skipped_without_root("a_sparse_file_in_pax_form_is_refused_instead_of_unpacked_as_rubbish") {
        return;
    }
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_pax_extensions([("GNU.sparse.major", &b"1"[..])]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    tar.append_data(&mut header, "holes", &b""[..]).unwrap();
    let error = unpack_bytes(&tar.into_inner().unwrap(), manifest::Compression::Plain).unwrap_err();
    assert!(error.to_string().contains("sparse file in pax form"), "{error}");
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_path_that_is_accepted_stays_below_the_root(bytes in proptest::collection::vec(path_byte(), 0..64)) {
        let mut buffer = Vec::new();
        if let Ok(EntryPath::Below { parent, name }) = EntryPath::parse(&bytes, &mut buffer) {
            for component in parent.split(|byte| *byte == b'/').filter(|_| !parent.is_empty()).chain([name]) {
                assert!(!component.is_empty() && component != b"." && component != b".." && !component.contains(&0));
            }
            assert!(!name.contains(&b'/'));
        }
    }

    #[test]
    fn a_spoilt_tar_neither_panics_nor_writes_beside_its_folder(
        at in 0..TAR_BLOCKS * 512, byte: u8, also_at in 0..TAR_BLOCKS * 512, also: u8, right_checksum: bool,
    ) {
        if rustix::process::geteuid().is_root() {
            let mut tar = small_tar();
            tar[at] = byte;
            tar[also_at] = also;
            if right_checksum {
                // Else nearly every change ends at the first header's checksum.
                for header in [at, also_at].map(|place| place / 512 * 512) {
                    correct_checksum(&mut tar[header..header + 512]);
                }
            }
            let around = tempfile::tempdir().unwrap();
            let root = around.path().join("root");
            fs::create_dir(&root).unwrap();
            let blob = manifest::Layer {
                digest: BlobId::of(&tar), size: tar.len() as u64, compression: manifest::Compression::Plain,
            };
            let layer = ExpectedLayer { blob, diff_id: BlobId::of(&tar) };
            let mut left: u64 = 16 << 20;
            let mut room = |bytes: u64| {
                left = left.checked_sub(bytes).ok_or(ImageError::TransferStopped)?;
                Ok(())
            };
            let _ = unpack_layer(tar.as_slice(), &layer, &root, OWNERS, UnpackLimits::default(), Below::NOTHING, &mut room);
            assert_eq!(fs::read_dir(around.path()).unwrap().count(), 1);
        }
    }
}

fn path_byte() -> impl proptest::strategy::Strategy<Value = u8> {
    proptest::sample::select(b"../..//ab\0\xff".to_vec())
}

/// Headers and content of `small_tar`, in blocks.
const TAR_BLOCKS: usize = 8;

/// A folder, a file in it, a link to each kind of thing.
fn small_tar() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut append = |name: &str, kind, link: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        if !link.is_empty() {
            header.set_link_name_literal(link).unwrap();
        }
        tar.append_data(&mut header, name, content).unwrap();
    };
    append("a/", tar::EntryType::Directory, "", b"");
    append("a/b", tar::EntryType::Regular, "", b"content");
    append("a/c", tar::EntryType::Symlink, "../..", b"");
    append("a/d", tar::EntryType::Link, "a/b", b"");
    append("a/.wh.e", tar::EntryType::Regular, "", b"");
    append("a/c", tar::EntryType::Regular, "", b"");
    let tar = tar.into_inner().unwrap();
    assert!(tar.len() >= TAR_BLOCKS * 512);
    tar
}

fn correct_checksum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
