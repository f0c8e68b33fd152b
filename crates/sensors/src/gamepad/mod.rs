//! Gamepads, read from the kernel where this user may: buttons, triggers and real movements of sticks. One thread, which
//! sleeps in `poll`; a pad that is plugged in or unplugged rings by inotify. Keyboards and mice are never opened here.

mod stick;

use crate::attention::Bell;
use crate::files::Roots;
use crate::look::Look;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, inotify};
use rustix::io::Errno;
use sela_protocol::presence::InputActivity;
use sela_protocol::units::{BootMs, Millis};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use stick::Axis;

/// After an input the pads are left alone for this long: one that reports 1000 times a second says no more than its first report.
const PAUSE: Millis = Millis(100);

/// The kernel's codes, as in `linux/input-event-codes.h`.
const EV_KEY: u16 = 1;
const EV_ABS: u16 = 3;
const BTN_JOYSTICK: usize = 0x120;
const BTN_GAMEPAD: usize = 0x130;
/// `struct input_event`: two words of time, type, code, value.
const EVENT: usize = 2 * size_of::<usize>() + 8;

/// Watches until the receiver is gone.
pub(crate) fn watch(roots: &Roots, bell: &Bell, report: &impl Fn(Look<InputActivity>) -> bool) {
    let mut pads = Pads {
        folder: roots.dev.join("input"),
        classes: roots.sys.join("class/input"),
        bell: None,
        open: HashMap::new(),
        unreadable: 0,
        newest: BootMs(0),
    };
    let mut started = false;
    loop {
        pads.find(started);
        started = true;
        if !report(pads.look()) || pads.wait(bell, report).is_err() {
            return;
        }
    }
}

/// Why the watching ends.
#[derive(Debug)]
struct Over;

struct Pads {
    folder: PathBuf,
    classes: PathBuf,
    bell: Option<OwnedFd>,
    open: HashMap<PathBuf, Pad>,
    unreadable: usize,
    newest: BootMs,
}

struct Pad {
    device: OwnedFd,
    axes: HashMap<u16, Axis>,
}

impl Pads {
    fn look(&self) -> Look<InputActivity> {
        if self.open.is_empty() {
            return Look::Absent(match self.unreadable {
                0 => "no gamepad is connected".into(),
                count => format!("this user may not read the {count} gamepads that are connected"),
            });
        }
        Look::Seen(InputActivity {
            last_input_boot_ms: self.newest,
        })
    }

    /// Opens pads that are new and forgets those that are gone. `plugged`: a new one was plugged in just now, by a hand.
    fn find(&mut self, plugged: bool) {
        if self.bell.is_none() {
            self.bell = listen(&self.folder);
        }
        let devices: Vec<PathBuf> = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| is_pad(&self.classes, path))
            .collect();
        self.open.retain(|path, _| devices.contains(path));
        self.unreadable = 0;
        for path in devices {
            if self.open.contains_key(&path) {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(device) => {
                    if plugged {
                        self.newest = sela_clock::now().boot_ms;
                    }
                    self.open.insert(
                        path,
                        Pad {
                            device,
                            axes: HashMap::new(),
                        },
                    );
                }
                Err(_) => self.unreadable += 1,
            }
        }
    }

    /// Sleeps until a pad comes or goes, a sign of life is due or the attention changes; tells of input at once.
    fn wait(&mut self, bell: &Bell, report: &impl Fn(Look<InputActivity>) -> bool) -> Result<(), Over> {
        let until = sela_clock::now().boot_ms.plus(bell.attention().period());
        let mut paused_until: Option<BootMs> = None;
        loop {
            let now = sela_clock::now().boot_ms;
            if now >= until {
                return Ok(());
            }
            let paused = paused_until.filter(|until| now < *until);
            let rest = paused.unwrap_or(until).min(until).since(now);
            let rung = self.sleep(bell, paused.is_none(), rest)?;
            if rung {
                bell.hush();
                return Ok(());
            }
            if self.bell.as_ref().is_some_and(has_rung) {
                return Ok(());
            }
            if paused.is_none() && self.read(sela_clock::now().boot_ms) {
                if !report(self.look()) {
                    return Err(Over);
                }
                paused_until = Some(self.newest.plus(PAUSE));
            }
        }
    }

    fn sleep(&self, bell: &Bell, with_pads: bool, span: Millis) -> Result<bool, Over> {
        let mut sources = vec![PollFd::new(bell, PollFlags::IN)];
        sources.extend(self.bell.as_ref().map(|bell| PollFd::new(bell, PollFlags::IN)));
        if with_pads {
            sources.extend(self.open.values().map(|pad| PollFd::new(&pad.device, PollFlags::IN)));
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(span.0 / 1_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(span.0 % 1_000 * 1_000_000).unwrap_or(0),
        };
        match poll(&mut sources, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(!sources[0].revents().is_empty()),
            Err(_) => Err(Over),
        }
    }

    /// Takes what the pads have reported; whether a hand did it. A pad that is gone is closed.
    fn read(&mut self, now: BootMs) -> bool {
        let mut touched = false;
        self.open.retain(|_, pad| match pad.read(now) {
            Ok(by_hand) => {
                touched |= by_hand;
                true
            }
            Err(_) => false,
        });
        if touched {
            self.newest = now;
        }
        touched
    }
}

