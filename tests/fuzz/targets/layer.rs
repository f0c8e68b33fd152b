//! Runs target `layer`; what must hold is in the library's module of that name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sela_fuzz::{layer, memory, seeds};

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

fuzz_target!(init: seeds::plant(&layer::seeds()), |input: &[u8]| layer::hold(input));
