//! From an award and what was fetched for it to the keeper's plan. Pure: nothing is read or started here.

use super::Workshop;
use super::fetch::Fetched;
use sela_protocol::id::LeaseId;
use sela_protocol::lease::EndCause;
use sela_protocol::node::Award;
use sela_protocol::units::Bytes;
use sela_sandbox::card::CardAccess;
use sela_sandbox::keeper::wire::{Egress, JobPlan, Limits, Program};
use sela_sandbox::network;
use sela_sandbox::probe::ScratchKind;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Processes and threads of one job.
const PIDS: u32 = 1_024;
/// Open files of each process of a job.
const OPEN_FILES: u64 = 65_536;
/// What a job may print.
const LOG: Bytes = Bytes::from_mib(16);

/// Where a lease's keeper writes down what the lease is owed.
pub(super) fn account(workshop: &Workshop, lease: LeaseId) -> PathBuf {
    crate::run::accounts::path(&workshop.accounts, lease)
}

/// The plan for a job.
///
/// # Errors
/// A [`EndCause::JobFault`] where neither image nor job names a program.
pub(super) fn plan(
    workshop: &Workshop,
    award: &Award,
    fetched: &Fetched,
    scratch: PathBuf,
    card: Option<CardAccess>,
) -> Result<JobPlan, EndCause> {
    let spec = &award.spec;
    let config = &fetched.image.config;
    let arguments = config.arguments(&spec.command).map_err(|error| EndCause::JobFault {
        message: error.to_string(),
    })?;
    let egress = match spec.network {
        None => Egress::None,
        Some(_) => Egress::Proxy,
    };
    Ok(JobPlan {
        lease: award.lease,
        job: award.job,
        layers: fetched.image.layers.clone(),
        program: Program {
            arguments,
            environment: merged(&with_proxy(&config.environment, egress), &spec.env),
            folder: PathBuf::from(&config.working_directory),
            user: config.user.uid,
            group: config.user.gid,
        },
        ids: workshop.ids,
        cgroups: workshop.cgroups.clone(),
        limits: Limits {
            memory: spec.memory,
            pids: PIDS,
            open_files: OPEN_FILES,
            shm_size: spec.shm_size,
            log: LOG,
            wall_ms: award.run_limit_ms,
            output: spec.output_limit,
            // Without such a disk it lies in the job's memory: the market and the core have seen that it fits.
            disk: spec
                .scratch
                .filter(|_| workshop.scratch_kind == ScratchKind::EncryptedDisk),
        },
        inputs: fetched.inputs.clone(),
        resume_from: fetched.checkpoint.clone(),
        checkpoint_every_ms: spec.checkpoint.map(|checkpoint| checkpoint.interval_ms),
        card,
        egress,
        engine: workshop
            .engine
            .as_ref()
            .zip(fetched.given.as_ref())
            .map(|(engine, image)| engine.engine().plan(image.id().to_owned())),
        scratch,
        account: account(workshop, award.lease),
    })
}

/// The image's environment with what leads to the proxy put over it: where the image was built, another proxy may have been.
fn with_proxy(image: &[(String, String)], egress: Egress) -> Vec<(String, String)> {
    let proxy = match egress {
        Egress::None => BTreeMap::new(),
        Egress::Proxy => network::environment().into_iter().collect(),
    };
    merged(image, &proxy)
}

/// The image's environment with the job's put over it.
fn merged(image: &[(String, String)], job: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let kept = image.iter().filter(|(name, _)| !job.contains_key(name)).cloned();
    let added = job.iter().map(|(name, value)| (name.clone(), value.clone()));
    kept.chain(added).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_environment_replaces_the_images() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let image = [pair("PATH", "/bin"), pair("MODEL", "small")];
        let job = BTreeMap::from([pair("MODEL", "large"), pair("SEED", "1")]);
        let merged = merged(&image, &job);
        assert_eq!(
            merged,
            [pair("PATH", "/bin"), pair("MODEL", "large"), pair("SEED", "1")]
        );
    }

    #[test]
    fn a_job_with_network_finds_the_proxy_and_not_the_one_that_its_image_was_built_behind() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let image = [pair("HTTPS_PROXY", "http://proxy.example:8080")];
        assert_eq!(with_proxy(&image, Egress::None), image);
        let found = with_proxy(&image, Egress::Proxy);
        assert_eq!(found.iter().filter(|(name, _)| name == "HTTPS_PROXY").count(), 1);
        for name in ["HTTPS_PROXY", "https_proxy", "http_proxy", "ALL_PROXY"] {
            assert!(
                found.contains(&pair(name, "http://127.0.0.1:7352")),
                "{name}: {found:?}"
            );
        }
        let own = BTreeMap::from([pair("HTTPS_PROXY", "")]);
        assert!(
            merged(&found, &own).contains(&pair("HTTPS_PROXY", "")),
            "the job's own word stands"
        );
    }
}
