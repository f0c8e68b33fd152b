//! The proxy alone: what it lets through, what it refuses and how, and that nobody can hold it up.

use crate::internet::{Internet, asking_for, lends, share};
use sela_protocol::network::{JobNetwork, NetworkShare};
use sela_protocol::units::Bytes;
use sela_sandbox::network::{Gateway, OwnersLine};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

const PUBLIC: (&str, &[&str]) = ("www.example.org", &["93.184.216.34"]);

/// A proxy, and the server that all addresses lead to.
struct Stage {
    gateway: Gateway,
    proxy: SocketAddr,
    internet: Internet,
    server: TcpListener,
}

impl Stage {
    async fn new(network: &JobNetwork, line: &OwnersLine, names: &[(&str, &[&str])]) -> Self {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let internet = Internet::new(server.local_addr().unwrap(), names);
        Self {
            server,
            ..Self::with(network, line, internet).await
        }
    }

    /// With an internet of its own; nobody connects to its server.
    async fn with(network: &JobNetwork, line: &OwnersLine, internet: Internet) -> Self {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let proxy = listener.local_addr().unwrap();
        Self {
            gateway: Gateway::open(listener, network, line, internet.clone()).unwrap(),
            proxy,
            internet,
            server,
        }
    }

    async fn usual() -> Self {
        Self::new(&asking_for(&["www.example.org"]), &lends(&["*"]), &[PUBLIC]).await
    }

    async fn say(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    async fn ask(&self, target: &str) -> TcpStream {
        self.say(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
            .await
    }

    /// Both ends of an open tunnel.
    async fn tunnel(&self) -> (TcpStream, TcpStream) {
        let mut program = self.ask("www.example.org:443").await;
        assert_eq!(status(&mut program).await, "HTTP/1.1 200 Connection established");
        (program, self.server.accept().await.unwrap().0)
    }
}

/// The status line of an answer, its head read to the end.
async fn status(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    head.lines().next().unwrap().to_owned()
}

/// A whole answer of a connection that is closed after it.
async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn what_passes_is_the_programs_and_the_hosts_own_bytes_all_counted() {
    let stage = Stage::usual().await;
    // What follows the request without waiting for the answer is the host's already.
    let mut program = stage
        .say(b"CONNECT www.example.org:443 HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\nhello, ")
        .await;
    let (mut host, _) = stage.server.accept().await.unwrap();
    assert_eq!(status(&mut program).await, "HTTP/1.1 200 Connection established");
    program.write_all(b"host").await.unwrap();
    program.shutdown().await.unwrap();
    let mut heard = String::new();
    host.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "hello, host");
    // The program has said all it had to say, and still hears.
    host.write_all(b"hello, program").await.unwrap();
    drop(host);
    assert_eq!(answer(program).await, "hello, program");
    let used = stage.gateway.used();
    assert_eq!((used.up, used.down, used.refused), (Bytes(11), Bytes(14), 0));
    assert_eq!(used.hosts, ["www.example.org"]);
    assert_eq!(
        stage.internet.asked(),
        ["resolve www.example.org", "connect 93.184.216.34:443"]
    );
}

#[tokio::test]
async fn what_is_not_allowed_is_answered_told_and_neither_resolved_nor_connected_to() {
    let line = lends(&["*", "*.example.net"]);
    let network = asking_for(&["www.example.org", "*.example.net:8443"]);
    let mut stage = Stage::new(&network, &line, &[PUBLIC]).await;
    let asked = "is not among the hosts of the job's network";
    let cases: [(&[u8], &str, &str); 11] = [
        (b"CONNECT example.org:443 HTTP/1.1\r\n\r\n", "403", asked),
        (b"CONNECT www.example.org:80 HTTP/1.1\r\n\r\n", "403", asked),
        (b"CONNECT 93.184.216.34:443 HTTP/1.1\r\n\r\n", "403", asked),
        (b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n", "403", asked),
        (b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n", "403", asked),
        // A tunnel by names: what would be looked up never is.
        (
            b"CONNECT secret-in-a-name.evil.example:443 HTTP/1.1\r\n\r\n",
            "403",
            asked,
        ),
        (
            b"CONNECT a.example.net:8443 HTTP/1.1\r\n\r\n",
            "403",
            "the owner of this machine allows",
        ),
        (
            b"CONNECT localhost:443 HTTP/1.1\r\n\r\n",
            "400",
            "no name of the internet",
        ),
        (
            b"GET http://www.example.org/ HTTP/1.1\r\nHost: www.example.org\r\n\r\n",
            "405",
            "CONNECT only",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00", "400", "no request to an HTTP proxy"),
        (&[b'A'; 9_000], "431", "more than 8192 bytes"),
    ];
    let count = cases.len();
    for (bytes, code, why) in cases {
        // Asked twice, told once.
        for _ in 0..2 {
            let answer = answer(stage.say(bytes).await).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {code} ")) && answer.contains(why),
                "{why}: {answer}"
            );
        }
    }
    let used = stage.gateway.used();
    assert_eq!(
        (used.refused as usize, used.up, used.down),
        (2 * count, Bytes(0), Bytes(0))
    );
    assert!(used.last_refusal.unwrap().contains("8192"));
    let lines: Vec<String> = std::iter::from_fn(|| stage.gateway.waiting_line()).collect();
    assert_eq!(lines.len(), count);
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("[sela] network: refused: ") && line.ends_with('\n'))
    );
    assert_eq!(stage.internet.asked(), [""; 0]);
}

#[tokio::test]
async fn a_name_that_leads_home_is_refused_whatever_else_it_leads_to() {
    let names: [(&str, &[&str]); 5] = [
        ("router.example.org", &["192.168.1.1"]),
        ("mixed.example.org", &["93.184.216.34", "127.0.0.1"]),
        ("mapped.example.org", &["::ffff:10.0.0.1"]),
        ("translated.example.org", &["64:ff9b::a00:1"]),
        ("neighbour.example.org", &["2600:1:2:34ff::1"]),
    ];
    let stage = Stage::new(&asking_for(&["*.example.org"]), &lends(&["*"]), &names).await;
    for (name, _) in names {
        let answer = answer(stage.ask(&format!("{name}:443")).await).await;
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.contains("local network"),
            "{name}: {answer}"
        );
        assert!(
            !answer.contains("192.168"),
            "what the owner's resolver says is not told"
        );
    }
    let answer = answer(stage.ask("nowhere.example.org:443").await).await;
    assert!(
        answer.starts_with("HTTP/1.1 502 ") && answer.contains("could not be resolved"),
        "{answer}"
    );
    assert!(
        stage.internet.asked().iter().all(|what| what.starts_with("resolve")),
        "nothing was connected to"
    );
}

