//! The one owner of the agent's state.
use crate::{Effect, Input, Policy};
use sela_protocol::local::Snapshot;
use sela_protocol::units::{BootMs, Now};

/// All that the agent knows and decides from.
#[derive(Debug)]
pub struct State {}

impl State {
    /// A state that offers nothing until [`Input::Started`].
    pub fn new(_policy: Policy) -> Self {
        Self {}
    }
    /// Takes one input; what must be done, in order.
    pub fn step(&mut self, _now: Now, _input: Input) -> Vec<Effect> {
        Vec::new()
    }
    /// The next moment at which [`Input::Tick`] is needed if nothing else happens before.
    pub fn next_wake(&self, _now: Now) -> Option<BootMs> {
        None
    }
    /// Everything that a client shows.
    pub fn snapshot(&self, _now: Now) -> Snapshot {
        unimplemented!()
    }
}
