//! `sela-gpu` against the simulated driver, through the same library loading and calls as against a real one. Each test needs a
//! process of its own, as `cargo nextest` gives it. A test that needs somebody else's process on the card starts
//! `sela-sim-hold`, which `cargo build -p sela-nvml-sim` builds; `cargo xtask test` does that first.

use sela_gpu::{GpuError, Nvml};
use sela_nvml_sim::{Allocation, CardFaults, CardPlan, DriverFault, FOLDER_VARIABLE, Faults, Lab, Sensor};
use sela_protocol::card::Reading;
use sela_protocol::id::GpuUuid;
use sela_protocol::units::{Bytes, Milliwatts};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

struct Bench {
    lab: Lab,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new(cards: &[CardPlan]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let lab = Lab::create(folder.path(), cards).expect("a lab");
        name_lab(lab.folder());
        Self { lab, _folder: folder }
    }

    fn one() -> Self {
        Self::new(&[CardPlan::rtx_3090()])
    }

    fn uuid(&self, index: usize) -> GpuUuid {
        GpuUuid(self.lab.cards()[index].uuid.clone())
    }

    fn fault(&self, faults: CardFaults) {
        let mut all = Faults::default();
        all.card.insert(self.lab.cards()[0].uuid.clone(), faults);
        self.lab.set_faults(&all).expect("faults are written");
    }
}

fn name_lab(folder: &Path) {
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
        std::env::set_var(FOLDER_VARIABLE, folder);
    };
}

fn library() -> PathBuf {
    sela_nvml_sim::find_library().expect("cargo builds the library with this test")
}

fn start() -> Nvml {
    Nvml::start(Some(&library())).expect("the simulated driver starts")
}

/// Somebody else's process on the card; killed when dropped.
struct Holder(Child);

impl Holder {
    fn start(node: &Path, mib: u64, words: &[&str]) -> Self {
        let program = sela_nvml_sim::find_holder().expect("build it first: cargo build -p sela-nvml-sim");
        #[expect(
            clippy::disallowed_methods,
            reason = "a test of what another process does to the card"
        )]
        let mut child = std::process::Command::new(program)
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
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().expect("SIGKILL");
        self.0.wait().expect("reaped");
    }
}

#[test]
fn a_simulated_card_is_described_as_simulated() {
    let bench = Bench::new(&[CardPlan::rtx_3090(), CardPlan::rtx_4070()]);
    let nvml = start();
    let cards = nvml.cards().expect("cards");
    assert_eq!(cards.len(), 2);
    for (index, card) in cards.iter().enumerate() {
        assert!(card.simulated);
        assert!(card.name.contains("SIMULATED"));
        assert!(card.driver_version.contains("SIMULATED"));
        assert_eq!(card.uuid, bench.uuid(index));
        assert_eq!(card.index as usize, index);
        assert_eq!(
            Reading::of(nvml.power_limits(&card.uuid).expect("limits")),
            card.power_limits
        );
    }
    assert_eq!(cards[0].vram_total, Bytes::from_gib(24));
    assert_eq!(cards[1].vram_total, Bytes::from_gib(12));
}

#[test]
fn an_idle_card_reads_whole_except_for_the_sensor_that_it_lacks() {
    let bench = Bench::one();
    let card = start().read(&bench.uuid(0)).expect("a reading");
    assert_eq!(card.uuid, bench.uuid(0));
    let celsius = card.temperature.value().expect("a temperature").0;
    assert!((24..=30).contains(&celsius), "{celsius}");
    assert_eq!(card.memory_temperature, Reading::NotSupported);
    assert_eq!(card.power, Reading::of(Milliwatts::from_watts(25)));
    assert_eq!(card.power_limit, Reading::of(Milliwatts::from_watts(350)));
    assert_eq!(card.vram_used, Reading::of(Bytes(0)));
    assert_eq!(card.utilisation.value().map(|share| share.0), Some(0));
    assert_eq!(card.fan.value().map(|share| share.0), Some(0));
    assert_eq!(card.core_clock.value().map(|clock| clock.0), Some(210));
}

