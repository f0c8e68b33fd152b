//! What a tenant does: stores images and inputs by their hash, submits jobs, watches them, fetches what they made.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use sela_protocol::blob::BlobId;
use sela_protocol::id::JobId;
use sela_protocol::job::JobSpec;
use sela_protocol::tenant::{JobView, Stored, Submitted, TenantAccount};

use crate::run::rest::Rest;

/// A tenant with an account.
#[derive(Debug)]
pub(crate) struct Tenant(Rest);

impl Tenant {
    pub(crate) fn new(url: &str, api_key: &str) -> Self {
        Self(Rest::new(url, api_key))
    }

    /// Stores a file under its hash.
    pub(crate) fn store(&self, file: &Path) -> anyhow::Result<BlobId> {
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let blob = BlobId::of(&bytes);
        let stored: Stored = self.0.put_file(&format!("/v1/blobs/{blob}"), file)?;
        ensure!(
            stored.blob == blob,
            "{} was stored as {} instead of {blob}",
            file.display(),
            stored.blob
        );
        Ok(blob)
    }

    /// Submits a job.
    pub(crate) fn submit(&self, spec: &JobSpec) -> anyhow::Result<JobId> {
        let submitted: Submitted = self.0.post("/v1/jobs", spec)?;
        Ok(submitted.job)
    }

    /// How a job is.
    pub(crate) fn view(&self, job: JobId) -> anyhow::Result<JobView> {
        self.0.get(&format!("/v1/jobs/{job}"))
    }

    /// What a job wrote to its standard output from byte `from` on.
    pub(crate) fn log(&self, job: JobId, from: usize) -> anyhow::Result<String> {
        self.0.text(&format!("/v1/jobs/{job}/logs?stream=stdout&from={from}"))
    }

    /// The files that a job left in `/out`, by name.
    pub(crate) fn output(&self, job: JobId) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let mut archive = tar::Archive::new(self.0.stream(&format!("/v1/jobs/{job}/output"))?);
        let mut files = BTreeMap::new();
        for entry in archive.entries().context("the job's output is no archive")? {
            let mut entry = entry.context("the job's output breaks off")?;
            if entry.header().entry_type().is_file() {
                let name = entry.path().context("a name in the job's output cannot be read")?;
                let name = name.to_string_lossy().trim_start_matches("./").to_owned();
                let mut bytes = Vec::new();
                entry
                    .read_to_end(&mut bytes)
                    .with_context(|| format!("{name} in the job's output breaks off"))?;
                files.insert(name, bytes);
            }
        }
        Ok(files)
    }

    /// The balance.
    pub(crate) fn account(&self) -> anyhow::Result<TenantAccount> {
        self.0.get("/v1/account")
    }
}
