//! The simulated driver through the real `nvml-wrapper`: real processes hold real locks, and the card answers by them. Each test
//! needs a process of its own, as `cargo nextest` gives it: the driver is told its lab by an environment variable.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use sela_nvml_sim::{CardFaults, CardPlan, DriverFault, FOLDER_VARIABLE, Faults, Lab, Sensor};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

struct Bench {
    lab: Lab,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new(cards: &[CardPlan]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let lab = Lab::create(folder.path(), cards).expect("a lab");
        assert!(
            std::env::var_os("NEXTEST").is_some(),
            "run these tests with `cargo nextest run`"
        );
        // SAFETY: nextest gives each test a process of its own, and no thread but this one runs yet.
        unsafe { std::env::set_var(FOLDER_VARIABLE, lab.folder()) };
        Self { lab, _folder: folder }
    }

    fn one() -> Self {
        Self::new(&[CardPlan::rtx_3090()])
    }

    fn nvml(&self) -> Nvml {
        self.try_nvml().expect("the simulated driver starts")
    }

    fn try_nvml(&self) -> Result<Nvml, NvmlError> {
        let library = sela_nvml_sim::find_library().expect("cargo builds the library with this test");
        Nvml::builder().lib_path(library.as_os_str()).init()
    }

    fn fault(&self, faults: CardFaults) {
        let mut all = Faults::default();
        all.card.insert(self.lab.cards()[0].uuid.clone(), faults);
        self.lab.set_faults(&all).expect("faults are written");
    }

    fn hold(&self, mib: u64, words: &[&str]) -> Holder {
        Holder::start(&self.lab.device_node(0), mib, words)
    }
}

struct Holder(Child);

impl Holder {
    fn start(node: &Path, mib: u64, words: &[&str]) -> Self {
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

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill(mut self) {
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
fn eventually<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> T, is_so: impl Fn(&T) -> bool) -> T {
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

fn listed(nvml: &Nvml) -> Vec<(u32, u64)> {
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

#[test]
fn a_card_says_that_it_is_simulated_and_what_it_is() {
    let bench = Bench::new(&[CardPlan::rtx_3090(), CardPlan::rtx_4070()]);
    let nvml = bench.nvml();
    assert_eq!(nvml.device_count().expect("count"), 2);
    assert!(nvml.sys_driver_version().expect("version").contains("SIMULATED"));
    for (index, plan) in bench.lab.cards().iter().enumerate() {
        let device = nvml.device_by_uuid(plan.uuid.as_str()).expect("by uuid");
        assert_eq!(device.name().expect("name"), plan.name);
        assert!(plan.name.contains("SIMULATED"));
        assert_eq!(device.uuid().expect("uuid"), plan.uuid);
        assert_eq!(device.index().expect("index") as usize, index);
        assert_eq!(device.minor_number().expect("minor") as usize, index);
        let memory = device.memory_info().expect("memory");
        assert_eq!(memory.total, plan.vram_mib * MIB);
        assert_eq!(memory.free, plan.allocatable_mib() * MIB);
        assert_eq!(memory.used, 0);
        let pci = device.pci_info().expect("pci");
        let again = nvml.device_by_pci_bus_id(pci.bus_id.as_str()).expect("by bus");
        assert_eq!(again.uuid().expect("uuid"), plan.uuid);
        assert_eq!(device.encoder_sessions().expect("sessions").len(), 0);
        assert_eq!(device.encoder_utilization().expect("encoder").utilization, 0);
    }
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
}

#[test]
fn memory_is_held_by_a_process_and_comes_back_when_it_is_killed() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).expect("card 0");
    assert_eq!(listed(&nvml), []);

    let first = bench.hold(1000, &[]);
    let second = bench.hold(2000, &[]);
    let mut expected = vec![(first.pid(), 1000), (second.pid(), 2000)];
    expected.sort_unstable();
    assert_eq!(listed(&nvml), expected);
    assert_eq!(device.memory_info().expect("memory").used, 3000 * MIB);

    let second_pid = second.pid();
    first.kill();
    assert_eq!(listed(&nvml), [(second_pid, 2000)]);
    // The first one's range lies free before the second's: it is found again.
    let third = bench.hold(900, &[]);
    assert_eq!(device.memory_info().expect("memory").used, 2900 * MIB);
    second.kill();
    third.kill();
    assert_eq!(device.memory_info().expect("memory").used, 0);
}

#[test]
fn a_card_gives_no_more_memory_than_it_has() {
    let bench = Bench::one();
    let all = bench.lab.cards()[0].allocatable_mib();
    let holder = bench.hold(all - 10, &[]);
    let node = bench.lab.device_node(0);
    let refused = sela_nvml_sim::Allocation::take(&node, 11).expect_err("11 MiB of 10");
    assert!(refused.to_string().contains("largest free range 10 MiB"), "{refused}");
    holder.kill();
    let taken = sela_nvml_sim::Allocation::take(&node, all).expect("everything is free again");
    drop(taken);
}

#[test]
fn a_game_is_listed_among_the_graphics_processes_only() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    let game = bench.hold(500, &["--graphics"]);
    let device = nvml.device_by_index(0).expect("card 0");
    let drawing = device.running_graphics_processes().expect("a list");
    assert_eq!(drawing.len(), 1);
    assert_eq!(drawing[0].pid, game.pid());
    assert_eq!(drawing[0].used_gpu_memory, UsedGpuMemory::Used(500 * MIB));
    assert_eq!(listed(&nvml), []);
    let name = nvml.sys_process_name(game.pid(), 256).expect("a name");
    assert!(name.ends_with("sela-sim-hold"), "{name}");
}

#[test]
fn a_sleeping_holder_does_no_work_and_a_spinning_one_does() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).expect("card 0");
    let busy = || device.utilization_rates().expect("utilisation").gpu;

    let sleeper = bench.hold(100, &[]);
    eventually("a sleeping holder shows no work", busy, |share| *share == 0);
    let idle_clock = device.clock_info(Clock::Graphics).expect("clock");
    assert_eq!(device.power_usage().expect("power"), bench.lab.cards()[0].power.idle_mw);
    sleeper.kill();

    let spinner = bench.hold(100, &["--spin"]);
    // However loaded this machine is, a spinning process gets a tenth of a core at some moment.
    eventually("a spinning holder shows work", busy, |share| *share >= 10);
    eventually(
        "a working card draws more and clocks higher",
        || {
            (
                device.power_usage().expect("power"),
                device.clock_info(Clock::Graphics).expect("clock"),
            )
        },
        |(power, clock)| *power > bench.lab.cards()[0].power.idle_mw && *clock > idle_clock,
    );
    let shares = eventually(
        "the work is the spinning process's",
        || device.process_utilization_stats(None).expect("samples"),
        |samples| {
            samples
                .iter()
                .any(|sample| sample.pid == spinner.pid() && sample.sm_util > 0)
        },
    );
    assert_eq!(shares.len(), 1);
    let before = device.total_energy_consumption().expect("energy");
    eventually(
        "energy is counted",
        || device.total_energy_consumption().expect("energy"),
        |now| *now > before,
    );
    spinner.kill();
    eventually("a card without holders rests", busy, |share| *share == 0);
}

