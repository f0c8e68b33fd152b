//! DSSE envelopes: an Ed25519 signature over a payload's bytes exactly as sent, with its type, so that a meter note can
//! never be taken for a receipt. Keys are made and kept elsewhere. Source: <https://github.com/secure-systems-lab/dsse>.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A message that is signed. `TYPE` reads `application/vnd.sela.<message>.v1+json`.
pub trait Payload: Serialize + DeserializeOwned {
    /// The payload type that is signed along.
    const TYPE: &'static str;
}

/// A public key as it is written: `ed25519:` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

/// A signed message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<T> {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: String,
    signatures: Vec<EnvelopeSignature>,
    #[serde(skip)]
    message: PhantomData<fn() -> T>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EnvelopeSignature {
    keyid: PublicKey,
    sig: String,
}

/// Why a signed message was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Signed by somebody else, or changed on the way.
    #[error("the signature is not by {expected}, or the message was changed on the way")]
    BadSignature {
        /// Whose it should be.
        expected: PublicKey,
    },
    /// Another kind of message than expected.
    #[error("this is a signed {found}, not a {expected}")]
    WrongType {
        /// What came.
        found: String,
        /// What should have come.
        expected: &'static str,
    },
    /// Not readable at all.
    #[error("the signed message does not read: {0}")]
    Malformed(String),
}

/// Why a text is no public key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a public key: it reads ed25519: and 64 hex digits")]
pub struct PublicKeyError(String);

impl<T: Payload> Envelope<T> {
    /// Signs a message.
    ///
    /// # Errors
    /// Where the message cannot be written as JSON (a map with keys that are no strings).
    pub fn seal(message: &T, key: &SigningKey) -> Result<Self, EnvelopeError> {
        let bytes = serde_json::to_vec(message).map_err(|error| EnvelopeError::Malformed(error.to_string()))?;
        let signature = key.sign(&pre_authentication_encoding(T::TYPE, &bytes));
        Ok(Self {
            payload_type: T::TYPE.to_owned(),
            payload: STANDARD.encode(bytes),
            signatures: vec![EnvelopeSignature {
                keyid: PublicKey::of(key),
                sig: STANDARD.encode(signature.to_bytes()),
            }],
            message: PhantomData,
        })
    }

    /// Checks the signature by `signer` and reads the message.
    ///
    /// # Errors
    /// A missing or wrong signature, another type, or a payload that does not read.
    pub fn open(&self, signer: &PublicKey) -> Result<T, EnvelopeError> {
        if self.payload_type != T::TYPE {
            return Err(EnvelopeError::WrongType {
                found: self.payload_type.clone(),
                expected: T::TYPE,
            });
        }
        let bytes = STANDARD
            .decode(&self.payload)
            .map_err(|error| EnvelopeError::Malformed(error.to_string()))?;
        let signed = pre_authentication_encoding(&self.payload_type, &bytes);
        let good = self
            .signatures
            .iter()
            .filter(|signature| signature.keyid == *signer)
            .any(|signature| signer.verifies(&signed, &signature.sig));
        if !good {
            return Err(EnvelopeError::BadSignature { expected: *signer });
        }
        serde_json::from_slice(&bytes).map_err(|error| EnvelopeError::Malformed(error.to_string()))
    }

    /// The key that claims to have signed, unchecked: to look up whose it is before [`Envelope::open`].
    pub fn claimed_signer(&self) -> Option<PublicKey> {
        self.signatures.first().map(|signature| signature.keyid)
    }
}

impl PublicKey {
    /// The public half of a key.
    pub fn of(key: &SigningKey) -> Self {
        Self(key.verifying_key().to_bytes())
    }

    fn verifies(&self, message: &[u8], signature: &str) -> bool {
        let verify = || {
            let key = VerifyingKey::from_bytes(&self.0).ok()?;
            let signature = Signature::from_slice(&STANDARD.decode(signature).ok()?).ok()?;
            key.verify_strict(message, &signature).ok()
        };
        verify().is_some()
    }
}

/// DSSE's PAE: lengths and bytes of type and payload, so that neither can be shifted into the other.
fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut encoded = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    encoded.extend_from_slice(payload);
    encoded
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ed25519:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        let parse = || {
            let mut bytes = [0; 32];
            hex::decode_to_slice(text.strip_prefix("ed25519:")?, &mut bytes).ok()?;
            Some(Self(bytes))
        };
        parse().ok_or_else(|| PublicKeyError(text.to_owned()))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Note(u32);
    impl Payload for Note {
        const TYPE: &'static str = "application/vnd.sela.note.v1+json";
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Other(u32);
    impl Payload for Other {
        const TYPE: &'static str = "application/vnd.sela.other.v1+json";
    }

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    #[test]
    fn a_sealed_message_opens_with_its_signer_only() {
        let sealed = Envelope::seal(&Note(7), &key(1)).expect("seals");
        assert_eq!(sealed.open(&PublicKey::of(&key(1))), Ok(Note(7)));
        assert!(matches!(
            sealed.open(&PublicKey::of(&key(2))),
            Err(EnvelopeError::BadSignature { .. })
        ));
    }

    #[test]
    fn a_changed_payload_or_type_is_refused() {
        let sealed = Envelope::seal(&Note(7), &key(1)).expect("seals");
        let mut changed = sealed.clone();
        changed.payload = STANDARD.encode(b"8");
        assert!(matches!(
            changed.open(&PublicKey::of(&key(1))),
            Err(EnvelopeError::BadSignature { .. })
        ));
        let json = serde_json::to_string(&sealed).expect("writes");
        let other: Envelope<Other> = serde_json::from_str(&json).expect("reads");
        assert!(matches!(
            other.open(&PublicKey::of(&key(1))),
            Err(EnvelopeError::WrongType { .. })
        ));
        let renamed: Envelope<Other> = serde_json::from_str(&json.replace("note.v1", "other.v1")).expect("reads");
        assert!(matches!(
            renamed.open(&PublicKey::of(&key(1))),
            Err(EnvelopeError::BadSignature { .. })
        ));
    }
}
