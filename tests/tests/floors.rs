//! Holds the four floors of ARCHITECTURE.md by what cargo itself says about our packages: an arrow never runs up, and rooms of one floor do
//! not know each other. And what the deciding crates must never link.
//!
//! The rules are functions over a small picture of the workspace, so that the tests below can plant a wrong arrow and see it found.
#![allow(clippy::unwrap_used, clippy::type_complexity, reason = "all of this file is a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Package → floor. A new package fails the test until it is given one.
const FLOORS: &[(&str, u8)] = &[
    ("sela-protocol", 0),
    ("sela-core", 1),
    ("sela-market", 1),
    ("sela-gpu", 1),
    ("sela-client", 1),
    ("sela-clock", 1),
    ("sela-sensors", 2),
    ("sela-sandbox", 2),
    ("sela-agent", 3),
    ("sela-exchange", 3),
    ("sela-desktop", 3),
    ("sela-desktop", 3),
];

/// Packages that stand outside the house: they test it, build it, or are work that tenants bring. Nothing in the house may need them.
fn stands_outside(package: &str, folder: &str) -> bool {
    package == "sela-xtask" || folder == "tests" || folder.starts_with("tests/")
}

/// Packages of others that a deciding crate must not reach by any way: an async runtime, logging, a random source, files in a database.
const DECIDING: &[&str] = &["sela-core", "sela-market"];
const NOT_FOR_DECIDING: &[(&str, &str)] = &[
    ("tokio", "an async runtime"),
    ("async-io", "an async runtime"),
    ("tracing", "logging"),
    ("log", "logging"),
    ("getrandom", "a random source of its own"),
    ("rand", "a random source of its own"),
    ("rusqlite", "files"),
    ("rustix", "the operating system"),
    ("sela-clock", "a clock"),
];

/// What kind of arrow it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrow {
    /// It is linked into what people get.
    Linked,
    /// Only tests and build scripts of that package have it.
    ForTests,
}

/// A picture of the workspace: who needs whom.
#[derive(Debug, Default)]
struct House {
    /// Our packages and the folder of each, from the root.
    ours: BTreeMap<String, String>,
    /// Arrows between our packages.
    arrows: Vec<(String, String, Arrow)>,
    /// Everything that the deciding packages link, ours and others': name → names.
    linked: BTreeMap<String, BTreeSet<String>>,
}

impl House {
    /// Each breach of a rule, as a sentence.
    fn breaches(&self) -> Vec<String> {
        let floors: BTreeMap<_, _> = FLOORS.iter().copied().collect();
        let mut breaches = Vec::new();
        for (package, folder) in &self.ours {
            if !stands_outside(package, folder) && !floors.contains_key(package.as_str()) {
                breaches.push(format!(
                    "{package} has no floor: give it one in tests/tests/floors.rs and draw it in ARCHITECTURE.md"
                ));
            }
        }
        for (from, to, arrow) in &self.arrows {
            let Some(from_floor) = floors.get(from.as_str()) else {
                continue;
            };
            match (floors.get(to.as_str()), arrow) {
                (Some(to_floor), _) if to_floor > from_floor => {
                    breaches.push(format!(
                        "{from} (floor {from_floor}) needs {to} (floor {to_floor}): an arrow never runs up"
                    ));
                }
                (Some(to_floor), _) if to_floor == from_floor => {
                    breaches.push(format!(
                        "{from} needs {to}: rooms of one floor (here {from_floor}) do not know each other"
                    ));
                }
                (None, Arrow::Linked) => breaches.push(format!("{from} links {to}, which stands outside the house")),
                (Some(_), _) | (None, Arrow::ForTests) => {}
            }
        }
        for package in DECIDING {
            for (banned, what) in NOT_FOR_DECIDING {
                if let Some(way) = self.way(package, banned) {
                    breaches.push(format!("{package} must not have {what}, but links {}", way.join(" → ")));
                }
            }
        }
        breaches
    }

    /// The shortest way from one package to another along what is linked.
    fn way(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut ways = std::collections::VecDeque::from([vec![from.to_owned()]]);
        let mut seen = BTreeSet::from([from.to_owned()]);
        while let Some(way) = ways.pop_front() {
            let last = way.last()?;
            if last == to {
                return Some(way);
            }
            for next in self
                .linked
                .get(last)
                .into_iter()
                .flatten()
                .filter(|next| seen.insert((*next).clone()))
            {
                ways.push_back(way.iter().chain([next]).cloned().collect());
            }
        }
        None
    }

    /// The arrows that `cargo metadata` shows.
    fn from_metadata(metadata: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let root = text(&metadata["workspace_root"]);
        let members: BTreeSet<_> = list(&metadata["workspace_members"]).iter().map(text).collect();
        let mut house = Self::default();
        let mut names = BTreeMap::new();
        for package in list(&metadata["packages"]) {
            names.insert(text(&package["id"]), text(&package["name"]));
            if members.contains(&text(&package["id"])) {
                let manifest = text(&package["manifest_path"]);
                let folder = Path::new(&manifest)
                    .parent()
                    .and_then(|folder| folder.strip_prefix(&root).ok());
                let folder = folder.unwrap_or(Path::new("?")).to_string_lossy().replace('\\', "/");
                house.ours.insert(text(&package["name"]), folder);
            }
        }
        for node in list(&metadata["resolve"]["nodes"]) {
            let from = names.get(&text(&node["id"])).cloned().unwrap_or_default();
            for dependency in list(&node["deps"]) {
                let to = names.get(&text(&dependency["pkg"])).cloned().unwrap_or_default();
                let is_linked = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
                if house.ours.contains_key(&from) && house.ours.contains_key(&to) {
                    let arrow = if is_linked { Arrow::Linked } else { Arrow::ForTests };
                    house.arrows.push((from.clone(), to, arrow));
                }
            }
        }
        house
    }
}