#[test]
fn a_frozen_holder_keeps_its_memory_and_does_no_work() {
    let Some(group) = FreezerGroup::make() else {
        // Only root can make a cgroup; `cargo xtask test` runs as root where it runs this.
        return;
    };
    let bench = Bench::one();
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).expect("card 0");
    let busy = || device.utilization_rates().expect("utilisation").gpu;
    let spinner = bench.hold(640, &["--spin"]);
    group.write("cgroup.procs", &spinner.pid().to_string());
    eventually("it works", busy, |share| *share > 0);

    group.write("cgroup.freeze", "1");
    eventually(
        "the kernel says frozen",
        || group.read("cgroup.events"),
        |text| text.contains("frozen 1"),
    );
    eventually("a frozen holder shows no work", busy, |share| *share == 0);
    assert_eq!(listed(&nvml), [(spinner.pid(), 640)]);
    assert_eq!(device.memory_info().expect("memory").used, 640 * MIB);

    group.write("cgroup.kill", "1");
    eventually("a killed holder holds nothing", || listed(&nvml), Vec::is_empty);
    drop(spinner);
}

/// A cgroup v2 group of this test, removed with it.
struct FreezerGroup(std::path::PathBuf);

impl FreezerGroup {
    fn make() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("/proc is mounted");
        let root = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields.get(2) == Some(&"cgroup2")).then(|| fields[1].to_owned())
        })?;
        let group = Path::new(&root).join(format!("sela-nvml-sim-test-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        Some(Self(group))
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).expect("the cgroup takes it");
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).expect("the cgroup tells")
    }
}

