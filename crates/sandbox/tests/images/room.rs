//! How much the cache takes: the budget, the floor, a full disk, what is evicted and what is not, and what a crash leaves.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use sela_oci_images::{Compression, Content, ImageOnDisk, Layer};
use sela_protocol::units::Bytes;
use sela_sandbox::ids::IdRange;
use sela_sandbox::image::{Cache, CacheSettings, ImageError};

use crate::workbench::{
    Archives, Workbench, archive_reference, image, listing, prepare_archive, prepare_known, skipped_without_root,
};

/// An image whose one layer takes `mebibytes` on disk, different for each `name`.
fn sized(bench: &Workbench, name: &str, mebibytes: u64) -> ImageOnDisk {
    let layer = Layer::new()
        .content("run", 0o755, Content::Zeros(mebibytes << 20))
        .file("name", 0o644, name)
        .compressed(Compression::Gzip);
    bench.write(&image(vec![layer]))
}

/// Whether the cache opens it without having it sent; that is a use of it.
async fn holds(cache: &Cache, image: &ImageOnDisk) -> bool {
    let archives = Archives::that_only_allow(image);
    match cache.prepare(&archive_reference(image), None, &archives, |_| {}).await {
        Ok(_) => true,
        Err(ImageError::TransferStopped) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn the_image_used_longest_ago_goes_first_also_after_a_restart() {
    if skipped_without_root("the_image_used_longest_ago_goes_first_also_after_a_restart") {
        return;
    }
    let bench = Workbench::new();
    let settings = CacheSettings {
        budget: Bytes::from_mib(11),
        ..bench.settings()
    };
    let cache = Cache::open(settings.clone()).unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| sized(&bench, name, 4));
    for image in [&a, &b, &a] {
        prepare_archive(&cache, image).await.unwrap();
    }
    prepare_archive(&cache, &c).await.unwrap();
    assert!(
        !fs::exists(bench.cache_path().join("images").join(&b.archive_sha256)).unwrap(),
        "its documents went too"
    );
    assert_eq!(fs::read_dir(bench.cache_path().join("layers")).unwrap().count(), 2);
    assert!(!holds(&cache, &b).await);

    // c was used last, but a is used again before the restart.
    assert!(holds(&cache, &a).await);
    drop(cache);
    let cache = Cache::open(settings).unwrap();
    prepare_archive(&cache, &d).await.unwrap();
    assert!(!holds(&cache, &c).await);
    assert!(holds(&cache, &a).await);
    assert!(holds(&cache, &d).await);
}

#[tokio::test]
async fn what_runs_is_never_evicted() {
    if skipped_without_root("what_runs_is_never_evicted") {
        return;
    }
    let bench = Workbench::new();
    let cache = Cache::open(CacheSettings {
        budget: Bytes::from_mib(11),
        ..bench.settings()
    })
    .unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| sized(&bench, name, 4));
    let running_a = prepare_archive(&cache, &a).await.unwrap();
    let running_b = prepare_archive(&cache, &b).await.unwrap();
    let before = listing(&bench.cache_path());
    for _ in 0..3 {
        let error = prepare_archive(&cache, &c).await.unwrap_err();
        assert!(matches!(error, ImageError::OverBudget { .. }), "{error}");
        assert!(error.to_string().contains("the disk budget leaves 3.1 MB"), "{error}");
        assert_eq!(listing(&bench.cache_path()), before);
    }
    assert!(running_a.layers[0].join("run").exists());
    // A second user of the same image counts for itself.
    let again = prepare_archive(&cache, &a).await.unwrap();
    drop(running_a);
    assert!(prepare_archive(&cache, &c).await.is_err());
    drop(again);
    prepare_archive(&cache, &c).await.unwrap();
    assert!(!holds(&cache, &a).await);
    assert!(running_b.layers[0].join("run").exists());
}

#[tokio::test]
async fn an_image_over_the_budget_evicts_nothing_in_vain_and_says_both_sizes() {
    if skipped_without_root("an_image_over_the_budget_evicts_nothing_in_vain_and_says_both_sizes") {
        return;
    }
    let bench = Workbench::new();
    let cache = Cache::open(CacheSettings {
        budget: Bytes(3_000_000),
        ..bench.settings()
    })
    .unwrap();
    let small = sized(&bench, "small", 1);
    prepare_archive(&cache, &small).await.unwrap();
    // Does not compress, so its size is known before the first byte is unpacked.
    let noise: Vec<u8> = (0..1_100_000_u32)
        .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    let large = bench.write(&image(vec![
        Layer::new().file("run", 0o755, noise).compressed(Compression::None),
    ]));
    let error = prepare_archive(&cache, &large).await.unwrap_err();
    let sentence = "image needs 4.4 MB or more, the disk budget leaves 3.0 MB: raise the disk budget";
    assert!(error.to_string().contains(sentence), "{error}");
    assert!(holds(&cache, &small).await);
}

