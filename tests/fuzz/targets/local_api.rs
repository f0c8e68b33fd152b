//! Runs target `local_api`; what must hold is in the library's module of that name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sela_fuzz::{local_api, memory, seeds};

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

fuzz_target!(init: seeds::plant(&local_api::seeds()), |input: &[u8]| local_api::hold(input));
