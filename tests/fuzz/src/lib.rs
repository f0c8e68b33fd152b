//! What strangers can send, fed to the code that reads it: one module per target, each with its seeds and with what must hold for any
//! input beside that nothing panics. The loop that makes inputs is libFuzzer's; `cargo xtask fuzz` runs it. Nothing here is shipped.

pub mod documents;
pub mod job_specs;
pub mod layer;
pub mod local_api;
pub mod memory;
pub mod node_frames;
pub mod proxy;
pub mod seeds;
mod tape;
