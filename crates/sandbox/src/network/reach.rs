//! From a name to a connection. A name is resolved once, here and nowhere else; every address that it has must be of the internet and
//! not of this machine's own networks; and the connection is made to one of those very addresses. So a name that leads somewhere
//! else the next time it is asked about gains nothing.

use super::own::{self, Prefix};
use super::refusal::Refusal;
use super::request::Target;
use sela_protocol::address::is_public;
use sela_protocol::network::{Host, HostName};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long a name may take.
const RESOLVE: Duration = Duration::from_secs(10);
/// How long one address may take, and how many of a name are tried.
const CONNECT: Duration = Duration::from_secs(5);
const MOST_ADDRESSES: usize = 4;
/// What the kernel holds of a connection each way: it is the owner's memory, and what it may still receive while a job stands frozen.
const BUFFER: u32 = 512 << 10;

/// A machine's way to the internet. Programs have one, [`Internet`]; a test that must not leave its machine brings its own. What may
/// be reached is not decided by it: that is checked for either.
pub trait Uplink: Send + Sync + 'static {
    /// All addresses of a name.
    ///
    /// # Errors
    /// Where it has none, or nobody knows.
    fn resolve(&self, name: &HostName) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;

    /// The networks that the machine itself is in.
    ///
    /// # Errors
    /// Where the system does not tell; then nothing is connected to.
    fn own_networks(&self) -> io::Result<Vec<Prefix>>;

    /// A connection to this address, and to no other.
    ///
    /// # Errors
    /// Where nobody answers.
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<TcpStream>> + Send;
}

/// The machine's own resolver and its own routes.
#[derive(Debug, Clone, Copy)]
pub struct Internet;

