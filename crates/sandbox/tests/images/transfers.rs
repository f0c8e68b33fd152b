//! Transfers that break off, in the middle of a blob, of an agent's life, or by somebody who lies about what is missing; how many
//! come at once; and what they may write on one day.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sela_oci_images::{Compression, ImageOnDisk, Layer};
use sela_protocol::units::Bytes;
use sela_sandbox::image::{Blame, Cache, CacheSettings, ImageError, Progress};

use crate::registry::{blob_path, layer_digests, noise, three_layers};
use crate::served::{Answer, Server, head, ok};
use crate::workbench::{
    Archives, Workbench, archive_reference, image, listing, prepare_archive, prepare_without_archive,
    skipped_without_root,
};

fn one_layer(bench: &Workbench) -> ImageOnDisk {
    let layer = Layer::new().file("run", 0o755, noise(1 << 20, 5));
    bench.write(&image(vec![layer.compressed(Compression::None)]))
}

/// What is asked of a layer: its last answer's place in `breaks` says after how many bytes the connection goes.
struct Way {
    server: Server,
    /// The first byte that was asked for, each time.
    asked: Arc<Mutex<Vec<u64>>>,
}

/// How a registry answers who asks for the rest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// With the rest, as it should.
    Sent,
    /// With everything, as it may.
    Everything,
    /// With something else.
    Other,
}

