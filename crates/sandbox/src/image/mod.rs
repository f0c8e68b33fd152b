//! A job's image: fetched by digest, verified while it streams, unpacked with every path checked, and kept in a cache that
//! all jobs share. Knows nothing of running a job; what it hands out are folders to stack and the config's words.
//!
//! The way of an image: [`ImageReference`] → registry or archive → index, manifest, config ([`manifest`]) → each layer
//! through [`unpack`] into the cache → [`PreparedImage`], whose layers cannot be evicted while it lives.

mod archive;
mod cache;
mod error;
pub mod manifest;
mod public_address;
mod reference;
mod registry;
mod shelf;
mod stream;
mod tree;
pub mod unpack;
mod user;

pub use archive::ArchiveStream;
pub use cache::{Cache, CacheSettings, PreparedImage, Progress};
pub use error::{Blame, ImageError, Part};
pub use reference::{ImageReference, RegistryReference};
pub use registry::{RegistryAccess, TokenChallenge};
pub use tree::EntryPath;
pub use user::ImageUser;
