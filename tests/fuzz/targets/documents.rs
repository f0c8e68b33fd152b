//! Runs target `documents`; what must hold is in the library's module of that name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sela_fuzz::{documents, memory, seeds};

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

fuzz_target!(init: seeds::plant(&documents::seeds()), |input: &[u8]| documents::hold(input));
