//! Runs target `job_specs`; what must hold is in the library's module of that name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sela_fuzz::{job_specs, memory, seeds};

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

fuzz_target!(init: seeds::plant(&job_specs::seeds()), |input: &[u8]| job_specs::hold(input));
