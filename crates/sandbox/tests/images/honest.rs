//! Images that must work: what of their files reaches the disk, and what overlayfs makes of the folders.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use sela_oci_images::{Compression, Content, Entry, EntryKind, Image, Layer};
use sela_sandbox::image::{ImageUser, PreparedImage};

use crate::workbench::{OWNERS, Workbench, image, listing, prepare_archive, prepare_known, skipped_without_root};

#[tokio::test]
async fn files_arrive_with_mapped_owners_and_without_privileges() {
    if skipped_without_root("files_arrive_with_mapped_owners_and_without_privileges") {
        return;
    }
    let long = format!("{}/{}", "folder".repeat(20), "name".repeat(40));
    let file = |path: &str, mode, uid, gid| Entry {
        uid,
        gid,
        ..Entry::new(path, mode, EntryKind::File(Content::Bytes(b"content".to_vec())))
    };
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let layer = Layer::new()
            .raw(Entry {
                uid: 5,
                ..Entry::new("./", 0o711, EntryKind::Directory)
            })
            .directory_with_mode("tmp", 0o1777)
            .directory_with_mode("shared", 0o2775)
            .raw(file("bin/su", 0o6755, 0, 0))
            .raw(file("home/worker/notes", 0o640, 1000, 1001))
            .hard_link("home/worker/again", "home/worker/notes")
            .symlink("absolute", "/etc/passwd")
            .symlink("climbing", "../../../../etc/passwd")
            .raw(Entry::new("pipe", 0o644, EntryKind::Fifo))
            .raw(file("replaced", 0o600, 0, 0))
            .raw(file("replaced", 0o604, 1, 1))
            .raw(file(&long, 0o644, 0, 0))
            .raw(file("empty-parent-left-out/file", 0o644, 7, 7))
            .compressed(compression);
        let bench = Workbench::new();
        let cache = bench.cache();
        let written = bench.write(&image(vec![layer]));
        let ready = prepare_archive(&cache, &written).await.unwrap();

        let [root] = ready.layers.as_slice() else {
            panic!("{:?}", ready.layers)
        };
        let seen = |path: &str| {
            let found = fs::symlink_metadata(root.join(path)).unwrap();
            (
                found.mode() & 0o7777,
                found.uid() - OWNERS.first,
                found.gid() - OWNERS.first,
            )
        };
        assert_eq!(seen("."), (0o711, 5, 0));
        assert_eq!(seen("tmp"), (0o1777, 0, 0));
        assert_eq!(seen("shared"), (0o775, 0, 0), "set-group-id is dropped");
        assert_eq!(seen("bin/su"), (0o755, 0, 0), "set-user-id is dropped");
        assert_eq!(seen("bin"), (0o755, 0, 0));
        assert_eq!(seen("home/worker/notes"), (0o640, 1000, 1001));
        assert_eq!(seen("replaced"), (0o604, 1, 1), "the later entry stands");
        assert_eq!(seen("empty-parent-left-out"), (0o755, 0, 0));
        let inode = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
        assert_eq!(inode("home/worker/again"), inode("home/worker/notes"));
        for (link, target) in [("absolute", "/etc/passwd"), ("climbing", "../../../../etc/passwd")] {
            assert_eq!(fs::read_link(root.join(link)).unwrap(), PathBuf::from(target));
            let owner = fs::symlink_metadata(root.join(link)).unwrap().uid();
            assert_eq!(owner, OWNERS.first, "the link is given away, not what it names");
        }
        assert_eq!(fs::read(root.join(&long)).unwrap(), b"content");
        assert_eq!(fs::symlink_metadata(root.join("bin/su")).unwrap().mtime(), 0);
        assert!(!root.join("pipe").exists(), "pipes are left out");
        assert_eq!(
            fs::metadata(bench.cache_path()).unwrap().mode() & 0o777,
            0o700,
            "nobody else looks inside"
        );
        let unfinished = listing(&bench.cache_path().join("unfinished"));
        assert!(unfinished.is_empty(), "{unfinished:?}");
    }
}

/// The layers as a job would see them.
struct Merged<'a> {
    at: &'a Path,
}

impl<'a> Merged<'a> {
    fn mount(ready: &PreparedImage, at: &'a Path) -> Self {
        fs::create_dir_all(at).unwrap();
        let lower: Vec<_> = ready
            .layers
            .iter()
            .rev()
            .map(|layer| layer.display().to_string())
            .collect();
        // One lower directory alone is refused, so an empty one lies beneath.
        let ground = at.with_extension("ground");
        fs::create_dir_all(&ground).unwrap();
        let options = format!("lowerdir={}:{}", lower.join(":"), ground.display());
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("overlay", at, "overlay", MountFlags::RDONLY, options.as_c_str()).unwrap();
        Self { at }
    }
}

impl Drop for Merged<'_> {
    fn drop(&mut self) {
        rustix::mount::unmount(self.at, UnmountFlags::DETACH).unwrap();
    }
}

