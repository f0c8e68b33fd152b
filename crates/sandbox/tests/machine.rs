//! The walls, limits, folders and lives of jobs once more, on a machine whose cgroups are version 2 alone: users' machines are such, this
//! one may not be. The machine is emulated (see `sela-emulated` for what that takes), and runs the very test programs that were
//! built beside this one.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test a panic is the report"
)]

use sela_emulated::{Machine, newest};

/// Freezing within a quarter of a second on a busy machine is no promise for an emulated one.
const SCRIPT: &str = r#"
for program in PROGRAMS; do
  if timeout 240 /t/deps/$program --test-threads 1 --skip a_busy_machine > /t/$program.log 2>&1; then
    echo "PASSED $program $(grep '^test result:' /t/$program.log)"
  else
    cat /t/$program.log
    echo "BROKEN $program"
  fi
done
"#;

const PROGRAMS: [&str; 5] = ["walls", "limits", "folders", "life", "cards"];

#[test]
fn jobs_are_walled_in_on_a_machine_with_cgroup_version_2_alone() {
    let Some(machine) = Machine::find("jobs_are_walled_in_on_a_machine_with_cgroup_version_2_alone") else {
        return;
    };
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    for program in PROGRAMS {
        machine.give_program(&newest(&deps, &format!("{program}-")), &format!("t/deps/{program}"));
    }
    for example in ["keeper", "inside"] {
        machine.give_program(
            &deps.with_file_name("examples").join(example),
            &format!("t/examples/{example}"),
        );
    }
    let said = machine.run(&SCRIPT.replace("PROGRAMS", &PROGRAMS.join(" ")));
    println!("{said}");
    for program in PROGRAMS {
        assert!(
            said.contains(&format!("PASSED {program} test result: ok.")),
            "{program}:\n{said}"
        );
    }
}