/// What `cargo tree --prefix depth` shows, line by line: a depth, then a name. `cargo metadata` would not do for this: it joins the
/// features that all packages ask for, and so shows crates that a deciding package alone does not link.
fn linked_in_tree(tree: &str, linked: &mut BTreeMap<String, BTreeSet<String>>) {
    let mut branch: Vec<String> = Vec::new();
    for line in tree.lines() {
        let digits = line.chars().take_while(char::is_ascii_digit).count();
        let (depth, name) = line.split_at(digits);
        let Ok(depth) = depth.parse::<usize>() else {
            continue;
        };
        let name = name.split_whitespace().next().unwrap_or_default().to_owned();
        branch.truncate(depth);
        if let Some(parent) = branch.last() {
            linked.entry(parent.clone()).or_default().insert(name.clone());
        }
        branch.push(name);
    }
}

/// Cargo, asked about this workspace.
fn ask_cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(cargo)
        .current_dir(root)
        .args(arguments)
        .arg("--locked")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// This workspace as it is.
fn this_house() -> House {
    let metadata = ask_cargo(&["metadata", "--format-version", "1"]);
    let mut house = House::from_metadata(&serde_json::from_str(&metadata).unwrap());
    for package in DECIDING {
        let tree = ask_cargo(&[
            "tree", "-p", package, "-e", "normal", "--prefix", "depth", "--format", " {p}", "--target", "all",
        ]);
        linked_in_tree(&tree, &mut house.linked);
    }
    house
}

#[test]
fn no_arrow_of_this_workspace_runs_up_or_sideways_and_what_decides_links_nothing_that_acts() {
    let house = this_house();
    assert!(
        house.arrows.len() > FLOORS.len(),
        "cargo metadata shows hardly any arrow: {house:?}"
    );
    for package in DECIDING {
        assert!(
            house.way(package, "serde").is_some(),
            "the picture of what {package} links is empty"
        );
    }
    let breaches = house.breaches();
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

#[test]
fn every_floor_names_a_package_that_exists() {
    let house = this_house();
    for (package, _) in FLOORS {
        assert!(
            house.ours.contains_key(*package),
            "{package} is gone: take it out of the floors"
        );
    }
}

/// A house of the given arrows, each linked.
fn house(arrows: &[(&str, &str, Arrow)]) -> House {
    let mut house = House::default();
    for (from, to, arrow) in arrows {
        for package in [from, to].into_iter().filter(|package| package.starts_with("sela-")) {
            let folder = if *package == "sela-nvml-sim" {
                "tests/nvml-sim"
            } else {
                "crates/any"
            };
            house.ours.insert((*package).to_owned(), folder.to_owned());
        }
        if to.starts_with("sela-") {
            house.arrows.push(((*from).to_owned(), (*to).to_owned(), *arrow));
        }
        if *arrow == Arrow::Linked {
            house
                .linked
                .entry((*from).to_owned())
                .or_default()
                .insert((*to).to_owned());
        }
    }
    house
}

#[test]
fn a_planted_wrong_arrow_is_found_and_a_right_one_is_not() {
    use Arrow::{ForTests, Linked};
    for (arrows, breach) in [
        (
            &[
                ("sela-agent", "sela-core", Linked),
                ("sela-core", "sela-protocol", Linked),
            ][..],
            None,
        ),
        (&[("sela-core", "sela-sensors", Linked)], Some("an arrow never runs up")),
        (
            &[("sela-protocol", "sela-core", ForTests)],
            Some("an arrow never runs up"),
        ),
        (&[("sela-sensors", "sela-sandbox", Linked)], Some("rooms of one floor")),
        (&[("sela-exchange", "sela-agent", ForTests)], Some("rooms of one floor")),
        (&[("sela-gpu", "sela-nvml-sim", Linked)], Some("outside the house")),
        (&[("sela-gpu", "sela-nvml-sim", ForTests)], None),
        (&[("sela-novelty", "sela-protocol", Linked)], Some("has no floor")),
        (
            &[("sela-core", "tokio", Linked)],
            Some("must not have an async runtime"),
        ),
        (
            &[("sela-market", "harmless", Linked), ("harmless", "getrandom", Linked)],
            Some("sela-market → harmless → getrandom"),
        ),
        (&[("sela-market", "tokio", ForTests)], None),
    ] {
        let breaches = house(arrows).breaches();
        match breach {
            Some(words) => assert!(
                breaches.len() == 1 && breaches[0].contains(words),
                "{arrows:?}: {breaches:?}"
            ),
            None => assert!(breaches.is_empty(), "{arrows:?}: {breaches:?}"),
        }
    }
}

#[test]
fn a_tree_is_read_by_its_depths() {
    let mut linked = BTreeMap::new();
    linked_in_tree(
        "0 a v1\n1 b v1\n2 c v1\n1 d v1 (proc-macro)\n2 c v1 (*)\n\n",
        &mut linked,
    );
    let shown: Vec<_> = linked
        .iter()
        .map(|(from, to)| format!("{from}: {}", Vec::from_iter(to.clone()).join(" ")))
        .collect();
    assert_eq!(shown, ["a: b d", "b: c", "d: c"]);
}
