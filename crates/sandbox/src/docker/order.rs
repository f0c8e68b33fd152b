//! What an engine is asked for, and how its answer is read back. Everything that a container may have is named here; what is not
//! named, it has not. Words only: `clerk` says them.

use super::labels;
use super::{EngineCgroups, EngineKind, EnginePlan, INIT, OWN_FOLDER, seccomp};
use crate::card::Placed;
use crate::cgroup::JOBS;
use crate::keeper::wire::{Fault, FaultCode, JobPlan};
use crate::native::mounts::{COVERED_FILES, COVERED_FOLDERS};
use crate::native::namespaces::HOST_NAME;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, DeviceMapping, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountType, ResourcesUlimits,
};
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The page size that memory is limited in.
const PAGE: u64 = 4096;
/// Bytes that the secrets' own place may hold; the keeper writes no more.
const SECRETS_ROOM: u64 = 1 << 20;
/// Name of the file with the list of system calls in the scratch folder, for engines that read it from there.
const PROFILE: &str = "seccomp.json";
/// Name of the file with the names of machines in the scratch folder.
const HOSTS: &str = "hosts";
/// Name of the first process's program in the scratch folder.
const FIRST: &str = "init";
/// What the orders leave in the scratch folder.
pub(crate) const LEFT: [&str; 3] = [PROFILE, HOSTS, FIRST];
/// Processes of one user that an engine may ask the kernel for. The job's own limit is its cgroup's.
const MOST_PROCESSES: u64 = 1 << 14;

/// The container of a lease, by name.
pub(super) fn name(plan: &JobPlan) -> String {
    format!("sela-{}", plan.lease)
}

/// Where the socket lies in the scratch folder.
pub(super) fn door(plan: &JobPlan) -> PathBuf {
    plan.scratch.join("door")
}

/// Where a job finds its secrets.
pub(crate) const SECRETS: &str = "/run/secrets";

/// Who the job is as the container's own user namespace counts: itself, where the engine maps ids, else one of the plan's range.
pub(super) fn user(plan: &JobPlan, engine: &EnginePlan) -> (u32, u32) {
    let (user, group) = (plan.program.user, plan.program.group);
    if engine.remapped {
        (user, group)
    } else {
        (plan.ids.first + user, plan.ids.first + group)
    }
}

/// Memory in whole pages, as the cgroup limits it.
fn memory(plan: &JobPlan) -> i64 {
    i64::try_from(plan.limits.memory.0 / PAGE * PAGE).unwrap_or(i64::MAX)
}

/// What to create.
///
/// # Errors
/// [`FaultCode::Card`] where a device is missing; [`FaultCode::Isolation`] where the list of system calls could not be written.
pub(super) fn body(plan: &JobPlan, engine: &EnginePlan, with_secrets: bool) -> Result<ContainerCreateBody, Fault> {
    let (user, group) = user(plan, engine);
    let labels = HashMap::from([
        (labels::JOB.to_owned(), plan.job.to_string()),
        (labels::LEASE.to_owned(), plan.lease.to_string()),
        (labels::AGENT.to_owned(), plan.cgroups.agent.clone()),
    ]);
    Ok(ContainerCreateBody {
        image: Some(engine.image.clone()),
        entrypoint: Some(vec![format!("/{OWN_FOLDER}/init")]),
        cmd: Some(Vec::new()),
        env: Some(Vec::new()),
        working_dir: Some("/".to_owned()),
        user: Some(format!("{user}:{group}")),
        hostname: Some(HOST_NAME.to_owned()),
        network_disabled: Some(true),
        tty: Some(false),
        labels: Some(labels),
        host_config: Some(host_config(plan, engine, with_secrets)?),
        ..ContainerCreateBody::default()
    })
}

fn host_config(plan: &JobPlan, engine: &EnginePlan, with_secrets: bool) -> Result<HostConfig, Fault> {
    let (devices, mounts) = card(plan)?;
    Ok(HostConfig {
        // Its own first process ends with its keeper; then the engine forgets it, whoever else is left.
        auto_remove: Some(true),
        memory: Some(memory(plan)),
        // Memory and swap together, so equal means no swap.
        memory_swap: Some(memory(plan)),
        pids_limit: Some(i64::from(plan.limits.pids)),
        cpu_shares: Some(2),
        oom_score_adj: Some(1000),
        shm_size: Some(i64::try_from(plan.limits.shm_size.0).unwrap_or(i64::MAX)),
        ulimits: Some(own_limits(plan)),
        cgroup_parent: parent(plan, engine),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        ipc_mode: Some("private".to_owned()),
        network_mode: Some("none".to_owned()),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(security_options(plan, engine)?),
        masked_paths: Some(covered()),
        // The job's output goes to the keeper by a pipe: no copy of it lies on the owner's disk.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        tmpfs: Some(places(plan, with_secrets)),
        devices: Some(devices),
        mounts: Some(mounts),
        ..HostConfig::default()
    })
}

