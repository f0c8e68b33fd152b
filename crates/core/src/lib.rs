//! Decides for the owner: presence, guard, job life cycle. `State::step(now, input) -> Vec<Effect>` is total and
//! deterministic; here is no async runtime, no logging, no file, no clock and no random source.

mod card;
mod catch_up;
mod effect;
mod heartbeat;
mod input;
mod lease;
mod policy;
mod presence;
mod record;
pub mod schedule;
mod speech;
mod state;
mod tenure;
mod view;
mod wake;

pub use effect::Effect;
pub use input::{Input, LeaseEvent, MarketInput, RecoveredLease};
pub use policy::{CardPolicy, Policy};
pub use record::{OpenLease, Record, UnsettledLease};
pub use state::State;
