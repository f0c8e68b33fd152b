//! Every attack once more, on an emulated machine whose cgroups are version 2 alone (see `sela-emulated` for what that takes). It is
//! nobody's, so what would change a real one is tried here for real: modules, another kernel, the keys for a restart, dumps that
//! are handed to a program.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test a panic is the report, and what was seen is printed"
)]

use sela_emulated::{Machine, newest};

const SCRIPT: &str = r#"
/bin/busybox --install -s /bin
mkdir -p /var/tmp
ip link set lo up
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
ulimit -n 65536
insmod /lib/brd.ko rd_nr=1 rd_size=1024
insmod /lib/vsock.ko
insmod /lib/af_alg.ko
export SELA_ATTACK_MODULE=/lib/dummy.ko SELA_ATTACK_SWAP=/dev/ram0 CI=true
timeout 250 /t/deps/suite --test-threads 1 --nocapture native > /t/log 2>&1
echo "ended with $?"
cat /t/log
"#;

#[test]
fn jobs_are_held_as_promised_on_a_machine_with_cgroup_version_2_alone() {
    let Some(machine) = Machine::find("jobs_are_held_as_promised_on_a_machine_with_cgroup_version_2_alone") else {
        return;
    };
    for module in [
        "drivers/net/dummy.ko",
        "drivers/block/brd.ko",
        "net/vmw_vsock/vsock.ko",
        "crypto/af_alg.ko",
    ] {
        machine.give_module(&format!("kernel/{module}"));
    }
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = deps.parent().unwrap();
    machine.give_program(&newest(&deps, "suite-"), "t/deps/suite");
    for program in ["sela-probe", "examples/attacked-keeper"] {
        machine.give_program(&built.join(program), &format!("t/{program}"));
    }
    let driver = sela_nvml_sim::find_library().expect("cargo builds the library with this test");
    machine.give_program(&driver, &format!("t/{}", sela_nvml_sim::LIBRARY_FILE));
    let said = machine.run(SCRIPT);
    println!("{said}");
    assert!(said.contains("test result: ok. 1 passed"), "see above");
    assert!(
        said.lines()
            .any(|line| line.starts_with("native: ") && line.contains(" probes")),
        "nothing was counted"
    );
}
