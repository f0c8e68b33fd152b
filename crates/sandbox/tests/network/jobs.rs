//! Real jobs, behind every wall: ordinary programs reach the hosts that were asked for, over TLS that only the two ends can read, and
//! nothing else by any way.

use crate::internet::{Internet, asking_for, lends};
use crate::support::{Stage, Watched, assert_nothing_left, is_root};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sela_protocol::network::JobNetwork;
use sela_protocol::units::Bytes;
use sela_sandbox::keeper::wire::{Egress, JobPlan};
use sela_sandbox::network::{Gateway, environment};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A host that answers every request over TLS, and whom to trust for it.
struct Host {
    address: SocketAddr,
    certificate: String,
}

impl Host {
    async fn start(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let own = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(config))));
        Self {
            address,
            certificate: own.cert.pem(),
        }
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) {
    while let Ok((stream, _)) = listener.accept().await {
        let tls = tls.clone();
        tokio::spawn(async move {
            let mut stream = tls.accept(stream).await?;
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await?);
            }
            let body = if request.starts_with(b"GET /large") {
                vec![b'x'; 1 << 20]
            } else {
                b"hello from the host\n".to_vec()
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&body).await?;
            stream.shutdown().await
        });
    }
}

/// A job with `curl`, the host's certificate, and the proxy.
fn script(stage: &Stage, host: &Host, script: &str) -> JobPlan {
    let curl = ["/usr/bin/curl", "/bin/curl"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.exists());
    stage.add_program(curl.expect("the tests of jobs need curl: apt-get install curl"));
    fs::write(stage.layer.join("etc/host.pem"), &host.certificate).unwrap();
    let mut plan = stage.script(script);
    plan.program.environment.extend(environment());
    plan.program
        .environment
        .push(("CURL_CA_BUNDLE".to_owned(), "/etc/host.pem".to_owned()));
    plan.egress = Egress::Proxy;
    plan
}

/// Runs a job to its end with its proxy: the outcome's output, and the lines for its log.
async fn run(plan: &JobPlan, network: &JobNetwork, internet: &Internet) -> (String, Vec<String>, Gateway) {
    let mut job = Watched::start(plan).await;
    let listener = job.door().listener().await.unwrap().expect("the job's socket comes");
    let mut gateway = Gateway::open(listener, network, &lends(&["*", "*:80"]), internet.clone()).unwrap();
    let outcome = job.finish().await;
    assert!(outcome.clean, "{outcome:?}");
    outcome.exited(0);
    let lines = std::iter::from_fn(|| gateway.waiting_line()).collect();
    (format!("{}{}", outcome.out, outcome.err), lines, gateway)
}