fn own_limits(plan: &JobPlan) -> Vec<ResourcesUlimits> {
    // What a machine allows the keeper is most that it can have given.
    let most = |resource, asked: u64| getrlimit(resource).maximum.unwrap_or(u64::MAX).min(asked);
    [
        ("nofile", most(Resource::Nofile, plan.limits.open_files)),
        ("nproc", most(Resource::Nproc, MOST_PROCESSES)),
        // Not 0: see `native::limits`.
        ("core", 1),
    ]
    .map(|(name, value)| {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        ResourcesUlimits {
            name: Some(name.to_owned()),
            soft: Some(value),
            hard: Some(value),
        }
    })
    .to_vec()
}

/// Below our own group, or in a slice of systemd's that is called like it: whoever is in one is a job's process.
fn parent(plan: &JobPlan, engine: &EnginePlan) -> Option<String> {
    match engine.cgroups {
        EngineCgroups::Ours => Some(format!("/{JOBS}/{}/{}", plan.cgroups.agent, plan.lease)),
        EngineCgroups::BelowOurs => Some(format!("/{JOBS}/{}", plan.cgroups.agent)),
        EngineCgroups::Systemds => Some(slice(&plan.cgroups.agent)),
    }
}

/// A dash in a slice's name is a level of its own.
fn slice(agent: &str) -> String {
    format!("{JOBS}-{}.slice", agent.replace('-', "_"))
}

/// What tells about the machine: covered as the native backend covers it. Of `/sys` that leaves nothing, the job's own groups
/// included, and of terminals none.
pub(super) fn covered() -> Vec<String> {
    let of_processes = COVERED_FILES.iter().chain(&COVERED_FOLDERS);
    let of_processes = of_processes.map(|name| format!("/proc/{name}"));
    ["/sys", "/dev/pts"]
        .map(str::to_owned)
        .into_iter()
        .chain(of_processes)
        .collect()
}

/// Podman hears here what Docker has a word of its own for.
fn security_options(plan: &JobPlan, engine: &EnginePlan) -> Result<Vec<String>, Fault> {
    let mut options = vec!["no-new-privileges".to_owned(), list(plan, engine)?];
    match engine.place.kind {
        EngineKind::Docker => {}
        EngineKind::Podman => options.push(format!("mask={}", covered().join(":"))),
    }
    Ok(options)
}

/// Docker takes the list itself, Podman the name of a file.
fn list(plan: &JobPlan, engine: &EnginePlan) -> Result<String, Fault> {
    let profile = seccomp::profile().to_string();
    match engine.place.kind {
        EngineKind::Docker => Ok(format!("seccomp={profile}")),
        EngineKind::Podman => {
            let file = left(plan, PROFILE, profile.as_bytes(), 0o600)?;
            Ok(format!("seccomp={}", file.display()))
        }
    }
}

/// Places to write, each charged to the job's memory as it is touched. The keeper gives them to the job's user.
fn places(plan: &JobPlan, with_secrets: bool) -> HashMap<String, String> {
    let size = plan.limits.memory.0;
    let mut places = HashMap::from([
        ("/tmp".to_owned(), format!("rw,nosuid,nodev,exec,size={size},mode=1777")),
        (
            "/out".to_owned(),
            format!("rw,nosuid,nodev,noexec,size={size},mode=0755"),
        ),
        (
            "/checkpoint".to_owned(),
            format!("rw,nosuid,nodev,noexec,size={size},mode=0755"),
        ),
    ]);
    if with_secrets {
        let options = format!("rw,nosuid,nodev,noexec,size={SECRETS_ROOM},mode=0500");
        places.insert(SECRETS.to_owned(), options);
    }
    places
}

/// The card's devices and driver files, one by one: no name that an engine would resolve, no hook that it would run. Inputs and
/// the keeper's socket come the same way.
fn card(plan: &JobPlan) -> Result<(Vec<DeviceMapping>, Vec<Mount>), Fault> {
    let mut mounts = vec![
        bind(&door(plan), &Path::new("/").join(OWN_FOLDER).join("door"), true),
        bind(&first(plan)?, &Path::new("/").join(OWN_FOLDER).join("init"), true),
        bind(&hosts(plan)?, Path::new("/etc/hosts"), true),
    ];
    if let Some(inputs) = &plan.inputs {
        mounts.push(bind(inputs, Path::new("/in"), true));
    }
    let mut devices = Vec::new();
    for Placed { outside, inside } in plan.card.iter().flat_map(|card| &card.devices) {
        let kind = fs::metadata(outside).map_err(|error| {
            Fault::new(
                FaultCode::Card,
                format!("could not find the device {}: {error}", outside.display()),
            )
        })?;
        if kind.file_type().is_char_device() {
            devices.push(DeviceMapping {
                path_on_host: Some(outside.display().to_string()),
                path_in_container: Some(inside.display().to_string()),
                cgroup_permissions: Some("rw".to_owned()),
            });
        } else {
            // The device file of a simulated card is a plain file: it must be writable to be locked.
            mounts.push(bind(outside, inside, false));
        }
    }
    for Placed { outside, inside } in plan.card.iter().flat_map(|card| &card.files) {
        mounts.push(bind(outside, inside, true));
    }
    Ok((devices, mounts))
}

