//! The keeper's end of the socket to the first process of a container, and the words of both. The socket is a file in the
//! lease's scratch folder that only the engine can show to a container; it takes one caller, and is gone with the first.

use crate::error::OrFault as _;
use crate::first_process;
use crate::keeper::wire::{Fault, FaultCode, ProgramEnd};
use crate::native::InitSays;
use crate::native::exec::Executable;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::fs;
use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Longest packet of the first process's.
const LONGEST_PACKET: usize = 64;

/// A socket that waits for its one caller.
#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    path: PathBuf,
}

impl Door {
    /// Opens it at a path that is not there yet.
    pub(super) fn open(path: PathBuf) -> Result<Self, Fault> {
        let what = format!("open the socket {}", path.display());
        let open = || -> std::io::Result<OwnedFd> {
            let listener = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )?;
            // Through the folder's descriptor: a socket's address is short, a data folder's path may be long.
            let parent = path.parent().unwrap_or(Path::new("/"));
            let folder = rustix::fs::open(
                parent,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let name = Path::new("/proc/self/fd")
                .join(folder.as_raw_fd().to_string())
                .join(path.file_name().unwrap_or_default());
            rustix::net::bind(&listener, &SocketAddrUnix::new(&name)?)?;
            // Whoever can see it may call; nobody but the container can.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
            rustix::net::listen(&listener, 1)?;
            Ok(listener)
        };
        let listener = open().or_fault(FaultCode::Isolation, what)?;
        Ok(Self { listener, path })
    }

    /// Becomes readable when somebody calls.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The caller, if there is one, who must be the process `pid`.
    pub(super) fn accept(&self, pid: u32) -> Result<Option<Channel>, Fault> {
        let socket = match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error).or_fault(FaultCode::Isolation, "hear the container's first process"),
        };
        let peer = rustix::net::sockopt::socket_peercred(&socket)
            .or_fault(FaultCode::Isolation, "ask who calls from the container")?;
        let caller = peer.pid.as_raw_nonzero().get().unsigned_abs();
        if caller != pid {
            return Err(Fault::new(
                FaultCode::Isolation,
                format!("process {caller} calls from the container, whose first process is {pid}"),
            ));
        }
        Ok(Some(Channel { socket }))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// The open socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
}

/// What the first process says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// It waits for the word.
    Ready,
    /// One of two calls that our list refuses is allowed in there.
    Unguarded(u8),
    /// The program is being executed.
    Runs,
    /// It could not be.
    Failed { step: u8, error: Errno, missing: bool },
    /// It ended.
    Ended(i32),
}

impl Channel {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// `None` where nothing was said, an error where nobody is there any more. What cannot be read is nothing: from the moment
    /// that the program runs, these are a stranger's words.
    pub(super) fn hear(&self) -> Result<Option<Said>, Errno> {
        let mut packet = [0; LONGEST_PACKET];
        let heard = first_process::next_packet(&self.socket, &mut packet)?;
        Ok(heard.and_then(|count| read(&packet[..count])))
    }

    /// The word to start, with what to start and where its output goes.
    pub(super) fn release(&self, executable: &Executable, [out, err]: &[OwnedFd; 2]) -> Result<(), Fault> {
        let what = "hand the program to the container's first process";
        let memory = written(executable).or_fault(FaultCode::Isolation, what)?;
        let descriptors = [out.as_fd(), err.as_fd(), memory.as_fd()];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Fault::new(FaultCode::Isolation, format!("could not {what}: no room")));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(b"g")], &mut control, SendFlags::NOSIGNAL)
            .map(drop)
            .or_fault(FaultCode::Isolation, what)
    }

    /// Asks for SIGTERM to be passed on.
    pub(super) fn terminate(&self) {
        // A first process that is dead needs no signal.
        let _ = rustix::net::send(&self.socket, b"t", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

fn read(packet: &[u8]) -> Option<Said> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(i32::from_ne_bytes);
    match packet {
        [b'r'] => Some(Said::Ready),
        [b'u', call] => Some(Said::Unguarded(*call)),
        [b's'] => Some(Said::Runs),
        [b'f', step, error @ .., missing] => number(error).map(|error| Said::Failed {
            step: *step,
            error: Errno::from_raw_os_error(error),
            missing: *missing != 0,
        }),
        [b'e', status @ ..] => number(status).map(Said::Ended),
        _ => None,
    }
}

impl Said {
    /// The same in the words of the native backend's init.
    pub(super) fn in_common(self, executable: &Executable) -> Option<InitSays> {
        match self {
            Self::Ready => Some(InitSays::Ready),
            Self::Runs => Some(InitSays::Runs),
            Self::Ended(status) => ended(status).map(|end| InitSays::ProgramEnded { end }),
            Self::Unguarded(call) => Some(InitSays::CannotStart {
                fault: Fault::new(
                    FaultCode::LimitDiffers,
                    format!("our list of system calls is not in force in the container: probe {call} was allowed"),
                ),
            }),
            Self::Failed { step, error, missing } => Some(InitSays::CannotStart {
                fault: match step {
                    b'd' => executable.no_folder(&std::io::Error::from(error)),
                    b'x' => executable.why(error, missing),
                    _ => Fault::new(
                        FaultCode::Isolation,
                        format!("could not connect the program's outputs: {error}"),
                    ),
                },
            }),
        }
    }
}

/// A status of `wait`.
fn ended(status: i32) -> Option<ProgramEnd> {
    if libc::WIFEXITED(status) {
        Some(ProgramEnd::Exited {
            code: libc::WEXITSTATUS(status),
        })
    } else if libc::WIFSIGNALED(status) {
        Some(ProgramEnd::Signalled {
            signal: libc::WTERMSIG(status),
        })
    } else {
        None
    }
}

/// What to run, as the first process reads it; see there.
fn written(executable: &Executable) -> std::io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("sela-program", MemfdFlags::CLOEXEC)?;
    let mut bytes = Vec::new();
    let lists = [&executable.candidates, &executable.arguments, &executable.environment];
    for list in lists {
        bytes.extend(u32::try_from(list.len()).map_err(std::io::Error::other)?.to_ne_bytes());
    }
    bytes.extend(executable.folder.as_os_str().as_bytes());
    bytes.push(0);
    for text in lists.into_iter().flatten() {
        bytes.extend(CString::as_bytes_with_nul(text));
    }
    let mut file = fs::File::from(memory);
    file.write_all(&bytes)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_first_process_says_is_read_and_anything_else_is_nothing() {
        let failed = [b'f', b'x', 13, 0, 0, 0, 1];
        for (packet, expected) in [
            (b"r".as_slice(), Some(Said::Ready)),
            (b"s", Some(Said::Runs)),
            (b"u\x02", Some(Said::Unguarded(2))),
            (b"e\x00\x07\x00\x00", Some(Said::Ended(0x700))),
            (
                &failed,
                Some(Said::Failed {
                    step: b'x',
                    error: Errno::ACCESS,
                    missing: true,
                }),
            ),
            (b"", None),
            (b"e\x00", None),
            (b"f", None),
            (b"fx", None),
            (b"runs", None),
        ] {
            assert_eq!(read(packet), expected, "{packet:?}");
        }
    }

    #[test]
    fn a_status_of_the_kernel_is_an_exit_or_a_signal() {
        assert_eq!(ended(0x700), Some(ProgramEnd::Exited { code: 7 }));
        assert_eq!(ended(9), Some(ProgramEnd::Signalled { signal: 9 }));
        assert_eq!(ended(0x137f), None, "stopped is not ended");
    }
}
