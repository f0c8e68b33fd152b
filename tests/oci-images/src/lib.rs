//! Writes OCI images from parts, without Docker: layers, config, manifest, image layout and OCI archive. The one
//! implementation that `cargo xtask`, the sandbox's tests and the black-box tests share. It also writes images that no
//! honest tool would write (`hostile`), because the sandbox must be shown to refuse them.
//!
//! Nothing here reads, verifies or runs an image: that is the sandbox's work, and a check written by the same hand as
//! the writer would prove nothing.
//!
//! Everything is reproducible: times are 0, order is the caller's, and the same parts give the same digests.

mod busybox;
mod error;
pub mod hostile;
mod image;
mod layer;
mod libraries;
mod write;

pub use busybox::{busybox_layer, busybox_path, busybox_script};
pub use error::Error;
pub use image::{Fault, Image, native_architecture};
pub use layer::{Compression, Content, Entry, EntryKind, Layer};
pub use libraries::libraries_of;
pub use write::{ImageOnDisk, write};
