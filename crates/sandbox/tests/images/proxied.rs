//! A registry that is reached through a proxy only, over TLS, with a certificate that only this system's own authority vouches for:
//! all of that from the environment of a process of its own (`examples/pull.rs`). The proxy and the registry are of this test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sela_oci_images::{ImageOnDisk, Layer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use crate::registry::{REPOSITORY, blob_path};
use crate::served::{Answer, ok, serve_one};
use crate::workbench::{Workbench, image, skipped_without_root};

/// No name server knows it.
const HOST: &str = "registry.sela.invalid";
/// `owner:through`
const PROXY_LOGIN: &str = "proxy-authorization: Basic b3duZXI6dGhyb3VnaA==\r\n";

/// A registry over TLS; gives where it listens and writes its authority's certificate to `authority`.
async fn start_registry(image: &ImageOnDisk, authority: &Path) -> SocketAddr {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(authority, issuer.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![HOST.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let settings = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(settings));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let layout = image.layout.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, layout) = (acceptor.clone(), layout.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                let answer = |request: &str| {
                    let digest = request.split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
                    Answer::Whole(ok(&fs::read(blob_path(&layout, digest)).unwrap()))
                };
                serve_one(&mut stream, answer).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    address
}

/// A proxy that leads every name to `registry`, for its owner only; gives where it listens and what it was asked.
async fn start_proxy(registry: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let noted = Arc::clone(&noted);
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => request.push(byte),
                        Err(_) => return,
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                noted.lock().unwrap().push(request.lines().next().unwrap().to_owned());
                let mine = request.to_lowercase().contains(&PROXY_LOGIN.to_lowercase());
                if !mine {
                    let _ = stream.write_all(b"HTTP/1.1 407 Who\r\ncontent-length: 0\r\n\r\n").await;
                    return;
                }
                let mut there = TcpStream::connect(registry).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 Through\r\n\r\n").await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
            });
        }
    });
    (address, asked)
}

fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.ancestors().nth(2).unwrap().join("examples");
    folder.join("pull")
}

async fn pull(cache: &Path, reference: &str, proxy: &str, authority: &Path) -> Output {
    let (cache, reference, proxy) = (cache.to_owned(), reference.to_owned(), proxy.to_owned());
    let authority = authority.to_owned();
    let run = move || {
        #[expect(clippy::disallowed_methods, reason = "the program under test")]
        let mut command = Command::new(program());
        for name in [
            "NO_PROXY",
            "no_proxy",
            "ALL_PROXY",
            "all_proxy",
            "https_proxy",
            "SSL_CERT_DIR",
        ] {
            command.env_remove(name);
        }
        command.env("HTTPS_PROXY", proxy).env("SSL_CERT_FILE", authority);
        command.arg(cache).arg(reference).output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test]
async fn a_registry_is_reached_through_the_environments_proxy_with_the_systems_certificates() {
    if skipped_without_root("a_registry_is_reached_through_the_environments_proxy_with_the_systems_certificates") {
        return;
    }
    let bench = Workbench::new();
    let written = bench.write(&image(vec![Layer::new().file("run", 0o755, "x")]));
    let [authority, stranger] = ["authority.pem", "stranger.pem"].map(|name| bench.path().join(name));
    // Another authority of the same kind, that has not signed it.
    start_registry(&written, &stranger).await;
    let registry = start_registry(&written, &authority).await;
    let (proxy, asked) = start_proxy(registry).await;
    let reference = format!("{HOST}/{REPOSITORY}@{}", written.manifest_digest);
    let (mine, nobodys) = (format!("http://owner:through@{proxy}"), format!("http://{proxy}"));

    let check_refused = |output: &Output, sentence: &str| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(sentence), "{said}");
        assert!(!said.contains("through@"), "{said}");
    };
    let refused = pull(&bench.cache_path(), &reference, &mine, &stranger).await;
    check_refused(&refused, "ertificate");
    let refused = pull(&bench.cache_path(), &reference, &nobodys, &authority).await;
    check_refused(&refused, "check the network");
    let refused = pull(&bench.cache_path(), &reference, "socks5://proxy:1", &authority).await;
    check_refused(&refused, "a proxy reads http");
    // The proxy is the owner's; where a stranger's reference leads through it is looked at all the same.
    asked.lock().unwrap().clear();
    let inside = format!("192.168.1.1/{REPOSITORY}@{}", written.manifest_digest);
    let refused = pull(&bench.cache_path(), &inside, &mine, &authority).await;
    check_refused(&refused, "NotPublic");
    assert!(asked.lock().unwrap().is_empty());

    let output = pull(&bench.cache_path(), &reference, &mine, &authority).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let layer = String::from_utf8(output.stdout).unwrap();
    assert_eq!(fs::read(Path::new(layer.trim()).join("run")).unwrap(), b"x");
    let asked = asked.lock().unwrap();
    let through = format!("CONNECT {HOST}:443 HTTP/1.1");
    assert!(
        !asked.is_empty() && asked.iter().all(|line| *line == through),
        "{asked:?}"
    );
}
