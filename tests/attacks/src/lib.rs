//! Attacks of a stranger's job on the machine that runs it: the catalogue, and what each attack does. Which backend they are
//! tried on, how they are shown to be able to go through, and what is made of how they went is the suite's, in `tests/suite`.
//!
//! Test equipment: no program of the product links it.

#![cfg(target_os = "linux")]

pub mod arena;
pub mod catalogue;
pub mod decoys;
pub mod deeds;
mod inside;
pub mod runner;
pub mod verdict;

pub use inside::image::{CAPABLE_PROGRAM, DEVICE_NODE, SETUID_PROGRAM, SHARED_FILE, SHARED_TEXT, has_more};
