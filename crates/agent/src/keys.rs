//! The node's own key and the keys of exchanges that it knows. A key that cannot be read is an error, never silently a
//! new key: the key is the node's name, and its earnings hang on it. Nothing is signed here.

use anyhow::{Context as _, bail};
use ed25519_dalek::SigningKey;
use sela_protocol::envelope::PublicKey;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Reads the node's key, or makes one where there is none yet.
///
/// # Errors
/// A file that cannot be read, is no key, or may be read by others.
pub(crate) fn node_key(path: &Path) -> anyhow::Result<SigningKey> {
    match read_node_key(path)? {
        Some(key) => Ok(key),
        None => make_node_key(path),
    }
}

/// Reads the node's key; `None` where there is none yet.
///
/// # Errors
/// As [`node_key`].
pub(crate) fn read_node_key(path: &Path) -> anyhow::Result<Option<SigningKey>> {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("the node's key {shown} cannot be read")),
    };
    let mode = std::fs::metadata(path)
        .with_context(|| format!("the node's key {shown} cannot be looked at"))?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        bail!("the node's key {shown} may be read by others; run `chmod 600 {shown}`");
    }
    let mut seed = [0; 32];
    hex::decode_to_slice(text.trim(), &mut seed).map_err(|_| {
        anyhow::anyhow!(
            "{shown} is not a node key (64 hex digits); put back a copy of it, since what it earned hangs on it"
        )
    })?;
    Ok(Some(SigningKey::from_bytes(&seed)))
}

fn make_node_key(path: &Path) -> anyhow::Result<SigningKey> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| anyhow::anyhow!("the system gives no randomness for a key: {error}"))?;
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{}", hex::encode(seed))?;
        file.sync_all()
    };
    write().with_context(|| format!("the node's new key {} cannot be written", path.display()))?;
    Ok(SigningKey::from_bytes(&seed))
}

/// Keys of exchanges, by URL: pinned when first met.
#[derive(Debug, Clone)]
pub(crate) struct ExchangeKeys {
    path: PathBuf,
}

/// What a greeting's key is to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquaintance {
    /// The same as ever, or met for the first time and written down now.
    Known,
    /// Another key than the one known.
    Changed {
        /// The one known.
        known: PublicKey,
    },
}

impl ExchangeKeys {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The file, to be named to people.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The key known for an exchange.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn known(&self, url: &str) -> anyhow::Result<Option<PublicKey>> {
        Ok(self.read()?.get(url).copied())
    }

    /// Compares with the key known for this exchange, and writes it down if there is none.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub(crate) fn meet(&self, url: &str, key: PublicKey) -> anyhow::Result<Acquaintance> {
        let mut keys = self.read()?;
        match keys.get(url) {
            Some(known) if *known == key => Ok(Acquaintance::Known),
            Some(known) => Ok(Acquaintance::Changed { known: *known }),
            None => {
                keys.insert(url.to_owned(), key);
                self.write(&keys)?;
                Ok(Acquaintance::Known)
            }
        }
    }

    fn read(&self) -> anyhow::Result<BTreeMap<String, PublicKey>> {
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} (keys of exchanges) does not read", self.path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", self.path.display())),
        }
    }

    fn write(&self, keys: &BTreeMap<String, PublicKey>) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(keys)?;
        write_private(&self.path, text.as_bytes())
    }
}

/// Replaces a file as one step, readable by its owner only.
///
/// # Errors
/// Where the folder cannot be written.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        std::fs::File::open(folder)?.sync_all()
    };
    write().with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_key_over_restarts_and_nobody_else_may_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.key");
        let first = node_key(&path).expect("made");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(node_key(&path).expect("read").to_bytes(), first.to_bytes());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
        let error = node_key(&path).expect_err("others may read it").to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_broken_key_is_never_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.key");
        write_private(&path, b"not a key").expect("written");
        assert!(node_key(&path).is_err());
        assert_eq!(std::fs::read(&path).expect("there"), b"not a key");
    }

    #[test]
    fn an_exchange_met_again_with_another_key_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = ExchangeKeys::at(folder.path().join("exchange-keys.json"));
        let key = |seed| PublicKey::of(&SigningKey::from_bytes(&[seed; 32]));
        assert_eq!(keys.meet("a", key(1)).expect("written"), Acquaintance::Known);
        assert_eq!(keys.meet("a", key(1)).expect("read"), Acquaintance::Known);
        assert_eq!(keys.meet("b", key(2)).expect("written"), Acquaintance::Known);
        let changed = Acquaintance::Changed { known: key(1) };
        assert_eq!(keys.meet("a", key(2)).expect("read"), changed);
        assert_eq!(keys.known("a").expect("read"), Some(key(1)), "the pin stays");
    }
}