impl Pad {
    /// # Errors
    /// Where the device is gone.
    fn read(&mut self, now: BootMs) -> Result<bool, Errno> {
        let mut touched = false;
        let mut room = [0_u8; EVENT * 64];
        loop {
            let read = match rustix::io::read(&self.device, &mut room) {
                Ok(0) => return Err(Errno::NODEV),
                Ok(read) => read,
                Err(Errno::AGAIN) => return Ok(touched),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            for event in room[..read].chunks_exact(EVENT) {
                let at = 2 * size_of::<usize>();
                let kind = u16::from_ne_bytes([event[at], event[at + 1]]);
                let code = u16::from_ne_bytes([event[at + 2], event[at + 3]]);
                let value = i32::from_ne_bytes([event[at + 4], event[at + 5], event[at + 6], event[at + 7]]);
                touched |= match kind {
                    EV_KEY => true,
                    EV_ABS => {
                        let device = &self.device;
                        let axis = self.axes.entry(code).or_insert_with(|| Axis::of(device, code));
                        axis.moves(value, now)
                    }
                    _ => false,
                };
            }
        }
    }
}

fn listen(folder: &Path) -> Option<OwnedFd> {
    let bell = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
    // A device may be read only once its rights are set, which comes after its creation.
    let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::DELETE | inotify::WatchFlags::ATTRIB;
    inotify::add_watch(&bell, folder, events).ok()?;
    Some(bell)
}

fn has_rung(bell: &OwnedFd) -> bool {
    let mut room = [MaybeUninit::uninit(); 1_024];
    let mut events = inotify::Reader::new(bell, &mut room);
    let mut rung = false;
    while events.next().is_ok() {
        rung = true;
    }
    rung
}

/// Whether the kernel describes a device as a gamepad or joystick: by its buttons, without opening it.
fn is_pad(classes: &Path, device: &Path) -> bool {
    let Some(name) = device.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    name.starts_with("event")
        && std::fs::read_to_string(classes.join(name).join("device/capabilities/key"))
            .is_ok_and(|keys| has_key(&keys, BTN_GAMEPAD) || has_key(&keys, BTN_JOYSTICK))
}

/// The kernel writes its bits as hexadecimal words, the highest first.
fn has_key(keys: &str, code: usize) -> bool {
    let (word, bit) = (code / usize::BITS as usize, code % usize::BITS as usize);
    keys.split_ascii_whitespace()
        .rev()
        .nth(word)
        .and_then(|word| usize::from_str_radix(word, 16).ok())
        .is_some_and(|word| word >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pad_is_known_by_its_buttons_and_a_keyboard_is_none() {
        // An Xbox pad and a keyboard, as Linux describes them.
        assert!(has_key("7cdb000000000000 0 0 0 0", BTN_GAMEPAD));
        assert!(!has_key(
            "1000000000007 ff9f207ac14057ff febeffdfffefffff fffffffffffffffe",
            BTN_GAMEPAD
        ));
        assert!(!has_key("", BTN_GAMEPAD) && !has_key("zz", BTN_JOYSTICK));
    }
}
