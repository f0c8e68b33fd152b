//! Whose image the cache opens: knowing a digest is not having the image. Each test has somebody who knows all digests of
//! another tenant's image, which this cache holds, and neither its bytes nor a right to them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sela_oci_images::{Compression, Fault, Image, ImageOnDisk, Layer};
use sela_protocol::blob::BlobId;
use sela_sandbox::image::{Blame, Cache, ImageError};

use crate::registry::{blob_path, layer_digests};
use crate::served::{Answer, Server, head, ok};
use crate::workbench::{
    Archives, Workbench, archive_reference, image, listing, prepare_archive, prepare_known, prepare_without_archive,
    skipped_without_root,
};

fn private() -> Image {
    let weights = Layer::new()
        .file("weights", 0o644, "what another tenant paid for")
        .compressed(Compression::None);
    image(vec![weights, Layer::new().file("run", 0o755, "x")])
}

/// Serves an image's blobs as a registry would. What was asked is kept, as `METHOD digest`.
struct Registry {
    server: Server,
    asked: Arc<Mutex<Vec<String>>>,
    closed: Arc<AtomicBool>,
}

impl Registry {
    /// `with_bytes` of a layer: one that has them not says that it has, to whoever does not ask for them.
    async fn start(image: &ImageOnDisk, with_bytes: bool) -> Self {
        let (layout, layers) = (image.layout.clone(), layer_digests(image));
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let closed: Arc<AtomicBool> = Arc::default();
        let server = Server::start({
            let (asked, closed) = (Arc::clone(&asked), Arc::clone(&closed));
            move |request, _| {
                let mut words = request.split(' ');
                let (method, path) = (words.next().unwrap(), words.next().unwrap());
                let digest = path.rsplit('/').next().unwrap();
                asked.lock().unwrap().push(format!("{method} {digest}"));
                if closed.load(Ordering::Relaxed) {
                    return Answer::Whole(head("403 No", "x: y"));
                }
                let layer = layers.iter().any(|layer| layer.to_string() == digest);
                let bytes = match fs::read(blob_path(&layout, digest)) {
                    Ok(bytes) if with_bytes || !layer => bytes,
                    Ok(_) if method == "HEAD" => vec![0; 7],
                    Ok(_) | Err(_) => return Answer::Whole(head("404 Not Here", "x: y")),
                };
                let mut answer = ok(&bytes);
                if method == "HEAD" {
                    answer.truncate(answer.len() - bytes.len());
                }
                Answer::Whole(answer)
            }
        })
        .await;
        Self { server, asked, closed }
    }

