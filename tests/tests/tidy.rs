//! Holds what no compiler checks: files that say what they are for and stay short, names that mean something, processes started in few places,
//! links in the documents that lead somewhere, decisions numbered without gaps.
//!
//! Each rule is a function from a path and a text to sentences, so that the tests below can plant a breach and see it found.
#![allow(clippy::unwrap_used, clippy::type_complexity, reason = "all of this file is a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// More than this and a file does two things.
const LONGEST: usize = 600;

/// Names of modules that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &[
    "common", "data", "helper", "helpers", "info", "infos", "manager", "managers", "misc", "service", "services",
    "stuff", "util", "utils",
];

/// Where processes may be started: the sandbox starts jobs, the tray its window (docs/adr/0005), the others test and build.
const MAY_START_PROCESSES: &[&str] = &[
    "crates/sandbox/",
    "src-tauri/src/linux/window_program.rs",
    "tests/",
    "xtask/",
];

/// The files of the repository by their path from its root, with `/`. What is built and what is installed is left out.
fn files() -> BTreeMap<String, PathBuf> {
    fn walk(folder: &Path, root: &Path, found: &mut BTreeMap<String, PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if !["target", "node_modules", ".git"]
                    .iter()
                    .any(|left_out| name == *left_out)
                {
                    walk(&path, root, found);
                }
            } else {
                let from_root = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                found.insert(from_root, path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeMap::new();
    walk(root, root, &mut found);
    found
}

/// Holds `rule` for every file whose name ends with `ending`; there must be some.
fn hold(ending: &str, rule: impl Fn(&str, &str) -> Vec<String>) {
    let mut seen = 0;
    let mut breaches = Vec::new();
    for (from_root, path) in files().iter().filter(|(from_root, _)| from_root.ends_with(ending)) {
        let text = std::fs::read_to_string(path).unwrap();
        breaches.extend(
            rule(from_root, &text)
                .into_iter()
                .map(|breach| format!("{from_root}: {breach}")),
        );
        seen += 1;
    }
    assert!(seen > 0, "no file ends with {ending}");
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

fn says_what_it_is_for(_path: &str, text: &str) -> Vec<String> {
    let first = text.lines().next().unwrap_or_default();
    if first.strip_prefix("//!").is_some_and(|words| words.trim().len() >= 10) {
        return Vec::new();
    }
    vec!["open it with `//!` and what lives here, and what must not".to_owned()]
}

fn is_short(_path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    if lines <= LONGEST {
        Vec::new()
    } else {
        vec![format!("{lines} lines; more than {LONGEST} do two things, so split it")]
    }
}

fn has_a_name_that_says_something(path: &str, text: &str) -> Vec<String> {
    let inside = path
        .rsplit_once("src/")
        .map_or_else(|| path.rsplit('/').next().unwrap_or(path), |(_, inside)| inside);
    let of_files = inside.trim_end_matches(".rs").split('/');
    let of_modules = text.lines().filter_map(|line| {
        let declared = line
            .trim_start()
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ")
            .strip_prefix("mod ")?;
        declared.split([';', ' ', '{']).next()
    });
    of_files
        .chain(of_modules)
        .filter(|name| EMPTY_NAMES.contains(name))
        .map(|name| format!("the name `{name}` says nothing; name what is inside"))
        .collect()
}

fn starts_no_process(path: &str, text: &str) -> Vec<String> {
    let may = MAY_START_PROCESSES.iter().any(|folder| path.starts_with(folder)) || path.contains("/tests/");
    if may {
        return Vec::new();
    }
    // Tests at the end of a file may.
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines()
        .enumerate()
        .filter(|(_, line)| line.contains("Command::new(") && !line.trim_start().starts_with("//"))
        .map(|(index, _)| {
            format!(
                "line {} starts a process; only {} do",
                index + 1,
                MAY_START_PROCESSES.join(", ")
            )
        })
        .collect()
}

/// The targets of `[text](target)` in a Markdown text, outside code.
fn links(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if in_block {
            continue;
        }
        // What stands between backticks is code: every second piece.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
        let mut rest = prose.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else {
                break;
            };
            targets.push(target.to_owned());
            rest = after;
        }
    }
    targets
}

/// Headings as the anchors that a reader's links use: lower case, spaces to dashes, other signs dropped.
fn anchors(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            words
                .chars()
                .filter(|sign| sign.is_alphanumeric() || [' ', '-', '_'].contains(sign))
                .map(|sign| if sign == ' ' { '-' } else { sign })
                .collect()
        })
        .collect()
}

/// `read` gives the text of a path from the root, or `None` if there is no such file or folder.
fn links_lead_somewhere(path: &str, text: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<String> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let mut breaches = Vec::new();
    for target in links(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = target
            .split_once('#')
            .map_or((target.as_str(), None), |(file, anchor)| (file, Some(anchor)));
        let there = if file.is_empty() {
            Some(text.to_owned())
        } else {
            read(&folder.join(file))
        };
        match (there, anchor) {
            (None, _) => breaches.push(format!("the link to {target} leads nowhere")),
            (Some(text), Some(anchor)) if !anchors(&text).iter().any(|heading| heading == anchor) => {
                breaches.push(format!("the link to {target} leads to no heading"));
            }
            (Some(_), _) => {}
        }
    }
    breaches
}

