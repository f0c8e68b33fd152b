//! The keeper: one process that guards one job. `wire` is what it and the agent say to each other, `handle` the agent's end.

pub mod handle;
pub mod wire;
