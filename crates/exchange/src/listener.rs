//! Takes connections for the HTTP interface: so many of one address at a time, and none that sits there without ever saying what it
//! wants. What is asked on them is `rest`'s.

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// After an error of the system's (too many open files, mostly) nothing is taken for so long: others may close theirs.
const PAUSE: Duration = Duration::from_millis(100);
/// Addresses that are remembered before those without a connection are forgotten.
const REMEMBERED: usize = 1_024;
/// What who has too many connections is told, whatever it would have asked.
const TOO_MANY: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\n",
    "content-type: application/problem+json\r\n",
    "retry-after: 1\r\n",
    "connection: close\r\n\r\n",
    r#"{"code":"too_many_connections","status":503,"#,
    r#""detail":"this address has as many connections open here as one may have: close some, or use them again"}"#
);

/// What one peer may take of the listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long a connection may take to send the head of a request; also how long it may be idle between two.
    pub(crate) head: Duration,
    /// Connections of one address, nodes' sockets included.
    pub(crate) per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(20),
            per_address: 5_000,
        }
    }
}

/// A connection's place among those of its address. A node's socket, which outlives the request that opened it, keeps it.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// Serves until told to stop, then until the requests that are under way have ended.
pub(crate) async fn serve(listener: TcpListener, router: Router, limits: Limits, mut stopping: watch::Receiver<bool>) {
    let mut addresses = Addresses {
        limits,
        places: HashMap::new(),
    };
    let mut connections = JoinSet::new();
    // Connections have a flag of their own: who waits for the exchange's is a request that stays.
    let (ending, ended) = watch::channel(false);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Only so that what has ended is not kept.
            Some(_) = connections.join_next() => continue,
            () = until_true(&mut stopping) => break,
        };
        match accepted {
            Ok((stream, peer)) => match addresses.place(peer.ip()) {
                Some(place) => {
                    let router = router.clone().layer(Extension(place));
                    connections.spawn(serve_one(stream, router, limits.head, ended.clone()));
                }
                None => refuse(&stream),
            },
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    ending.send_replace(true);
    while connections.join_next().await.is_some() {}
}

async fn serve_one(stream: TcpStream, router: Router, head: Duration, mut stopping: watch::Receiver<bool>) {
    // Small answers that somebody waits for: no gathering. Where it cannot be set they come a little later.
    drop(stream.set_nodelay(true));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = until_true(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn until_true(flag: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the exchange.
    drop(flag.wait_for(|flag| *flag).await);
}

/// Tells it as far as its socket takes it at once: whoever has too many connections is not waited for.
fn refuse(stream: &TcpStream) {
    drop(stream.try_write(TOO_MANY.as_bytes()));
}

struct Addresses {
    limits: Limits,
    places: HashMap<IpAddr, Arc<Semaphore>>,
}

impl Addresses {
    fn place(&mut self, address: IpAddr) -> Option<Place> {
        let most = self.limits.per_address;
        if self.places.len() >= REMEMBERED {
            self.places.retain(|_, places| places.available_permits() < most);
        }
        let places = self
            .places
            .entry(address.to_canonical())
            .or_insert_with(|| Arc::new(Semaphore::new(most)));
        Arc::clone(places).try_acquire_owned().ok().map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_places_and_one_without_connections_is_forgotten() {
        let limits = Limits {
            per_address: 2,
            ..Limits::default()
        };
        let mut addresses = Addresses {
            limits,
            places: HashMap::new(),
        };
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        let first = addresses.place(address(1)).expect("room");
        let second = addresses.place(address(1)).expect("room");
        // The same host, by way of a socket that speaks IPv6.
        let mapped = IpAddr::from(std::net::Ipv4Addr::from_bits(1).to_ipv6_mapped());
        assert!(addresses.place(address(1)).is_none() && addresses.place(mapped).is_none());
        assert!(addresses.place(address(2)).is_some());
        drop(first);
        let third = addresses.place(address(1)).expect("room again");
        for number in 10..5_000 {
            drop(addresses.place(address(number)));
        }
        assert!(addresses.places.len() <= REMEMBERED);
        assert!(
            addresses.place(address(1)).is_none(),
            "those that have some are not forgotten"
        );
        drop((second, third));
    }
}
