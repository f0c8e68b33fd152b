//! Target `job_specs`: what tenants write. A spec that is taken keeps its promises and reads the same once written; one that is
//! refused says why. The same rules for a TOML document, which other things that people write come as.

use crate::memory;
use crate::tape::Tape;
use sela_protocol::confidential::{MOST_SECRETS, SealingKey, SecretValue};
use sela_protocol::job::{ImageSource, JOB_FIELDS, JobSpec, LEAST_BILLED, Submission};
use sela_protocol::network::{HostRule, MOST_RULES};
use sela_protocol::units::{Bytes, Millis};
use sela_protocol::written;
use serde_json::json;
use std::path::{Component, Path};

/// Reads an input as a job spec.
///
/// # Panics
/// If something does not hold.
pub fn hold(input: &[u8]) {
    let mut tape = Tape::new(input);
    let toml = tape.choice(2) == 1;
    let Ok(text) = std::str::from_utf8(tape.rest()) else {
        return;
    };
    // A key with many dots is a table for each of its parts, in the TOML library as in ours.
    let per_byte = if toml { 2_048 } else { 128 };
    memory::at_most((64 << 10) + text.len() * per_byte, || {
        if toml { from_toml(text) } else { from_json(text) }
    });
}

fn from_json(text: &str) {
    match Submission::parse(text) {
        Ok(submission) => {
            let spec = &submission.spec;
            keeps_its_promises(spec);
            let again = serde_json::to_string(spec).expect("a spec is written");
            assert_eq!(&JobSpec::parse(&again).expect(&again), spec);
            keeps_its_secrets(&submission, text);
        }
        Err(error) => {
            says_something(&error.to_string(), text);
            assert_eq!(JobSpec::parse(text), Err(error), "what is no submission is no spec");
        }
    }
}

fn keeps_its_secrets(submission: &Submission, text: &str) {
    let open = submission.result_key.is_none() && submission.secrets.is_empty();
    assert_eq!(
        JobSpec::parse(text).is_ok(),
        open,
        "nothing confidential stands in a spec"
    );
    assert!(submission.secrets.len() <= MOST_SECRETS);
    // They become files' names.
    for name in submission.secrets.keys() {
        let plain = Path::new(name.as_ref())
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        assert!(plain && !name.as_ref().contains(['/', '\0']), "{name:?}");
    }
    let mut blank = submission.clone();
    blank
        .secrets
        .values_mut()
        .for_each(|value| *value = SecretValue::new(String::new()));
    blank.result_key = blank.result_key.map(|_| SealingKey::from_bytes([0; 32]));
    assert_eq!(
        format!("{submission:?}"),
        format!("{blank:?}"),
        "what is logged is the same whatever the secrets are"
    );
}

fn from_toml(text: &str) {
    let Ok(document) = toml::from_str::<toml::Table>(text) else {
        return;
    };
    let Ok(value) = serde_json::to_value(&document) else {
        return;
    };
    let written_as_json = value.to_string();
    let from_value = written::from_value::<JobSpec>(value, &JOB_FIELDS);
    let from_text = written::from_json::<JobSpec>(&written_as_json, &JOB_FIELDS);
    assert_eq!(
        from_value, from_text,
        "one reader, whatever the document was written as"
    );
    if let Err(error) = from_value {
        says_something(&error.to_string(), text);
    }
}

fn keeps_its_promises(spec: &JobSpec) {
    assert!(spec.wall_limit_ms >= Millis(1_000));
    assert!(spec.expected_work() > Millis(0) && spec.expected_work() <= spec.wall_limit_ms);
    assert!(spec.cap.0.0 > 0 && spec.budget.0 >= 0);
    assert!(spec.budget >= spec.cap.due(LEAST_BILLED));
    assert!(spec.memory >= Bytes::from_mib(16) && spec.shm_size <= spec.memory);
    for input in &spec.inputs {
        let path = Path::new(&input.path);
        let plain = |part| matches!(part, Component::Normal(_));
        assert!(
            path.components().all(plain) && path.components().next().is_some(),
            "{path:?} leads out of /in"
        );
    }
    for (name, value) in &spec.env {
        assert!(!name.is_empty() && !name.contains(['=', '\0']), "{name:?}={value:?}");
        assert!(!value.contains('\0'), "exec would cut {name}={value:?}");
    }
    assert!(
        spec.command.iter().all(|word| !word.contains('\0')),
        "exec would cut {:?}",
        spec.command
    );
    if let Some(network) = &spec.network {
        assert!((1..=MOST_RULES).contains(&network.hosts.len()));
        for rule in &network.hosts {
            assert_eq!(
                &rule
                    .to_string()
                    .parse::<HostRule>()
                    .expect("a rule is written as it reads"),
                rule
            );
        }
    }
    if let ImageSource::Registry { reference } = &spec.image {
        assert!(reference.contains("@sha256:"));
    }
}

fn says_something(error: &str, input: &str) {
    assert!(
        !error.is_empty() && error.len() <= 4_096 + input.len() * 16,
        "{} bytes of error",
        error.len()
    );
}

/// Specs with everything and with little.
pub fn seeds() -> Vec<Vec<u8>> {
    let blob = format!("sha256:{}", "0".repeat(64));
    let little = json!({ "image": { "type": "archive", "blob": blob }, "cap": "0.600000", "budget": "1.000000",
        "wall_limit_ms": 600_000 });
    let much = json!({
        "name": "a job", "image": { "type": "registry", "reference": format!("registry.example/a@{blob}") },
        "command": ["run", "--fast"], "env": { "A": "b", "C": "" },
        "inputs": [{ "blob": blob, "path": "x/y" }, { "blob": blob, "path": "z" }],
        "vram": 8_589_934_592_u64, "tier": "gold", "cap": "0.6", "budget": "12", "work_ms": 1000,
        "wall_limit_ms": 600_000, "memory": 2_147_483_648_u64, "shm_size": 67_108_864, "output_limit": 1024,
        "checkpoint": { "interval_ms": 1000 },
        "network": { "hosts": ["example.org", "*.example.org:8443"], "down_per_s": 100_000, "up_per_s": 2048, "bytes": 1 },
    });
    let mut confidential = little.clone();
    confidential["secrets"] = json!({ "TOKEN": "a secret that is long", "OTHER": "" });
    confidential["result_key"] = json!("5".repeat(64));
    let mut seeds = Vec::new();
    for value in [little, much, confidential] {
        seeds.push([b"\0", value.to_string().as_bytes()].concat());
        let document: toml::Table = serde_json::from_value(value).expect("a spec is a table");
        seeds.push([b"\x01", document.to_string().as_bytes()].concat());
    }
    seeds
}
