//! Our list of system calls in the words of the engines: JSON in the form of Docker's `seccomp` profiles, from the same tables as
//! the native backend's filters. Every comparison looks at the 32 bits that the kernel looks at, never at 64 that a program fills.

use crate::native::calls::{ALLOWED, Call, OF_THIS_ARCHITECTURE, REFUSED};
use crate::native::seccomp::{FAMILIES, NAMESPACE_FLAGS, PERSONALITIES, TERMINAL_INJECTION};
use serde_json::{Value, json};

/// Calls whose arguments decide, or that get an answer of their own: not allowed as they stand.
const LOOKED_AT: [&str; 7] = [
    "clone",
    "clone3",
    "ioctl",
    "personality",
    "prlimit64",
    "setrlimit",
    "socket",
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// The list. Engines that know no default answer but EPERM give that where ours is ENOSYS.
pub fn profile() -> Value {
    let names = |calls: &[&[Call]]| -> Vec<&str> {
        let names = calls.iter().copied().flatten().map(|call| call.name());
        names.filter(|name| !LOOKED_AT.contains(name)).collect()
    };
    let mut rules = vec![
        json!({ "names": names(&[ALLOWED, OF_THIS_ARCHITECTURE]), "action": "SCMP_ACT_ALLOW" }),
        refusal(&names(&[REFUSED]), libc::EPERM, &Value::Null),
        // glibc falls back to clone, whose flags can be looked at, while clone3's lie behind a pointer.
        refusal(&["clone3"], libc::ENOSYS, &Value::Null),
    ];
    let all: u64 = NAMESPACE_FLAGS
        .iter()
        .fold(0, |flags, flag| flags | u64::from(flag.unsigned_abs()));
    rules.push(allowance("clone", &masked(0, all, 0)));
    for flag in NAMESPACE_FLAGS {
        let flag = u64::from(flag.unsigned_abs());
        rules.push(refusal(&["clone"], libc::EPERM, &masked(0, flag, flag)));
    }
    for family in FAMILIES {
        rules.push(allowance("socket", &masked(0, WORD, u64::from(family.unsigned_abs()))));
    }
    rules.push(allowance("socket", &netlink_for_routes()));
    for persona in PERSONALITIES {
        rules.push(allowance("personality", &masked(0, WORD, persona)));
    }
    // An engine takes several comparisons of one argument as alternatives, so "neither of these" has to be said by what else
    // there is.
    for (mask, value) in all_but(&TERMINAL_INJECTION) {
        rules.push(allowance("ioctl", &masked(1, mask, value)));
    }
    for request in TERMINAL_INJECTION {
        rules.push(refusal(&["ioctl"], libc::EPERM, &masked(1, WORD, request)));
    }
    // Limits of its own only, and of these every one but that of core dumps, which may be read: see `native::limits`.
    let itself = json!({ "index": 0, "value": WORD, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" });
    let reads = json!({ "index": 2, "value": 0, "op": "SCMP_CMP_EQ" });
    rules.push(allowance("prlimit64", &json!([itself, reads])));
    for (mask, value) in all_but(&[u64::from(libc::RLIMIT_CORE)]) {
        let which = json!({ "index": 1, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" });
        rules.push(allowance("prlimit64", &json!([itself, which])));
        rules.push(allowance("setrlimit", &masked(0, mask, value)));
    }
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::ENOSYS,
        "architectures": [ARCHITECTURE],
        "syscalls": rules,
    })
}

/// See `native::seccomp::FAMILIES`: comparisons of different arguments must all hold.
fn netlink_for_routes() -> Value {
    let both = [(0, libc::AF_NETLINK), (2, libc::NETLINK_ROUTE)].map(
        |(argument, value)| json!({ "index": argument, "value": WORD, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" }),
    );
    json!(both)
}

/// All bits that the kernel looks at of an `int`.
const WORD: u64 = 0xffff_ffff;

fn masked(argument: u32, mask: u64, value: u64) -> Value {
    json!([{ "index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" }])
}

fn allowance(name: &str, arguments: &Value) -> Value {
    json!({ "names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments })
}

fn refusal(names: &[&str], errno: i32, arguments: &Value) -> Value {
    json!({ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": arguments })
}

/// Masks and values that together match every 32-bit number but these: at each bit, the half in which none of them lies.
fn all_but(excluded: &[u64]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut waiting = vec![(0_u32, 0_u64)];
    while let Some((bits, prefix)) = waiting.pop() {
        let mask = WORD & !(WORD >> bits);
        if !excluded.iter().any(|number| number & mask == prefix) {
            found.push((mask, prefix));
        } else if bits < 32 {
            waiting.extend([0, 1].map(|bit| (bits + 1, prefix | bit << (31 - bits))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(value: u32) -> bool {
        all_but(&TERMINAL_INJECTION)
            .iter()
            .any(|(mask, expected)| u64::from(value) & mask == *expected)
    }

    #[test]
    fn every_request_but_the_two_is_covered() {
        for request in TERMINAL_INJECTION {
            let request = u32::try_from(request).unwrap();
            assert!(!matches(request));
            assert!(matches(request - 1) && matches(request + 1));
        }
        assert!(matches(0) && matches(u32::MAX));
    }

    proptest! {
        #[test]
        fn no_other_request_is_lost(request: u32) {
            prop_assert_eq!(matches(request), !TERMINAL_INJECTION.contains(&u64::from(request)));
        }
    }

    #[test]
    fn each_call_of_the_tables_is_said_once_or_by_its_arguments() {
        let profile = profile();
        let rules = profile["syscalls"].as_array().unwrap();
        for call in ALLOWED.iter().chain(OF_THIS_ARCHITECTURE).chain(REFUSED) {
            let named = rules
                .iter()
                .filter(|rule| rule["names"].as_array().unwrap().iter().any(|name| name == call.name()));
            let count = named.count();
            if LOOKED_AT.contains(&call.name()) {
                assert!(count >= 1, "{}", call.name());
            } else {
                assert_eq!(count, 1, "{}", call.name());
            }
        }
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    }

    #[test]
    fn no_rule_of_a_call_that_is_looked_at_is_without_a_condition() {
        for rule in profile()["syscalls"].as_array().unwrap() {
            for name in rule["names"].as_array().unwrap() {
                let name = name.as_str().unwrap();
                if LOOKED_AT.contains(&name) && name != "clone3" {
                    assert!(rule["args"].is_array(), "{rule}");
                }
            }
        }
    }
}
