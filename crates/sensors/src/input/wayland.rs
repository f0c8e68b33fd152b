//! A Wayland compositor: it tells when a seat has been idle for a moment and when it is used again, by `ext-idle-notify-v1`
//! or the older protocol of KDE and wlroots. One thread, which sleeps in `poll`. Never asked of XWayland, which sees little.

use super::{NewestInput, Sighting};
use crate::attention::Bell;
use protocol::ext_idle_notification_v1::{self, ExtIdleNotificationV1};
use protocol::ext_idle_notifier_v1::ExtIdleNotifierV1;
use protocol::org_kde_kwin_idle::OrgKdeKwinIdle;
use protocol::org_kde_kwin_idle_timeout::{self, OrgKdeKwinIdleTimeout};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sela_protocol::units::{BootMs, Millis};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use wayland_client::backend::WaylandError;
use wayland_client::protocol::wl_callback::{self, WlCallback};
use wayland_client::protocol::wl_registry::{self, WlRegistry};
use wayland_client::protocol::wl_seat::WlSeat;
use wayland_client::{Connection, Dispatch, EventQueue, Proxy as _, QueueHandle, delegate_noop};

/// The generated words of the protocols.
#[allow(
    clippy::all,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "generated from the protocols' own description"
)]
mod protocol {
    use wayland_client;
    use wayland_client::protocol::*;

    pub mod __interfaces {
        use wayland_client::backend as wayland_backend;
        use wayland_client::protocol::__interfaces::*;
        wayland_scanner::generate_interfaces!("protocols/idle.xml");
    }
    use self::__interfaces::*;
    wayland_scanner::generate_client_code!("protocols/idle.xml");
}

/// A seat counts as used until nothing has come for this long; the compositor says both ends.
const QUIET: Millis = Millis(250);
/// A compositor that does not answer for this long hangs.
const ANSWER: Millis = Millis(2_000);
/// How long after a failure the compositor is tried again.
const RETRY: Millis = Millis(2_000);
/// How often a session without a compositor is looked at for one.
const SEARCH: Millis = Millis(10_000);

/// Where a compositor's socket is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// This session's.
    Socket(PathBuf),
    /// In this folder once there is one.
    In(PathBuf),
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Watches until the receiver is gone.
pub(crate) fn watch(place: &Place, bell: &Bell, report: &impl Fn(Sighting) -> bool) {
    loop {
        let Some(socket) = place.find() else {
            let absent = Sighting::Absent("no Wayland compositor runs in this session".into());
            if !report(absent) || rest(bell, SEARCH).is_err() {
                return;
            }
            continue;
        };
        let why = match Compositor::connect(&socket) {
            Ok(mut compositor) => match compositor.watch(bell, report) {
                Ok(Ended::Unheard) => return,
                Ok(Ended::TellsNothing) => None,
                Err(fault) => Some(format!("the Wayland compositor broke off: {fault}")),
            },
            Err(fault) => Some(format!("cannot reach the Wayland compositor: {fault}")),
        };
        let (sighting, pause) = match why {
            Some(why) => (Sighting::Failed(why), RETRY),
            None => (
                Sighting::Absent("this compositor speaks no protocol that tells of idle seats".into()),
                SEARCH,
            ),
        };
        if !report(sighting) || rest(bell, pause).is_err() {
            return;
        }
    }
}

impl Place {
    fn find(&self) -> Option<PathBuf> {
        match self {
            Self::Socket(socket) => Some(socket.clone()),
            Self::In(folder) => std::fs::read_dir(folder)
                .ok()?
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| is_socket(path))
                .min(),
        }
    }
}

fn is_socket(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_prefix("wayland-")
        .is_some_and(|number| number.parse::<u32>().is_ok())
        && UnixStream::connect(path).is_ok()
}

enum Ended {
    /// The receiver is gone.
    Unheard,
    /// The compositor has no word for idleness.
    TellsNothing,
}

/// What the compositor has said so far.
#[derive(Default)]
struct Said {
    notifier: Option<Notifier>,
    seats: Vec<WlSeat>,
    /// For each seat, since when it has been idle; `None` while it is used.
    idle: Vec<Option<BootMs>>,
    /// The newest moment that an event told of.
    event: Option<BootMs>,
    /// The sign of life that was asked for.
    asked: Option<BootMs>,
    /// All that there is has been listed.
    listed: bool,
}

