//! Decides for the owner: presence, guard, job life cycle. `State::step(now, input) -> Vec<Effect>` is total and
//! deterministic; here is no async runtime, no logging, no file, no clock and no random source.

mod card;
mod catch_up;
mod effect;
mod foreign;
mod heartbeat;
mod input;
mod lease;
mod policy;
mod presence;
mod record;
pub mod schedule;
mod senses;
mod speech;
mod state;
mod stop;
mod tenure;
mod timetable;
mod view;
mod wake;

pub use effect::Effect;
pub use input::{Input, LeaseEvent, MarketInput, RecoveredLease};
pub use policy::{BatteryRule, CardPolicy, Policy};
pub use record::{OpenLease, Record, UnsettledLease};
pub use state::State;
