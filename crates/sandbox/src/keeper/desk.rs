//! The keeper's end of the two pipes, the one timer, and the machine's signals. An agent that reads nothing any more must never
//! keep the keeper from ending a job, so nothing here waits but `wait`, and that has a time limit on `CLOCK_BOOTTIME`.

use super::grant::Grant;
use super::wire::{LONGEST_ORDER, Order, Report};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use sela_protocol::units::BootUs;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use zeroize::{Zeroize as _, Zeroizing};

/// Reports that may queue up before a job's output is no longer read, in bytes. The job then waits in its own writes.
const QUEUE: usize = 256 << 10;
/// What the pipe to the agent is asked to hold.
const PIPE: usize = 1 << 20;
/// How soon a log line that waits for room in the pipe is tried again.
const RETRY_US: u64 = 20_000;

/// What the keeper may hear while it waits.
#[derive(Debug)]
pub(crate) enum Heard {
    /// An order, but for grants.
    Order(Order),
    /// The agent is gone: its end of the pipe is closed.
    AgentGone,
    /// The agent gave no grant for too long.
    GrantExpired,
    /// The machine wants this process to end.
    Shutdown,
    /// Something that is no order.
    Unreadable(String),
}

struct Letter {
    bytes: Vec<u8>,
    /// A log must leave half of the pipe free: how a job ended must reach an agent that was stopped, not killed.
    bulky: bool,
}

/// See the module.
pub(crate) struct Desk {
    orders: OwnedFd,
    reports: OwnedFd,
    timer: OwnedFd,
    signals: OwnedFd,
    inbox: Vec<u8>,
    heard: VecDeque<Heard>,
    queue: VecDeque<Letter>,
    queued: usize,
    grant: Option<Grant>,
    agent_gone: bool,
    deaf: bool,
}

impl Desk {
    /// Takes over the two pipes, and SIGTERM, SIGINT and SIGHUP.
    pub(crate) fn new(orders: OwnedFd, reports: OwnedFd) -> io::Result<Self> {
        for pipe in [&orders, &reports] {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        // Refused where the user's pipes use too much already: then half of a small pipe is kept free.
        let _ = rustix::pipe::fcntl_setpipe_size(&reports, PIPE);
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self {
            orders,
            reports,
            timer,
            signals: take_signals()?,
            inbox: Vec::new(),
            heard: VecDeque::new(),
            queue: VecDeque::new(),
            queued: 0,
            grant: None,
            agent_gone: false,
            deaf: false,
        })
    }

    /// From now on the job runs on grants only; the order to start is the first.
    pub(crate) fn expect_grants(&mut self) {
        self.grant = Some(Grant::at(sela_clock::boot_us()));
    }

    /// Whether the pipe from the agent is closed.
    pub(crate) const fn agent_is_gone(&self) -> bool {
        self.agent_gone
    }

