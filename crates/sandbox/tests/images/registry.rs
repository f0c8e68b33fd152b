//! Images from a real registry, Debian's `docker-registry` on loopback: what must work, and what a registry that lost or
//! changed bytes must not be able to do.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use sela_oci_images::{Compression, ImageOnDisk, Layer};
use sela_protocol::blob::BlobId;
use sela_protocol::job::ImageSource;
use sela_protocol::units::Bytes;
use sela_sandbox::image::{Blame, Cache, CacheSettings, ImageError, ImageReference, Progress};
use serde_json::{Value, json};

use crate::workbench::{Workbench, image, listing, prepare_without_archive, skipped_without_root};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const REPOSITORY: &str = "tests/tool";

/// The one login of a registry that has one, and how `htpasswd -B` writes it.
pub(crate) const USER: &str = "worker";
pub(crate) const PASSWORD: &str = "open-sesame";
const HTPASSWD: &str = "worker:$2b$05$abcdefghijklmnopqrstuutXu9KzOt.1yBoZUeFWoT/914/JfszCO\n";

/// A real registry of this test's own, ended with it.
pub(crate) struct Registry {
    child: Child,
    address: SocketAddr,
    storage: PathBuf,
}

impl Registry {
    async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &json!({})).await
    }

    /// One that asks for a login.
    pub(crate) async fn start_private(folder: &Path) -> Self {
        let file = folder.join("htpasswd");
        fs::write(&file, HTPASSWD).unwrap();
        Self::start_with(folder, &json!({ "htpasswd": { "realm": "tests", "path": file } })).await
    }

    async fn start_with(folder: &Path, auth: &Value) -> Self {
        let storage = folder.join("registry");
        // Free now; another process could take it before the registry does, and then the test fails in the open.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap();
        let mut settings = json!({
            "version": 0.1,
            "log": { "level": "error" },
            "storage": { "filesystem": { "rootdirectory": storage }, "delete": { "enabled": true } },
            "http": { "addr": address.to_string() },
        });
        if auth.as_object().is_some_and(|auth| !auth.is_empty()) {
            settings["auth"] = auth.clone();
        }
        // JSON is YAML.
        let file = folder.join("registry.yml");
        fs::write(&file, settings.to_string()).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a black box of this test, ended by its drop")]
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is installed (Debian: apt-get install docker-registry)");
        let mut registry = Self {
            child,
            address,
            storage,
        };
        while tokio::net::TcpStream::connect(address).await.is_err() {
            assert!(
                registry.child.try_wait().unwrap().is_none(),
                "docker-registry ended at its start"
            );
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        registry
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/v2/{REPOSITORY}/{path}", self.address)
    }

    async fn push_blob(&self, bytes: Vec<u8>) {
        let http = client();
        let begun = http
            .post(self.url("blobs/uploads/"))
            .basic_auth(USER, Some(PASSWORD))
            .send()
            .await
            .unwrap();
        assert_eq!(begun.status(), 202);
        let mut place: reqwest::Url = begun.headers()["location"].to_str().unwrap().parse().unwrap();
        place
            .query_pairs_mut()
            .append_pair("digest", &BlobId::of(&bytes).to_string());
        let put = http
            .put(place)
            .basic_auth(USER, Some(PASSWORD))
            .header("content-type", "application/octet-stream")
            .body(bytes)
            .send()
            .await
            .unwrap();
        assert_eq!(put.status(), 201);
    }

    async fn push_manifest(&self, media_type: &str, bytes: Vec<u8>) -> ImageReference {
        let digest = BlobId::of(&bytes);
        let put = client()
            .put(self.url(&format!("manifests/{digest}")))
            .basic_auth(USER, Some(PASSWORD))
            .header("content-type", media_type)
            .body(bytes);
        let answer = put.send().await.unwrap();
        assert_eq!(answer.status(), 201, "{}", answer.text().await.unwrap());
        self.reference(digest)
    }

    pub(crate) async fn push(&self, image: &ImageOnDisk) -> ImageReference {
        let blob = |digest: &str| fs::read(blob_path(&image.layout, digest)).unwrap();
        let manifest = blob(&image.manifest_digest);
        let parsed: Value = serde_json::from_slice(&manifest).unwrap();
        let layers = parsed["layers"].as_array().unwrap().iter();
        for descriptor in layers.chain([&parsed["config"]]) {
            self.push_blob(blob(descriptor["digest"].as_str().unwrap())).await;
        }
        self.push_manifest(MANIFEST, manifest).await
    }

    fn reference(&self, digest: BlobId) -> ImageReference {
        let reference = format!("{}/{REPOSITORY}@{digest}", self.address);
        ImageReference::try_from(&ImageSource::Registry { reference }).unwrap()
    }

    /// Where the registry keeps a blob's bytes.
    fn stored(&self, digest: &BlobId) -> PathBuf {
        let hex = digest.hex();
        self.storage
            .join("docker/registry/v2/blobs/sha256")
            .join(&hex[..2])
            .join(&hex)
            .join("data")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

pub(crate) fn blob_path(layout: &Path, digest: &str) -> PathBuf {
    layout
        .join("blobs/sha256")
        .join(digest.strip_prefix("sha256:").unwrap())
}

pub(crate) fn layer_digests(image: &ImageOnDisk) -> Vec<BlobId> {
    let manifest = fs::read(blob_path(&image.layout, &image.manifest_digest)).unwrap();
    let parsed: Value = serde_json::from_slice(&manifest).unwrap();
    let layers = parsed["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["digest"].as_str().unwrap().parse().unwrap())
        .collect()
}

pub(crate) fn noise(bytes: u32, seed: u32) -> Vec<u8> {
    (0..bytes / 4)
        .flat_map(|number| (number ^ seed).wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

pub(crate) fn three_layers() -> sela_oci_images::Image {
    image(vec![
        Layer::new().file("run", 0o755, "#!/bin/sh\n"),
        Layer::new()
            .file("plain", 0o644, noise(3 << 20, 1))
            .compressed(Compression::None),
        Layer::new()
            .file("zstd", 0o644, noise(1 << 20, 2))
            .compressed(Compression::Zstd),
    ])
}

pub(crate) async fn check_refused(
    cache: &Cache,
    reference: &ImageReference,
    bench: &Workbench,
    sentence: &str,
) -> ImageError {
    let before = listing(&bench.cache_path());
    let error = prepare_without_archive(cache, reference, |_| {})
        .await
        .expect_err(sentence);
    assert!(
        error.to_string().contains(sentence),
        "\"{error}\" does not say \"{sentence}\""
    );
    assert_eq!(
        listing(&bench.cache_path()),
        before,
        "{sentence}: left something behind"
    );
    error
}

#[tokio::test]
async fn an_image_is_pulled_once_by_its_digest() {
    if skipped_without_root("an_image_is_pulled_once_by_its_digest") {
        return;
    }
    let bench = Workbench::new();
    let registry = Registry::start(bench.path()).await;
    let written = bench.write(&three_layers());
    let reference = registry.push(&written).await;
    let cache = bench.cache();
    let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let report = {
        let seen = Arc::clone(&seen);
        move |progress| seen.lock().unwrap().push(progress)
    };
    let ready = prepare_without_archive(&cache, &reference, report).await.unwrap();
    assert_eq!(ready.layers.len(), 3);
    assert_eq!(fs::read(ready.layers[1].join("plain")).unwrap(), noise(3 << 20, 1));
    assert_eq!(fs::read(ready.layers[2].join("zstd")).unwrap(), noise(1 << 20, 2));
    assert_eq!(ready.digest.to_string(), written.manifest_digest);

    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let total: u64 = layer_digests(&written)
        .iter()
        .map(|layer| fs::metadata(registry.stored(layer)).unwrap().len())
        .sum();
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done));
    assert_eq!(
        seen.last(),
        Some(&Progress {
            done: Bytes(total),
            total: Some(Bytes(total)),
            layers_done: 3,
            layers: Some(3),
        })
    );

    // The registry has to agree, and sends nothing again: what its layers hold now does not matter.
    for layer in layer_digests(&written) {
        fs::write(registry.stored(&layer), "").unwrap();
    }
    let again = prepare_without_archive(&cache, &reference, |_| {}).await.unwrap();
    assert_eq!(again.layers, ready.layers);
    drop(registry);
    let unsure = prepare_without_archive(&cache, &reference, |_| {}).await.unwrap_err();
    assert_eq!(unsure.blame(), Blame::Network, "{unsure}");
    // The same image as an archive has the same layers, and shares them.
    let archived = crate::workbench::prepare_archive(&cache, &written).await.unwrap();
    assert_eq!(archived.layers, ready.layers);
}

#[tokio::test]
async fn an_index_leads_to_the_manifest_of_this_machine() {
    if skipped_without_root("an_index_leads_to_the_manifest_of_this_machine") {
        return;
    }
    let bench = Workbench::new();
    let registry = Registry::start(bench.path()).await;
    let mine = bench.write(&image(vec![Layer::new().file("mine", 0o755, "x")]));
    let other = sela_oci_images::Image {
        architecture: "s390x".to_owned(),
        ..image(vec![Layer::new().file("other", 0o755, "x")])
    };
    let other = bench.write(&other);
    let entry = |image: &ImageOnDisk, architecture: &str| {
        let size = fs::metadata(blob_path(&image.layout, &image.manifest_digest))
            .unwrap()
            .len();
        json!({ "mediaType": MANIFEST, "digest": image.manifest_digest, "size": size,
                "platform": { "os": "linux", "architecture": architecture } })
    };
    let other_reference = registry.push(&other).await;
    registry.push(&mine).await;
    let index =
        |entries: Vec<Value>| json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries }).to_string();
    let both = index(vec![
        entry(&other, "s390x"),
        entry(&mine, sela_oci_images::native_architecture()),
    ]);
    let both = registry.push_manifest(INDEX, both.into_bytes()).await;
    let only_other = registry
        .push_manifest(INDEX, index(vec![entry(&other, "s390x")]).into_bytes())
        .await;

    let cache = bench.cache();
    let ready = prepare_without_archive(&cache, &both, |_| {}).await.unwrap();
    assert!(ready.layers[0].join("mine").exists());
    assert_eq!(ready.digest, both.digest());
    let sentence = format!(
        "the image is for s390x, this node is {}",
        sela_oci_images::native_architecture()
    );
    check_refused(&cache, &only_other, &bench, &sentence).await;
    check_refused(&cache, &other_reference, &bench, &sentence).await;
}

#[tokio::test]
async fn bytes_that_are_not_those_of_the_digest_are_refused() {
    if skipped_without_root("bytes_that_are_not_those_of_the_digest_are_refused") {
        return;
    }
    let bench = Workbench::new();
    let registry = Registry::start(bench.path()).await;
    let written = bench.write(&three_layers());
    let reference = registry.push(&written).await;
    let cache = bench.cache();

    check_refused(
        &cache,
        &registry.reference(BlobId::of(b"never pushed")),
        &bench,
        "it has no such manifest",
    )
    .await;

    // The registry itself changes a layer, the last one, after the others were unpacked.
    let layer = layer_digests(&written)[2];
    let stored = registry.stored(&layer);
    let honest = fs::read(&stored).unwrap();
    let mut altered = honest.clone();
    altered[honest.len() / 2] ^= 1;
    fs::write(&stored, &altered).unwrap();
    let error = check_refused(&cache, &reference, &bench, "is not what its digest says").await;
    assert!(
        matches!(error, ImageError::WrongDigest { expected, .. } if expected == layer),
        "{error}"
    );
    fs::write(&stored, &honest[..honest.len() - 7]).unwrap();
    check_refused(&cache, &reference, &bench, "bytes where its manifest says").await;
    fs::write(&stored, [honest.as_slice(), b"more"].concat()).unwrap();
    check_refused(&cache, &reference, &bench, "bytes where its manifest says").await;
    fs::remove_file(&stored).unwrap();
    check_refused(&cache, &reference, &bench, &format!("it has no such layer {layer}")).await;

    let small = Cache::open(CacheSettings {
        budget: Bytes(1_000_000),
        directory: bench.path().join("small"),
        ..bench.settings()
    });
    let small = small.unwrap();
    fs::write(&stored, &honest).unwrap();
    let error = prepare_without_archive(&small, &reference, |_| {}).await.unwrap_err();
    assert!(error.to_string().contains("the disk budget leaves 1.0 MB"), "{error}");
    prepare_without_archive(&cache, &reference, |_| {})
        .await
        .expect("whole again");
}
