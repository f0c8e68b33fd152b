//! Peers that open connections and say nothing, too little, or too often.

use super::Lab;
use super::client::Node;
use crate::listener::Limits;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Long beyond what is tested: only so that a test that fails ends.
const PATIENCE: Duration = Duration::from_secs(20);

async fn lab(limits: Limits) -> Lab {
    Lab::start_with(|settings| settings.limits = limits).await
}

/// All that comes on a connection until the exchange closes it.
async fn rest_of(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    // A connection that is torn down instead of closed is closed too.
    drop(read.expect("the exchange closes it"));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_connection_that_never_says_what_it_wants_is_closed() {
    let lab = lab(Limits {
        head: Duration::from_millis(300),
        ..Limits::default()
    })
    .await;
    // Nothing, a head without an end, a head that comes letter by letter, and a second request that never comes.
    for said in [
        "",
        "GET /healthz HTTP/1.1\r\nhost: x\r\n",
        "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(lab.address()).await.expect("connects");
        stream.write_all(said.as_bytes()).await.expect("written");
        let told = rest_of(&mut stream).await;
        assert_eq!(told.contains("200 OK"), said.ends_with("\r\n\r\n"), "{said:?}: {told}");
    }
    let mut stream = TcpStream::connect(lab.address()).await.expect("connects");
    let letters = async {
        for letter in std::iter::repeat(b"x-slow: yes\r\n").flatten() {
            if stream.write_all(&[*letter]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, letters).await.expect("the exchange closes it");
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_no_more_nodes_included() {
    let lab = lab(Limits {
        per_address: 6,
        ..Limits::default()
    })
    .await;
    // One is the node's, and one more may be the operator's for its next request.
    let node = Node::join(lab.address(), &lab.operator, 1).await;
    let mut idle = Vec::new();
    for _ in 0..6 {
        idle.push(TcpStream::connect(lab.address()).await.expect("connects"));
    }
    let mut refused = idle.pop().expect("the last");
    let told = rest_of(&mut refused).await;
    assert!(
        told.starts_with("HTTP/1.1 503") && told.contains("too_many_connections") && told.contains("close some"),
        "{told}"
    );
    drop((node, idle));
    loop {
        let mut stream = TcpStream::connect(lab.address()).await.expect("connects");
        let ask = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        if stream.write_all(ask.as_bytes()).await.is_ok() && rest_of(&mut stream).await.contains("200 OK") {
            break;
        }
        tokio::task::yield_now().await;
    }
}
