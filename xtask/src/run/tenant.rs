//! What a tenant does, by the command line of `sela`: stores images and inputs, submits jobs, watches them, fetches what they made.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use sela_protocol::blob::BlobId;
use sela_protocol::id::JobId;
use sela_protocol::job::JobSpec;
use sela_protocol::tenant::{JobView, Stored, Submitted, TenantAccount};

use crate::commands;
use crate::run::typed::ask;

/// A tenant with an account, and the folder that its things lie in.
#[derive(Debug)]
pub(crate) struct Tenant {
    sela: PathBuf,
    folder: PathBuf,
}

impl Tenant {
    /// Writes `tenant.toml`, which only we may read.
    ///
    /// # Errors
    /// If it cannot be written, or is there already.
    pub(crate) fn new(sela: &Path, folder: &Path, url: &str, api_key: &str) -> anyhow::Result<Self> {
        let path = folder.join("tenant.toml");
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        write!(file, "exchange = \"{url}\"\napi_key = \"{api_key}\"\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            sela: sela.to_owned(),
            folder: folder.to_owned(),
        })
    }

    /// Stores a file at the exchange.
    pub(crate) fn store(&self, file: &Path) -> anyhow::Result<BlobId> {
        let stored: Stored = ask(self.sela(&["images", "push", "--json"]).arg(file))?;
        Ok(stored.blob)
    }

    /// Submits a job.
    pub(crate) fn submit(&self, name: &str, spec: &JobSpec) -> anyhow::Result<JobId> {
        let file = self.folder.join(format!("{name}.json"));
        std::fs::write(&file, serde_json::to_string_pretty(spec)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let submitted: Submitted = ask(self.sela(&["job", "submit", "--json"]).arg(&file))?;
        Ok(submitted.job)
    }

    /// How all jobs are.
    pub(crate) fn jobs(&self) -> anyhow::Result<Vec<JobView>> {
        ask(&mut self.sela(&["job", "list", "--json"]))
    }

    /// What a job has printed so far.
    pub(crate) fn log(&self, job: JobId) -> anyhow::Result<String> {
        commands::output(self.sela(&["job", "logs"]).arg(job.to_string()))
    }

    /// The files that a job left in `/out`, by name.
    pub(crate) fn output(&self, name: &str, job: JobId) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let folder = self.folder.join(name);
        commands::output(self.sela(&["job", "output"]).arg(job.to_string()).arg(&folder))?;
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                files.insert(
                    entry.file_name().to_string_lossy().into_owned(),
                    std::fs::read(entry.path())?,
                );
            }
        }
        Ok(files)
    }

    /// The balance.
    pub(crate) fn account(&self) -> anyhow::Result<TenantAccount> {
        ask(&mut self.sela(&["account", "--json"]))
    }

    fn sela(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.sela);
        command
            .args(arguments)
            .env("SELA_CONFIG_DIR", &self.folder)
            .env_remove("SELA_EXCHANGE")
            .env_remove("SELA_API_KEY");
        command
    }
}
