//! Registries that answer as no honest one would: without end, with another's address, with half of what was asked for. And
//! those that ask for a token first.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sela_oci_images::{Compression, Content, Layer};
use sela_protocol::blob::BlobId;
use sela_protocol::job::ImageSource;
use sela_sandbox::image::{Blame, Cache, CacheSettings, ImageError, ImageReference, RegistryAccess};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinHandle;

use crate::registry::{REPOSITORY, blob_path, check_refused, layer_digests, noise, three_layers};
use crate::workbench::{Workbench, image, listing, prepare_without_archive, skipped_without_root};

/// Answers each connection with what `answer` says for the request's path and headers; then the connection ends.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

pub(crate) enum Answer {
    Whole(Vec<u8>),
    /// The head, and then content for as long as it is taken.
    Endless(&'static str),
    /// The head and this much, and then nothing for as long as the connection stands.
    Stalled(Vec<u8>),
    /// Only once as many are asked for at the same time as the barrier waits for.
    Together(Arc<tokio::sync::Barrier>, Vec<u8>),
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&str, SocketAddr) -> Answer + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                tokio::spawn(async move { serve_one(&mut stream, |request| answer(request, address)).await });
            }
        });
        Self { address, task }
    }

    pub(crate) fn reference(&self, digest: BlobId) -> ImageReference {
        let reference = format!("{}/{REPOSITORY}@{digest}", self.address);
        ImageReference::try_from(&ImageSource::Registry { reference }).unwrap()
    }
}

