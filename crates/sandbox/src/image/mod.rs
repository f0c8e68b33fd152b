//! A job's image: fetched by digest, verified while it streams, unpacked with every path checked, and kept in a cache that
//! all jobs share. Knows nothing of running a job; what it hands out are folders to stack and the config's words.
//!
//! The way of an image: [`ImageReference`] → registry or archive → index, manifest, config ([`manifest`]) → each blob to the disk
//! (`partial`), each layer from there through [`unpack`] into the cache → [`PreparedImage`], whose layers cannot be evicted while it lives.
//!
//! # Whose image the cache opens
//!
//! Tenants share the cache and not each other's images: a digest is no secret, and by itself it opens nothing. **A cached
//! thing is used for a job only if the very source that the job names has itself delivered these bytes to this cache, and
//! says now, to this job's credentials, that it would again.**
//!
//! - *An archive that is not in the cache* brings every layer itself. One that its manifest names and it does not hold is
//!   missing, however many caches have it.
//! - *An archive that is in the cache* opens once the same exchange that delivered it has said, to this lease's token, that
//!   it would give it.
//! - *A registry* (host and port) is asked for manifest, config and each cached layer with this job's login, and a yes counts
//!   for bytes that this registry has delivered here before: it has them, and who may have them is its to say. For any other
//!   layer its word is worth nothing, as anybody can run a registry that says yes: it is fetched again and hashed, as if the
//!   cache were empty, and only the unpacking is spared.
//!
//! The same holds of what is not whole yet: a blob that came in part is gone on with for the source that sent that part, and
//! for no other. And of what depends on more than its own blob: a layer that took files from the layers below it, by hard links
//! into them, is kept under the name of the whole stack.
//!
//! What is left: from how fast an image is ready somebody who already knows a digest may guess that it was here.

mod archive;
mod assemble;
mod below;
mod cache;
mod disk;
mod error;
mod login;
pub mod manifest;
mod origin;
mod partial;
mod progress;
mod proxy;
mod public_address;
mod reference;
mod registry;
mod room;
mod shelf;
mod source;
mod stream;
mod tree;
pub mod unpack;
mod user;
mod written;

pub use archive::ArchiveStream;
pub use cache::{Cache, CacheSettings, PreparedImage};
pub use error::{Blame, ImageError, Part};
pub use login::{LOGIN_SECRET, RegistryLogin, RegistryLoginError};
pub use progress::Progress;
pub use proxy::{ProxyChoice, ProxyUrl, ProxyUrlError};
pub use reference::{ImageReference, RegistryReference};
pub use registry::{RegistryAccess, TokenChallenge};
pub use source::ArchiveSource;
pub use tree::EntryPath;
pub(crate) use tree::OPAQUE;
pub use user::ImageUser;
