//! The words that all of Sela speaks: units, ids, money, job specs, reasons, messages, signed envelopes.
//! No decisions and no input or output live here.

pub mod card;
pub mod id;
pub mod money;
pub mod units;