#[tokio::test]
async fn an_owner_who_allows_less_is_obeyed_at_the_next_connection() {
    let line = lends(&["*"]);
    let stage = Stage::new(&asking_for(&["www.example.org"]), &line, &[PUBLIC]).await;
    drop(stage.tunnel().await);
    line.set(share(&["other.example.org"]));
    let answer = answer(stage.ask("www.example.org:443").await).await;
    assert!(answer.contains("the owner of this machine allows"), "{answer}");
}

#[tokio::test]
async fn a_job_that_has_used_up_its_bytes_is_cut_off_to_the_byte_and_told() {
    let mut network = asking_for(&["www.example.org"]);
    network.bytes = Some(Bytes(100_000));
    let mut stage = Stage::new(&network, &lends(&["*"]), &[PUBLIC]).await;
    let (mut program, mut host) = stage.tunnel().await;
    let (other, _other_host) = stage.tunnel().await;
    program.write_all(&[1; 1_000]).await.unwrap();
    host.read_exact(&mut [0; 1_000]).await.unwrap();
    let sent = tokio::spawn(async move { host.write_all(&vec![2; 1 << 20]).await });
    let mut received = Vec::new();
    program.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, vec![2; 99_000]);
    drop(sent.await.unwrap());
    let used = stage.gateway.used();
    assert_eq!((used.down, used.up), (Bytes(99_000), Bytes(1_000)));
    let answer = answer(stage.ask("www.example.org:443").await).await;
    assert!(
        answer.starts_with("HTTP/1.1 403 ") && answer.contains("100000 B"),
        "{answer}"
    );
    assert!(
        stage
            .gateway
            .line()
            .await
            .contains("all 100000 B that this job may receive and send have passed")
    );
    drop(other);
}