/// A small file system of its own.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, options: &str) -> Self {
        fs::create_dir_all(at).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

async fn check_disk(options: &str, floor: Bytes, image: &ImageOnDisk, bench: &Workbench, sentence: &str) {
    let disk = SmallDisk::mount(&bench.cache_path(), options);
    let cache = Cache::open(CacheSettings {
        free_floor: floor,
        ..bench.settings()
    })
    .unwrap();
    let before = listing(&bench.cache_path());
    let error = prepare_archive(&cache, image).await.unwrap_err();
    assert!(error.to_string().contains(sentence), "{error}");
    assert_eq!(listing(&bench.cache_path()), before);
    let small = sized(bench, "small", 1);
    prepare_archive(&cache, &small)
        .await
        .expect("a disk that was full for a large image still holds a small one");
    drop((cache, disk));
}

#[tokio::test]
async fn a_full_disk_and_the_floor_are_told_apart_and_leave_nothing() {
    if skipped_without_root("a_full_disk_and_the_floor_are_told_apart_and_leave_nothing") {
        return;
    }
    let bench = Workbench::new();
    let large = sized(&bench, "large", 12);
    check_disk(
        "size=8m",
        Bytes(0),
        &large,
        &bench,
        "free of which 0 bytes must stay free",
    )
    .await;
    check_disk(
        "size=16m",
        Bytes::from_mib(8),
        &large,
        &bench,
        "of which 8.3 MB must stay free",
    )
    .await;
    // Room for the bytes but not for the files: only writing shows it.
    let crowd = bench.write(&sela_oci_images::hostile::crowd(500).unwrap());
    check_disk(
        "size=64m,nr_inodes=200",
        Bytes(0),
        &crowd,
        &bench,
        "is full: free some space",
    )
    .await;
}

#[tokio::test]
async fn what_a_crash_left_is_swept_when_the_cache_is_opened() {
    if skipped_without_root("what_a_crash_left_is_swept_when_the_cache_is_opened") {
        return;
    }
    let bench = Workbench::new();
    let whole = sized(&bench, "whole", 1);
    let cache = bench.cache();
    prepare_archive(&cache, &whole).await.unwrap();
    drop(cache);
    let clean = listing(&bench.cache_path());

    let cut_short = bench.cache_path().join("layers").join("ab".repeat(32));
    fs::create_dir_all(cut_short.join("root/bin")).unwrap();
    fs::write(cut_short.join("root/bin/sh"), "half").unwrap();
    let unfinished = bench.cache_path().join("unfinished/tmp-x");
    fs::create_dir_all(unfinished.join("root")).unwrap();
    std::os::unix::fs::symlink(bench.path(), unfinished.join("root/out")).unwrap();
    fs::write(bench.cache_path().join("blobs").join("cd".repeat(32)), "of no image").unwrap();
    fs::write(bench.cache_path().join("images").join("ef".repeat(32)), "{ half").unwrap();

    let cache = bench.cache();
    assert_eq!(listing(&bench.cache_path()), clean);
    assert!(whole.archive.exists(), "the sweep follows no link");
    prepare_known(&cache, &whole).await;
}

#[tokio::test]
async fn a_cache_has_one_agent_and_one_range_of_owners() {
    if skipped_without_root("a_cache_has_one_agent_and_one_range_of_owners") {
        return;
    }
    let bench = Workbench::new();
    let whole = sized(&bench, "whole", 1);
    let cache = bench.cache();
    let ready = prepare_archive(&cache, &whole).await.unwrap();
    let error = Cache::open(bench.settings()).err().unwrap();
    assert!(matches!(error, ImageError::CacheInUse { .. }), "{error}");
    // A pin alone keeps the cache open: its folders are still mounted somewhere.
    drop(cache);
    assert!(Cache::open(bench.settings()).is_err());
    drop(ready);

    let others = IdRange {
        first: 800_000,
        count: 65_536,
    };
    let cache = Cache::open(CacheSettings {
        owners: others,
        ..bench.settings()
    })
    .unwrap();
    assert!(
        !holds(&cache, &whole).await,
        "its files belong to ids that are no longer ours"
    );
    let ready = prepare_archive(&cache, &whole).await.unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(ready.layers[0].join("run")).unwrap());
    assert_eq!(owner, others.first);
}
