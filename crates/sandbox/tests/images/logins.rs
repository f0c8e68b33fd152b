//! Registries that ask for a login: a real one with a password, and one with a token server of its own. Who is shown what.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sela_oci_images::{Compression, Image, Layer};
use sela_sandbox::image::{Blame, ImageError, PreparedImage, RegistryLogin};

use crate::registry::{PASSWORD, REPOSITORY, Registry, USER, blob_path, layer_digests};
use crate::served::{Answer, Server, head, ok};
use crate::workbench::{Workbench, image, prepare_with_login, skipped_without_root};

/// `worker:open-sesame`.
const BASIC: &str = "authorization: Basic d29ya2VyOm9wZW4tc2VzYW1l\r\n";

fn private() -> Image {
    let layers = ["weights", "run"].map(|name| Layer::new().file(name, 0o755, name).compressed(Compression::None));
    image(layers.into())
}

fn login(password: &str) -> RegistryLogin {
    RegistryLogin::parse(&format!("{USER}:{password}")).unwrap()
}

fn check_refused(result: Result<PreparedImage, ImageError>, sentence: &str) {
    let error = result.expect_err(sentence);
    assert_eq!(error.blame(), Blame::Image);
    let shown = format!("{error} {error:?}");
    assert!(shown.contains(sentence), "{shown}");
    assert!(!shown.contains(PASSWORD) && !shown.contains("wrong-word"), "{shown}");
}

#[tokio::test]
async fn a_private_repository_opens_for_its_password_and_for_nobody_else() {
    if skipped_without_root("a_private_repository_opens_for_its_password_and_for_nobody_else") {
        return;
    }
    let bench = Workbench::new();
    let registry = Registry::start_private(bench.path()).await;
    let written = bench.write(&private());
    let reference = registry.push(&written).await;
    let cache = bench.cache();
    let no_login = "it asks for a login; give the job the secret registry-login";
    let wrong = format!("it does not let this login pull {REPOSITORY}");
    // Before the cache has it and after: that it lies here opens nothing.
    for known in [false, true] {
        check_refused(prepare_with_login(&cache, &reference, None).await, no_login);
        check_refused(
            prepare_with_login(&cache, &reference, Some(&login("wrong-word"))).await,
            &wrong,
        );
        let ready = prepare_with_login(&cache, &reference, Some(&login(PASSWORD)))
            .await
            .unwrap();
        assert_eq!(
            fs::read(ready.layers[0].join("weights")).unwrap(),
            b"weights",
            "{known}"
        );
    }
}

/// What a server was asked, head by head.
type Heads = Arc<Mutex<Vec<String>>>;

#[tokio::test]
async fn a_password_is_shown_to_the_token_server_and_a_token_to_the_registry() {
    if skipped_without_root("a_password_is_shown_to_the_token_server_and_a_token_to_the_registry") {
        return;
    }
    let bench = Workbench::new();
    let written = bench.write(&private());
    let (layout, layers) = (written.layout.clone(), layer_digests(&written));
    // Where the registry keeps its layers: anybody who was sent there may fetch them.
    let store_heads = Heads::default();
    let store = Server::start({
        let (heads, layout) = (Arc::clone(&store_heads), layout.clone());
        move |request, _| {
            heads.lock().unwrap().push(request.to_owned());
            let digest = request.split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
            Answer::Whole(ok(&fs::read(blob_path(&layout, digest)).unwrap()))
        }
    })
    .await;
    let place = store.address;
    let heads = Heads::default();
    let (tokens, uses) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let registry = Server::start({
        let heads = Arc::clone(&heads);
        move |request, address| {
            heads.lock().unwrap().push(request.to_owned());
            let path = request.split(' ').nth(1).unwrap();
            if path.starts_with("/token?") {
                if !request.contains(BASIC) {
                    return Answer::Whole(head("401 Who", "x: y"));
                }
                uses.store(0, Ordering::Relaxed);
                let number = tokens.fetch_add(1, Ordering::Relaxed) + 1;
                return Answer::Whole(ok(format!(r#"{{"token":"t{number}"}}"#).as_bytes()));
            }
            let number = tokens.load(Ordering::Relaxed);
            // Each token is good for two requests, as a transfer of hours outlives one of minutes.
            let good = request.contains(&format!("authorization: Bearer t{number}\r\n"))
                && uses.fetch_add(1, Ordering::Relaxed) < 2;
            if !good {
                let challenge = format!("www-authenticate: Bearer realm=\"http://{address}/token\",service=\"tests\"");
                return Answer::Whole(head("401 Who", &challenge));
            }
            let digest = path.rsplit('/').next().unwrap();
            if layers.iter().any(|layer| layer.to_string() == digest) {
                return Answer::Whole(head("307 There", &format!("location: http://{place}/kept/{digest}")));
            }
            Answer::Whole(ok(&fs::read(blob_path(&layout, digest)).unwrap()))
        }
    })
    .await;
    let reference = registry.reference(written.manifest_digest.parse().unwrap());
    let cache = bench.cache();
    check_refused(
        prepare_with_login(&cache, &reference, None).await,
        "it asks for a login; give the job the secret",
    );
    check_refused(
        prepare_with_login(&cache, &reference, Some(&login("wrong-word"))).await,
        "it does not let this login pull",
    );
    heads.lock().unwrap().clear();
    let ready = prepare_with_login(&cache, &reference, Some(&login(PASSWORD)))
        .await
        .unwrap();
    assert_eq!(ready.layers.len(), 2);

    let heads = heads.lock().unwrap();
    let asks_for_token = |request: &&String| request.starts_with("GET /token?");
    assert!(
        heads.iter().filter(asks_for_token).count() >= 2,
        "a token that is over is replaced"
    );
    for request in heads.iter() {
        assert_eq!(
            request.contains("authorization: Basic"),
            asks_for_token(&request),
            "{request}"
        );
    }
    let store_heads = store_heads.lock().unwrap();
    assert!(!store_heads.is_empty());
    for request in store_heads.iter() {
        assert!(!request.contains("authorization"), "{request}");
    }
}
