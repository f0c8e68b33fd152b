//! The exchange's own secrets: its signing key and the operator's key, in files that only their owner may read, never
//! logged. API keys, invitations and lease tokens are `sela_market`'s.

use crate::vault::VaultKey;
use anyhow::{Context, bail};
use ed25519_dalek::SigningKey;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The file that holds the key which signs receipts.
const SIGNING_KEY_FILE: &str = "exchange.key";
/// The file that holds the key which opens `/v1/admin`.
pub(crate) const OPERATOR_KEY_FILE: &str = "operator.key";
/// The file that holds the key which seals what is kept of jobs that only they may read.
pub(crate) const VAULT_KEY_FILE: &str = "vault.key";

/// A secret text. Its `Debug` says nothing, so that it cannot slip into a log.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Fresh: `prefix` and 64 hex digits.
    pub(crate) fn fresh(prefix: &str) -> anyhow::Result<Self> {
        Ok(Self(format!("{prefix}{}", hex::encode(random_bytes::<32>()?))))
    }

    /// One that came in from outside.
    pub(crate) fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// To be shown once, or sent.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a secret")
    }
}

/// Bytes of the system's randomness.
///
/// # Errors
/// Where the system has none.
pub(crate) fn random_bytes<const COUNT: usize>() -> anyhow::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).context("the system gives no randomness")?;
    Ok(bytes)
}

/// The key that signs receipts; made at the first start.
///
/// # Errors
/// Where the file cannot be read or written, is open to others, or holds no key.
pub(crate) fn signing_key(folder: &Path) -> anyhow::Result<SigningKey> {
    let text = read_or_create(&folder.join(SIGNING_KEY_FILE), || {
        Ok(Secret::from_text(hex::encode(random_bytes::<32>()?)))
    })?;
    let mut seed = [0; 32];
    hex::decode_to_slice(text.reveal(), &mut seed).with_context(|| {
        format!(
            "{} does not hold 64 hex digits; put the key back from a backup (receipts signed by another key are not \
             accepted by nodes that knew this one)",
            folder.join(SIGNING_KEY_FILE).display()
        )
    })?;
    Ok(SigningKey::from_bytes(&seed))
}

/// The key that seals what is kept of jobs that only they may read; made at the first start.
///
/// # Errors
/// Where the file cannot be read or written, is open to others, or holds no key.
pub(crate) fn vault_key(folder: &Path) -> anyhow::Result<VaultKey> {
    let path = folder.join(VAULT_KEY_FILE);
    let text = read_or_create(&path, || Ok(Secret::from_text(hex::encode(random_bytes::<32>()?))))?;
    let key = text.reveal().parse().with_context(|| {
        format!(
            "{} does not hold 64 hex digits; put the key back from a backup (without it no result opens)",
            path.display()
        )
    })?;
    Ok(VaultKey::new(key))
}

/// The key that opens `/v1/admin`; made at the first start.
///
/// # Errors
/// Where the file cannot be read or written, or is open to others.
pub(crate) fn operator_key(folder: &Path) -> anyhow::Result<Secret> {
    read_or_create(&folder.join(OPERATOR_KEY_FILE), || Secret::fresh("sela_operator_"))
}

/// Reads a secret file that must exist.
///
/// # Errors
/// Where it cannot be read, is empty, or is open to others.
pub(crate) fn read_secret(path: &Path) -> anyhow::Result<Secret> {
    let mode = std::fs::metadata(path)
        .with_context(|| format!("{} cannot be read", path.display()))?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        bail!(
            "{0} can be read by others (mode {1:03o}): make a new key if they may have seen it, then chmod 600 {0}",
            path.display(),
            mode & 0o777
        );
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let text = text.trim();
    if text.is_empty() {
        bail!("{} is empty: put the key back from a backup", path.display());
    }
    Ok(Secret::from_text(text))
}

fn read_or_create(path: &Path, make: impl FnOnce() -> anyhow::Result<Secret>) -> anyhow::Result<Secret> {
    match std::fs::metadata(path) {
        Ok(_) => read_secret(path),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let secret = make()?;
            write_new(path, secret.reveal()).with_context(|| format!("{} cannot be written", path.display()))?;
            Ok(secret)
        }
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

/// Whole or not at all, mode 0600 from the first byte, never over an existing file.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o600))
        .tempfile_in(folder)?;
    writeln!(file, "{text}")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once_are_private_and_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = signing_key(folder.path()).expect("made");
        assert_eq!(signing_key(folder.path()).expect("read").to_bytes(), first.to_bytes());
        let operator = operator_key(folder.path()).expect("made");
        assert!(operator_key(folder.path()).expect("read") == operator);
        for name in [SIGNING_KEY_FILE, OPERATOR_KEY_FILE] {
            let mode = std::fs::metadata(folder.path().join(name))
                .expect("there")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_damaged_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        operator_key(folder.path()).expect("made");
        let path = folder.path().join(OPERATOR_KEY_FILE);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
        let error = operator_key(folder.path()).expect_err("open to others").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        write_new(&folder.path().join(SIGNING_KEY_FILE), "not hex").expect("written");
        let error = signing_key(folder.path()).expect_err("damaged").to_string();
        assert!(error.contains("backup"), "{error}");
    }

    #[test]
    fn a_secret_does_not_show_in_debug_output() {
        let secret = Secret::fresh("sela_key_").expect("randomness");
        assert!(!format!("{secret:?}").contains(secret.reveal()));
    }
}
