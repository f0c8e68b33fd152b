//! An internet of one server on loopback: names have the addresses that a test gives them, and whatever public address the proxy decides to
//! connect to is this server. That the proxy never decides for another is what the tests look at.

use sela_protocol::network::{HostName, HostRule, JobNetwork, NetworkShare};
use sela_protocol::units::Bytes;
use sela_sandbox::network::{OwnersLine, Prefix, Uplink};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;

/// Names, routes, and what was asked of them.
#[derive(Debug, Clone)]
pub(crate) struct Internet {
    names: HashMap<String, Vec<IpAddr>>,
    server: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Internet {
    pub(crate) fn new(server: SocketAddr, names: &[(&str, &[&str])]) -> Self {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Self {
            names: names
                .iter()
                .map(|(name, texts)| ((*name).to_owned(), addresses(texts)))
                .collect(),
            server,
            asked: Arc::default(),
        }
    }

    /// Every name that was resolved and every address that was connected to, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }
}

impl Uplink for Internet {
    async fn resolve(&self, name: &HostName) -> io::Result<Vec<IpAddr>> {
        self.note(format!("resolve {name}"));
        let found = self.names.get(name.as_str()).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn own_networks(&self) -> io::Result<Vec<Prefix>> {
        Ok(vec![Prefix::new("2600:1:2:3400::".parse().unwrap(), 56)])
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.note(format!("connect {address}"));
        TcpStream::connect(self.server).await
    }
}

pub(crate) fn rules(texts: &[&str]) -> Vec<HostRule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// What a job asks for.
pub(crate) fn asking_for(hosts: &[&str]) -> JobNetwork {
    JobNetwork {
        hosts: rules(hosts),
        down_per_s: None,
        up_per_s: None,
        bytes: None,
    }
}

/// An owner who lends all of a fast line, for these hosts.
pub(crate) fn share(hosts: &[&str]) -> NetworkShare {
    NetworkShare {
        hosts: rules(hosts),
        down_per_s: Bytes(1 << 40),
        up_per_s: Bytes(1 << 40),
        job_bytes: Bytes(1 << 40),
    }
}

pub(crate) fn lends(hosts: &[&str]) -> OwnersLine {
    OwnersLine::new(share(hosts))
}