    /// Where orders come from, and where a job's init sends what only the agent gets: see `network::door`.
    pub(crate) fn agent(&self) -> BorrowedFd<'_> {
        self.orders.as_fd()
    }

    /// Whether there is room for a job's output.
    pub(crate) const fn has_room(&self) -> bool {
        self.queued < QUEUE
    }

    /// Queues a report and sends what can be sent.
    pub(crate) fn report(&mut self, report: &Report) {
        let mut bytes = serde_json::to_vec(report).unwrap_or_default();
        bytes.push(b'\n');
        let bulky = matches!(report, Report::Log { .. });
        self.queued += bytes.len();
        self.queue.push_back(Letter { bytes, bulky });
        self.send();
    }

    /// What was heard, oldest first.
    pub(crate) fn hear(&mut self) -> Option<Heard> {
        self.heard.pop_front()
    }

    /// Waits until `until`, or one of `others` is ready, or something is heard; then sends and reads what there is. An expired
    /// grant is heard once, and no later one revives it.
    pub(crate) fn wait(&mut self, others: &[(BorrowedFd<'_>, PollFlags)], until: BootUs) -> io::Result<()> {
        let mut until = self.grant.map_or(until, |grant| until.min(grant.expires()));
        let held_back = self.queue.front().is_some_and(|letter| !self.has_place_for(letter));
        if held_back {
            until = until.min(BootUs(sela_clock::boot_us().0 + RETRY_US));
        }
        self.set_timer(until)?;
        let mut fds = vec![
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        if !self.agent_gone {
            fds.push(PollFd::new(&self.orders, PollFlags::IN));
        }
        if !self.queue.is_empty() && !held_back {
            fds.push(PollFd::new(&self.reports, PollFlags::OUT));
        }
        fds.extend(others.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.send();
        // Before reading: a grant that lay in the pipe while the machine slept is no grant any more.
        if self.grant.is_some_and(|grant| grant.has_expired(sela_clock::boot_us())) {
            self.grant = None;
            self.heard.push_back(Heard::GrantExpired);
        }
        self.read_orders();
        self.read_signals();
        Ok(())
    }

    /// Sends what is left, for at most this long.
    pub(crate) fn drain(&mut self, until: BootUs) {
        self.grant = None;
        while !self.queue.is_empty() && !self.deaf && sela_clock::boot_us() < until {
            if self.wait(&[], until).is_err() {
                return;
            }
        }
    }

    fn set_timer(&self, until: BootUs) -> io::Result<()> {
        // All zeroes would mean never.
        let until = until.0.max(1);
        let spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(until / 1_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(until % 1_000_000 * 1_000).unwrap_or(0),
            },
        };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }

    fn has_place_for(&self, letter: &Letter) -> bool {
        if !letter.bulky {
            return true;
        }
        let (Ok(size), Ok(unread)) = (
            rustix::pipe::fcntl_getpipe_size(&self.reports),
            rustix::io::ioctl_fionread(&self.reports),
        ) else {
            return true;
        };
        // A letter larger than half of a small pipe goes out once the pipe is empty.
        unread == 0 || unread + letter.bytes.len() as u64 <= size as u64 / 2
    }

    fn send(&mut self) {
        while let Some(letter) = self.queue.front() {
            if !self.has_place_for(letter) {
                return;
            }
            match rustix::io::write(&self.reports, &letter.bytes) {
                Ok(count) => {
                    self.queued -= count;
                    if let Some(letter) = self.queue.front_mut() {
                        letter.bytes.drain(..count);
                        // The rest of a letter that was begun must follow, whatever room there is.
                        letter.bulky = false;
                        if letter.bytes.is_empty() {
                            self.queue.pop_front();
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.deaf = true;
                    self.queue.clear();
                    self.queued = 0;
                }
            }
        }
    }

    fn read_orders(&mut self) {
        let mut part = [0; 16 << 10];
        while !self.agent_gone {
            match rustix::io::read(&self.orders, &mut part) {
                // A socket whose other end was closed with something unread in it says so in this way.
                Ok(0) | Err(Errno::CONNRESET) => {
                    self.agent_gone = true;
                    self.heard.push_back(Heard::AgentGone);
                }
                Ok(count) => {
                    self.inbox.extend_from_slice(&part[..count]);
                    part[..count].zeroize();
                    self.split_orders();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    self.agent_gone = true;
                    self.heard.push_back(Heard::Unreadable(error.to_string()));
                }
            }
        }
    }

    fn split_orders(&mut self) {
        while let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') {
            // An order to start holds what only the job may read: no copy of it stays.
            let line: Zeroizing<Vec<u8>> = Zeroizing::new(self.inbox.drain(..=end).collect());
            if self.inbox.is_empty() {
                self.inbox.zeroize();
            }
            match serde_json::from_slice(&line) {
                Ok(Order::Grant) => self.grant = self.grant.map(|_| Grant::at(sela_clock::boot_us())),
                Ok(order) => self.heard.push_back(Heard::Order(order)),
                Err(error) => self.heard.push_back(Heard::Unreadable(error.to_string())),
            }
        }
        if self.inbox.len() > LONGEST_ORDER {
            self.inbox.clear();
            self.heard.push_back(Heard::Unreadable(format!(
                "an order of more than {LONGEST_ORDER} bytes"
            )));
        }
    }

    fn read_signals(&mut self) {
        let mut part = [0; size_of::<libc::signalfd_siginfo>()];
        while let Ok(count) = rustix::io::read(&self.signals, &mut part) {
            if count == 0 {
                return;
            }
            self.heard.push_back(Heard::Shutdown);
        }
    }
}

fn take_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset writes the whole set before it is read; the descriptor that signalfd gives is owned by nobody else.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        // Writing to an agent that is gone is an error to see, not a signal to die of.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}
