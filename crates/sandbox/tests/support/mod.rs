//! What the tests of jobs share: a small image as a folder, a plan for it, and an agent's part played by hand.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub(crate) mod engines;

use sela_protocol::confidential::{Confidential, SealingKey};
use sela_protocol::id::IdSource;
use sela_protocol::lease::EndCause;
use sela_protocol::units::{Bytes, Millis, UtcMs};
use sela_sandbox::docker::image::GivenImage;
use sela_sandbox::ids::{IdRange, ROOTFUL_RANGE};
use sela_sandbox::keeper::handle::{Orders, Reports, spawn};
use sela_sandbox::keeper::wire::{
    CgroupLayout, CgroupPlace, Collected, Egress, Fault, JobPlan, Limits, LogStream, Order, Program, Report, Stop,
};
use sela_sandbox::network::Door;
use sela_sandbox::probe::Machine;
use sela_sandbox::rootless::is_inside;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

/// What jobs' ids are mapped to; another range where this is a user's own namespace.
pub(crate) static IDS: LazyLock<IdRange> = LazyLock::new(|| match is_inside(Path::new("/proc")) {
    true => IdRange::INSIDE,
    false => ROOTFUL_RANGE,
});

/// Every job's key.
pub(crate) const KEY: SealingKey = SealingKey::from_bytes([9; 32]);

/// A job's key, and no secrets.
pub(crate) fn confidential() -> Confidential {
    Confidential {
        result_key: KEY,
        secrets: std::collections::BTreeMap::new(),
    }
}

/// Says by name that a test needs root, where there is none.
pub(crate) fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("{test}: skipped: needs root");
    }
    root
}

/// The layout of this machine.
pub(crate) fn layout() -> CgroupLayout {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        CgroupLayout::V2
    } else {
        CgroupLayout::LabCgroupV1
    }
}

/// A test's own folders; gone with it.
pub(crate) struct Stage {
    whole: tempfile::TempDir,
    pub(crate) layer: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) account: PathBuf,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let whole = tempfile::Builder::new().prefix("sela-job-").tempdir().unwrap();
        let layer = whole.path().join("layer");
        make_image(&layer);
        let scratch = whole.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o700)).unwrap();
        Self {
            layer,
            scratch,
            account: whole.path().join("account.json"),
            whole,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.whole.path()
    }

    /// Cgroups of this stage's own: a sweep must find the jobs of one test only.
    pub(crate) fn place(&self) -> CgroupPlace {
        let name = self.path().file_name().unwrap().to_str().unwrap();
        CgroupPlace {
            layout: layout(),
            root: Machine::this().cgroups,
            agent: format!("test-{}", name.trim_start_matches("sela-job-")),
        }
    }

    /// Puts a program of this machine's into the image, with what it links.
    pub(crate) fn add_program(&self, program: &Path) {
        let target = self.layer.join("bin").join(program.file_name().unwrap());
        // An applet of busybox's may have the name.
        drop(fs::remove_file(&target));
        fs::copy(program, &target).unwrap();
        give(&target);
        copy_libraries(program, &self.layer);
        give(&self.layer);
    }

    /// A job that runs a shell script.
    pub(crate) fn script(&self, script: &str) -> JobPlan {
        self.plan(&["/bin/sh", "-c", script])
    }

    pub(crate) fn plan(&self, arguments: &[&str]) -> JobPlan {
        let mut seed = [0; 32];
        fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut seed))
            .unwrap();
        let mut ids = IdSource::new(UtcMs(1_764_547_200_000), seed);
        JobPlan {
            lease: ids.draw(),
            job: ids.draw(),
            layers: vec![self.layer.clone()],
            program: Program {
                arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
                environment: vec![("PATH".to_owned(), "/bin".to_owned())],
                folder: PathBuf::from("/"),
                user: 0,
                group: 0,
            },
            ids: *IDS,
            cgroups: self.place(),
            limits: Limits {
                memory: Bytes::from_mib(128),
                pids: 64,
                open_files: 1024,
                shm_size: Bytes::from_mib(16),
                log: Bytes::from_mib(1),
                wall_ms: Millis::from_secs(120),
                output: Bytes::from_mib(32),
                disk: None,
            },
            inputs: None,
            resume_from: None,
            checkpoint_every_ms: None,
            card: None,
            // What is missing is filled in when the layers are as the test wants them.
            engine: engines::of_this_run(),
            egress: Egress::None,
            scratch: self.scratch.clone(),
            account: self.account.clone(),
        }
    }
}

