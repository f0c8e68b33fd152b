//! An X display: raw events of XInput2 while a job runs (keyboard, mouse, touch of every device, focused window or not), and
//! the server's idle time as a sign of life. One thread per display, which sleeps in `poll`. A server that dies is a reason.

use super::{NewestInput, Sighting};
use crate::attention::Bell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sela_protocol::units::{BootMs, Millis};
use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::screensaver::ConnectionExt as _;
use x11rb::protocol::xinput::{self, ConnectionExt as _, XIEventMask};
use x11rb::rust_connection::RustConnection;

/// After an event the display is left alone for this long: a mouse that reports 1000 times a second says nothing more
/// than its first report, and the idle time read at the end of the pause tells whether it went on.
const PAUSE: Millis = Millis(100);
/// How long after a failed connection the next is tried.
const RETRY: Millis = Millis(2_000);

pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Watches a display until the receiver is gone.
pub(crate) fn watch(display: &str, bell: &Bell, report: &impl Fn(Sighting) -> bool) {
    loop {
        let failed = match Display::open(display) {
            Ok(mut display) => match display.watch(bell, report) {
                Ok(()) => return,
                Err(fault) => format!("the X server of display {} broke off: {fault}", display.name),
            },
            Err(fault) => format!("cannot watch X display {display}: {fault}"),
        };
        tracing::warn!(%failed, "input cannot be seen");
        if !report(Sighting::Failed(failed)) || wait(bell, None, Some(RETRY)).is_err() {
            return;
        }
    }
}

struct Display {
    name: String,
    connection: RustConnection,
    roots: Vec<u32>,
    newest: NewestInput,
    listening: bool,
}

impl Display {
    fn open(name: &str) -> Result<Self, Fault> {
        let (connection, _) = x11rb::connect(Some(name))?;
        let roots: Vec<u32> = connection.setup().roots.iter().map(|screen| screen.root).collect();
        connection.xinput_xi_query_version(2, 2)?.reply()?;
        connection.screensaver_query_version(1, 1)?.reply()?;
        Ok(Self {
            name: name.to_owned(),
            connection,
            roots,
            newest: NewestInput::default(),
            listening: false,
        })
    }

    fn watch(&mut self, bell: &Bell, report: &impl Fn(Sighting) -> bool) -> Result<(), Fault> {
        let mut paused_until: Option<BootMs> = None;
        loop {
            let now = sela_clock::now().boot_ms;
            if paused_until.is_none_or(|until| now >= until) {
                paused_until = None;
                self.listen(bell.attention().is_high())?;
            }
            // First listen, then look: an input between the two is seen by one of them.
            if !report(Sighting::Seen(self.idle_since()?)) {
                return Ok(());
            }
            let timeout = paused_until.map_or(bell.attention().period(), |until| until.since(now));
            let listening = paused_until.is_none();
            // Events that came with the answer about the idle time are read already: the socket says nothing of them.
            let mut event = self.newest_event()?;
            if event.is_none() {
                wait(bell, listening.then_some(&self.connection), Some(timeout))?;
                event = self.newest_event()?;
            }
            if let Some(at) = event
                && listening
            {
                if !report(Sighting::Seen(self.newest.event(at))) {
                    return Ok(());
                }
                self.listen(false)?;
                paused_until = Some(at.plus(PAUSE));
            }
        }
    }

    /// Asks for raw events of all devices, or for none.
    fn listen(&mut self, on: bool) -> Result<(), Fault> {
        if on == self.listening {
            return Ok(());
        }
        let mask = if on {
            XIEventMask::RAW_KEY_PRESS
                | XIEventMask::RAW_BUTTON_PRESS
                | XIEventMask::RAW_MOTION
                | XIEventMask::RAW_TOUCH_BEGIN
        } else {
            XIEventMask::default()
        };
        for root in &self.roots {
            let mask = xinput::EventMask {
                deviceid: xinput::Device::ALL_MASTER.into(),
                mask: vec![mask],
            };
            self.connection.xinput_xi_select_events(*root, &[mask])?;
        }
        self.connection.flush()?;
        self.listening = on;
        Ok(())
    }

    fn idle_since(&mut self) -> Result<BootMs, Fault> {
        let root = *self.roots.first().ok_or("the X server has no screen")?;
        let idle = self
            .connection
            .screensaver_query_info(root)?
            .reply()?
            .ms_since_user_input;
        let now = sela_clock::now().boot_ms;
        Ok(self.newest.polled(BootMs(now.0.saturating_sub(u64::from(idle)))))
    }

    fn newest_event(&self) -> Result<Option<BootMs>, Fault> {
        let mut seen = false;
        while let Some(event) = self.connection.poll_for_event()? {
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "the X protocol's events are not ours to list"
            )]
            match event {
                Event::XinputRawKeyPress(_)
                | Event::XinputRawButtonPress(_)
                | Event::XinputRawMotion(_)
                | Event::XinputRawTouchBegin(_) => seen = true,
                _ => {}
            }
        }
        Ok(seen.then(|| sela_clock::now().boot_ms))
    }
}

/// Sleeps until the display says something, the attention changes or the time is over.
pub(crate) fn wait(bell: &Bell, display: Option<&RustConnection>, timeout: Option<Millis>) -> Result<(), Fault> {
    let mut sources = vec![PollFd::new(bell, PollFlags::IN)];
    if let Some(connection) = display {
        sources.push(PollFd::new(connection.stream(), PollFlags::IN));
    }
    let timeout = timeout.map(|span| Timespec {
        tv_sec: i64::try_from(span.0 / 1_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(span.0 % 1_000 * 1_000_000).unwrap_or(0),
    });
    match poll(&mut sources, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    bell.hush();
    Ok(())
}
