//! Every fault that a test can ask of the simulated driver, seen through the real `nvml-wrapper`.

mod bench;

use bench::{Bench, eventually, listed};
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use sela_nvml_sim::{CardFaults, CardPlan, DriverFault, Faults, Sensor};

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
