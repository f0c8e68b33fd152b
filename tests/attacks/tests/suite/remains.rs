//! What is left of a job when it is gone: a marker is written wherever a job can write, and then looked for wherever something of it
//! could be: the agent's folders, temporary folders, shared memory, queues, mounts, processes. Not on the whole disk.

use crate::control::Plain;
use crate::ground::{Ground, WRITABLE, confidential, remove_shared_memory};
use crate::outside::Pair;
use sela_attacks::verdict::{Held, Outcome};
use sela_protocol::confidential::{SecretName, SecretValue};
use sela_protocol::units::Bytes;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Files larger than this are looked at by their name only: nothing of what is tried here is.
const LARGEST: u64 = 16 << 20;

/// Where something of a job could be, but for the ground itself.
const PLACES: [&str; 8] = [
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/dev/mqueue",
    "/run",
    "/var/lib/sela",
    "/var/crash",
    "/var/lib/systemd/coredump",
];

pub(crate) async fn marker(ground: &Ground) -> Pair {
    let since = now();
    let marker = word(ground, "kept");
    let key = key_of(&marker);
    let key_text = key.to_string();
    let words = ["/bin/sela-probe", "do", "mark", &marker, &key_text];
    let plan = ground.plan(&[&words, WRITABLE.as_slice()].concat());
    let outcome = ground.start(&plan).finish().await;
    assert!(outcome.out.contains("marked"), "{outcome:?}");
    // As the agent does once the results are where they belong.
    fs::remove_dir_all(&plan.scratch).unwrap();
    let behind = trace(&marker, key, &ground.at(""), since);

    let marker = word(ground, "plain");
    let key = key_of(&marker);
    let folder = ground.fresh("marked");
    Plain::probe(&["do", "mark", &marker, &key.to_string(), folder.to_str().unwrap()]).finish();
    let without = trace(&marker, key, &ground.at(""), since);
    remove_shared_memory(key);
    remove_queue(&marker);
    Pair::new(without, behind)
}

/// Unlike the ground's own word, which is in many names here.
fn word(ground: &Ground, part: &str) -> String {
    let turned: String = ground.word.chars().rev().collect();
    format!("{part}{turned}")
}

fn key_of(marker: &str) -> i32 {
    marker
        .bytes()
        .fold(17, |key: i32, byte| key.wrapping_mul(31).wrapping_add(i32::from(byte)))
        & 0x7fff_ffff
}

/// The machine's clock for files, as the file system has it.
fn now() -> i64 {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().metadata().unwrap().ctime()
}

/// The first place that holds the marker; visible if there is one.
fn trace(marker: &str, key: i32, ground: &Path, since: i64) -> Outcome {
    let mut seen = 0;
    let places = PLACES.map(PathBuf::from).into_iter().chain([ground.to_owned()]);
    for place in places {
        if let Some(found) = below(&place, marker, since, &mut seen) {
            return Ok(format!("found in {}", found.display()));
        }
    }
    for file in ["/proc/self/mountinfo", "/proc/net/unix", "/proc/swaps"] {
        if fs::read_to_string(file).unwrap_or_default().contains(marker) {
            return Ok(format!("found in {file}"));
        }
    }
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    if segments
        .lines()
        .any(|line| line.split_whitespace().next() == Some(key.to_string().as_str()))
    {
        return Ok("its shared memory is left".to_owned());
    }
    for hierarchy in ["", "unified", "memory", "pids"] {
        let jobs = Path::new("/sys/fs/cgroup").join(hierarchy).join("sela-jobs");
        if below(&jobs, marker, i64::MAX, &mut seen).is_some() {
            return Ok("found among cgroups".to_owned());
        }
    }
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        for file in ["comm", "cmdline"] {
            let text = fs::read(entry.path().join(file)).unwrap_or_default();
            if holds(&text, &marker[..15]) && entry.file_name().to_str() != Some(&std::process::id().to_string()) {
                return Ok(format!("process {} has it", entry.file_name().display()));
            }
        }
    }
    Err(Held::nothing(format!("{seen} files and names, none of them with it")))
}

/// Names, links, attributes and, where they changed since then, contents of everything below a folder.
fn below(folder: &Path, marker: &str, since: i64, seen: &mut u32) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        *seen += 1;
        if holds(entry.file_name().as_bytes(), marker) {
            return Some(path);
        }
        // What others made and removed meanwhile is theirs.
        let Ok(status) = fs::symlink_metadata(&path) else {
            continue;
        };
        if status.is_dir() {
            if let Some(found) = below(&path, marker, since, seen) {
                return Some(found);
            }
        } else if status.is_symlink() {
            if fs::read_link(&path).is_ok_and(|target| holds(target.as_os_str().as_bytes(), marker)) {
                return Some(path);
            }
        } else if status.is_file()
            && status.ctime() >= since
            && status.len() <= LARGEST
            && fs::read(&path).is_ok_and(|content| holds(&content, marker))
        {
            return Some(path);
        }
    }
    None
}

