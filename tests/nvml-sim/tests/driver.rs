//! The simulated driver through the real `nvml-wrapper`: real processes hold real locks, and the card answers by them. Each test
//! needs a process of its own, as `cargo nextest` gives it: the driver is told its lab by an environment variable.

mod bench;

use bench::{Bench, MIB, eventually, listed};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use sela_nvml_sim::{CardPlan, Lab};
use std::path::Path;
use std::time::Duration;

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
    // What the process did to start counts for a moment.
    eventually(
        "a card whose holder sleeps draws what an idle one does",
        || device.power_usage().expect("power"),
        |power| *power == bench.lab.cards()[0].power.idle_mw,
    );
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
fn a_process_stopped_in_the_middle_of_a_look_blocks_nobody() {
    let bench = Bench::one();
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).expect("card 0");
    device.temperature(TemperatureSensor::Gpu).expect("a first look");
    let state = bench.lab.folder().join("state");
    let lock = std::fs::File::open(state.join(format!("{}.lock", bench.lab.cards()[0].uuid))).expect("the lock");
    // What a process that was stopped while it wrote would leave: the lock, for as long as it is stopped.
    lock.lock().expect("taken");
    let spinner = bench.hold(100, &["--spin"]);
    let busy = || device.utilization_rates().expect("utilisation").gpu;
    eventually("work shows all the same", busy, |share| *share > 0);
    spinner.kill();
    eventually("and so does its end", busy, |share| *share == 0);
    drop(lock);
}

#[test]
fn a_driver_started_anew_finds_the_card_as_warm_as_it_was() {
    let mut plan = CardPlan::rtx_3090();
    // Warms by 3.5 K a second at its limit and takes a quarter of an hour to cool.
    plan.power.idle_mw = 100;
    plan.power.full_mw = 4_000_000;
    plan.thermal.lags[2].kelvin_per_watt = 10.0;
    plan.thermal.lags[2].seconds = 1000.0;
    let bench = Bench::new(&[plan]);
    let celsius = |nvml: &Nvml| {
        let device = nvml.device_by_index(0).expect("card 0");
        device.temperature(TemperatureSensor::Gpu).expect("a temperature")
    };
    let first = bench.nvml();
    let cold = celsius(&first);
    let spinner = bench.hold(10, &["--spin"]);
    eventually("work warms the card", || celsius(&first), |now| *now >= cold + 25);
    spinner.kill();
    drop(first);
    let second = bench.nvml();
    assert!(celsius(&second) > cold, "the warmth is the card's, not the process's");
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
