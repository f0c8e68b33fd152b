//! Who brings an image's bytes, as far as the cache must know: whom a cached thing may be opened for (the rule stands in the
//! module's heading), and how the agent brings archives. What is fetched, and what it means, is not decided here.

use std::fmt;
use std::future::Future;
use std::io;

use sela_protocol::blob::BlobId;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use super::archive::ArchiveStream;

/// As many as one thing remembers; of more, the oldest is forgotten and has to deliver again. Strangers can make registries
/// without end.
const MOST_REMEMBERED: usize = 16;

/// Where archives come from: the exchange, with the token of the lease at hand.
pub trait ArchiveSource: Sync {
    /// What an archive is read from.
    type Reader: AsyncRead + Send + Unpin;

    /// Who answers, such as the exchange's address: another one's word does not count for what this one delivered.
    fn name(&self) -> String;

    /// Whether the archive would be given to this job now; nothing of it is transferred.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] where it would not; any other where that cannot be known now.
    fn allows(&self, archive: BlobId) -> impl Future<Output = io::Result<()>> + Send;

    /// Opens the archive, from byte `from` on if it can: the answer says where it begins.
    ///
    /// # Errors
    /// As [`ArchiveSource::allows`].
    fn open(&self, archive: BlobId, from: u64) -> impl Future<Output = io::Result<ArchiveStream<Self::Reader>>> + Send;
}

/// One who has delivered bytes to this cache: a registry by host and port, or an exchange by its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Deliverer(String);

impl Deliverer {
    pub(crate) fn registry(authority: &str) -> Self {
        Self(format!("registry {}", authority.to_ascii_lowercase()))
    }

    pub(crate) fn archives(name: &str) -> Self {
        Self(format!("archives {name}"))
    }
}

impl fmt::Display for Deliverer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Those who have delivered one thing, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Deliverers(Vec<Deliverer>);

impl Deliverers {
    pub(crate) fn holds(&self, deliverer: &Deliverer) -> bool {
        self.0.contains(deliverer)
    }

    /// `false` where it was known already.
    pub(crate) fn add(&mut self, deliverer: &Deliverer) -> bool {
        if self.holds(deliverer) {
            return false;
        }
        if self.0.len() >= MOST_REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(deliverer.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_remembers_its_newest_deliverers_and_no_number_without_end() {
        let mut known = Deliverers::default();
        let registries: Vec<_> = (0..40)
            .map(|port| Deliverer::registry(&format!("r.example:{port}")))
            .collect();
        for registry in &registries {
            assert!(known.add(registry) && !known.add(registry));
        }
        assert_eq!(known.0, registries[40 - MOST_REMEMBERED..]);
        assert!(known.holds(&Deliverer::registry("R.example:39")), "hosts have no case");
        assert!(
            !known.holds(&Deliverer::archives("r.example:39")),
            "an exchange is no registry"
        );
    }
}
