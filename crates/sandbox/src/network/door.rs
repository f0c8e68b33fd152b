//! How the listening socket comes from the job's network namespace to the agent. A socket belongs to the namespace that it was made
//! in, whoever holds it: the job's init makes it while it is still ours, sends it to the agent over the socket that the keeper's orders
//! come by, and forgets it. So the job needs no process, no file and no mount of ours to be connected, and holds nothing of it.

use super::PROXY;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;
/// What the kernel holds each way of a connection between job and proxy.
const BUFFER: usize = 128 << 10;
/// The byte that the socket comes with.
const LETTER: &[u8] = b"n";

/// In the job's init, within its network namespace, before the program is there: makes the socket and sends it.
pub(crate) fn open(agent: impl AsFd) -> rustix::io::Result<()> {
    let listener = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_recv_buffer_size(&listener, BUFFER)?;
    sockopt::set_socket_send_buffer_size(&listener, BUFFER)?;
    rustix::net::bind(&listener, &PROXY)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let sockets = [listener.as_fd()];
    if !message.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(agent, &[IoSlice::new(LETTER)], &mut message, SendFlags::NOSIGNAL).map(drop)
}

/// The agent's end: where a job's listening socket arrives.
#[derive(Debug)]
pub struct Door(OwnedReadHalf);

impl Door {
    pub(crate) const fn new(keeper: OwnedReadHalf) -> Self {
        Self(keeper)
    }

    /// Waits for the socket; `None` where the keeper is gone and none came. Safe to drop half-way (`select!`).
    ///
    /// # Errors
    /// Where the system does not hand it over.
    pub async fn listener(&mut self) -> io::Result<Option<TcpListener>> {
        let stream: &UnixStream = self.0.as_ref();
        let received = stream.async_io(Interest::READABLE, || receive(stream).map_err(io::Error::from));
        match received.await {
            Ok(Some(socket)) => {
                let listener = TcpListener::from(socket);
                listener.set_nonblocking(true)?;
                Ok(Some(listener))
            }
            Ok(None) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn receive(keeper: impl AsFd) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut letter = [0; LETTER.len()];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    rustix::net::recvmsg(keeper, &mut [IoSliceMut::new(&mut letter)], &mut message, flags)?;
    let socket = message.drain().find_map(|part| {
        if let RecvAncillaryMessage::ScmRights(mut sockets) = part {
            sockets.next()
        } else {
            None
        }
    });
    Ok(socket)
}