fn holds(bytes: &[u8], word: &str) -> bool {
    crate::archives::holds(bytes, word)
}

fn remove_queue(marker: &str) {
    let name = std::ffi::CString::new(format!("/{marker}")).unwrap();
    // SAFETY: the text lives until the call returns; the queue is this test's, by its random name.
    unsafe { libc::mq_unlink(name.as_ptr()) };
}

/// While the job runs, what it wrote is nowhere on the owner's disk as it is: neither in a file nor on a device behind a file.
pub(crate) async fn scratch(ground: &Ground) -> Pair {
    let since = now();
    let marker = word(ground, "scratch");
    let mut job = ground.start(&ground.script(&write_everywhere(&marker)));
    job.until_says("up").await;
    let behind = on_disk(&marker, ground, since);
    job.end();
    job.finish().await;
    Pair::new(plain(ground, "plain-scratch", since), behind)
}

/// The same for a job that asks for a disk: then it lies on one, and is not there to be read. A job that is refused one, or that
/// lives in memory all the same, is left without.
pub(crate) async fn disk(ground: &Ground) -> Pair {
    let since = now();
    let marker = word(ground, "disk");
    let mut plan = ground.script(&write_everywhere(&marker));
    plan.limits.disk = Some(Bytes::from_mib(32));
    let mut job = ground.start(&plan);
    let behind = match job.until_started_or_refused().await {
        Err(why) => Ok(format!("it was refused: {why}")),
        Ok(_) => {
            job.until_says("up").await;
            let found = on_disk_and_its_devices(&marker, ground, since);
            job.end();
            found
        }
    };
    job.finish().await;
    Pair::new(plain(ground, "plain-disk", since), behind)
}

fn write_everywhere(marker: &str) -> String {
    format!("for place in /tmp /out /checkpoint; do echo {marker} > $place/{marker}; done; sync; echo up; sleep 60")
}

/// What is written as it is can be read.
fn plain(ground: &Ground, name: &str, since: i64) -> Outcome {
    let marker = word(ground, name);
    fs::write(ground.fresh(name).join("file"), &marker).unwrap();
    on_disk(&marker, ground, since)
}

fn on_disk_and_its_devices(marker: &str, ground: &Ground, since: i64) -> Outcome {
    let devices = devices_of(&ground.at(""));
    if devices.is_empty() {
        return Ok("it has no disk".to_owned());
    }
    for device in devices {
        if holds(&fs::read(&device).unwrap(), marker) {
            return Ok(format!("{} holds it", device.display()));
        }
    }
    on_disk(marker, ground, since)
}

/// Loop devices whose file lies, or lay, in a folder.
fn devices_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let of_folder = entries.filter(|entry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        file.starts_with(folder.to_str().unwrap())
    });
    of_folder
        .map(|entry| Path::new("/dev").join(entry.file_name()))
        .collect()
}

/// While the job runs and has its secret in hand, nothing on the owner's disk has it.
pub(crate) async fn secrets(ground: &Ground) -> Pair {
    let since = now();
    let secret = word(ground, "secret");
    let mut confidential = confidential();
    confidential.secrets.insert(
        SecretName::try_from("TOKEN".to_owned()).unwrap(),
        SecretValue::new(secret.clone()),
    );
    let plan = ground.script("wc -c < /run/secrets/TOKEN; echo up; sleep 60");
    let mut job = ground.start_with(&plan, &confidential, None);
    job.until_says("up").await;
    let behind = on_disk(&secret, ground, since);
    job.hang_up();
    let outcome = job.finish().await;
    assert!(outcome.out.contains(&secret.len().to_string()), "{outcome:?}");

    let plain = ground.fresh("plain-secret").join("TOKEN");
    fs::write(&plain, &secret).unwrap();
    let without = on_disk(&secret, ground, since);
    Pair::new(without, behind)
}

fn on_disk(secret: &str, ground: &Ground, since: i64) -> Outcome {
    let mut seen = 0;
    for place in [ground.at(""), "/tmp".into(), "/var/tmp".into(), "/run".into()] {
        if let Some(found) = below(&place, secret, since, &mut seen) {
            return Ok(format!("it lies in {}", found.display()));
        }
    }
    Err(Held::nothing(format!("{seen} files and names, none of them with it")))
}