/// busybox with its applets, and the program `inside` with what it links.
fn make_image(layer: &Path) {
    let busybox = Path::new("/bin/busybox");
    assert!(
        busybox.exists(),
        "the tests of jobs need busybox: apt-get install busybox-static"
    );
    for folder in ["bin", "etc", "root", "usr/lib"] {
        fs::create_dir_all(layer.join(folder)).unwrap();
    }
    fs::copy(busybox, layer.join("bin/busybox")).unwrap();
    let applets = std::process::Command::new(busybox)
        .arg("--list")
        .output()
        .unwrap()
        .stdout;
    for applet in String::from_utf8(applets)
        .unwrap()
        .lines()
        .filter(|applet| *applet != "busybox")
    {
        symlink("busybox", layer.join("bin").join(applet)).unwrap();
    }
    fs::write(layer.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    let inside = example("inside");
    fs::copy(&inside, layer.join("bin/inside")).unwrap();
    copy_libraries(&inside, layer);
    give(layer);
}

fn copy_libraries(program: &Path, layer: &Path) {
    for library in libraries(program) {
        let target = layer.join(library.strip_prefix("/").unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&library, target).unwrap();
    }
}

/// The loader's own answer, which needs no shell: an initramfs has none that `ldd` could run in.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let loader = loader.iter().find(|path| Path::new(path).exists()).expect("a loader");
    let listed = std::process::Command::new(loader)
        .arg("--list")
        .arg(program)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// A program that was built beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built: run the tests of the whole package",
        path.display()
    );
    path
}

/// Owned by the job's ids, as the image cache leaves layers.
pub(crate) fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(IDS.first), Some(IDS.first)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// For what is not part of the image.
pub(crate) fn give_to(path: &Path, inside: u32) {
    chown(path, Some(IDS.first + inside), Some(IDS.first + inside)).unwrap();
}

/// A job with an agent that grants every second and notes every report.
pub(crate) struct Watched {
    _image: Option<GivenImage>,
    orders: Option<Orders>,
    reports: Reports,
    pub(crate) keeper: u32,
    pub(crate) seen: Vec<Report>,
    /// Whether grants are given.
    pub(crate) lives: bool,
    granted: tokio::time::Instant,
    /// Last, since fields are dropped in order: the keeper ends once nobody is at its other ends.
    _gone: Gone,
}

/// Waits for the keeper of a test that ends before it, failed or not: an account that is written while the test's folder is being
/// removed would stay, and the folder with it.
struct Gone(u32);

