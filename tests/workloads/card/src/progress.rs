//! Lines for the tenant's log. A reader who has gone must not end paid work, so a line that cannot be written is dropped.

use std::fmt;
use std::io::{self, Write};

/// Writes one line to standard output.
pub fn say(line: impl fmt::Display) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