impl Drop for FreezerGroup {
    fn drop(&mut self) {
        // Frozen processes of a failed test die with it; the group empties a moment later.
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_limit_is_set_within_the_range_and_refused_outside_it() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    let mut device = nvml.device_by_index(0).expect("card 0");
    let range = device.power_management_limit_constraints().expect("range");
    assert_eq!((range.min_limit, range.max_limit), (100_000, 400_000));
    assert_eq!(device.power_management_limit_default().expect("factory"), 350_000);
    assert_eq!(device.power_management_limit().expect("limit"), 350_000);

    device.set_power_management_limit(220_000).expect("within the range");
    assert_eq!(device.power_management_limit().expect("limit"), 220_000);
    for outside in [0, 99_999, 400_001, u32::MAX] {
        let refused = device.set_power_management_limit(outside);
        assert!(matches!(refused, Err(NvmlError::InvalidArg)), "{outside}");
    }
    assert_eq!(device.enforced_power_limit().expect("limit"), 220_000);

    // Another process sees it: here, a driver that is initialised anew.
    drop(nvml);
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).expect("card 0");
    assert_eq!(device.power_management_limit().expect("limit"), 220_000);
}

#[test]
fn a_limit_caps_the_power_that_work_draws() {
    let mut plan = CardPlan::rtx_3090();
    // So hungry that any work at all meets the least limit.
    plan.power.full_mw = 4_000_000;
    let bench = Bench::new(&[plan]);
    let nvml = bench.nvml();
    let mut device = nvml.device_by_index(0).expect("card 0");
    device.set_power_management_limit(100_000).expect("the least limit");
    let _spinner = bench.hold(10, &["--spin"]);
    eventually(
        "work draws the limit, never more",
        || device.power_usage().expect("power"),
        |power| {
            assert!(*power <= 100_000, "{power}");
            *power == 100_000
        },
    );
}

#[test]
fn a_limit_can_be_refused_ignored_or_unsupported() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    let mut device = nvml.device_by_index(0).expect("card 0");
    bench.fault(CardFaults {
        limit_refused: true,
        ..CardFaults::default()
    });
    assert!(matches!(
        device.set_power_management_limit(200_000),
        Err(NvmlError::NoPermission)
    ));
    bench.fault(CardFaults {
        limit_ignored: true,
        ..CardFaults::default()
    });
    device.set_power_management_limit(200_000).expect("it says so");
    assert_eq!(device.power_management_limit().expect("limit"), 350_000);
    bench.fault(CardFaults {
        limit_unsupported: true,
        ..CardFaults::default()
    });
    assert!(matches!(device.power_management_limit(), Err(NvmlError::NotSupported)));
    assert!(matches!(
        device.set_power_management_limit(200_000),
        Err(NvmlError::NotSupported)
    ));
    bench.fault(CardFaults::default());
    device
        .set_power_management_limit(200_000)
        .expect("no fault, no refusal");
    assert_eq!(device.power_management_limit().expect("limit"), 200_000);
}

#[test]
fn sensors_fail_lie_and_recover_as_asked() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).expect("card 0");
    let celsius = || device.temperature(TemperatureSensor::Gpu);
    let cold = celsius().expect("a temperature");
    assert!((24..=30).contains(&cold), "an idle card in a 24 °C room: {cold}");

    bench.fault(CardFaults {
        temperature_reads: Some(511),
        ..CardFaults::default()
    });
    assert_eq!(celsius().expect("a lie"), 511);
    bench.fault(CardFaults {
        power_reads_all_ones: true,
        ..CardFaults::default()
    });
    assert_eq!(device.power_usage().expect("a lie"), u32::MAX);
    bench.fault(CardFaults {
        process_memory_hidden: true,
        ..CardFaults::default()
    });
    let holder = bench.hold(10, &[]);
    assert_eq!(listed(&nvml), [(holder.pid(), u64::MAX)]);
    holder.kill();

    let failing = |sensor| {
        bench.fault(CardFaults {
            failing: vec![sensor],
            ..CardFaults::default()
        })
    };
    let unknown = |failed: Result<(), NvmlError>| assert!(matches!(failed, Err(NvmlError::Unknown)), "{failed:?}");
    failing(Sensor::Temperature);
    unknown(celsius().map(drop));
    failing(Sensor::Power);
    unknown(device.power_usage().map(drop));
    failing(Sensor::Utilisation);
    unknown(device.utilization_rates().map(drop));
    failing(Sensor::Memory);
    unknown(device.memory_info().map(drop));
    failing(Sensor::Fan);
    unknown(device.fan_speed(0).map(drop));
    failing(Sensor::Clock);
    unknown(device.clock_info(Clock::Graphics).map(drop));
    failing(Sensor::Processes);
    unknown(device.running_compute_processes().map(drop));

    bench.fault(CardFaults::default());
    assert_eq!(celsius().expect("a temperature again"), cold);
}