#[tokio::test]
async fn whiteouts_hide_what_lies_below_when_the_layers_are_stacked() {
    if skipped_without_root("whiteouts_hide_what_lies_below_when_the_layers_are_stacked") {
        return;
    }
    let lower = Layer::new()
        .file("etc/gone", 0o644, "lower")
        .file("etc/kept", 0o644, "lower")
        .file("opaque/lower", 0o644, "lower")
        .file("renewed/lower", 0o644, "lower")
        .file("made-again/lower", 0o644, "lower")
        .file("file", 0o644, "lower");
    let upper = Layer::new()
        .whiteout("etc/gone")
        .whiteout("never-there")
        .opaque("opaque")
        .file("opaque/upper", 0o644, "upper")
        // Removed and made again in one layer: the whiteout may stand before or after what replaces it.
        .whiteout("renewed")
        .file("renewed/upper", 0o644, "upper")
        .file("made-again/upper", 0o644, "upper")
        .whiteout("made-again")
        .whiteout("file")
        .file("file", 0o644, "upper")
        .file(".wh..wh.plnk/12.34", 0o644, "what aufs keeps for itself");
    let empty = Layer::new().directory("etc");
    let bench = Workbench::new();
    let cache = bench.cache();
    // The same layer three times, as builders write it: overlayfs takes each folder once.
    let written = bench.write(&image(vec![empty.clone(), lower, empty.clone(), upper, empty]));
    let ready = prepare_archive(&cache, &written).await.unwrap();
    assert_eq!(ready.layers.len(), 3);

    let hidden = fs::symlink_metadata(ready.layers[1].join("etc/gone")).unwrap();
    assert!(hidden.file_type().is_char_device() && hidden.rdev() == 0);
    let at = bench.path().join("merged");
    let merged = Merged::mount(&ready, &at);
    let expected = [
        "d etc",
        "d made-again",
        "d opaque",
        "d renewed",
        "f etc/kept",
        "f file",
        "f made-again/upper",
        "f opaque/upper",
        "f renewed/upper",
    ];
    assert_eq!(listing(&at).into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "upper");
    drop(merged);
}

#[tokio::test]
async fn the_config_says_what_to_run_and_as_whom() {
    if skipped_without_root("the_config_says_what_to_run_and_as_whom") {
        return;
    }
    let passwd = Layer::new().file(
        "etc/passwd",
        0o644,
        "root:x:0:0::/:/bin/sh\nworker:x:1000:1001::/:/bin/sh\n",
    );
    let bench = Workbench::new();
    let cache = bench.cache();
    let written = bench.write(&Image {
        command: vec!["--default".to_owned()],
        environment: vec!["PATH=/bin".to_owned(), "EMPTY=".to_owned()],
        working_dir: "/work".to_owned(),
        user: "worker".to_owned(),
        ..image(vec![passwd])
    });
    let ready = prepare_archive(&cache, &written).await.unwrap();
    assert_eq!(ready.digest.hex(), written.archive_sha256);
    assert!(ready.bytes.0 > 0);
    assert_eq!(ready.config.arguments(&[]).unwrap(), ["/run", "--default"]);
    assert_eq!(
        ready.config.arguments(&["--mine".to_owned()]).unwrap(),
        ["/run", "--mine"]
    );
    assert_eq!(
        ready.config.environment,
        [("PATH".into(), "/bin".into()), ("EMPTY".into(), String::new())]
    );
    assert_eq!(ready.config.working_directory, "/work");
    assert_eq!(ready.config.user, ImageUser { uid: 1000, gid: 1001 });
}

#[tokio::test]
async fn an_image_is_fetched_once_and_layers_are_shared() {
    if skipped_without_root("an_image_is_fetched_once_and_layers_are_shared") {
        return;
    }
    let base = Layer::new().file("base", 0o644, vec![1; 100_000]);
    let bench = Workbench::new();
    let cache = bench.cache();
    let first = bench.write(&image(vec![base.clone(), Layer::new().file("run", 0o755, "first")]));
    let second = bench.write(&image(vec![base, Layer::new().file("run", 0o755, "second")]));
    let first_ready = prepare_archive(&cache, &first).await.unwrap();
    let second_ready = prepare_archive(&cache, &second).await.unwrap();
    assert_eq!(first_ready.layers[0], second_ready.layers[0]);
    assert_ne!(first_ready.layers[1], second_ready.layers[1]);

    let before = listing(&bench.cache_path());
    let again = prepare_known(&cache, &first).await;
    assert_eq!(
        (&again.layers, &again.config),
        (&first_ready.layers, &first_ready.config)
    );
    assert_eq!(listing(&bench.cache_path()), before);

    drop((cache, first_ready, second_ready, again));
    let reopened = bench.cache();
    prepare_known(&reopened, &second).await;
}
