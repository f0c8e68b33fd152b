//! Removes what a crash left in an engine: containers by our label, and the folders that an engine makes in hierarchies of
//! version 1 that we do not use. Cgroups of ours are `crate::sweep`'s, which kills even where no engine answers.

use super::clerk::remove;
use super::{EngineError, EnginePlace, labels};
use crate::cgroup::{self, JOBS, jobs_folder};
use crate::keeper::wire::{CgroupLayout, CgroupPlace};
use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, PruneContainersOptionsBuilder};
use sela_protocol::id::LeaseId;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an engine may take to remove one container.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked meanwhile.
const GLANCE: Duration = Duration::from_millis(20);

/// Kills and removes every container of this agent's jobs, whatever state it is in; says whose they were. Those of other agents
/// are not touched.
///
/// # Errors
/// [`EngineError`] where the engine does not answer, or where a container stays.
pub async fn sweep(place: &EnginePlace, agent: &str) -> Result<BTreeSet<String>, EngineError> {
    by_label(place, labels::AGENT, agent).await
}

/// The same for one lease, whose keeper died.
///
/// # Errors
/// As [`sweep`].
pub async fn sweep_lease(place: &EnginePlace, lease: LeaseId) -> Result<(), EngineError> {
    by_label(place, labels::LEASE, &lease.to_string()).await.map(drop)
}

async fn by_label(place: &EnginePlace, label: &str, value: &str) -> Result<BTreeSet<String>, EngineError> {
    let engine = place.connect().await?;
    let filters = HashMap::from([("label".to_owned(), vec![format!("{label}={value}")])]);
    let found = list(&engine, &filters).await.map_err(|source| EngineError::Silent {
        kind: place.kind,
        source,
    })?;
    let mut leases = BTreeSet::new();
    for container in found {
        let id = container.id.unwrap_or_default();
        if !remove(&engine, &id, PATIENCE).await {
            return Err(EngineError::Stays {
                kind: place.kind,
                container: id,
            });
        }
        leases.extend(container.labels.unwrap_or_default().remove(labels::LEASE));
    }
    Ok(leases)
}

/// Between a container's end and its being tidied up Podman calls it "stopped", which Docker's words do not have: such a list cannot
/// be read. That passes; where whoever tidies up was killed, too, it does not, and the engine is told to do away with what has ended.
async fn list(engine: &Docker, filters: &HashMap<String, Vec<String>>) -> Result<Vec<ContainerSummary>, Error> {
    let ask = async || {
        let options = ListContainersOptionsBuilder::new().all(true).filters(filters).build();
        engine.list_containers(Some(options)).await
    };
    let settled = async {
        loop {
            match ask().await {
                Err(Error::JsonDataError { .. }) => tokio::time::sleep(GLANCE).await,
                listed => return listed,
            }
        }
    };
    if let Ok(listed) = tokio::time::timeout(PATIENCE, settled).await {
        return listed;
    }
    let options = PruneContainersOptionsBuilder::new().filters(filters).build();
    engine.prune_containers(Some(options)).await?;
    ask().await
}

/// Name of the group in which Podman keeps what watches its containers.
const PODMANS: &str = "conmon";

/// Removes a lease's folders from every hierarchy, those that an engine made where we do not included; whether all that can go has
/// gone. What other jobs are in stays.
pub(crate) fn clear_hierarchies(place: &CgroupPlace, lease: LeaseId) -> bool {
    let Ok(agent) = jobs_folder(place) else { return true };
    let mut clear = true;
    for hierarchy in hierarchies(place) {
        let agent = hierarchy.join(&agent);
        clear &= cgroup::remove(&agent.join(lease.to_string())).unwrap_or(true);
        if is_alone(&agent) {
            clear &= cgroup::remove(&agent.join(PODMANS)).unwrap_or(true);
            // Another job's folder may be made in it at any moment: then this fails, and is not alone any more.
            drop(fs::remove_dir(&agent));
            clear &= !agent.exists();
        }
        drop(fs::remove_dir(hierarchy.join(JOBS)));
    }
    clear
}

/// The same for every lease of an agent whose jobs are all gone.
pub(crate) fn clear_agent(place: &CgroupPlace) {
    let Ok(agent) = jobs_folder(place) else { return };
    for hierarchy in hierarchies(place) {
        drop(cgroup::remove(&hierarchy.join(&agent)));
        drop(fs::remove_dir(hierarchy.join(JOBS)));
    }
}

/// No job's folder is in an agent's.
fn is_alone(agent: &Path) -> bool {
    let entries = fs::read_dir(agent).into_iter().flatten().flatten();
    let mut folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.all(|folder| folder.file_name() == PODMANS)
}

/// Every hierarchy of this machine, whether we use it or not.
fn hierarchies(place: &CgroupPlace) -> Vec<PathBuf> {
    match place.layout {
        CgroupLayout::V2 => vec![place.root.clone()],
        CgroupLayout::LabCgroupV1 => {
            let entries = fs::read_dir(&place.root).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        }
    }
}