/// One request, one answer.
pub(crate) async fn serve_one(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), answer: impl FnOnce(&str) -> Answer) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    match answer(&String::from_utf8_lossy(&request)) {
        Answer::Whole(bytes) => drop(stream.write_all(&bytes).await),
        Answer::Together(others, bytes) => {
            others.wait().await;
            drop(stream.write_all(&bytes).await);
        }
        Answer::Endless(head) => {
            let mut alive = stream.write_all(head.as_bytes()).await.is_ok();
            while alive {
                alive = stream.write_all(&[b' '; 1 << 16]).await.is_ok();
            }
        }
        Answer::Stalled(bytes) => {
            let _ = stream.write_all(&bytes).await;
            // Until the other side goes.
            let _ = stream.read_u8().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn head(status: &str, header: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{header}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
}

async fn check_server(
    answer: impl Fn(&str, SocketAddr) -> Answer + Send + Sync + 'static,
    sentence: &str,
) -> ImageError {
    let bench = Workbench::new();
    let server = Server::start(answer).await;
    let reference = server.reference(BlobId::of(b"{}"));
    check_refused(&bench.cache(), &reference, &bench, sentence).await
}

#[tokio::test]
async fn a_hostile_registry_gets_neither_the_machines_memory_nor_its_network() {
    const ENDLESS: &str = "HTTP/1.1 200 OK\r\n\r\n";
    check_server(|_, _| Answer::Endless(ENDLESS), "manifest is larger than 4.1 MB").await;
    check_server(|_, _| Answer::Endless("HTTP/1.1 500 Oh\r\n\r\n"), "it answered 500").await;
    check_server(
        |_, _| Answer::Endless("HTTP/1.1 404 No\r\n\r\n"),
        "it has no such manifest",
    )
    .await;
    check_server(
        |_, _| Answer::Endless("HTTP/1.1 200 OK\r\nx: "),
        "message head is too large",
    )
    .await;
    check_server(|_, _| Answer::Whole(ok(b"[]")), "manifest is not what its digest says").await;
    check_server(
        |_, _| Answer::Whole(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()),
        "check the network",
    )
    .await;
    check_server(|_, _| Answer::Whole(head("429 Slow", "x: y")), "it asks to wait").await;
    check_server(
        |_, _| Answer::Whole(head("401 Who", "x: y")),
        "give the job the secret registry-login or make the repository public",
    )
    .await;

    let redirect = |to: &'static str| move |_: &str, _| Answer::Whole(head("307 There", &format!("location: {to}")));
    for (to, host) in [
        ("http://192.168.1.1/reboot", "192.168.1.1"),
        ("https://10.0.0.1/", "10.0.0.1"),
        ("https://[fe80::1]/", "[fe80::1]"),
        ("http://registry.example/", "http://registry.example"),
    ] {
        let error = check_server(redirect(to), &format!("\"{host}\" is not a public address")).await;
        assert!(matches!(error, ImageError::NotPublic { .. }), "{error:?}");
    }
    check_server(
        |_, address| Answer::Whole(head("307 There", &format!("location: http://{address}/again"))),
        "redirects without end",
    )
    .await;

    let realm = |realm: &'static str| {
        move |_: &str, _| Answer::Whole(head("401 Who", &format!("www-authenticate: Bearer realm=\"{realm}\"")))
    };
    check_server(
        realm("http://192.168.1.1/apply.cgi?reboot=1"),
        "\"192.168.1.1\" is not a public address",
    )
    .await;
    check_server(realm("nowhere"), "asks for a login in a way that cannot be answered").await;
    let endless_token = |request: &str, address| {
        if request.starts_with("GET /token") {
            Answer::Endless(ENDLESS)
        } else {
            Answer::Whole(head(
                "401 Who",
                &format!("www-authenticate: Bearer realm=\"http://{address}/token\""),
            ))
        }
    };
    check_server(endless_token, "asks for a login in a way that cannot be answered").await;
}

#[tokio::test]
async fn the_token_that_everybody_gets_is_fetched_and_shown() {
    if skipped_without_root("the_token_that_everybody_gets_is_fetched_and_shown") {
        return;
    }
    let bench = Workbench::new();
    let written = bench.write(&image(vec![
        Layer::new().file("run", 0o755, "x").compressed(Compression::None),
    ]));
    let layout = written.layout.clone();
    let server = Server::start(move |request, address| {
        let path = request.split(' ').nth(1).unwrap();
        if let Some(query) = path.strip_prefix("/token?") {
            assert_eq!(query, "scope=repository%3Atests%2Ftool%3Apull&service=tests");
            return Answer::Whole(ok(br#"{"access_token":"for-everybody"}"#));
        }
        if !request.contains("authorization: Bearer for-everybody\r\n") {
            let challenge = format!("www-authenticate: Bearer realm=\"http://{address}/token\",service=\"tests\"");
            return Answer::Whole(head("401 Who", &challenge));
        }
        let digest = path.rsplit('/').next().unwrap();
        Answer::Whole(ok(&fs::read(blob_path(&layout, digest)).unwrap()))
    })
    .await;
    let reference = server.reference(written.manifest_digest.parse().unwrap());
    let ready = prepare_without_archive(&bench.cache(), &reference, |_| {})
        .await
        .unwrap();
    assert!(ready.layers[0].join("run").exists());
}

#[tokio::test]
async fn a_transfer_that_is_given_up_leaves_only_what_came_of_it() {
    if skipped_without_root("a_transfer_that_is_given_up_leaves_only_what_came_of_it") {
        return;
    }
    let bench = Workbench::new();
    let layer = Layer::new()
        .content("run", 0o755, Content::Bytes(noise(1 << 20, 3)))
        .compressed(Compression::None);
    let written = bench.write(&image(vec![layer]));
    let (layout, layer) = (written.layout.clone(), layer_digests(&written)[0].to_string());
    let server = Server::start(move |request, _| {
        let digest = request
            .split(' ')
            .nth(1)
            .unwrap()
            .rsplit('/')
            .next()
            .unwrap()
            .to_owned();
        let bytes = fs::read(blob_path(&layout, &digest)).unwrap();
        let mut answer = ok(&bytes);
        if digest != layer {
            return Answer::Whole(answer);
        }
        answer.truncate(answer.len() / 2);
        Answer::Stalled(answer)
    })
    .await;
    let reference = server.reference(written.manifest_digest.parse().unwrap());
    let cache = bench.cache();
    let partial = bench.cache_path().join("partial");
    let half = |path: &std::path::Path| fs::metadata(path).unwrap().len() > 1 << 18;
    let came = || {
        fs::read_dir(&partial)
            .unwrap()
            .any(|entry| half(&entry.unwrap().path()))
    };

    let preparing = tokio::spawn({
        let (cache, reference) = (cache.clone(), reference.clone());
        async move { prepare_without_archive(&cache, &reference, |_| {}).await.map(drop) }
    });
    while !came() {
        assert!(!preparing.is_finished(), "{:?}", preparing.await);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    preparing.abort();
    assert!(preparing.await.unwrap_err().is_cancelled());
    // The blocking thread notices at its next read.
    let unfinished = bench.cache_path().join("unfinished");
    while !listing(&unfinished).is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(came() && listing(&bench.cache_path().join("layers")).is_empty());
}

#[tokio::test]
async fn after_a_broken_transfer_only_what_is_missing_is_fetched() {
    if skipped_without_root("after_a_broken_transfer_only_what_is_missing_is_fetched") {
        return;
    }
    let bench = Workbench::new();
    let written = bench.write(&three_layers());
    let layers = layer_digests(&written);
    let asked: Arc<Mutex<Vec<BlobId>>> = Arc::default();
    let server = {
        let (layout, asked, second) = (written.layout.clone(), Arc::clone(&asked), layers[1]);
        let broke = AtomicBool::new(false);
        Server::start(move |request, _| {
            let digest: BlobId = request
                .split(' ')
                .nth(1)
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            let mut asked = asked.lock().unwrap();
            let broken = digest == second && !broke.swap(true, Ordering::Relaxed);
            if request.starts_with("GET ") {
                asked.push(digest);
            }
            if broken {
                return Answer::Whole(head("503 Later", "x: y"));
            }
            Answer::Whole(ok(&fs::read(blob_path(&layout, &digest.to_string())).unwrap()))
        })
        .await
    };
    let reference = server.reference(written.manifest_digest.parse().unwrap());
    let cache = bench.cache();
    let error = prepare_without_archive(&cache, &reference, |_| {}).await.unwrap_err();
    assert_eq!(error.blame(), Blame::Network, "{error}");
    let kept = listing(&bench.cache_path().join("layers"));
    let top: Vec<_> = kept.iter().filter(|path| !path[2..].contains('/')).collect();
    assert_eq!(top, [&format!("d {}", layers[0].hex())]);
    assert!(listing(&bench.cache_path().join("unfinished")).is_empty());

    asked.lock().unwrap().clear();
    prepare_without_archive(&cache, &reference, |_| {}).await.unwrap();
    let asked = asked.lock().unwrap();
    assert!(!asked.contains(&layers[0]) && asked.contains(&layers[1]), "{asked:?}");
}

#[tokio::test]
async fn an_owners_machine_talks_to_no_registry_of_its_own_network() {
    let bench = Workbench::new();
    let cache = Cache::open(CacheSettings {
        registries: RegistryAccess::PublicOnly,
        ..bench.settings()
    });
    let cache = match cache {
        Ok(cache) => cache,
        Err(error) => panic!("{error}"),
    };
    for host in [
        "127.0.0.1:5000",
        "localhost:5000",
        "192.168.1.1",
        "[::1]:5000",
        "169.254.169.254",
        "10.0.0.1:80",
    ] {
        let reference = format!("{host}/{REPOSITORY}@{}", BlobId::of(b"manifest"));
        let reference = ImageReference::try_from(&ImageSource::Registry { reference }).unwrap();
        check_refused(&cache, &reference, &bench, "is not a public address").await;
    }
}