#[test]
fn holders_are_listed_whether_they_compute_or_draw() {
    let bench = Bench::one();
    let nvml = start();
    let node = bench.lab.device_node(0);
    assert_eq!(nvml.processes(&bench.uuid(0)), Ok(Vec::new()));
    let miner = Holder::start(&node, 300, &[]);
    let game = Holder::start(&node, 700, &["--graphics"]);
    let listed = nvml.processes(&bench.uuid(0)).expect("a list");
    let mut expected = [(miner.0.id(), 300), (game.0.id(), 700)];
    expected.sort_unstable();
    for (process, (pid, mib)) in listed.iter().zip(expected) {
        assert_eq!(process.pid, pid);
        assert_eq!(process.vram_used, Reading::of(Bytes::from_mib(mib)));
        assert!(
            process
                .name
                .as_ref()
                .is_some_and(|name| name.ends_with("sela-sim-hold"))
        );
    }
    assert_eq!(listed.len(), 2);
    let used = nvml.read(&bench.uuid(0)).expect("a reading").vram_used;
    assert_eq!(used, Reading::of(Bytes::from_mib(1000)));

    drop((miner, game));
    assert_eq!(nvml.processes(&bench.uuid(0)), Ok(Vec::new()));
    assert_eq!(
        nvml.read(&bench.uuid(0)).expect("a reading").vram_used,
        Reading::of(Bytes(0))
    );
}

#[test]
fn memory_that_a_process_holds_but_the_driver_hides_is_absent_not_enormous() {
    let bench = Bench::one();
    let _held = Allocation::take(&bench.lab.device_node(0), 10).expect("memory");
    bench.fault(CardFaults {
        process_memory_hidden: true,
        ..CardFaults::default()
    });
    let listed = start().processes(&bench.uuid(0)).expect("a list");
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].pid, std::process::id());
    assert!(matches!(listed[0].vram_used, Reading::Invalid { .. }));
}

#[test]
fn a_power_limit_is_set_in_the_cards_range_and_nowhere_else() {
    let bench = Bench::one();
    let nvml = start();
    let uuid = bench.uuid(0);
    let limits = nvml.power_limits(&uuid).expect("limits");
    let in_force = || nvml.read(&uuid).expect("a reading").power_limit;
    for accepted in [limits.least, Milliwatts::from_watts(250), limits.most] {
        nvml.set_power_limit(&uuid, accepted).expect("within the range");
        assert_eq!(in_force(), Reading::of(accepted));
    }
    for (outside, says) in [(99_999, "100000 mW to 400000 mW"), (400_001, "400001 mW")] {
        let error = nvml.set_power_limit(&uuid, Milliwatts(outside)).expect_err("outside");
        assert_eq!(
            error,
            GpuError::LimitOutOfRange {
                asked: Milliwatts(outside),
                limits
            }
        );
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(in_force(), Reading::of(limits.most));
    }
}

#[test]
fn a_limit_that_is_refused_unsupported_or_silently_not_applied_is_an_error_of_its_own() {
    let bench = Bench::one();
    let nvml = start();
    let asked = Milliwatts::from_watts(200);
    let set = |faults| {
        bench.fault(faults);
        nvml.set_power_limit(&bench.uuid(0), asked)
    };
    let refused = set(CardFaults {
        limit_refused: true,
        ..CardFaults::default()
    });
    assert!(matches!(refused, Err(GpuError::NoPermission { .. })), "{refused:?}");
    let ignored = set(CardFaults {
        limit_ignored: true,
        ..CardFaults::default()
    });
    let found = Milliwatts::from_watts(350);
    assert_eq!(ignored, Err(GpuError::LimitNotApplied { asked, found }));
    let laptop = set(CardFaults {
        limit_unsupported: true,
        ..CardFaults::default()
    });
    assert!(matches!(laptop, Err(GpuError::NotSupported { .. })), "{laptop:?}");
    assert_eq!(nvml.cards().expect("cards")[0].power_limits, Reading::NotSupported);
    assert_eq!(
        nvml.read(&bench.uuid(0)).expect("a reading").power_limit,
        Reading::NotSupported
    );
    assert_eq!(set(CardFaults::default()), Ok(()));
}

