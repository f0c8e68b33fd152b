//! What the tests of the simulated driver share: a lab of their own, the driver on it, and real processes that hold its memory.

#![allow(dead_code, reason = "shared by test programs that each use a part")]

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use sela_nvml_sim::{CardFaults, CardPlan, FOLDER_VARIABLE, Faults, Lab};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Bench {
    pub(crate) lab: Lab,
    _folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new(cards: &[CardPlan]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let lab = Lab::create(folder.path(), cards).expect("a lab");
        assert!(
            std::env::var_os("NEXTEST").is_some(),
            "run these tests with `cargo nextest run`"
        );
        #[expect(
            clippy::disallowed_methods,
            reason = "the driver, like NVIDIA's, knows its files by itself"
        )]
        // SAFETY: nextest gives each test a process of its own, and no thread but this one runs yet.
        unsafe {
            std::env::set_var(FOLDER_VARIABLE, lab.folder());
        };
        Self { lab, _folder: folder }
    }

    pub(crate) fn one() -> Self {
        Self::new(&[CardPlan::rtx_3090()])
    }

    pub(crate) fn nvml(&self) -> Nvml {
        self.try_nvml().expect("the simulated driver starts")
    }

    pub(crate) fn try_nvml(&self) -> Result<Nvml, NvmlError> {
        let library = sela_nvml_sim::find_library().expect("cargo builds the library with this test");
        Nvml::builder().lib_path(library.as_os_str()).init()
    }

    pub(crate) fn fault(&self, faults: CardFaults) {
        let mut all = Faults::default();
        all.card.insert(self.lab.cards()[0].uuid.clone(), faults);
        self.lab.set_faults(&all).expect("faults are written");
    }

    pub(crate) fn hold(&self, mib: u64, words: &[&str]) -> Holder {
        Holder::start(&self.lab.device_node(0), mib, words)
    }
}

pub(crate) struct Holder(Child);

impl Holder {
    pub(crate) fn start(node: &Path, mib: u64, words: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sela-sim-hold"))
            .arg("--device")
            .arg(node)
            .args(["--mib", &mib.to_string()])
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the holder starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("the holder speaks");
        assert_eq!(line, format!("holding {mib} MiB\n"));
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().expect("SIGKILL");
        self.0.wait().expect("the holder is reaped");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Already gone where the test killed it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks until `is_so`, since a loaded machine takes its time; panics after a minute.
pub(crate) fn eventually<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> T, is_so: impl Fn(&T) -> bool) -> T {
    let mut last = look();
    for _ in 0..1200 {
        if is_so(&last) {
            return last;
        }
        std::thread::sleep(Duration::from_millis(50));
        last = look();
    }
    panic!("{what}: last seen {last:?}");
}

pub(crate) fn listed(nvml: &Nvml) -> Vec<(u32, u64)> {
    let device = nvml.device_by_index(0).expect("card 0");
    device
        .running_compute_processes()
        .expect("a list")
        .into_iter()
        .map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => (process.pid, bytes / MIB),
            UsedGpuMemory::Unavailable => (process.pid, u64::MAX),
        })
        .collect()
}
