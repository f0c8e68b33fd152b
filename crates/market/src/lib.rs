//! The market's rules: auction, price, leases, ledger arithmetic, and [`floor::Floor`], the whole exchange as one pure state.
//! No async runtime, logging, file, clock or random source lives here: time and randomness are passed in, effects handed out.

pub mod auction;
pub mod billing;
mod books;
pub mod effect;
pub mod floor;
pub mod input;
pub mod lease;
pub mod ledger;
pub mod record;
pub mod secret;
