//! The image cache from outside: images written to disk or served by a real registry go in, and either folders to stack come
//! out or a sentence, with nothing left behind. Needs root, as the agent does: files are given to subordinate ids.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report, and so is what was skipped"
)]

mod honest;
mod hostile;
mod logins;
mod odd;
mod possession;
mod proxied;
mod registry;
mod room;
mod served;
mod transfers;
mod workbench;
