//! The walls, limits, folders and lives of jobs once more, on a machine whose cgroups are version 2 alone: users' machines are such, this
//! one may not be; and some of them as a user who is not root. The machine is emulated (see `sela-emulated` for what that takes), and
//! runs the very test programs that were built beside this one.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test a panic is the report"
)]

use sela_emulated::{Machine, newest};
use std::path::Path;

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

# The same as a user who is not root, in a group that is this user's to share out, with a range of subordinate ids.
mkdir -p /etc
echo 'root:x:0:0::/:/bin/sh' > /etc/passwd
echo 'owner:x:1000:1000::/tmp:/bin/sh' >> /etc/passwd
echo 'owner:100000:65536' > /etc/subuid
echo 'owner:100000:65536' > /etc/subgid
chmod 4755 /usr/bin/newuidmap /usr/bin/newgidmap
chmod 1777 /tmp
delegated=/sys/fs/cgroup/owner
echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir $delegated
chown 1000:1000 $delegated $delegated/cgroup.procs $delegated/cgroup.subtree_control $delegated/cgroup.threads
cat > /t/owner.sh <<'END'
cd /tmp
passes() {
  if timeout 240 /t/examples/rootless /t/deps/"$@" --test-threads 1 --skip a_busy_machine > /tmp/$1.log 2>&1; then
    echo "PASSED without root $1 $(grep '^test result:' /tmp/$1.log)"
  else
    cat /tmp/$1.log
    echo "BROKEN without root $1"
  fi
}
ROOTLESS
END
sh -c "echo \$\$ > $delegated/cgroup.procs; exec su owner -c 'sh /t/owner.sh'"
"#;

/// Of these, what is run without root, too: one of each kind of wall, limit and end. All of it takes minutes here, and is run instead
/// of everything else with the environment variable [`WHOLE`] set.
const ROOTLESS: [(&str, &[&str]); 3] = [
    (
        "walls",
        &[
            "a_program_has_no_rights_and_says_so_itself",
            "a_jobs_processes_have_subordinate_ids_outside",
        ],
    ),
    ("limits", &["a_job_that_takes_too_much_memory_is_ended_for_it"]),
    (
        "life",
        &[
            "frozen_time_stands_still_and_is_not_billed",
            "a_keeper_that_is_killed_takes_its_job_along",
        ],
    ),
];

/// See [`ROOTLESS`].
const WHOLE: &str = "SELA_TEST_ROOTLESS_WHOLE";

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
    for mapper in ["newuidmap", "newgidmap"] {
        let path = Path::new("/usr/bin").join(mapper);
        assert!(path.exists(), "{mapper} is missing: apt-get install uidmap");
        machine.give_program(&path, &format!("usr/bin/{mapper}"));
    }
    for example in ["keeper", "inside", "rootless"] {
        machine.give_program(
            &deps.with_file_name("examples").join(example),
            &format!("t/examples/{example}"),
        );
    }
    let whole = std::env::var_os(WHOLE).is_some();
    let programs: &[&str] = if whole { &[] } else { &PROGRAMS };
    let rootless = ROOTLESS.map(|(program, tests)| match whole {
        true => format!("passes {program}"),
        false => format!("passes {program} --exact {}", tests.join(" ")),
    });
    let script = SCRIPT.replace("PROGRAMS", &programs.join(" "));
    let said = machine.run(&script.replace("ROOTLESS", &rootless.join("\n")));
    println!("{said}");
    for program in programs {
        assert!(
            said.contains(&format!("PASSED {program} test result: ok.")),
            "{program}:\n{said}"
        );
    }
    for (program, _) in ROOTLESS {
        assert!(
            said.contains(&format!("PASSED without root {program} test result: ok.")),
            "{program} without root:\n{said}"
        );
    }
}