#[tokio::test]
async fn an_owner_whose_limit_is_smaller_has_the_last_word() {
    let line = OwnersLine::new(NetworkShare {
        job_bytes: Bytes(10),
        ..share(&["*"])
    });
    let mut network = asking_for(&["www.example.org"]);
    network.bytes = Some(Bytes(1_000));
    let stage = Stage::new(&network, &line, &[PUBLIC]).await;
    let (mut program, mut host) = stage.tunnel().await;
    program.write_all(b"more than ten bytes").await.unwrap();
    let mut heard = String::new();
    drop(host.read_to_string(&mut heard).await);
    assert_eq!(heard, "more than ");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_so_and_there_is_room_again_when_one_ends() {
    let stage = Stage::usual().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(stage.tunnel().await);
    }
    let answer = answer(stage.ask("www.example.org:443").await).await;
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("64 connections"),
        "{answer}"
    );
    drop(open.pop());
    loop {
        let mut program = stage.ask("www.example.org:443").await;
        // The proxy sees the end of the other a moment later, and until then turns some away without a word: too many ask.
        let mut answer = [0; 12];
        if program.read_exact(&mut answer).await.is_ok() && answer == *b"HTTP/1.1 200" {
            break;
        }
    }
}

#[tokio::test]
async fn clients_that_send_half_a_request_hold_nobody_up() {
    let stage = Stage::usual().await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        slow.push(stage.say(b"CONNECT www.example.org:443 HT").await);
    }
    drop(stage.tunnel().await);
    assert_eq!(stage.gateway.used().refused, 0);
}

/// Time is paused: it jumps to the proxy's patience at once.
#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_come_is_not_waited_for() {
    let stage = Stage::usual().await;
    let answer = answer(stage.say(b"CONNECT www.exa").await).await;
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.contains("within 10 s"),
        "{answer}"
    );
    // A program that goes away without a word is nobody's fault.
    drop(stage.say(b"").await);
    assert_eq!(stage.gateway.used().refused, 1);
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_named() {
    // Taken, and listened at by nobody.
    let deaf = TcpSocket::new_v4().unwrap();
    deaf.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let internet = Internet::new(deaf.local_addr().unwrap(), &[PUBLIC]);
    let stage = Stage::with(&asking_for(&["www.example.org"]), &lends(&["*"]), internet).await;
    let answer = answer(stage.ask("www.example.org:443").await).await;
    assert!(
        answer.starts_with("HTTP/1.1 502 ") && answer.contains("connection refused"),
        "{answer}"
    );
}

#[tokio::test]
async fn everything_is_closed_when_the_job_is_over() {
    let stage = Stage::usual().await;
    let (mut program, mut host) = stage.tunnel().await;
    let mut waiting = stage.say(b"CONNECT www.exa").await;
    let proxy = stage.proxy;
    drop(stage.gateway);
    let mut rest = Vec::new();
    for stream in [&mut program, &mut host, &mut waiting] {
        // A reset says the same.
        drop(stream.read_to_end(&mut rest).await);
    }
    assert_eq!(rest, b"");
    while TcpStream::connect(proxy).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn nothing_passes_while_the_job_stands_frozen() {
    let stage = Stage::usual().await;
    let (mut program, mut host) = stage.tunnel().await;
    stage.gateway.halt(true);
    host.write_all(b"while frozen").await.unwrap();
    let (tell, mut told) = mpsc::channel(1);
    let reading = tokio::spawn(async move {
        let mut bytes = [0; 12];
        program.read_exact(&mut bytes).await.unwrap();
        tell.send(bytes).await.unwrap();
    });
    // Everything else that runs here has its turn many times, and the kernel is asked what has come.
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    assert!(told.try_recv().is_err());
    stage.gateway.halt(false);
    assert_eq!(&told.recv().await.unwrap(), b"while frozen");
    reading.await.unwrap();
}