/// An engine would make one that can be written, on the owner's disk.
fn hosts(plan: &JobPlan) -> Result<PathBuf, Fault> {
    let names = format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n");
    left(plan, HOSTS, names.as_bytes(), 0o644)
}

/// The first process's program: the machine's root's, and by nobody in the container to be read. The kernel then takes such a
/// process for the machine's own, even in a user namespace of the job's: what it has open is not for the job to see.
fn first(plan: &JobPlan) -> Result<PathBuf, Fault> {
    left(plan, FIRST, INIT, 0o711)
}

/// Writes a file of the scratch folder.
fn left(plan: &JobPlan, name: &str, content: &[u8], mode: u32) -> Result<PathBuf, Fault> {
    let file = plan.scratch.join(name);
    let write = || {
        fs::write(&file, content)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(mode))
    };
    write().map_err(|error: std::io::Error| {
        Fault::new(
            FaultCode::Isolation,
            format!("could not write {}: {error}", file.display()),
        )
    })?;
    Ok(file)
}

fn bind(outside: &Path, inside: &Path, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(outside.display().to_string()),
        target: Some(inside.display().to_string()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

/// Reads back what the engine made of the order. What the kernel itself says is asked later, when there is a process.
///
/// # Errors
/// [`FaultCode::LimitDiffers`] with the first thing that is not as it was asked for.
pub(super) fn read_back(found: &ContainerInspectResponse, asked: &ContainerCreateBody) -> Result<(), Fault> {
    let empty = HostConfig::default();
    let given = found.host_config.as_ref().unwrap_or(&empty);
    let order = asked.host_config.as_ref().unwrap_or(&empty);
    let differs = |what: &str, asked: &dyn std::fmt::Debug, given: &dyn std::fmt::Debug| {
        Fault::new(
            FaultCode::LimitDiffers,
            format!("the engine was asked for {what} {asked:?} and gave {given:?}"),
        )
    };
    let numbers = [
        ("memory", order.memory, given.memory),
        ("pids_limit", order.pids_limit, given.pids_limit),
        ("shm_size", order.shm_size, given.shm_size),
        ("oom_score_adj", order.oom_score_adj, given.oom_score_adj),
    ];
    for (what, asked, given) in numbers {
        if asked != given {
            return Err(differs(what, &asked, &given));
        }
    }
    for (what, asked, given) in [
        ("read only root", Some(true), given.readonly_rootfs),
        ("privileged", Some(false), given.privileged),
    ] {
        if asked != given {
            return Err(differs(what, &asked, &given));
        }
    }
    if given.network_mode != order.network_mode {
        return Err(differs("network", &order.network_mode, &given.network_mode));
    }
    if given.cap_add.iter().flatten().next().is_some() {
        return Err(differs("added capabilities", &"none", &given.cap_add));
    }
    let (asked_for, devices) = (order.devices.iter().flatten(), given.devices.iter().flatten());
    // An engine that overlooks a device gives a job that cannot compute; one that adds some gives it somebody else's card.
    if asked_for.count() != devices.count() {
        return Err(differs("devices", &order.devices, &given.devices));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_gives_less_or_more_than_asked_is_found_out() {
        let asked = ContainerCreateBody {
            host_config: Some(HostConfig {
                memory: Some(4096),
                pids_limit: Some(7),
                network_mode: Some("none".to_owned()),
                readonly_rootfs: Some(true),
                privileged: Some(false),
                devices: Some(Vec::new()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let found = |spoil: fn(&mut HostConfig)| {
            let mut host_config = asked.host_config.clone().unwrap();
            spoil(&mut host_config);
            let found = ContainerInspectResponse {
                host_config: Some(host_config),
                ..ContainerInspectResponse::default()
            };
            read_back(&found, &asked)
        };
        assert_eq!(found(|_| ()), Ok(()));
        type Spoil = fn(&mut HostConfig);
        let cases: [(&str, Spoil); 6] = [
            ("memory", |given| given.memory = Some(0)),
            ("pids_limit", |given| given.pids_limit = None),
            ("read only", |given| given.readonly_rootfs = Some(false)),
            ("network", |given| given.network_mode = Some("bridge".to_owned())),
            ("capabilities", |given| {
                given.cap_add = Some(vec!["SYS_ADMIN".to_owned()])
            }),
            ("devices", |given| given.devices = Some(vec![DeviceMapping::default()])),
        ];
        for (word, spoil) in cases {
            let fault = found(spoil).unwrap_err();
            assert_eq!(fault.code, FaultCode::LimitDiffers);
            assert!(fault.message.contains(word), "{}", fault.message);
        }
    }

    #[test]
    fn an_agents_slice_is_one_level_below_that_of_all_jobs() {
        assert_eq!(slice("test-a-b"), "sela-jobs-test_a_b.slice");
    }
}
