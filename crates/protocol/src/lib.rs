//! The words that all of Sela speaks: units, ids, money, job specs, reasons, messages, signed envelopes.
//! No decisions and no input or output live here.

pub mod address;
pub mod blob;
pub mod card;
pub mod confidential;
pub mod envelope;
pub mod id;
pub mod job;
pub mod lease;
pub mod local;
pub mod money;
pub mod network;
pub mod node;
pub mod plain;
pub mod presence;
pub mod schedule;
pub mod sealed;
pub mod senses;
pub mod session;
pub mod tenant;
pub mod units;
pub mod written;
