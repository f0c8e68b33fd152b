//! Programs of the owner's that listen on sockets of this machine: the agent, the bus, the display, the compositor.

use crate::arena::{Arena, GREETING};
use crate::catalogue::Control::Bare;
use crate::catalogue::Probe;
use crate::catalogue::promise::{NO_NETWORK, OWN_FILES};
use crate::verdict::{Held, Outcome};
use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside(
        "agent's socket",
        "a job speaks to the agent",
        OWN_FILES,
        Bare,
        |arena| by_path(&arena.owner_sockets.agent),
    ),
    Probe::inside(
        "agent's socket",
        "a job speaks to the agent through the root of its first process",
        OWN_FILES,
        Bare,
        |arena| {
            let path = &arena.owner_sockets.agent;
            let root = PathBuf::from(format!("/proc/{}/root", arena.first_pid));
            by_path(&root.join(path.strip_prefix("/").unwrap_or(path)))
        },
    ),
    Probe::inside("D-Bus", "a job speaks on the owner's bus", OWN_FILES, Bare, |arena| {
        by_path(&arena.owner_sockets.bus)
    }),
    Probe::inside(
        "D-Bus",
        "a job speaks on the owner's bus by its abstract name",
        NO_NETWORK,
        Bare,
        |arena| by_name(&arena.owner_sockets.abstract_bus),
    ),
    Probe::inside(
        "X11 and Wayland",
        "a job reaches the owner's display",
        NO_NETWORK,
        Bare,
        |arena| by_name(&arena.owner_sockets.display),
    ),
    Probe::inside(
        "X11 and Wayland",
        "a job reaches the owner's compositor",
        OWN_FILES,
        Bare,
        |arena| by_path(&arena.owner_sockets.wayland),
    ),
    Probe::inside(
        "abstract sockets",
        "a job lists the owner's sockets",
        NO_NETWORK,
        Bare,
        |arena: &Arena| {
            let list = std::fs::read_to_string("/proc/net/unix")?;
            match list.lines().find(|line| line.contains(&arena.owner_sockets.display)) {
                Some(line) => Ok(line.to_owned()),
                None => Err(Held::nothing("none of them is the owner's")),
            }
        },
    ),
];

fn by_path(path: &Path) -> Outcome {
    greeted(UnixStream::connect(path)?, &path.display().to_string())
}

fn by_name(name: &str) -> Outcome {
    let address = SocketAddr::from_abstract_name(name)?;
    greeted(UnixStream::connect_addr(&address)?, name)
}

fn greeted(mut stream: UnixStream, whom: &str) -> Outcome {
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    if heard.contains(GREETING) {
        Ok(format!("{whom} greeted"))
    } else {
        Err(Held::nothing("somebody else answered"))
    }
}
