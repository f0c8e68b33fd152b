//! What a checkup runs inside a job: a program of its own, without any library, so that it runs in an empty image. It makes the system
//! calls that its command line spells out (`ask.rs` has the grammar), each question in a process of its own, and prints what the kernel
//! answered, a line each. It knows no attack and judges nothing: what is asked, and what an answer means, is decided outside.
//! `build.rs` compiles it.

#![no_std]
#![no_main]
// A loop that copies must not become a call of the function that holds the loop.
#![no_builtins]

#[path = "../../docker/init/kernel.rs"]
#[allow(dead_code)]
mod kernel;

use kernel::{Errno, call2, call3, call4, call5, call6, leave, numbers as n};

/// Room for the command line, and for what calls write, and for hex of it.
const ROOM: usize = 2 << 20;
/// Most bytes of a call's answer that are shown.
const SHOWN: usize = 16 << 10;
/// Most steps of a question.
const STEPS: usize = 8;
const SIGCHLD: usize = 17;
const SIGKILL: usize = 9;

/// Called by the first instruction.
#[unsafe(no_mangle)]
extern "C" fn begin() -> ! {
    let line = memory(ROOM);
    let length = command_line(line);
    // The program's own name comes first.
    let mut at = end_of_word(line, 0, length) + 1;
    while at < length {
        let end = end_of_word(line, at, length);
        let word = line.get(at..end).unwrap_or(&[]);
        // SIGCHLD at the end, everything copied: as fork does.
        match call5(n::CLONE, SIGCHLD, 0, 0, 0, 0) {
            Ok(0) => {
                Question { word, at: 0 }.answer();
                leave(0)
            }
            Ok(child) => {
                let mut status = 0_i32;
                let _ = call4(n::WAIT4, child, &raw mut status as usize, 0, 0);
                // SAFETY: the kernel wrote it behind the compiler's back.
                let status = unsafe { (&raw const status).read_volatile() };
                if status & 0x7f != 0 {
                    let mut line = Line::of(name_of(word));
                    line.text(b" killed ");
                    line.number(i64::from(status & 0x7f));
                    line.print();
                }
            }
            Err(error) => {
                let mut line = Line::of(name_of(word));
                line.refused(0, error);
                line.print();
            }
        }
        at = end + 1;
    }
    leave(0)
}

/// Fresh memory, all zero.
fn memory(size: usize) -> &'static mut [u8] {
    // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
    match call6(n::MMAP, 0, size, 3, 0x22, usize::MAX, 0) {
        // SAFETY: the kernel just mapped that much there, and nobody unmaps it.
        Ok(at) => unsafe { core::slice::from_raw_parts_mut(at as *mut u8, size) },
        Err(_) => leave(1),
    }
}

fn command_line(into: &mut [u8]) -> usize {
    // AT_FDCWD, O_RDONLY | O_CLOEXEC
    let path = c"/proc/self/cmdline".as_ptr() as usize;
    let Ok(file) = call4(n::OPENAT, usize::MAX - 99, path, 0o2_000_000, 0) else {
        leave(1)
    };
    let mut length = 0;
    while length < into.len() {
        match call3(n::READ, file, into.as_mut_ptr() as usize + length, into.len() - length) {
            Ok(0) | Err(_) => break,
            Ok(count) => length += count,
        }
    }
    let _ = call2(n::CLOSE, file, 0);
    length.min(into.len())
}

fn end_of_word(line: &[u8], from: usize, length: usize) -> usize {
    let mut at = from;
    while at < length && line.get(at).is_some_and(|byte| *byte != 0) {
        at += 1;
    }
    at
}

fn name_of(word: &[u8]) -> &[u8] {
    let mut end = 0;
    while word.get(end).is_some_and(|byte| *byte != b'=') {
        end += 1;
    }
    word.get(..end).unwrap_or(&[])
}

/// A line of output, and whatever has to be kept while it is made.
struct Line {
    bytes: &'static mut [u8],
    used: usize,
}

impl Line {
    fn of(name: &[u8]) -> Self {
        let mut line = Self {
            bytes: memory(2 * SHOWN + 1024),
            used: 0,
        };
        line.text(name);
        line
    }

