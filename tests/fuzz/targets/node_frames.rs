//! Runs target `node_frames`; what must hold is in the library's module of that name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sela_fuzz::{memory, node_frames, seeds};

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

fuzz_target!(init: seeds::plant(&node_frames::seeds()), |input: &[u8]| node_frames::hold(input));
