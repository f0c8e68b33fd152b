//! Typed identifiers: UUIDv7 with a prefix that names the kind, so that a job is never taken for a lease. Ids are made
//! from a time and randomness that the caller brings; nothing here reads a clock or a random source.

use crate::units::UtcMs;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// Why a text is not an id of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a {kind} id: it reads {prefix}_ and a UUID")]
pub struct IdError {
    text: String,
    kind: &'static str,
    prefix: &'static str,
}

/// Makes ids of one moment: deterministic in (time, seed), so that a recorded run makes the same ids again.
#[derive(Debug, Clone)]
pub struct IdSource {
    utc_ms: UtcMs,
    seed: [u8; 32],
    drawn: u64,
}

impl IdSource {
    /// `seed` must be fresh randomness in production: ids of two sources with the same seed and time collide.
    pub const fn new(utc_ms: UtcMs, seed: [u8; 32]) -> Self {
        Self { utc_ms, seed, drawn: 0 }
    }

    /// The next id of the kind asked for.
    pub fn draw<T: From<Uuid>>(&mut self) -> T {
        let hash = Sha256::new()
            .chain_update(self.seed)
            .chain_update(self.drawn.to_le_bytes())
            .finalize();
        self.drawn += 1;
        let mut bytes = [0_u8; 16];
        bytes.copy_from_slice(&hash[..16]);
        let millis = u64::try_from(self.utc_ms.0).unwrap_or(0);
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        bytes[6] = (bytes[6] & 0x0f) | 0x70;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Uuid::from_bytes(bytes).into()
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "bindings", derive(ts_rs::TS), ts(type = "string"))]
        pub struct $name(Uuid);

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "_{}"), self.0.hyphenated())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(|rest| Uuid::try_parse(rest).ok())
                    .map(Self)
                    .ok_or_else(|| IdError { text: text.to_owned(), kind: $kind, prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// A job that a tenant submitted.
    JobId, "job", "job"
);
id!(
    /// A machine that offers cards, known by its key.
    NodeId, "node", "node"
);
id!(
    /// One card (or CPU slot) of one node, let for one run of one job.
    LeaseId, "lease", "lease"
);
id!(
    /// Who is paid for a node's work: the payout identity and the bidder.
    OwnerId, "own", "owner"
);
id!(
    /// Who brings jobs and pays.
    TenantId, "ten", "tenant"
);
id!(
    /// A receipt that the exchange signed.
    ReceiptId, "rcp", "receipt"
);
id!(
    /// One award: the auction of one job.
    AwardId, "awd", "award"
);
id!(
    /// One atomic set of ledger postings.
    TransferId, "trf", "transfer"
);
id!(
    /// One connection's life between a node and the exchange, kept across reconnects.
    SessionId, "ses", "session"
);

/// A card by its vendor's UUID ("GPU-…"). An index is only for display, since it changes between starts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(transparent)]
pub struct GpuUuid(pub String);

impl fmt::Display for GpuUuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_seed_repeat_and_differ_among_themselves() {
        let mut first = IdSource::new(UtcMs(1_700_000_000_000), [7; 32]);
        let mut second = first.clone();
        let (a, b): (JobId, JobId) = (first.draw(), first.draw());
        assert_ne!(a, b);
        assert_eq!(a, second.draw());
        assert_eq!(a.to_string().parse::<JobId>(), Ok(a));
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        let lease: LeaseId = IdSource::new(UtcMs(1), [1; 32]).draw();
        let error = lease.to_string().parse::<JobId>().expect_err("a lease is no job");
        assert!(error.to_string().contains("job_"));
    }
}