#[tokio::test]
async fn a_job_reaches_the_hosts_that_it_asked_for_and_nothing_else() {
    if !is_root("a_job_reaches_the_hosts_that_it_asked_for_and_nothing_else") {
        return;
    }
    let host = Host::start(&["www.example.org"]).await;
    let names: [(&str, &[&str]); 2] = [
        ("www.example.org", &["93.184.216.34"]),
        ("other.example.org", &["1.1.1.1"]),
    ];
    let internet = Internet::new(host.address, &names);
    let stage = Stage::new();
    let plan = script(
        &stage,
        &host,
        "curl -sS https://www.example.org/ || exit 1
         echo --; curl -sS https://other.example.org/
         echo --; curl -sS https://www.example.org:8443/
         echo --; curl -sS http://www.example.org/
         echo --; curl -sS --noproxy '*' --connect-timeout 2 https://93.184.216.34/
         echo --; curl -sS --noproxy '*' --connect-timeout 2 https://www.example.org/
         echo --; curl -sS -x socks5h://127.0.0.1:7352 --connect-timeout 2 https://www.example.org/
         echo --; nc -w 1 192.168.1.1 80; nc -w 1 1.1.1.1 53; ping -c 1 -W 1 1.1.1.1
         echo --; ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1; wc -l < /proc/net/route
         echo --; nc -l -p 7352 -e true || echo taken; exit 0",
    );
    let network = asking_for(&["www.example.org"]);
    let (said, lines, gateway) = run(&plan, &network, &internet).await;
    assert!(said.contains("hello from the host\n--"), "{said}");
    for (times, words) in [(2, "response 403"), (1, "taken"), (1, "lo\n")] {
        assert_eq!(said.matches(words).count(), times, "{words}: {said}");
    }
    // Plain HTTP gets its reason in words, and is not passed on.
    assert!(said.contains("CONNECT only"), "{said}");
    assert_eq!(said.matches("hello from the host").count(), 1, "{said}");
    // One name was resolved and one address connected to, in the whole life of the job.
    assert_eq!(
        internet.asked(),
        ["resolve www.example.org", "connect 93.184.216.34:443"]
    );
    for words in [
        "other.example.org:443 is not among",
        "www.example.org:8443 is not among",
        "\"GET\" is not served",
        "no request to an HTTP proxy",
    ] {
        assert_eq!(
            lines.iter().filter(|line| line.contains(words)).count(),
            1,
            "{words}: {lines:?}"
        );
    }
    let used = gateway.used();
    assert!(
        used.down > Bytes(100) && used.up > Bytes(100),
        "a handshake at least: {used:?}"
    );
    assert_eq!(used.refused, 4);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_job_cannot_be_led_home_by_names_nor_take_more_than_its_share() {
    if !is_root("a_job_cannot_be_led_home_by_names_nor_take_more_than_its_share") {
        return;
    }
    let host = Host::start(&["www.example.org"]).await;
    let names: [(&str, &[&str]); 3] = [
        ("www.example.org", &["93.184.216.34"]),
        ("home.example.org", &["127.0.0.1"]),
        ("both.example.org", &["93.184.216.34", "10.0.0.1"]),
    ];
    let internet = Internet::new(host.address, &names);
    let stage = Stage::new();
    let plan = script(
        &stage,
        &host,
        "for name in home both; do curl -sS https://$name.example.org/; echo; done
         curl -sS https://www.example.org/large | wc -c
         curl -sS https://www.example.org/; exit 0",
    );
    let mut network = asking_for(&["*.example.org"]);
    network.bytes = Some(Bytes(200_000));
    let (said, lines, gateway) = run(&plan, &network, &internet).await;
    assert_eq!(said.matches("response 403").count(), 3, "{said}");
    assert!(!said.contains("hello"), "{said}");
    let asked = internet.asked();
    let connected: Vec<&String> = asked.iter().filter(|what| what.starts_with("connect")).collect();
    assert_eq!(connected, ["connect 93.184.216.34:443"]);
    let used = gateway.used();
    assert_eq!(used.down.0 + used.up.0, 200_000, "to the byte");
    for words in [
        "home.example.org:443 leads into",
        "both.example.org:443 leads into",
        "all 200000 B",
    ] {
        assert!(lines.iter().any(|line| line.contains(words)), "{words}: {lines:?}");
    }
}

#[tokio::test]
async fn a_job_without_network_has_no_proxy_and_the_agent_no_socket_of_it() {
    if !is_root("a_job_without_network_has_no_proxy_and_the_agent_no_socket_of_it") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("nc 127.0.0.1 7352 2>&1; env | grep -i proxy; exit 0");
    let mut job = Watched::start(&plan).await;
    let mut door = job.door();
    let outcome = job.finish().await;
    assert!(
        outcome.out.contains("refused") && !outcome.out.contains("PROXY"),
        "{}",
        outcome.out
    );
    assert!(door.listener().await.unwrap().is_none());
}

/// What a job's own processes hold of the way out: nothing but connections that they make themselves.
#[tokio::test]
async fn a_job_holds_no_descriptor_of_the_proxy_and_its_end_closes_all() {
    if !is_root("a_job_holds_no_descriptor_of_the_proxy_and_its_end_closes_all") {
        return;
    }
    let host = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let internet = Internet::new(host.local_addr().unwrap(), &[("www.example.org", &["93.184.216.34"])]);
    let stage = Stage::new();
    let mut plan = stage.script(
        "ls -l /proc/self/fd | grep -c socket; echo listed
         (printf 'CONNECT www.example.org:443 HTTP/1.1\\r\\n\\r\\n'; sleep 100) | nc 127.0.0.1 7352",
    );
    plan.egress = Egress::Proxy;
    let mut job = Watched::start(&plan).await;
    let listener = job.door().listener().await.unwrap().unwrap();
    let gateway = Gateway::open(listener, &asking_for(&["www.example.org"]), &lends(&["*"]), internet).unwrap();
    let (mut connection, _) = host.accept().await.unwrap();
    job.until_says("200 Connection established").await;
    assert!(
        job.output(sela_sandbox::keeper::wire::LogStream::Out)
            .starts_with("0\nlisted\n")
    );
    // As an agent that is killed: the keeper ends the job, and the host hears of it without anybody's doing.
    job.hang_up();
    let mut rest = Vec::new();
    drop(connection.read_to_end(&mut rest).await);
    assert_eq!(rest, b"");
    job.finish().await;
    drop(gateway);
    assert_nothing_left(&plan);
}