impl Uplink for Internet {
    async fn resolve(&self, name: &HostName) -> io::Result<Vec<IpAddr>> {
        // With the dot at its end it is looked up as it is, never below the domain of the owner's network.
        let absolute = format!("{name}.");
        let found = tokio::net::lookup_host((absolute.as_str(), 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }

    fn own_networks(&self) -> io::Result<Vec<Prefix>> {
        own::networks()
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_recv_buffer_size(BUFFER)?;
        socket.set_send_buffer_size(BUFFER)?;
        socket.connect(address).await
    }
}

/// Connects to a target that may be asked for. `lookups` bounds how many names are resolved at once.
pub(super) async fn reach(uplink: &impl Uplink, target: &Target, lookups: &Semaphore) -> Result<TcpStream, Refusal> {
    let addresses = match &target.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => resolve(uplink, name, lookups)
            .await
            .ok_or_else(|| Refusal::NotResolved { target: target.clone() })?,
    };
    let checked = check(uplink, target, addresses)?;
    let mut why = String::from("nobody answered in time");
    for address in checked.into_iter().take(MOST_ADDRESSES) {
        match timeout(CONNECT, uplink.connect(SocketAddr::new(address, target.port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => why = error.kind().to_string(),
            Err(_) => {}
        }
    }
    Err(Refusal::NotReached {
        target: target.clone(),
        why,
    })
}

async fn resolve(uplink: &impl Uplink, name: &HostName, lookups: &Semaphore) -> Option<Vec<IpAddr>> {
    let lookup = async {
        // Closed never.
        let _turn = lookups.acquire().await.ok()?;
        uplink.resolve(name).await.ok()
    };
    let found = timeout(RESOLVE, lookup).await.ok().flatten()?;
    (!found.is_empty()).then_some(found)
}

/// All or none: a name with one address of the internet and one of a home is a trick, or a mistake.
fn check(uplink: &impl Uplink, target: &Target, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, Refusal> {
    let own = uplink.own_networks().map_err(|error| {
        tracing::warn!(%error, "this machine's own networks are not known: no job is connected to anything");
        Refusal::Machine { target: target.clone() }
    })?;
    let checked: Vec<IpAddr> = addresses.into_iter().map(|address| address.to_canonical()).collect();
    let local = |address: &&IpAddr| !is_public(**address) || own.iter().any(|prefix| prefix.holds(**address));
    match checked.iter().find(local) {
        None => Ok(checked),
        Some(address) => {
            // For the owner's log alone.
            tracing::info!(%target, %address, "a job asked for a name that leads into a local network");
            Err(Refusal::Local { target: target.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Mutex;

    /// Answers with these, a list a question, and notes whom it was told to connect to.
    struct Scripted {
        answers: Mutex<Vec<Vec<IpAddr>>>,
        own: Option<Vec<Prefix>>,
        dialled: Mutex<Vec<SocketAddr>>,
    }

    impl Scripted {
        fn new(answers: &[&[&str]]) -> Self {
            let parse = |texts: &&[&str]| texts.iter().map(|text| text.parse().expect(text)).collect();
            Self {
                answers: Mutex::new(answers.iter().map(parse).collect()),
                own: Some(Vec::new()),
                dialled: Mutex::new(Vec::new()),
            }
        }

        fn dialled(&self) -> Vec<String> {
            self.dialled.lock().unwrap().iter().map(ToString::to_string).collect()
        }
    }

    impl Uplink for Scripted {
        async fn resolve(&self, _name: &HostName) -> io::Result<Vec<IpAddr>> {
            let mut answers = self.answers.lock().unwrap();
            if answers.is_empty() {
                return Err(io::Error::other("asked once more than expected"));
            }
            Ok(answers.remove(0))
        }

        fn own_networks(&self) -> io::Result<Vec<Prefix>> {
            self.own.clone().ok_or_else(|| io::Error::other("not known"))
        }

        async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
            self.dialled.lock().unwrap().push(address);
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }

    async fn try_to_reach(uplink: &Scripted, target: &str) -> Refusal {
        let target: Target = target.parse().expect("a target");
        reach(uplink, &target, &Semaphore::new(1))
            .await
            .expect_err("nobody is there")
    }

    #[tokio::test]
    async fn only_the_addresses_that_were_checked_are_dialled_in_their_order() {
        let uplink = Scripted::new(&[&["93.184.216.34", "::ffff:1.1.1.1", "2606:4700::1111"]]);
        let refusal = try_to_reach(&uplink, "example.org:8443").await;
        assert_eq!(
            refusal.to_string(),
            "example.org:8443 could not be reached: connection refused"
        );
        assert_eq!(
            uplink.dialled(),
            ["93.184.216.34:8443", "1.1.1.1:8443", "[2606:4700::1111]:8443"]
        );
    }

    #[tokio::test]
    async fn one_local_address_among_others_refuses_all_and_is_not_told() {
        for local in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "172.20.0.1",
            "169.254.169.254",
            "100.100.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:192.168.1.1",
            "64:ff9b::c0a8:101",
            "64:ff9b:1::1",
            "2002:c0a8:101::1",
            "2001::1",
        ] {
            let uplink = Scripted::new(&[&["93.184.216.34", local]]);
            let refusal = try_to_reach(&uplink, "example.org:443").await;
            assert_eq!(
                refusal.to_string(),
                "example.org:443 leads into a local network, which no job reaches"
            );
            assert_eq!(uplink.dialled(), [""; 0], "{local}");
        }
    }

    /// The second answer would be asked for by a proxy that resolves again to connect.
    #[tokio::test]
    async fn a_name_that_changes_between_check_and_connection_gains_nothing() {
        let uplink = Scripted::new(&[&["93.184.216.34"], &["127.0.0.1"]]);
        try_to_reach(&uplink, "example.org:443").await;
        assert_eq!(uplink.dialled(), ["93.184.216.34:443"]);
        assert_eq!(uplink.answers.lock().unwrap().len(), 1, "it is asked about once");
        let refusal = try_to_reach(&uplink, "example.org:443").await;
        assert!(matches!(refusal, Refusal::Local { .. }), "{refusal}");
    }

    #[tokio::test]
    async fn this_machines_own_networks_are_local_however_public_they_are() {
        let own = |uplink: Scripted, own| Scripted { own, ..uplink };
        let home = vec![Prefix::new("2600:1:2:3400::1".parse().unwrap(), 56)];
        let uplink = own(Scripted::new(&[&["2600:1:2:34aa::5"]]), Some(home.clone()));
        assert!(matches!(
            try_to_reach(&uplink, "example.org:443").await,
            Refusal::Local { .. }
        ));
        let uplink = own(Scripted::new(&[]), Some(home));
        assert!(matches!(
            try_to_reach(&uplink, "[2600:1:2:34aa::5]:443").await,
            Refusal::Local { .. }
        ));
        let uplink = own(Scripted::new(&[&["93.184.216.34"]]), None);
        let refusal = try_to_reach(&uplink, "example.org:443").await;
        assert!(
            matches!(refusal, Refusal::Machine { .. }),
            "not known is not none: {refusal}"
        );
        assert_eq!(uplink.dialled(), [""; 0]);
    }

    #[tokio::test]
    async fn a_name_without_addresses_or_answer_is_not_resolved() {
        for uplink in [Scripted::new(&[&[]]), Scripted::new(&[])] {
            let refusal = try_to_reach(&uplink, "example.org:443").await;
            assert_eq!(refusal.to_string(), "example.org:443: the name could not be resolved");
        }
    }

    proptest! {
        /// Whatever a name leads to: what is dialled is of the internet, and nothing is where any of it is not.
        #[test]
        fn nothing_but_the_internet_is_ever_dialled(bits in proptest::collection::vec(any::<u128>(), 0..2), narrow in proptest::collection::vec(any::<u32>(), 0..4)) {
            let wide = bits.into_iter().map(|bits| IpAddr::from(std::net::Ipv6Addr::from_bits(bits)));
            let addresses: Vec<IpAddr> = wide.chain(narrow.into_iter().map(|bits| IpAddr::from(std::net::Ipv4Addr::from_bits(bits)))).collect();
            let all_public = !addresses.is_empty() && addresses.iter().all(|address| is_public(*address));
            let uplink = Scripted { answers: Mutex::new(vec![addresses]), own: Some(Vec::new()), dialled: Mutex::new(Vec::new()) };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(try_to_reach(&uplink, "example.org:443"));
            let dialled = uplink.dialled.lock().unwrap();
            prop_assert_eq!(!dialled.is_empty(), all_public);
            prop_assert!(dialled.iter().all(|address| is_public(address.ip())));
        }
    }
}
