//! What of a job only its tenant and its own program may read: the key that its results are sealed with, and its secrets. Made by the
//! tenant's client, kept by the exchange, given to a node with the lease. None of it shows in `Debug`, and all of it is wiped from
//! memory when it is dropped; whoever writes it as JSON holds it in the clear.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Most secrets of one job.
pub const MOST_SECRETS: usize = 64;
/// Most bytes that a job's secrets may hold together.
pub const SECRETS_LIMIT: usize = 64 << 10;
/// Longest name of a secret.
pub const LONGEST_SECRET_NAME: usize = 64;

/// A key that seals and opens (`crate::sealed`): 256 random bits, 64 hex digits as text.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct SealingKey([u8; 32]);

/// A text that is no key. It is not repeated: it may be one with a typing mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key reads 64 hex digits")]
pub struct SealingKeyError;

impl SealingKey {
    /// From 32 bytes of the system's randomness.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// For sealing and opening.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// As text, to be sent.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0))
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SealingKey(…)")
    }
}

impl FromStr for SealingKey {
    type Err = SealingKeyError;

    fn from_str(text: &str) -> Result<Self, SealingKeyError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| SealingKeyError)?;
        Ok(Self(bytes))
    }
}

impl Serialize for SealingKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.reveal())
    }
}

impl<'de> Deserialize<'de> for SealingKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The name of a secret: the job finds it as the file `/run/secrets/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(String);

/// A text that is no name of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no name of a secret: 1 to 64 letters, digits, _, - and ., not first a dot")]
pub struct SecretNameError(String);

impl TryFrom<String> for SecretName {
    type Error = SecretNameError;

    fn try_from(name: String) -> Result<Self, SecretNameError> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
        let good = (1..=LONGEST_SECRET_NAME).contains(&name.len()) && !name.starts_with('.') && name.chars().all(plain);
        if good {
            Ok(Self(name))
        } else {
            Err(SecretNameError(name))
        }
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0
    }
}

impl Borrow<str> for SecretName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for SecretName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The value of a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct SecretValue(String);

impl SecretValue {
    /// From a text.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// To be handed to the job, or sent.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("…")
    }
}

/// All that is confidential of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confidential {
    /// Seals `/out` and `/checkpoint` and opens the checkpoint to go on from.
    pub result_key: SealingKey,
    /// Files under `/run/secrets`.
    #[serde(default)]
    pub secrets: BTreeMap<SecretName, SecretValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_confidential_shows_in_debug_output() {
        let confidential = Confidential {
            result_key: SealingKey::from_bytes([0xab; 32]),
            secrets: BTreeMap::from([(
                SecretName::try_from("TOKEN".to_owned()).unwrap(),
                SecretValue::new("hunter2".to_owned()),
            )]),
        };
        let shown = format!("{confidential:?} {confidential:#?}");
        assert!(shown.contains("TOKEN") && shown.contains('…'), "{shown}");
        for hidden in ["hunter2", "abab", "171, 171"] {
            assert!(!shown.contains(hidden), "{shown}");
        }
        let json = serde_json::to_string(&confidential).unwrap();
        assert_eq!(serde_json::from_str::<Confidential>(&json).unwrap(), confidential);
    }

    #[test]
    fn names_are_those_of_plain_files() {
        for good in ["TOKEN", "hf.token", "a-b_9"] {
            assert!(SecretName::try_from(good.to_owned()).is_ok(), "{good}");
        }
        let long = "x".repeat(LONGEST_SECRET_NAME + 1);
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ü", "a\0", long.as_str()] {
            assert!(SecretName::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_wrong_key_is_refused_without_being_repeated() {
        let error = serde_json::from_str::<SealingKey>("\"deadbeef\"")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("64 hex digits") && !error.contains("deadbeef"),
            "{error}"
        );
    }
}