    fn text(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.used) {
                *place = *byte;
                self.used += 1;
            }
        }
    }

    fn number(&mut self, number: i64) {
        if number < 0 {
            self.text(b"-");
        }
        self.digits(number.unsigned_abs());
    }

    fn digits(&mut self, number: u64) {
        if number > 9 {
            self.digits(number / 10);
        }
        self.text(&[b'0' + (number % 10) as u8]);
    }

    fn hex(&mut self, bytes: &[u8]) {
        let digit = |half: u8| {
            let half = half & 15;
            if half < 10 { b'0' + half } else { b'a' + half - 10 }
        };
        for byte in bytes {
            self.text(&[digit(byte >> 4), digit(*byte)]);
        }
    }

    fn refused(&mut self, step: usize, error: Errno) {
        self.text(b" ! ");
        self.number(step as i64);
        self.text(b" ");
        self.number(i64::from(error));
    }

    fn print(&mut self) {
        self.text(b"\n");
        let _ = call3(n::WRITE, 1, self.bytes.as_ptr() as usize, self.used);
    }
}

/// One question: `NAME=KIND…`.
struct Question<'a> {
    word: &'a [u8],
    at: usize,
}

impl Question<'_> {
    fn answer(&mut self) {
        let name = name_of(self.word);
        let mut line = Line::of(name);
        self.at = name.len() + 1;
        match self.take() {
            b'c' => self.calls(&mut line, 1, false),
            b's' => self.calls(&mut line, 1, true),
            b'r' => {
                let times = self.number() as usize;
                self.calls(&mut line, times, false);
            }
            b'f' => {
                let most = self.number() as usize;
                fork(&mut line, most);
            }
            b'm' => {
                let size = self.number() as usize;
                touch(&mut line, size);
            }
            b'w' => {
                let size = self.number() as usize;
                noise(size);
                line.text(b" = 0");
            }
            b't' => {
                let count = self.number() as usize;
                stand(&mut line, count);
            }
            _ => line.refused(0, 22),
        }
        line.print();
    }

    fn peek(&self) -> u8 {
        self.word.get(self.at).copied().unwrap_or(0)
    }

    fn take(&mut self) -> u8 {
        let byte = self.peek();
        self.at += 1;
        byte
    }

    fn number(&mut self) -> i64 {
        let negative = self.peek() == b'-';
        if negative {
            self.at += 1;
        }
        let mut number = 0_i64;
        while self.peek().is_ascii_digit() {
            number = number.wrapping_mul(10).wrapping_add(i64::from(self.take() - b'0'));
        }
        if negative { -number } else { number }
    }

    /// Step by step until one is refused; the last as often as `times`. What the last room holds is shown, where asked for.
    fn calls(&mut self, line: &mut Line, times: usize, show: bool) {
        let room = memory(ROOM);
        let mut answers = [0_usize; STEPS];
        let (mut used, mut shown, mut step) = (0, (0, 0), 0);
        while self.peek() == b';' {
            self.at += 1;
            let mut numbers = [0_usize; 7];
            let mut count = 0;
            loop {
                let value = self.value(&answers, room, &mut used, &mut shown);
                if let Some(place) = numbers.get_mut(count) {
                    *place = value;
                }
                count += 1;
                if self.peek() != b',' {
                    break;
                }
                self.at += 1;
            }
            let [call, a, b, c, d, e, f] = numbers;
            let is_last = self.peek() != b';';
            let repeats = if is_last { times } else { 1 };
            for done in 0..repeats {
                match call6(call, a, b, c, d, e, f) {
                    Ok(answer) => {
                        if let Some(place) = answers.get_mut(step) {
                            *place = answer;
                        }
                    }
                    // Of a call that is made often, what tells is how often it went through.
                    Err(error) if times > 1 && is_last => return line.refused(done, error),
                    Err(error) => return line.refused(step, error),
                }
            }
            step += 1;
        }
        let last = answers.get(step.wrapping_sub(1)).copied().unwrap_or(0);
        line.text(b" = ");
        line.number(if times > 1 { times as i64 } else { last as i64 });
        if show {
            let (at, size) = shown;
            // A call that counts what it wrote says so; others filled it.
            let size = if last > 0 && last < size { last } else { size };
            line.text(b" ");
            line.hex(room.get(at..at + size.min(SHOWN)).unwrap_or(&[]));
        }
    }

    /// A number, `$N` (what step N answered), `x` with hex (bytes that end in a zero), or `zN` (N bytes of room).
    fn value(
        &mut self,
        answers: &[usize; STEPS],
        room: &mut [u8],
        used: &mut usize,
        shown: &mut (usize, usize),
    ) -> usize {
        match self.peek() {
            b'$' => {
                self.at += 1;
                let step = self.number() as usize;
                answers.get(step).copied().unwrap_or(0)
            }
            b'x' => {
                self.at += 1;
                let from = *used;
                while self.peek().is_ascii_hexdigit() {
                    let byte = (half(self.take()) << 4) | half(self.take());
                    if let Some(place) = room.get_mut(*used) {
                        *place = byte;
                        *used += 1;
                    }
                }
                // The zero after it, and a boundary that every structure is content with.
                *used = (*used + 1).next_multiple_of(8);
                room.as_ptr() as usize + from
            }
            b'z' => {
                self.at += 1;
                let size = self.number() as usize;
                let from = *used;
                *used = (from + size).min(room.len()).next_multiple_of(8);
                *shown = (from, size);
                room.as_ptr() as usize + from
            }
            _ => self.number() as usize,
        }
    }
}

