//! Programs that stand for the owner's: one that has secrets and listens, one that may be killed, and a network in which every
//! private range has somebody. Real processes with real sockets, so that what is not reached is not reached for a reason.

use crate::arena::{GREETING, OwnerSockets};
use serde::{Deserialize, Serialize};
use std::io::{self, Read as _, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;

/// Where each machine of the house listens.
pub const HOUSE_PORT: u16 = 7;
/// Where its name server listens.
pub const DNS_PORT: u16 = 53;
/// The name that means a harmless address first, and one of the house's afterwards.
pub const REBOUND: &str = "rebound.example";

/// Addresses of the house's network, each on its loopback.
const HOUSE: [[u8; 4]; 6] = [
    [10, 11, 12, 13],
    [172, 20, 1, 2],
    [192, 168, 77, 1],
    [169, 254, 169, 254],
    [100, 64, 0, 9],
    [198, 51, 100, 7],
];

/// What the owner's program says when it listens.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Its port on loopback.
    pub port: u16,
}

/// Listens at all of the owner's places until standard input ends.
///
/// # Errors
/// Where a place is taken.
pub fn owner(sockets: &OwnerSockets, mut ready: impl Write) -> io::Result<()> {
    for path in [&sockets.agent, &sockets.bus, &sockets.wayland] {
        greet_unix(UnixListener::bind(path)?);
    }
    for name in [&sockets.display, &sockets.abstract_bus] {
        greet_unix(UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    greet_tcp(listener);
    writeln!(ready, "{}", serde_json::to_string(&Ready { port })?)?;
    ready.flush()?;
    until_input_ends()
}

/// Makes a network of its own and lives in it until standard input ends.
///
/// # Errors
/// Where this machine's root may not.
pub fn house(mut ready: impl Write) -> io::Result<()> {
    // SAFETY: this process has one thread so far.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let asking = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    configure(&asking, "lo", libc::SIOCSIFFLAGS, &1_u16.to_ne_bytes())?;
    for (number, address) in HOUSE.iter().enumerate() {
        // struct sockaddr_in: family, port, address.
        let mut place = [0_u8; 16];
        place[..2].copy_from_slice(&u16::try_from(libc::AF_INET).unwrap_or(2).to_ne_bytes());
        place[4..8].copy_from_slice(address);
        configure(&asking, &format!("lo:{number}"), libc::SIOCSIFADDR, &place)?;
        place[4..8].copy_from_slice(&[255; 4]);
        configure(&asking, &format!("lo:{number}"), libc::SIOCSIFNETMASK, &place)?;
    }
    greet_tcp(TcpListener::bind((Ipv4Addr::UNSPECIFIED, HOUSE_PORT))?);
    let names = UdpSocket::bind((Ipv4Addr::new(192, 168, 77, 1), DNS_PORT))?;
    thread::spawn(move || answer_names(&names));
    writeln!(ready, "{}", serde_json::to_string(&Ready { port: HOUSE_PORT })?)?;
    ready.flush()?;
    until_input_ends()
}

/// Whoever started a decoy holds its input: it goes with them, whatever way they go.
///
/// # Errors
/// Never but where standard input cannot be read.
pub fn until_input_ends() -> io::Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn greet_unix(listener: UnixListener) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            drop((&stream).write_all(GREETING.as_bytes()));
        }
    });
}

fn greet_tcp(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            drop((&stream).write_all(GREETING.as_bytes()));
        }
    });
}

/// Each question gets one address; [`REBOUND`] another one from the second time on.
fn answer_names(names: &UdpSocket) {
    let mut part = [0; 512];
    let mut rebound = false;
    while let Ok((count, asker)) = names.recv_from(&mut part) {
        let question = &part[..count];
        let first = REBOUND.split('.').next().unwrap_or_default().as_bytes();
        let address = if question.windows(first.len()).any(|part| part == first) {
            let address = if rebound { HOUSE[2] } else { HOUSE[5] };
            rebound = true;
            address
        } else {
            HOUSE[5]
        };
        let mut answer = question.to_vec();
        answer[2] = 0x81;
        answer[7] = 1;
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address);
        drop(names.send_to(&answer, asker));
    }
}

/// One request about a card of the network, by struct ifreq: a name of 16 bytes, then what is set.
fn configure(asking: &UdpSocket, card: &str, request: libc::c_ulong, what: &[u8]) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let mut bytes = [0_u8; 40];
    bytes[..card.len()].copy_from_slice(card.as_bytes());
    bytes[16..16 + what.len()].copy_from_slice(what);
    // SAFETY: the request reads one `ifreq` of 40 bytes, which lives until the call returns.
    if unsafe { libc::ioctl(asking.as_raw_fd(), request as _, bytes.as_ptr()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