#[derive(Clone)]
enum Notifier {
    Standard(ExtIdleNotifierV1),
    Kde(OrgKdeKwinIdle),
}

struct Compositor {
    connection: Connection,
    queue: EventQueue<Said>,
    said: Said,
    watched: usize,
    newest: NewestInput,
}

impl Compositor {
    fn connect(socket: &Path) -> Result<Self, Fault> {
        let connection = Connection::from_socket(UnixStream::connect(socket)?)?;
        let queue = connection.new_event_queue();
        connection.display().get_registry(&queue.handle(), ());
        Ok(Self {
            connection,
            queue,
            said: Said::default(),
            watched: 0,
            newest: NewestInput::default(),
        })
    }

    fn watch(&mut self, bell: &Bell, report: &impl Fn(Sighting) -> bool) -> Result<Ended, Fault> {
        // Nothing is known of what was before: the moment from which on it is watched counts as used.
        self.newest.event(sela_clock::now().boot_ms);
        let mut next_sign = BootMs(0);
        loop {
            let now = sela_clock::now().boot_ms;
            if now >= next_sign && self.said.asked.is_none() {
                self.connection.display().sync(&self.queue.handle(), ());
                self.said.asked = Some(now);
                next_sign = now.plus(bell.attention().period());
            }
            let rung = self.turn(bell, self.patience(now, next_sign))?;
            if rung {
                next_sign = BootMs(0);
            }
            let now = sela_clock::now().boot_ms;
            if self.said.listed && self.said.notifier.is_none() {
                return Ok(Ended::TellsNothing);
            }
            self.watch_seats();
            if let Some(at) = self.said.event.take()
                && !report(Sighting::Seen(self.newest.event(at)))
            {
                return Ok(Ended::Unheard);
            }
            let hangs = self.said.asked.is_some_and(|asked| now.since(asked).0 > ANSWER.0);
            let sighting = if hangs {
                Sighting::Failed("the Wayland compositor does not answer".into())
            } else if self.said.asked.is_none() && self.said.listed {
                Sighting::Seen(self.last_input(now))
            } else {
                continue;
            };
            if !report(sighting) {
                return Ok(Ended::Unheard);
            }
        }
    }

    /// For how long there is nothing to do by itself.
    fn patience(&self, now: BootMs, next_sign: BootMs) -> Millis {
        match self.said.asked {
            // Once it is late it is waited for period by period.
            Some(asked) => Millis(asked.plus(ANSWER).since(now).0.max(RETRY.0 / 4)),
            None => next_sign.since(now),
        }
    }

    fn last_input(&mut self, now: BootMs) -> BootMs {
        let used = self.said.idle.iter().any(Option::is_none);
        let idle_since = self.said.idle.iter().copied().flatten().max();
        match idle_since {
            Some(at) if !used => self.newest.polled(at),
            Some(_) | None if self.said.idle.is_empty() => self.newest.polled(BootMs(0)),
            Some(_) | None => self.newest.event(now),
        }
    }

    /// Seats may come and go: each that is new gets its own notification.
    fn watch_seats(&mut self) {
        let Some(notifier) = self.said.notifier.clone() else {
            return;
        };
        let handle = self.queue.handle();
        let quiet = u32::try_from(QUIET.0).unwrap_or(u32::MAX);
        for seat in self.said.seats.iter().skip(self.watched) {
            let index = self.said.idle.len();
            self.said.idle.push(None);
            match &notifier {
                Notifier::Standard(notifier) if notifier.version() >= 2 => {
                    notifier.get_input_idle_notification(quiet, seat, &handle, index);
                }
                Notifier::Standard(notifier) => {
                    notifier.get_idle_notification(quiet, seat, &handle, index);
                }
                Notifier::Kde(idle) => {
                    idle.get_idle_timeout(seat, quiet, &handle, index);
                }
            }
        }
        self.watched = self.said.seats.len();
    }