#[test]
fn a_stuck_temperature_stays_while_the_card_warms_and_is_true_afterwards() {
    let mut plan = CardPlan::rtx_3090();
    plan.power.full_mw = 4_000_000;
    let bench = Bench::new(&[plan]);
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).expect("card 0");
    let celsius = || device.temperature(TemperatureSensor::Gpu).expect("a temperature");
    let cold = celsius();
    bench.fault(CardFaults {
        temperature_stuck: true,
        ..CardFaults::default()
    });
    let _spinner = bench.hold(10, &["--spin"]);
    let idle = bench.lab.cards()[0].power.idle_mw;
    let start = device.total_energy_consumption().expect("energy");
    eventually(
        "the card draws at least 200 J at work",
        || {
            (
                device.power_usage().expect("power"),
                device.total_energy_consumption().expect("energy"),
            )
        },
        |(power, energy)| {
            assert_eq!(celsius(), cold);
            *power > idle && *energy > start + 200_000
        },
    );
    bench.fault(CardFaults::default());
    eventually("the true temperature is warmer", celsius, |now| *now > cold);
}

#[test]
fn a_lost_card_answers_nothing_and_leaves_the_other_alone() {
    let bench = Bench::new(&[CardPlan::rtx_3090(), CardPlan::rtx_4070()]);
    let nvml = bench.nvml();
    bench.fault(CardFaults {
        lost: true,
        ..CardFaults::default()
    });
    let lost = nvml.device_by_index(0).expect("a handle");
    assert!(matches!(
        lost.temperature(TemperatureSensor::Gpu),
        Err(NvmlError::GpuLost)
    ));
    assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.running_compute_processes(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.name(), Err(NvmlError::GpuLost)));
    let other = nvml.device_by_index(1).expect("a handle");
    other
        .temperature(TemperatureSensor::Gpu)
        .expect("the other card is fine");
}

#[test]
fn a_driver_that_is_not_there_says_why() {
    let bench = Bench::one();
    let with = |driver| {
        let faults = Faults {
            driver: Some(driver),
            ..Faults::default()
        };
        bench.lab.set_faults(&faults).expect("faults are written");
        bench.try_nvml()
    };
    assert!(matches!(with(DriverFault::NotLoaded), Err(NvmlError::DriverNotLoaded)));
    assert!(matches!(
        with(DriverFault::VersionMismatch),
        Err(NvmlError::LibRmVersionMismatch)
    ));
    bench.lab.set_faults(&Faults::default()).expect("faults are written");
    bench.nvml();
    std::fs::remove_file(bench.lab.folder().join("cards.toml")).expect("the lab is broken");
    assert!(matches!(bench.try_nvml(), Err(NvmlError::NoData)));
}

#[test]
fn a_broken_faults_file_is_an_error_not_the_absence_of_faults() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    std::fs::write(bench.lab.folder().join("faults.toml"), "lost = maybe").expect("written");
    let device = nvml.device_by_index(0).expect("card 0");
    assert!(matches!(device.memory_info(), Err(NvmlError::Unknown)));
}

#[test]
fn a_lab_is_refused_where_a_card_cannot_be_and_is_never_laid_over_another() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = |change: fn(&mut CardPlan), says: &str| {
        let mut plan = CardPlan::rtx_3090();
        change(&mut plan);
        let place = folder.path().join("refused");
        let error = Lab::create(&place, &[plan]).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
        assert!(!place.exists(), "nothing is left behind");
    };
    refused(|plan| plan.name = "NVIDIA GeForce RTX 3090".to_owned(), "SIMULATED");
    refused(|plan| plan.uuid = "GPU-../../etc".to_owned(), "uuid");
    refused(|plan| plan.driver_reserved_mib = plan.vram_mib, "driver_reserved_mib");
    refused(|plan| plan.power.limit_factory_mw = 1, "power limits");
    refused(|plan| plan.power.idle_mw = 200_000, "idle power");
    refused(|plan| plan.thermal.lags[0].seconds = 0.0, "thermal lags");

    let card = CardPlan::rtx_3090();
    let twice = Lab::create(&folder.path().join("twice"), &[card.clone(), card.clone()]);
    assert!(twice.expect_err("twice").to_string().contains("listed twice"));
    let lab = Lab::create(folder.path(), std::slice::from_ref(&card)).expect("a lab");
    assert!(Lab::create(folder.path(), &[card]).is_err());
    assert_eq!(Lab::open(folder.path()).expect("opens").cards(), lab.cards());
}
