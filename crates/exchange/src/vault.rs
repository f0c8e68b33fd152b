//! What the exchange keeps of a job that only the job may read: on the disk sealed with a key of its own, in memory as long as the job
//! may get a lease. Secrets are forgotten when their job ends; the key of its results stays, for its tenant.

use crate::keys;
use anyhow::Context;
use sela_protocol::confidential::{Confidential, SealingKey};
use sela_protocol::id::JobId;
use sela_protocol::sealed::{self, Drawn, Purpose};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// The key that everything confidential is sealed with on the disk. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct VaultKey(Arc<SealingKey>);

impl VaultKey {
    /// From the key's file.
    pub(crate) fn new(key: SealingKey) -> Self {
        Self(Arc::new(key))
    }

    /// As it is kept.
    ///
    /// # Errors
    /// Where the system has no randomness.
    pub(crate) fn seal(&self, job: JobId, confidential: &Confidential) -> anyhow::Result<Vec<u8>> {
        let drawn: Drawn = keys::random_bytes()?;
        let clear = zeroize::Zeroizing::new(serde_json::to_vec(confidential)?);
        Ok(sealed::seal(&self.0, Purpose::Kept(job), &drawn, &clear)?)
    }

    /// What was kept.
    ///
    /// # Errors
    /// Where the file holds another key than it was sealed with, or the store was changed.
    pub(crate) fn open(&self, job: JobId, kept: &[u8]) -> anyhow::Result<Confidential> {
        let clear = sealed::open(&self.0, Purpose::Kept(job), kept).with_context(|| {
            format!(
                "what is kept for {job} does not open with {}: put the key back from a backup",
                keys::VAULT_KEY_FILE
            )
        })?;
        serde_json::from_slice(&clear).context("what is kept for a job does not read")
    }

    /// Tells one submission from another without telling anything of either: a plain hash of a text with a short secret in it could
    /// be tried out.
    pub(crate) fn fingerprint(&self, text: &str) -> String {
        let keyed = Sha256::new()
            .chain_update(b"sela submission")
            .chain_update(self.0.bytes())
            .chain_update(Sha256::digest(text.as_bytes()));
        hex::encode(keyed.finalize())
    }
}

/// Of all jobs that have not ended.
pub(crate) struct Vault {
    key: VaultKey,
    jobs: HashMap<JobId, Confidential>,
}

impl Vault {
    /// With what was kept.
    pub(crate) fn new(key: VaultKey, jobs: HashMap<JobId, Confidential>) -> Self {
        Self { key, jobs }
    }

    /// Takes a new job's, and gives what is to be kept of it.
    ///
    /// # Errors
    /// As [`VaultKey::seal`].
    pub(crate) fn take(&mut self, job: JobId, confidential: Confidential) -> anyhow::Result<Vec<u8>> {
        let kept = self.key.seal(job, &confidential)?;
        self.jobs.insert(job, confidential);
        Ok(kept)
    }

    /// For the node that gets the job.
    pub(crate) fn of(&self, job: JobId) -> Option<Confidential> {
        self.jobs.get(&job).cloned()
    }

    /// The job has ended: its secrets are forgotten. Gives what is to be kept in place of what is kept, where there were any.
    ///
    /// # Errors
    /// As [`VaultKey::seal`].
    pub(crate) fn end(&mut self, job: JobId) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(mut confidential) = self.jobs.remove(&job) else {
            return Ok(None);
        };
        if confidential.secrets.is_empty() {
            return Ok(None);
        }
        confidential.secrets.clear();
        self.key.seal(job, &confidential).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::confidential::{SecretName, SecretValue};
    use sela_protocol::id::IdSource;
    use sela_protocol::units::UtcMs;
    use std::collections::BTreeMap;

    fn confidential() -> Confidential {
        let name = SecretName::try_from("TOKEN".to_owned()).expect("a name");
        Confidential {
            result_key: SealingKey::from_bytes([7; 32]),
            secrets: BTreeMap::from([(name, SecretValue::new("hunter2".to_owned()))]),
        }
    }

    #[test]
    fn what_is_kept_opens_for_its_own_job_with_its_own_key_only() {
        let mut ids = IdSource::new(UtcMs(1), [3; 32]);
        let (job, other): (JobId, JobId) = (ids.draw(), ids.draw());
        let key = VaultKey::new(SealingKey::from_bytes([1; 32]));
        let mut vault = Vault::new(key.clone(), HashMap::new());
        let kept = vault.take(job, confidential()).expect("sealed");
        assert!(!kept.windows(7).any(|part| part == b"hunter2"));
        assert_eq!(key.open(job, &kept).expect("opens"), confidential());
        key.open(other, &kept).expect_err("of another job");
        let error = VaultKey::new(SealingKey::from_bytes([2; 32])).open(job, &kept);
        assert!(error.expect_err("another key").to_string().contains("backup"));
    }

    #[test]
    fn an_ended_jobs_secrets_are_forgotten_and_its_key_is_kept() {
        let job: JobId = IdSource::new(UtcMs(1), [3; 32]).draw();
        let key = VaultKey::new(SealingKey::from_bytes([1; 32]));
        let mut vault = Vault::new(key.clone(), HashMap::new());
        vault.take(job, confidential()).expect("sealed");
        assert_eq!(vault.of(job), Some(confidential()));
        let kept = vault.end(job).expect("sealed").expect("there were secrets");
        assert_eq!(vault.of(job), None);
        let left = key.open(job, &kept).expect("opens");
        assert!(left.secrets.is_empty() && left.result_key == confidential().result_key);
        assert_eq!(vault.end(job).expect("sealed"), None);
    }

    #[test]
    fn the_same_submission_has_the_same_fingerprint_and_no_plain_hash() {
        let key = VaultKey::new(SealingKey::from_bytes([1; 32]));
        assert_eq!(key.fingerprint("a"), key.fingerprint("a"));
        assert_ne!(key.fingerprint("a"), key.fingerprint("b"));
        assert_ne!(key.fingerprint("a"), hex::encode(Sha256::digest("a")));
    }
}
