//! `docs/security.md` says of each backend what its code promises, in a table that is written by this test: with the environment
//! variable `SELA_WRITE_DOCUMENTS` set it writes, else it compares. That the promises are kept is the suite's to show.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use sela_attacks::catalogue;
use sela_sandbox::docker::{self, EngineCgroups, EngineFound, EngineKind, EnginePlace};
use sela_sandbox::keeper::wire::CgroupLayout;
use sela_sandbox::probe::{Guarantee, Strength, promised};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- Written by tests/attacks/tests/promises.rs; set SELA_WRITE_DOCUMENTS=1 and run it. -->\n\n";
const END: &str = "\n<!-- The end of what is written. -->";

/// A column: what it is called, and what is promised there.
fn columns() -> Vec<(&'static str, Vec<Guarantee>)> {
    use EngineCgroups::{BelowOurs, Ours, Systemds};
    let native = || promised(CgroupLayout::V2);
    let engine = |kind, remapped, cgroups| {
        let found = EngineFound {
            place: EnginePlace::usual(kind),
            version: String::new(),
            remapped,
            cgroups,
            root: PathBuf::new(),
        };
        docker::promised(&found, native())
    };
    vec![
        ("native", native()),
        ("lab-cgroup-v1", promised(CgroupLayout::LabCgroupV1)),
        ("docker", engine(EngineKind::Docker, false, Systemds)),
        ("docker, ids mapped, own groups", engine(EngineKind::Docker, true, Ours)),
        ("podman", engine(EngineKind::Podman, false, BelowOurs)),
    ]
}

fn table() -> String {
    let columns = columns();
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut table = format!("| guarantee | {} | attacks that try it |\n", names.join(" | "));
    writeln!(table, "|---|{}---|", "---|".repeat(columns.len())).unwrap();
    for guarantee in &columns[0].1 {
        let strengths: Vec<&str> = columns
            .iter()
            .map(|(column, promised)| {
                let found = promised.iter().find(|other| other.name == guarantee.name);
                let found = found.unwrap_or_else(|| panic!("{column} says nothing of \"{}\"", guarantee.name));
                match found.strength {
                    Strength::Enforced => "enforced",
                    Strength::Weaker { .. } => "weaker",
                    Strength::Absent { .. } => "absent",
                }
            })
            .collect();
        let attacks = catalogue::all()
            .iter()
            .filter(|probe| probe.tries == guarantee.name)
            .count();
        writeln!(table, "| {} | {} | {attacks} |", guarantee.name, strengths.join(" | ")).unwrap();
    }
    table
}

/// What stands in the way of a promise in full, by the code's own words; each reason once, with all that it holds for.
fn reasons() -> String {
    let mut said: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for (column, promised) in columns() {
        for Guarantee { name, strength } in promised {
            let (Strength::Weaker { why } | Strength::Absent { why }) = strength else {
                continue;
            };
            match said
                .iter_mut()
                .find(|(other, reason, _)| (*other, *reason) == (name, why))
            {
                Some((.., columns)) => columns.push(column),
                None => said.push((name, why, vec![column])),
            }
        }
    }
    let mut reasons = String::new();
    for (name, why, columns) in said {
        let whose = if columns.len() == self::columns().len() {
            "all".to_owned()
        } else {
            columns.join("; ")
        };
        writeln!(reasons, "- *{name}* ({whose}): {why}.").unwrap();
    }
    reasons
}

#[test]
fn the_document_says_what_the_code_promises() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the table's first line is gone");
    let (written, after) = rest.split_once(END).expect("the table's last line is gone");
    let right = format!("{}\nNot in full:\n\n{}", table(), reasons());
    if std::env::var_os("SELA_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{right}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        written, right,
        "docs/security.md is not what the code promises: set SELA_WRITE_DOCUMENTS=1 and run this test"
    );
}

#[test]
fn every_promise_is_tried_by_an_attack_and_every_attack_tries_a_promise() {
    for (column, promised) in columns() {
        for guarantee in &promised {
            assert!(
                catalogue::all().iter().any(|probe| probe.tries == guarantee.name),
                "{column}: no attack tries \"{}\": add one to tests/attacks",
                guarantee.name
            );
        }
        for probe in catalogue::all() {
            assert!(
                promised.iter().any(|guarantee| guarantee.name == probe.tries),
                "{column} promises nothing called \"{}\", which \"{}\" tries",
                probe.tries,
                probe.name
            );
        }
    }
}
