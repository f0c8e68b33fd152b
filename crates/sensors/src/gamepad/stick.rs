//! Whether an axis was moved by a hand: further than its dead zone, within ten seconds. A worn stick that trembles or drifts
//! is no hand.

use rustix::fd::AsFd;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use sela_protocol::units::{BootMs, Millis};

/// What a hand does, it does within this time.
const WITHIN: Millis = Millis(10_000);
/// The share of its range by which a stick must move, in percent.
const DEAD: i64 = 15;

/// One axis.
#[derive(Debug)]
pub(super) struct Axis {
    dead: i64,
    /// Where it was, and when.
    anchor: Option<(i64, BootMs)>,
    last: i64,
}

impl Axis {
    /// As the device describes it; where it does not, as most are.
    pub(super) fn of(device: &impl AsFd, code: u16) -> Self {
        // SAFETY: the opcode names a read of exactly this structure, and the kernel writes nothing beyond it.
        let described = unsafe { rustix::ioctl::ioctl(device, Describe::of(code)) };
        match described {
            Ok(axis) if axis.most > axis.least => {
                let range = i64::from(axis.most) - i64::from(axis.least);
                Self {
                    dead: (range * DEAD / 100).max(2 * i64::from(axis.flat)),
                    ..Self::with_range(0, 0)
                }
            }
            Ok(_) | Err(_) => Self::with_range(i64::from(i16::MIN), i64::from(i16::MAX)),
        }
    }

    fn with_range(least: i64, most: i64) -> Self {
        Self {
            dead: (most - least) * DEAD / 100,
            anchor: None,
            last: 0,
        }
    }

    /// Takes a new value; whether a hand moved it.
    pub(super) fn moves(&mut self, value: i32, now: BootMs) -> bool {
        let value = i64::from(value);
        let (anchor, since) = match self.anchor {
            None => (value, now),
            Some((_, since)) if now.since(since).0 > WITHIN.0 => (self.last, now),
            Some(anchor) => anchor,
        };
        self.last = value;
        let by_hand = (value - anchor).abs() > self.dead;
        self.anchor = Some(if by_hand { (value, now) } else { (anchor, since) });
        by_hand
    }
}

/// `struct input_absinfo`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Described {
    value: i32,
    least: i32,
    most: i32,
    fuzz: i32,
    flat: i32,
    resolution: i32,
}

/// `EVIOCGABS`.
struct Describe {
    code: u16,
    answer: Described,
}

impl Describe {
    fn of(code: u16) -> Self {
        Self {
            code,
            answer: Described::default(),
        }
    }
}

// SAFETY: the opcode is that of a read of a `struct input_absinfo`, which `Described` is, field by field.
unsafe impl Ioctl for Describe {
    type Output = Described;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        // Axes are few: their codes fit into the low six bits.
        opcode::read::<Described>(b'E', 0x40 + u8::try_from(self.code & 0x3f).unwrap_or(0))
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        (&raw mut self.answer).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, answer: *mut rustix::ffi::c_void) -> rustix::io::Result<Described> {
        // SAFETY: this is the pointer that `as_ptr` gave, and the kernel has filled it.
        Ok(unsafe { answer.cast::<Described>().read() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values each so many milliseconds after the one before; whether any was by hand.
    fn check(values: &[(i32, u64)], by_hand: bool) {
        let mut axis = Axis::with_range(-32_768, 32_767);
        let mut now = 0;
        let mut moved = false;
        for (value, after) in values {
            now += after;
            moved |= axis.moves(*value, BootMs(now));
        }
        assert_eq!(moved, by_hand, "{values:?}");
    }

    #[test]
    fn a_drifting_stick_is_no_hand() {
        // Through its whole range, but in minutes.
        let drift: Vec<(i32, u64)> = (0..600).map(|step| (step * 50, 250)).collect();
        check(&drift, false);
        let tremble: Vec<(i32, u64)> = (0..600)
            .map(|step| (if step % 2 == 0 { 900 } else { -900 }, 4))
            .collect();
        check(&tremble, false);
        check(&[(20_000, 0), (20_000, 4), (20_100, 60_000)], false);
    }

    #[test]
    fn a_stick_that_is_moved_is_one_however_long_it_rested() {
        check(&[(0, 0), (12_000, 8)], true);
        check(&[(0, 0), (100, 600_000), (12_000, 8)], true);
        check(&[(0, 0), (12_000, 600_000)], true);
    }
}