    /// Sends what is to be sent, sleeps until something comes, and takes it. Whether the bell has rung.
    fn turn(&mut self, bell: &Bell, patience: Millis) -> Result<bool, Fault> {
        match self.connection.flush() {
            Ok(()) => {}
            // It does not read: whether it hangs is seen by its silence.
            Err(WaylandError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        self.queue.dispatch_pending(&mut self.said)?;
        let Some(reading) = self.connection.prepare_read() else {
            self.queue.dispatch_pending(&mut self.said)?;
            return Ok(false);
        };
        let (rung, readable) = {
            let stream = reading.connection_fd();
            let mut sources = [PollFd::new(bell, PollFlags::IN), PollFd::new(&stream, PollFlags::IN)];
            sleep(&mut sources, patience)?;
            (!sources[0].revents().is_empty(), !sources[1].revents().is_empty())
        };
        if readable {
            match reading.read() {
                Ok(_) => {}
                Err(WaylandError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        if rung {
            bell.hush();
        }
        self.queue.dispatch_pending(&mut self.said)?;
        Ok(rung)
    }
}

fn sleep(sources: &mut [PollFd<'_>], span: Millis) -> Result<(), Fault> {
    let timeout = Timespec {
        tv_sec: i64::try_from(span.0 / 1_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(span.0 % 1_000 * 1_000_000).unwrap_or(0),
    };
    match poll(sources, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn rest(bell: &Bell, span: Millis) -> Result<(), Fault> {
    sleep(&mut [PollFd::new(bell, PollFlags::IN)], span)?;
    bell.hush();
    Ok(())
}

impl Said {
    fn idled(&mut self, seat: usize) {
        let since = BootMs(sela_clock::now().boot_ms.0.saturating_sub(QUIET.0));
        if let Some(idle) = self.idle.get_mut(seat) {
            *idle = Some(since);
        }
    }

    fn resumed(&mut self, seat: usize) {
        if let Some(idle) = self.idle.get_mut(seat) {
            *idle = None;
        }
        self.event = Some(sela_clock::now().boot_ms);
    }
}

impl Dispatch<WlRegistry, ()> for Said {
    fn event(
        said: &mut Self,
        registry: &WlRegistry,
        event: wl_registry::Event,
        (): &(),
        _: &Connection,
        handle: &QueueHandle<Self>,
    ) {
        let wl_registry::Event::Global {
            name,
            interface,
            version,
        } = event
        else {
            return;
        };
        match interface.as_str() {
            "wl_seat" => said.seats.push(registry.bind(name, 1, handle, ())),
            "ext_idle_notifier_v1" => {
                said.notifier = Some(Notifier::Standard(registry.bind(name, version.min(2), handle, ())));
            }
            "org_kde_kwin_idle" if said.notifier.is_none() => {
                said.notifier = Some(Notifier::Kde(registry.bind(name, 1, handle, ())));
            }
            _ => {}
        }
    }
}

impl Dispatch<WlCallback, ()> for Said {
    fn event(said: &mut Self, _: &WlCallback, _: wl_callback::Event, (): &(), _: &Connection, _: &QueueHandle<Self>) {
        said.asked = None;
        said.listed = true;
    }
}

impl Dispatch<ExtIdleNotificationV1, usize> for Said {
    fn event(
        said: &mut Self,
        _: &ExtIdleNotificationV1,
        event: ext_idle_notification_v1::Event,
        seat: &usize,
        _: &Connection,
        _: &QueueHandle<Self>,
    ) {
        match event {
            ext_idle_notification_v1::Event::Idled => said.idled(*seat),
            ext_idle_notification_v1::Event::Resumed => said.resumed(*seat),
        }
    }
}

impl Dispatch<OrgKdeKwinIdleTimeout, usize> for Said {
    fn event(
        said: &mut Self,
        _: &OrgKdeKwinIdleTimeout,
        event: org_kde_kwin_idle_timeout::Event,
        seat: &usize,
        _: &Connection,
        _: &QueueHandle<Self>,
    ) {
        match event {
            org_kde_kwin_idle_timeout::Event::Idle => said.idled(*seat),
            org_kde_kwin_idle_timeout::Event::Resumed => said.resumed(*seat),
        }
    }
}

delegate_noop!(Said: ignore WlSeat);
delegate_noop!(Said: ignore ExtIdleNotifierV1);
delegate_noop!(Said: ignore OrgKdeKwinIdle);
