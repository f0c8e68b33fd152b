//! Runs target `proxy`; what must hold is in the library's module of that name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sela_fuzz::{memory, proxy, seeds};

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

fuzz_target!(init: seeds::plant(&proxy::seeds()), |input: &[u8]| proxy::hold(input));
