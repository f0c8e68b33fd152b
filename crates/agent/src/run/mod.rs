//! `sela agent run`.
pub(crate) mod accounts;