#[test]
fn a_sensor_without_a_reading_is_absent_with_its_reason_and_the_others_stay() {
    let bench = Bench::one();
    let nvml = start();
    let with = |faults| {
        bench.fault(faults);
        nvml.read(&bench.uuid(0)).expect("the card itself answers")
    };
    let cold = with(CardFaults {
        temperature_reads: Some(511),
        ..CardFaults::default()
    });
    assert!(matches!(&cold.temperature, Reading::Invalid { why } if why.contains("511")));
    assert!(cold.power.value().is_some());
    let dark = with(CardFaults {
        power_reads_all_ones: true,
        ..CardFaults::default()
    });
    assert!(matches!(&dark.power, Reading::Invalid { why } if why.contains("all-ones")));
    assert!(dark.temperature.value().is_some());
    let all = vec![
        Sensor::Temperature,
        Sensor::Power,
        Sensor::Utilisation,
        Sensor::Memory,
        Sensor::Fan,
        Sensor::Clock,
    ];
    let blind = with(CardFaults {
        failing: all,
        ..CardFaults::default()
    });
    assert!(matches!(blind.temperature, Reading::Invalid { .. }));
    assert!(matches!(blind.power, Reading::Invalid { .. }));
    assert!(matches!(blind.utilisation, Reading::Invalid { .. }));
    assert!(matches!(blind.vram_used, Reading::Invalid { .. }));
    assert!(matches!(blind.fan, Reading::Invalid { .. }));
    assert!(matches!(blind.core_clock, Reading::Invalid { .. }));
    assert!(blind.power_limit.value().is_some());
}

#[test]
fn a_card_that_is_lost_while_it_is_used_is_an_error_and_the_other_goes_on() {
    let bench = Bench::new(&[CardPlan::rtx_3090(), CardPlan::rtx_4070()]);
    let nvml = start();
    nvml.read(&bench.uuid(0)).expect("it is there at first");
    bench.fault(CardFaults {
        lost: true,
        ..CardFaults::default()
    });
    let lost = GpuError::Lost(bench.uuid(0));
    assert_eq!(nvml.read(&bench.uuid(0)), Err(lost.clone()));
    assert_eq!(nvml.processes(&bench.uuid(0)), Err(lost.clone()));
    assert_eq!(
        nvml.set_power_limit(&bench.uuid(0), Milliwatts::from_watts(200)),
        Err(lost)
    );
    nvml.read(&bench.uuid(1)).expect("the other card answers");
    let cards = nvml.cards().expect("the driver answers");
    assert_eq!(cards.len(), 1);
    assert_eq!(cards[0].uuid, bench.uuid(1));
    let unknown = GpuUuid("GPU-of-another-machine".to_owned());
    assert_eq!(nvml.read(&unknown), Err(GpuError::UnknownCard(unknown.clone())));
}

#[test]
fn a_driver_that_does_not_start_says_what_to_do() {
    let bench = Bench::one();
    let with = |driver| {
        let faults = Faults {
            driver: Some(driver),
            ..Faults::default()
        };
        bench.lab.set_faults(&faults).expect("faults are written");
        Nvml::start(Some(&library())).expect_err("it does not start")
    };
    assert!(matches!(with(DriverFault::NotLoaded), GpuError::NoDriver { .. }));
    let mismatch = with(DriverFault::VersionMismatch);
    assert_eq!(mismatch, GpuError::DriverMismatch);
    assert!(mismatch.to_string().contains("restart the PC"));

    let nowhere = Nvml::start(Some(Path::new("/nonexistent/libnvidia-ml.so"))).expect_err("no library");
    assert!(matches!(nowhere, GpuError::NoDriver { .. }), "{nowhere}");

    name_lab(&bench.lab.folder().join("missing"));
    let homeless = Nvml::start(Some(&library())).expect_err("no lab");
    assert_eq!(homeless, GpuError::SimulationMissing);
    assert!(homeless.to_string().contains("SELA_NVML_SIM_DIR"));
}

#[test]
fn a_simulated_cards_node_lies_in_its_lab() {
    let bench = Bench::new(&[CardPlan::rtx_3090(), CardPlan::rtx_4070()]);
    let nvml = start();
    let nodes = nvml
        .device_nodes(&bench.uuid(1), Some(bench.lab.folder()))
        .expect("nodes");
    assert_eq!(nodes, [bench.lab.device_node(1)]);
    assert!(nodes[0].is_file());
    assert_eq!(
        nvml.device_nodes(&bench.uuid(1), None),
        Err(GpuError::SimulationMissing)
    );
}