impl Way {
    async fn start(image: &ImageOnDisk, breaks: Vec<usize>, rest: Rest) -> Self {
        let (layout, layers) = (image.layout.clone(), layer_digests(image));
        let asked: Arc<Mutex<Vec<u64>>> = Arc::default();
        let answers = AtomicUsize::new(0);
        let noted = Arc::clone(&asked);
        let server = Server::start(move |request, _| {
            let path = request.split(' ').nth(1).unwrap();
            let digest = path.rsplit('/').next().unwrap();
            let bytes = fs::read(blob_path(&layout, digest)).unwrap();
            if request.starts_with("HEAD ") || !layers.iter().any(|layer| layer.to_string() == digest) {
                let mut answer = ok(&bytes);
                if request.starts_with("HEAD ") {
                    answer.truncate(answer.len() - bytes.len());
                }
                return Answer::Whole(answer);
            }
            let range = request.split("range: bytes=").nth(1);
            let from: usize = range.map_or(0, |rest| rest.split('-').next().unwrap().parse().unwrap());
            noted.lock().unwrap().push(from as u64);
            let after = breaks.get(answers.fetch_add(1, Ordering::Relaxed));
            let mut answer = if from == 0 || rest == Rest::Everything {
                ok(&bytes)
            } else {
                let first = if rest == Rest::Other { from + 1 } else { from };
                let range = format!("bytes {first}-{}/{}", bytes.len() - 1, bytes.len());
                let sent = &bytes[from..];
                let length = sent.len();
                let head = format!(
                    "HTTP/1.1 206 Part\r\ncontent-range: {range}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                [head.as_bytes(), sent].concat()
            };
            if let Some(after) = after {
                let head = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
                answer.truncate(head + after);
            }
            Answer::Whole(answer)
        })
        .await;
        Self { server, asked }
    }

    async fn pull(&self, cache: &Cache, image: &ImageOnDisk) -> Result<Vec<PathBuf>, ImageError> {
        let reference = self.server.reference(image.manifest_digest.parse().unwrap());
        let ready = prepare_without_archive(cache, &reference, |_| {}).await?;
        assert_eq!(fs::read(ready.layers[0].join("run")).unwrap(), noise(1 << 20, 5));
        Ok(ready.layers.clone())
    }

    fn asked(&self) -> Vec<u64> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn partials(bench: &Workbench) -> Vec<PathBuf> {
    let found = fs::read_dir(bench.cache_path().join("partial")).unwrap();
    found.map(|entry| entry.unwrap().path()).collect()
}

/// What came of the one partial blob.
fn came(bench: &Workbench) -> u64 {
    let [path] = partials(bench).try_into().unwrap();
    fs::metadata(path).unwrap().len()
}

#[tokio::test]
async fn a_layer_that_breaks_off_goes_on_where_it_broke() {
    if skipped_without_root("a_layer_that_breaks_off_goes_on_where_it_broke") {
        return;
    }
    for rest in [Rest::Sent, Rest::Everything] {
        let bench = Workbench::new();
        let written = one_layer(&bench);
        let seconds = if rest == Rest::Sent { 300_000 } else { 700_000 };
        let way = Way::start(&written, vec![400_000, seconds], rest).await;
        way.pull(&bench.cache(), &written).await.unwrap();
        let asked = way.asked();
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(asked[0] == 0 && asked[1] <= 400_000 && asked[2] > asked[1], "{asked:?}");
        assert!(partials(&bench).is_empty());
    }
    // Another part than was asked for is no part of it.
    let bench = Workbench::new();
    let written = one_layer(&bench);
    let way = Way::start(&written, vec![400_000], Rest::Other).await;
    let error = way.pull(&bench.cache(), &written).await.unwrap_err();
    assert!(error.to_string().contains("another part than was asked for"), "{error}");
}

#[tokio::test]
async fn a_layer_goes_on_where_an_earlier_agent_left_it() {
    if skipped_without_root("a_layer_goes_on_where_an_earlier_agent_left_it") {
        return;
    }
    let bench = Workbench::new();
    let written = one_layer(&bench);
    // The second break comes before a single byte: that is no time to go on at once.
    let way = Way::start(&written, vec![600_000, 0], Rest::Sent).await;
    let error = way.pull(&bench.cache(), &written).await.unwrap_err();
    assert_eq!(error.blame(), Blame::Network, "{error}");
    let left = came(&bench);
    assert!(left > 0 && listing(&bench.cache_path().join("unfinished")).is_empty());
    way.asked();

    // `bench.cache()` of above is gone as with its agent.
    way.pull(&bench.cache(), &written).await.unwrap();
    assert_eq!(way.asked(), [left]);
    assert!(partials(&bench).is_empty());
}

#[tokio::test]
async fn what_came_whole_is_unpacked_only_while_the_registry_agrees() {
    if skipped_without_root("what_came_whole_is_unpacked_only_while_the_registry_agrees") {
        return;
    }
    let bench = Workbench::new();
    let written = one_layer(&bench);
    let way = Way::start(&written, vec![600_000, 0], Rest::Sent).await;
    way.pull(&bench.cache(), &written).await.unwrap_err();
    let [path] = partials(&bench).try_into().unwrap();
    let layer = layer_digests(&written)[0].to_string();
    fs::copy(blob_path(&written.layout, &layer), path).unwrap();
    way.asked();
    way.pull(&bench.cache(), &written).await.unwrap();
    assert_eq!(way.asked(), [0; 0], "was asked by HEAD only");
}

#[tokio::test]
async fn what_one_registry_sent_in_part_is_not_gone_on_with_for_another() {
    if skipped_without_root("what_one_registry_sent_in_part_is_not_gone_on_with_for_another") {
        return;
    }
    let bench = Workbench::new();
    let written = one_layer(&bench);
    let theirs = Way::start(&written, vec![1_000_000, 0], Rest::Sent).await;
    theirs.pull(&bench.cache(), &written).await.unwrap_err();
    let left = came(&bench);
    assert!(left > 0);

    // It would have to send the last bytes only, and has no others.
    let cache = bench.cache();
    let thief = Way::start(&written, vec![0], Rest::Sent).await;
    thief.pull(&cache, &written).await.unwrap_err();
    assert_eq!(thief.asked(), [0], "all of it was asked for");
    drop(cache);
    theirs.asked();
    theirs.pull(&bench.cache(), &written).await.unwrap();
    assert_eq!(theirs.asked(), [left]);
}

#[tokio::test]
async fn what_a_power_cut_spoilt_is_fetched_anew() {
    if skipped_without_root("what_a_power_cut_spoilt_is_fetched_anew") {
        return;
    }
    let bench = Workbench::new();
    let written = one_layer(&bench);
    let way = Way::start(&written, vec![600_000, 0], Rest::Sent).await;
    way.pull(&bench.cache(), &written).await.unwrap_err();
    let [path] = partials(&bench).try_into().unwrap();
    let left = came(&bench);
    fs::write(&path, vec![0; usize::try_from(left).unwrap()]).unwrap();
    way.asked();
    way.pull(&bench.cache(), &written).await.unwrap();
    assert_eq!(way.asked(), [left, 0]);
}

#[tokio::test]
async fn an_archive_goes_on_where_it_broke_also_for_the_next_agent() {
    if skipped_without_root("an_archive_goes_on_where_it_broke_also_for_the_next_agent") {
        return;
    }
    for from_the_start in [false, true] {
        let bench = Workbench::new();
        let written = one_layer(&bench);
        let breaks = if from_the_start {
            vec![400_000, 500_000, 0]
        } else {
            vec![400_000, 100_000, 0]
        };
        let mut archives = Archives::of(&written);
        (archives.breaks, archives.from_the_start) = (breaks, from_the_start);
        let reference = archive_reference(&written);
        let error = bench
            .cache()
            .prepare(&reference, None, &archives, |_| {})
            .await
            .unwrap_err();
        assert_eq!(error.blame(), Blame::Network, "{error}");
        assert_eq!(came(&bench), 500_000);
        let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
        let report = {
            let seen = Arc::clone(&seen);
            move |progress| seen.lock().unwrap().push(progress)
        };
        let ready = bench
            .cache()
            .prepare(&reference, None, &archives, report)
            .await
            .unwrap();
        assert_eq!(fs::read(ready.layers[0].join("run")).unwrap(), noise(1 << 20, 5));
        let asked = std::mem::take(&mut *archives.asked.lock().unwrap());
        let expected = if from_the_start {
            [0; 4]
        } else {
            [0, 400_000, 500_000, 500_000]
        };
        assert_eq!(asked, expected);
        let all = Bytes(written.bytes);
        let last = seen.lock().unwrap().last().copied();
        assert_eq!(
            last,
            Some(Progress {
                done: all,
                total: Some(all),
                layers_done: 1,
                layers: Some(1),
            })
        );
        assert!(partials(&bench).is_empty());
    }
}

#[tokio::test]
async fn three_layers_come_at_once_and_no_fourth() {
    if skipped_without_root("three_layers_come_at_once_and_no_fourth") {
        return;
    }
    let bench = Workbench::new();
    let layers = (0..6).map(|number| Layer::new().file(&format!("file-{number}"), 0o644, noise(1 << 16, number)));
    let written = bench.write(&image(layers.collect()));
    let (layout, layers) = (written.layout.clone(), layer_digests(&written));
    let three = Arc::new(tokio::sync::Barrier::new(3));
    let server = Server::start(move |request, _| {
        let digest = request.split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
        let answer = ok(&fs::read(blob_path(&layout, digest)).unwrap());
        if layers.iter().any(|layer| layer.to_string() == digest) {
            Answer::Together(Arc::clone(&three), answer)
        } else {
            Answer::Whole(answer)
        }
    })
    .await;
    let reference = server.reference(written.manifest_digest.parse().unwrap());
    let ready = prepare_without_archive(&bench.cache(), &reference, |_| {})
        .await
        .unwrap();
    assert_eq!(ready.layers.len(), 6);
    for (number, layer) in ready.layers.iter().enumerate() {
        let number = u32::try_from(number).unwrap();
        let file = layer.join(format!("file-{number}"));
        assert_eq!(fs::read(file).unwrap(), noise(1 << 16, number), "in order");
    }
}

#[tokio::test]
async fn a_day_has_so_many_writes_and_no_more() {
    if skipped_without_root("a_day_has_so_many_writes_and_no_more") {
        return;
    }
    let bench = Workbench::new();
    let settings = CacheSettings {
        daily_writes: Some(Bytes::from_mib(5)),
        ..bench.settings()
    };
    let small = one_layer(&bench);
    let cache = Cache::open(settings.clone()).unwrap();
    prepare_archive(&cache, &small).await.unwrap();
    drop(cache);
    let cache = Cache::open(settings).unwrap();
    let before = listing(&bench.cache_path());
    // Packed and unpacked it has taken two of the five; three layers need four and a half.
    let large = bench.write(&three_layers());
    let error = prepare_archive(&cache, &large).await.unwrap_err();
    assert!(matches!(error, ImageError::DailyWrites { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("of the 5.2 MB a day that this machine lets images write"),
        "{error}"
    );
    assert_eq!(error.blame(), Blame::Machine);
    assert_eq!(listing(&bench.cache_path()), before);
    // What needs no writing needs no day.
    prepare_archive(&cache, &small).await.unwrap();
}

#[tokio::test]
async fn a_transfer_that_broke_off_gives_way_to_an_image_that_needs_the_room() {
    if skipped_without_root("a_transfer_that_broke_off_gives_way_to_an_image_that_needs_the_room") {
        return;
    }
    let bench = Workbench::new();
    let written = one_layer(&bench);
    let way = Way::start(&written, vec![900_000, 0], Rest::Sent).await;
    let settings = CacheSettings {
        budget: Bytes(2_900_000),
        ..bench.settings()
    };
    let cache = Cache::open(settings.clone()).unwrap();
    way.pull(&cache, &written).await.unwrap_err();
    assert!(came(&bench) > 0);
    let other = bench.write(&image(vec![
        Layer::new()
            .file("other", 0o644, noise(1 << 20, 9))
            .compressed(Compression::None),
    ]));
    prepare_archive(&cache, &other).await.unwrap();
    assert!(partials(&bench).is_empty(), "{:?}", partials(&bench));
    let refused = Server::start(|_, _| Answer::Whole(head("404 No", "x: y"))).await;
    let reference = refused.reference(written.manifest_digest.parse().unwrap());
    prepare_without_archive(&cache, &reference, |_| {}).await.unwrap_err();
    assert!(partials(&bench).is_empty(), "nothing is kept of what never came");
}