impl Drop for Gone {
    fn drop(&mut self) {
        let stat = format!("/proc/{}/stat", self.0);
        let lives = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let patience = std::time::Instant::now() + Duration::from_secs(20);
        while lives() && std::time::Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Watched {
    pub(crate) async fn start(plan: &JobPlan) -> Self {
        Self::start_with(plan, confidential()).await
    }

    pub(crate) async fn start_with(plan: &JobPlan, confidential: Confidential) -> Self {
        let mut plan = plan.clone();
        let image = engines::give_image(&mut plan).await;
        let (mut orders, reports) = spawn(&example("keeper")).unwrap();
        orders
            .send(&Order::Start {
                plan: Box::new(plan.clone()),
                confidential: Box::new(confidential),
            })
            .await
            .unwrap();
        let keeper = reports.keeper_pid().unwrap();
        Self {
            _image: image,
            orders: Some(orders),
            reports,
            keeper,
            seen: Vec::new(),
            lives: true,
            granted: tokio::time::Instant::now(),
            _gone: Gone(keeper),
        }
    }

    pub(crate) async fn order(&mut self, order: Order) {
        self.orders.as_mut().unwrap().send(&order).await.unwrap();
    }

    /// Where the job's socket comes, for one with a proxy.
    pub(crate) fn door(&mut self) -> Door {
        self.orders.as_mut().unwrap().door().unwrap()
    }

    /// As an agent that is killed does.
    pub(crate) fn hang_up(&mut self) {
        self.orders = None;
    }

    /// The next report; `None` at the keeper's end.
    pub(crate) async fn next(&mut self) -> Option<Report> {
        loop {
            // Reports may come so often that the pause below never ends.
            self.grant_if_due().await;
            tokio::select! {
                report = self.reports.next() => {
                    let report = report.unwrap()?;
                    self.seen.push(report.clone());
                    return Some(report);
                }
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
            }
        }
    }

    async fn grant_if_due(&mut self) {
        if !self.lives || self.granted.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.granted = tokio::time::Instant::now();
        if let Some(orders) = self.orders.as_mut() {
            // A keeper that ended meanwhile is noticed by its end of file.
            drop(orders.send(&Order::Grant).await);
        }
    }

    /// Waits for a report of a kind.
    pub(crate) async fn until(&mut self, mut found: impl FnMut(&Report) -> bool) -> Report {
        loop {
            match self.next().await {
                Some(report) if found(&report) => return report,
                Some(_) => {}
                None => panic!("the keeper ended; seen: {:#?}", self.seen),
            }
        }
    }

    pub(crate) async fn until_started(&mut self) -> u32 {
        match self
            .until(|report| matches!(report, Report::Started { .. } | Report::Failed { .. }))
            .await
        {
            Report::Started { init_pid, .. } => init_pid,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the output holds a text.
    pub(crate) async fn until_says(&mut self, text: &str) {
        while !self.output(LogStream::Out).contains(text) {
            assert!(self.next().await.is_some(), "the keeper ended; seen: {:#?}", self.seen);
        }
    }

    /// Everything to the end.
    pub(crate) async fn finish(mut self) -> Outcome {
        while self.next().await.is_some() {}
        let (out, err) = (self.output(LogStream::Out), self.output(LogStream::Err));
        let status = self.reports.wait().await.unwrap();
        Outcome {
            out,
            err,
            seen: self.seen,
            clean: status.success(),
        }
    }

    pub(crate) fn output(&self, wanted: LogStream) -> String {
        let mut bytes = Vec::new();
        for report in &self.seen {
            if let Report::Log { stream, bytes: part } = report
                && *stream == wanted
            {
                bytes.extend_from_slice(&part.0);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// How it all went.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) seen: Vec<Report>,
    pub(crate) clean: bool,
}

impl Outcome {
    pub(crate) fn ended(&self) -> (&Stop, &Collected, &Collected) {
        match self.seen.last() {
            Some(Report::Ended {
                stop,
                outputs,
                checkpoint,
            }) => (stop, outputs, checkpoint),
            other => panic!("did not end but {other:?}; err: {}", self.err),
        }
    }

    pub(crate) fn stop(&self) -> &Stop {
        self.ended().0
    }

    pub(crate) fn fault(&self) -> &Fault {
        match self.seen.last() {
            Some(Report::Failed { fault }) => fault,
            other => panic!("did not fail but {other:?}; out: {}", self.out),
        }
    }

    pub(crate) fn exited(&self, code: i32) {
        assert_eq!(
            self.stop().cause,
            EndCause::Exited { code },
            "out: {}\nerr: {}",
            self.out,
            self.err
        );
    }
}

/// Runs a job to its end.
pub(crate) async fn run(plan: &JobPlan) -> Outcome {
    let outcome = Watched::start(plan).await.finish().await;
    assert!(outcome.clean, "the keeper failed: {outcome:?}");
    outcome
}

/// No cgroup, no mount, no furnishing of a lease; a process of it would keep the first.
pub(crate) fn assert_nothing_left(plan: &JobPlan) {
    for hierarchy in ["unified", "memory", "pids", "cpu", ""] {
        let folder = plan
            .cgroups
            .root
            .join(hierarchy)
            .join("sela-jobs")
            .join(&plan.cgroups.agent);
        let folder = folder.join(plan.lease.to_string());
        assert!(!folder.exists(), "{} is left", folder.display());
        assert!(
            !folder.parent().unwrap().exists(),
            "{} is empty and left",
            folder.display()
        );
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(plan.scratch.to_str().unwrap()),
        "a mount is left:\n{mounts}"
    );
    for name in ["root", "top", "disk", "disk.img"] {
        assert!(
            !plan.scratch.join(name).exists(),
            "{name} is left in the scratch folder"
        );
    }
}

/// Processes of this machine whose ids are a job's.
pub(crate) fn processes_of_jobs() -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let uid = uid.and_then(|ids| ids.split_whitespace().next()?.parse().ok());
        if uid.is_some_and(|uid: u32| IDS.holds(uid)) {
            found.push(status.lines().next().unwrap_or_default().to_owned());
        }
    }
    found
}
