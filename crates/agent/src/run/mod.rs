//! `sela agent run`: brings everything up in the order that safety needs, runs the loop, and takes everything down.

pub(crate) mod accounts;
mod agent_loop;
pub(crate) mod backend;
mod clock_of_today;
mod effects;
mod locks;
mod messages;
mod outbox;
mod recovery;
mod start;
mod strip;
mod timer;

pub(crate) use start::{AgentOptions, SUBUID, nvml_library, run};