    async fn pull(&self, cache: &Cache, image: &ImageOnDisk) -> Result<(), ImageError> {
        let reference = self.server.reference(image.manifest_digest.parse().unwrap());
        prepare_without_archive(cache, &reference, |_| {}).await.map(drop)
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

async fn check_unmoved(
    cache: &Cache,
    bench: &Workbench,
    refused: Result<(), ImageError>,
    before: &str,
    sentence: &str,
) {
    let error = refused.expect_err(sentence);
    assert!(error.to_string().contains(sentence), "{error}");
    assert_eq!(format!("{:?}", listing(&bench.cache_path())), before);
    // The cache still works for who has a right.
    let mine = bench.write(&image(vec![Layer::new().file("mine", 0o755, "x")]));
    prepare_archive(cache, &mine).await.unwrap();
}

#[tokio::test]
async fn an_archive_that_names_a_layer_without_holding_it_does_not_get_it() {
    if skipped_without_root("an_archive_that_names_a_layer_without_holding_it_does_not_get_it") {
        return;
    }
    let bench = Workbench::new();
    let cache = bench.cache();
    let theirs = bench.write(&private());
    prepare_archive(&cache, &theirs).await.unwrap();
    let before = format!("{:?}", listing(&bench.cache_path()));

    let thief = bench.write(&Image {
        command: vec!["--print".to_owned(), "/weights".to_owned()],
        ..private().with_fault(Fault::LayerMissing)
    });
    assert_eq!(layer_digests(&thief), layer_digests(&theirs));
    let refused = prepare_archive(&cache, &thief).await.map(drop);
    let sentence = format!("holds no blob {}", layer_digests(&theirs)[0]);
    check_unmoved(&cache, &bench, refused, &before, &sentence).await;
    // Nor does a wrong guess of what the layer holds or how large it is show whether the cache has it.
    for fault in [Fault::DiffIdWrong, Fault::LayerSizeUnderstated] {
        let guess = bench.write(&private().with_fault(Fault::LayerMissing).with_fault(fault));
        let error = prepare_archive(&cache, &guess).await.unwrap_err();
        assert!(error.to_string().contains(&sentence), "{fault:?}: {error}");
    }
}

#[tokio::test]
async fn an_archive_of_the_cache_opens_only_while_its_exchange_gives_it_to_this_job() {
    if skipped_without_root("an_archive_of_the_cache_opens_only_while_its_exchange_gives_it_to_this_job") {
        return;
    }
    let bench = Workbench::new();
    let cache = bench.cache();
    let theirs = bench.write(&private());
    prepare_archive(&cache, &theirs).await.unwrap();
    prepare_known(&cache, &theirs).await;
    let before = format!("{:?}", listing(&bench.cache_path()));

    let nothing = Archives::default();
    let refused = cache.prepare(&archive_reference(&theirs), None, &nothing, |_| {}).await;
    assert!(matches!(refused, Err(ImageError::ArchiveRefused { .. })), "{refused:?}");
    check_unmoved(&cache, &bench, refused.map(drop), &before, "is not given to this job").await;

    // Another exchange may say yes to everything; it has to deliver first.
    let other = Archives::that_only_allow(&theirs).named("another exchange");
    let refused = cache.prepare(&archive_reference(&theirs), None, &other, |_| {}).await;
    assert!(matches!(refused, Err(ImageError::TransferStopped)), "{refused:?}");
    let honest = Archives::of(&theirs).named("another exchange");
    for _ in 0..2 {
        cache
            .prepare(&archive_reference(&theirs), None, &honest, |_| {})
            .await
            .unwrap();
    }
    assert_eq!(honest.opened(), 1);
    prepare_known(&cache, &theirs).await;
}

#[tokio::test]
async fn a_registry_that_says_yes_without_having_the_layer_does_not_get_it() {
    if skipped_without_root("a_registry_that_says_yes_without_having_the_layer_does_not_get_it") {
        return;
    }
    let bench = Workbench::new();
    let cache = bench.cache();
    let theirs = bench.write(&private());
    let owner = Registry::start(&theirs, true).await;
    owner.pull(&cache, &theirs).await.unwrap();
    let before = format!("{:?}", listing(&bench.cache_path()));

    // It knows the manifest and the config, and has no layer.
    let thief = Registry::start(&theirs, false).await;
    let refused = thief.pull(&cache, &theirs).await;
    check_unmoved(&cache, &bench, refused, &before, "it has no such layer").await;
    let layer = layer_digests(&theirs)[0];
    assert!(
        thief.asked().contains(&format!("GET {layer}")),
        "was asked for the bytes"
    );
}

#[tokio::test]
async fn a_registry_that_delivered_an_image_is_asked_again_for_each_job() {
    if skipped_without_root("a_registry_that_delivered_an_image_is_asked_again_for_each_job") {
        return;
    }
    let bench = Workbench::new();
    let cache = bench.cache();
    let theirs = bench.write(&private());
    let registry = Registry::start(&theirs, true).await;
    registry.pull(&cache, &theirs).await.unwrap();
    registry.asked();

    registry.pull(&cache, &theirs).await.unwrap();
    let asked = registry.asked();
    let heads = asked.iter().filter(|line| line.starts_with("HEAD ")).count();
    assert_eq!((heads, asked.len()), (4, 4), "manifest, config, two layers: {asked:?}");

    let before = format!("{:?}", listing(&bench.cache_path()));
    registry.closed.store(true, Ordering::Relaxed);
    let refused = registry.pull(&cache, &theirs).await;
    assert_eq!(refused.as_ref().map_err(ImageError::blame), Err(Blame::Image));
    check_unmoved(&cache, &bench, refused, &before, "it asks for a login").await;
}

#[tokio::test]
async fn another_registry_with_the_same_layers_delivers_them_once_and_is_then_asked() {
    if skipped_without_root("another_registry_with_the_same_layers_delivers_them_once_and_is_then_asked") {
        return;
    }
    let bench = Workbench::new();
    let theirs = bench.write(&private());
    let cache = bench.cache();
    let (first, second) = (
        Registry::start(&theirs, true).await,
        Registry::start(&theirs, true).await,
    );
    first.pull(&cache, &theirs).await.unwrap();
    second.pull(&cache, &theirs).await.unwrap();
    let asked = second.asked();
    let sent = |layer: &BlobId| asked.contains(&format!("GET {layer}"));
    assert!(layer_digests(&theirs).iter().all(sent), "{asked:?}");
    drop(cache);
    let cache = bench.cache();
    for registry in [&second, &first] {
        registry.asked();
        registry.pull(&cache, &theirs).await.unwrap();
        let asked = registry.asked();
        assert!(asked.iter().all(|line| line.starts_with("HEAD ")), "{asked:?}");
    }
}
