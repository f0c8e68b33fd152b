//! API keys, invitations and lease tokens: drawn from the step's randomness, shown once, kept only as hashes. They are
//! 256 bits of randomness each, so that a plain hash is enough and a lookup by hash tells nothing by its timing.

use crate::input::Entropy;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fmt;

/// The sha256 of a secret: all that the exchange keeps of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// The hash of a secret as somebody presents it.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SecretHash({}…)", hex::encode(&self.0[..4]))
    }
}

impl Serialize for SecretHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(self.0))
    }
}

impl<'de> Deserialize<'de> for SecretHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let mut hash = [0; 32];
        hex::decode_to_slice(&digits, &mut hash).map_err(serde::de::Error::custom)?;
        Ok(Self(hash))
    }
}

/// What a secret opens; its prefix says so to a person who finds one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretKind {
    /// A tenant's account.
    ApiKey,
    /// The way in for one node.
    Invitation,
    /// A lease's blobs and logs.
    LeaseToken,
}

/// Draws a secret; `number` tells apart those of one step.
pub(crate) fn draw_secret(entropy: Entropy, kind: SecretKind, number: u64) -> String {
    let prefix = match kind {
        SecretKind::ApiKey => "sela_key_",
        SecretKind::Invitation => "sela_invite_",
        SecretKind::LeaseToken => "sela_lease_",
    };
    let drawn = Sha256::new()
        .chain_update(b"sela secret")
        .chain_update(prefix.as_bytes())
        .chain_update(entropy.0)
        .chain_update(number.to_le_bytes())
        .finalize();
    format!("{prefix}{}", hex::encode(drawn))
}