fn half(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => 0,
    }
}

/// Processes that wait, until there are so many or no more to be had; then they end.
fn fork(line: &mut Line, most: usize) {
    let mut children = [0_usize; 256];
    let mut count = 0;
    let mut stopped = None;
    while count < most.min(children.len()) {
        match call5(n::CLONE, SIGCHLD, 0, 0, 0, 0) {
            Ok(0) => wait(),
            Ok(child) => {
                if let Some(place) = children.get_mut(count) {
                    *place = child;
                }
                count += 1;
            }
            Err(error) => {
                stopped = Some(error);
                break;
            }
        }
    }
    for child in children.iter().take(count) {
        let _ = call2(n::KILL, *child, SIGKILL);
        let _ = call4(n::WAIT4, *child, 0, 0, 0);
    }
    match stopped {
        Some(error) => line.refused(count, error),
        None => {
            line.text(b" = ");
            line.number(count as i64);
        }
    }
}

/// Takes so many bytes of memory, page by page.
fn touch(line: &mut Line, size: usize) {
    for page in memory(size).chunks_mut(4096) {
        if let Some(byte) = page.first_mut() {
            *byte = 1;
        }
    }
    line.text(b" = ");
    line.number(size as i64);
}

/// Prints so many bytes.
fn noise(size: usize) {
    let line = memory(4096);
    for byte in line.iter_mut() {
        *byte = b'.';
    }
    if let Some(last) = line.last_mut() {
        *last = b'\n';
    }
    let mut left = size;
    while left > 0 {
        match call3(n::WRITE, 1, line.as_ptr() as usize, left.min(4096)) {
            Ok(count) => left -= count.min(left),
            Err(_) => return,
        }
    }
}

/// Says so, and stands, beside processes that left their parents and never stop.
fn stand(line: &mut Line, count: usize) -> ! {
    for _ in 0..count {
        if call5(n::CLONE, SIGCHLD, 0, 0, 0, 0) == Ok(0) {
            let _ = call2(n::SETSID, 0, 0);
            if call5(n::CLONE, SIGCHLD, 0, 0, 0, 0) == Ok(0) {
                loop {
                    core::hint::spin_loop();
                }
            }
            leave(0);
        }
    }
    line.text(b" = ");
    line.number(count as i64);
    line.print();
    wait()
}

fn wait() -> ! {
    loop {
        // For nothing, for ever.
        let _ = call5(n::PPOLL, 0, 0, 0, 0, 8);
    }
}
