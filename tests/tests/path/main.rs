//! The path, black box: a stranger's container earns money on an idle card, and whatever goes wrong on the way ends well. One
//! program, so that it is linked once; each module is one kind of story.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "all of this is tests, and what they measure is read where they ran"
)]

mod breaks;
mod commands;
mod confidential;
mod disks;
mod earning;
mod images;
mod mouse;
mod network;
mod owners;
mod settings;
mod strangers;
mod written;