/// `names` are the files under docs/adr with their first lines.
fn decisions_are_numbered(names: &[(String, String)]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (index, (name, title)) in names.iter().enumerate() {
        let number = index + 1;
        if !name.starts_with(&format!("{number:04}-")) {
            breaches.push(format!("{name}: its number should be {number:04}"));
        } else if !title.starts_with(&format!("# {number}. ")) {
            breaches.push(format!("{name}: its title should begin with `# {number}. `"));
        }
    }
    breaches
}

#[test]
fn every_rust_file_says_what_it_is_for() {
    hold(".rs", says_what_it_is_for);
}

#[test]
fn no_rust_file_is_long() {
    hold(".rs", is_short);
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    hold(".rs", has_a_name_that_says_something);
}

#[test]
fn processes_are_started_in_few_places() {
    hold(".rs", starts_no_process);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    hold(".md", |path, text| {
        links_lead_somewhere(path, text, |target| {
            let target = root.join(target);
            if target.is_dir() {
                Some(String::new())
            } else {
                // A picture is no text: that it is there is enough.
                std::fs::read(target)
                    .ok()
                    .map(|bytes| String::from_utf8(bytes).unwrap_or_default())
            }
        })
    });
}

#[test]
fn decisions_have_numbers_without_gaps() {
    let decisions: Vec<_> = files()
        .iter()
        .filter_map(|(from_root, path)| {
            let name = from_root.strip_prefix("docs/adr/")?.to_owned();
            Some((
                name,
                std::fs::read_to_string(path)
                    .unwrap()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            ))
        })
        .collect();
    assert!(!decisions.is_empty());
    let breaches = decisions_are_numbered(&decisions);
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

#[test]
fn a_planted_breach_of_each_rule_is_found() {
    let long = "//! Opens as it should.\n".repeat(LONGEST + 1);
    let cases: &[(fn(&str, &str) -> Vec<String>, &str, &str, bool)] = &[
        (says_what_it_is_for, "a.rs", "//! The ledger's arithmetic.\n", true),
        (says_what_it_is_for, "a.rs", "use std::fmt;\n//! Too late.\n", false),
        (says_what_it_is_for, "a.rs", "//!\n", false),
        (says_what_it_is_for, "a.rs", "", false),
        (is_short, "a.rs", &long[24..], true),
        (is_short, "a.rs", &long, false),
        (
            has_a_name_that_says_something,
            "crates/core/src/guard/heat.rs",
            "mod tests {\n",
            true,
        ),
        (has_a_name_that_says_something, "crates/helper/src/main.rs", "", true),
        (
            has_a_name_that_says_something,
            "crates/core/src/utils/heat.rs",
            "",
            false,
        ),
        (has_a_name_that_says_something, "crates/core/src/info.rs", "", false),
        (has_a_name_that_says_something, "tests/tests/common.rs", "", false),
        (
            has_a_name_that_says_something,
            "crates/core/src/lib.rs",
            "pub(crate) mod misc;\n",
            false,
        ),
        (
            starts_no_process,
            "crates/sandbox/src/keeper.rs",
            "Command::new(\"sh\")",
            true,
        ),
        (
            starts_no_process,
            "src-tauri/src/linux/tray.rs",
            "Command::new(\"sh\")",
            false,
        ),
        (
            starts_no_process,
            "crates/agent/tests/a.rs",
            "Command::new(\"sh\")",
            true,
        ),
        (
            starts_no_process,
            "crates/agent/src/a.rs",
            "// Command::new( is banned\n#[cfg(test)]\nCommand::new(\"sh\")",
            true,
        ),
        (
            starts_no_process,
            "crates/agent/src/a.rs",
            "let child = Command::new(\"sh\");",
            false,
        ),
    ];
    for (rule, path, text, holds) in cases {
        let breaches = rule(path, text);
        assert_eq!(breaches.is_empty(), *holds, "{path}: {breaches:?}");
    }
}

#[test]
fn a_link_that_leads_nowhere_is_found_and_code_is_not_read_as_links() {
    let read = |path: &Path| match path.to_str() {
        Some("docs/there.md") => Some("# What is there\n\n## 2. Two, three\n".to_owned()),
        _ => None,
    };
    for (text, count) in [
        ("[a](there.md) and [b](https://example.org/x)", 0),
        ("[a](there.md#what-is-there) [b](there.md#2-two-three)", 0),
        ("# Here\n[a](#here)", 0),
        ("[a](gone.md) [b](there.md)", 1),
        ("[a](there.md#gone) [b](#gone)", 2),
        ("`[a](gone.md)`\n```\n[a](gone.md)\n```\n", 0),
    ] {
        assert_eq!(links_lead_somewhere("docs/here.md", text, read).len(), count, "{text}");
    }
}

#[test]
fn a_gap_or_a_wrong_title_among_decisions_is_found() {
    let decision = |name: &str, title: &str| (name.to_owned(), title.to_owned());
    assert!(decisions_are_numbered(&[decision("0001-a.md", "# 1. A"), decision("0002-b.md", "# 2. B")]).is_empty());
    assert_eq!(
        decisions_are_numbered(&[decision("0001-a.md", "# 1. A"), decision("0003-b.md", "# 3. B")]).len(),
        1
    );
    assert_eq!(decisions_are_numbered(&[decision("0001-a.md", "# A")]).len(), 1);
}
