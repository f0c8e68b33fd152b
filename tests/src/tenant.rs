//! The tenant: brings images and jobs, watches, fetches what they made. By REST where a test looks often; by `sela job …` where the
//! command line itself is what is tested.

use crate::{Rest, TestImage, wait_for};
use anyhow::{Context, ensure};
use sela_protocol::blob::BlobId;
use sela_protocol::id::{JobId, TenantId};
use sela_protocol::lease::LeasePhase;
use sela_protocol::local::Page;
use sela_protocol::money::HourlyPrice;
use sela_protocol::money::Micros;
use sela_protocol::sealed::{self, Purpose};
use sela_protocol::tenant::{JobKey, JobState, JobView, Stored, Submitted, TenantAccount};
use std::collections::BTreeMap;
use std::io::Read;

/// The cap of every test job, and, with a single owner, its price: a millisecond costs a millionth, so that what was paid in
/// micro-units is what was billed in milliseconds.
pub const PRICE: HourlyPrice = HourlyPrice(Micros(3_600_000));

/// A tenant with an account.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Who.
    pub tenant: TenantId,
    /// The exchange, with this tenant's key.
    pub rest: Rest,
}

/// The spec of a job that runs the test program with these words, as JSON that a test may change.
pub fn test_job(image: BlobId, words: &[&str]) -> serde_json::Value {
    serde_json::json!({
        "name": "test-job",
        "image": {"type": "archive", "blob": image},
        "command": words,
        "vram": 1_u64 << 30,
        "cap": PRICE,
        "budget": "5.000000",
        "wall_limit_ms": 600_000,
        "memory": 128 << 20,
        "shm_size": 1 << 20,
        "output_limit": 16 << 20,
        "checkpoint": {"interval_ms": 1_000},
    })
}

impl Tenant {
    /// Stores an image.
    ///
    /// # Errors
    /// Where the exchange refuses.
    pub fn store(&self, image: &TestImage) -> anyhow::Result<()> {
        let bytes = std::fs::read(&image.archive)?;
        let stored: Stored = self.rest.put(&format!("/v1/blobs/{}", image.blob), &bytes)?.json()?;
        ensure!(
            stored.blob == image.blob,
            "stored as {} instead of {}",
            stored.blob,
            image.blob
        );
        Ok(())
    }

    /// Submits a job.
    ///
    /// # Errors
    /// Where the exchange refuses.
    pub fn submit(&self, spec: &serde_json::Value) -> anyhow::Result<JobId> {
        Ok(self.rest.post::<Submitted>("/v1/jobs", spec)?.job)
    }

    /// How a job is.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn view(&self, job: JobId) -> anyhow::Result<JobView> {
        self.rest.get(&format!("/v1/jobs/{job}"))
    }

    /// All of its jobs, oldest first.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn jobs(&self) -> anyhow::Result<Vec<JobView>> {
        let mut page: Page<JobView> = self.rest.get("/v1/jobs")?;
        let mut jobs = std::mem::take(&mut page.items);
        while let Some(cursor) = page.next {
            page = self.rest.get(&format!("/v1/jobs?cursor={cursor}"))?;
            jobs.append(&mut page.items);
        }
        jobs.reverse();
        Ok(jobs)
    }

    /// The balance.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn account(&self) -> anyhow::Result<TenantAccount> {
        self.rest.get("/v1/account")
    }

    /// Everything that a job wrote to its standard output.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn log(&self, job: JobId) -> anyhow::Result<String> {
        let mut log = Vec::new();
        loop {
            let path = format!("/v1/jobs/{job}/logs?stream=stdout&from={}", log.len());
            let reply = self.rest.ask(&path)?;
            let part = reply.good()?;
            if part.is_empty() {
                return String::from_utf8(log).context("the log is no UTF-8");
            }
            log.extend_from_slice(part);
        }
    }

    /// The files that a job left in `/out`, by name, opened with the job's key.
    ///
    /// # Errors
    /// Where there are none, or they do not open.
    pub fn output(&self, job: JobId) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let reply = self.rest.ask(&format!("/v1/jobs/{job}/output"))?;
        let key: JobKey = self.rest.get(&format!("/v1/jobs/{job}/key"))?;
        files_of(&sealed::open(&key.result_key, Purpose::Output, reply.good()?)?)
    }

    /// The files of one of a job's checkpoints, opened with the job's key.
    ///
    /// # Errors
    /// Where it is not there, or does not open.
    pub fn checkpoint(&self, job: JobId, blob: BlobId) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let reply = self.rest.ask(&format!("/v1/blobs/{blob}"))?;
        let key: JobKey = self.rest.get(&format!("/v1/jobs/{job}/key"))?;
        files_of(&sealed::open(&key.result_key, Purpose::Checkpoint, reply.good()?)?)
    }

    /// Waits until a job is as `is` wants it.
    ///
    /// # Errors
    /// Where it ends otherwise, or that takes too long.
    pub fn wait(&self, job: JobId, what: &str, is: impl Fn(&JobView) -> bool) -> anyhow::Result<JobView> {
        wait_for(what, || {
            let view = self.view(job)?;
            if is(&view) {
                return Ok(Some(view));
            }
            ensure!(!view.state.is_final(), "the job is already {:?}", view.state);
            Ok(None)
        })
    }

    /// Waits until a job has ended, whichever way.
    ///
    /// # Errors
    /// Where that takes too long.
    pub fn wait_for_end(&self, job: JobId) -> anyhow::Result<JobView> {
        self.wait(job, "the job to end", |view| view.state.is_final())
    }

    /// Waits until a job has ended well.
    ///
    /// # Errors
    /// Where it ended otherwise.
    pub fn wait_until_done(&self, job: JobId) -> anyhow::Result<JobView> {
        let view = self.wait_for_end(job)?;
        ensure!(view.state == JobState::Done, "the job ended as {:?}", view.state);
        Ok(view)
    }

    /// Waits until a job's program runs and has written a line that contains `words`.
    ///
    /// # Errors
    /// Where it ends before, or that takes too long.
    pub fn wait_until_it_says(&self, job: JobId, words: &str) -> anyhow::Result<JobView> {
        let running = JobState::Leased {
            phase: LeasePhase::Running,
        };
        self.wait(job, &format!("the job to say \"{words}\""), |view| {
            view.state == running && self.log(job).is_ok_and(|log| log.contains(words))
        })
    }

    /// Waits until the exchange has accepted a checkpoint of a job.
    ///
    /// # Errors
    /// Where it ends before, or that takes too long.
    pub fn wait_for_a_checkpoint(&self, job: JobId) -> anyhow::Result<JobView> {
        self.wait(job, "a checkpoint", |view| view.checkpoint.is_some())
    }
}

fn files_of(archive: &[u8]) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let name = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            files.insert(name, bytes);
        }
    }
    Ok(files)
}
