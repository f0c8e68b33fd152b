//! What a tenant asks for: the job spec as people write it, and the checks that need nothing but the spec. Whether a job
//! can be matched, and at what price, is the market's.

use crate::blob::BlobId;
use crate::confidential::{MOST_SECRETS, SECRETS_LIMIT, SealingKey, SecretName, SecretValue};
use crate::money::{HourlyPrice, Micros};
use crate::network::JobNetwork;
use crate::units::{Bytes, Millis};
use crate::written::{self, Fields, WrittenError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a job may be displaced by, and how it is scored (market.md §1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Interruptible: displaced by silver, gold and the owner.
    Bronze,
    /// On demand: displaced by gold and the owner.
    #[default]
    Silver,
    /// Displaced by the owner only.
    Gold,
}

/// Where a job's image comes from. Always by digest: a tag can change under a running market.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageSource {
    /// From a registry: `host[:port]/repository@sha256:…`.
    Registry {
        /// The whole reference.
        reference: String,
    },
    /// An OCI image layout as a tar archive, stored at the exchange.
    Archive {
        /// The archive's address.
        blob: BlobId,
    },
}

/// A file that the job finds under `/in`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInput {
    /// Where its bytes are.
    pub blob: BlobId,
    /// Its name under `/in`: one relative path without `..`.
    pub path: String,
}

/// When and how the job saves its state in `/checkpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSpec {
    /// How often what changed in `/checkpoint` is taken and stored.
    pub interval_ms: Millis,
}

/// A job as its tenant describes it. Written by people: see [`JobSpec::parse`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// A name for people.
    #[serde(default)]
    pub name: Option<String>,
    /// The image.
    pub image: ImageSource,
    /// Replaces the image's command; its entrypoint stays.
    #[serde(default)]
    pub command: Vec<String>,
    /// Added to the image's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Files under `/in`.
    #[serde(default)]
    pub inputs: Vec<JobInput>,
    /// Least memory that the card must have.
    #[serde(default)]
    pub vram: Bytes,
    /// How it may be displaced.
    #[serde(default)]
    pub tier: Tier,
    /// Most that an hour may cost.
    pub cap: HourlyPrice,
    /// Most that the job may cost in all.
    pub budget: Micros,
    /// Expected work on the reference card; the wall limit where it is not given.
    #[serde(default)]
    pub work_ms: Option<Millis>,
    /// Longest run in thawed time; then the job is ended.
    pub wall_limit_ms: Millis,
    /// Main memory, `/dev/shm` included, and `/tmp`, `/out` and `/checkpoint` unless they lie on `scratch`.
    #[serde(default = "default_memory")]
    pub memory: Bytes,
    /// Size of an encrypted disk for `/tmp`, `/out` and `/checkpoint` together. Without it they lie in `memory`; so they may with it, on a
    /// machine that has no such disk, where it is no more than `memory`.
    #[serde(default)]
    pub scratch: Option<Bytes>,
    /// Size of `/dev/shm`.
    #[serde(default = "default_shm")]
    pub shm_size: Bytes,
    /// Most that `/out` and `/checkpoint` may hold, each.
    #[serde(default = "default_output")]
    pub output_limit: Bytes,
    /// How it saves its state; without it a preempted job starts anew.
    #[serde(default)]
    pub checkpoint: Option<CheckpointSpec>,
    /// The hosts that it may reach through the node's proxy; no network without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<JobNetwork>,
}

const fn default_memory() -> Bytes {
    Bytes::from_gib(2)
}

const fn default_shm() -> Bytes {
    Bytes::from_mib(64)
}

const fn default_output() -> Bytes {
    Bytes::from_gib(1)
}

/// The names that a job may use as it is submitted: those of a job spec, and `result_key` and `secrets`, which [`Submission`] keeps apart.
pub const JOB_FIELDS: Fields = Fields {
    names: &[
        "name",
        "image",
        "command",
        "env",
        "inputs",
        "vram",
        "tier",
        "cap",
        "budget",
        "work_ms",
        "wall_limit_ms",
        "memory",
        "scratch",
        "shm_size",
        "output_limit",
        "checkpoint",
        "network",
        "result_key",
        "secrets",
    ],
    nested: &[
        ("image", Fields::flat(&["type", "reference", "blob"])),
        ("inputs", Fields::flat(&["blob", "path"])),
        ("checkpoint", Fields::flat(&["interval_ms"])),
        ("network", Fields::flat(&["hosts", "down_per_s", "up_per_s", "bytes"])),
    ],
};

/// A job as it is submitted: the spec, which many may read, and beside it what only the job may. Both stand in one JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The spec.
    pub spec: JobSpec,
    /// The key for its results; a client that gives none has the exchange make one.
    pub result_key: Option<SealingKey>,
    /// Its secrets.
    pub secrets: BTreeMap<SecretName, SecretValue>,
}

impl Submission {
    /// Reads and checks a job as it is submitted.
    ///
    /// # Errors
    /// As [`JobSpec::parse`]. No message repeats a key or the value of a secret.
    pub fn parse(json: &str) -> Result<Self, JobSpecError> {
        let mut value = written::value(json, &JOB_FIELDS)?;
        let mut take = |name| value.as_object_mut().and_then(|fields| fields.remove(name));
        let (result_key, secrets) = (take("result_key"), take("secrets"));
        let result_key = result_key.map(read_key).transpose()?;
        let secrets = secrets.map(read_secrets).transpose()?.unwrap_or_default();
        Ok(Self {
            spec: JobSpec::from_value(value)?,
            result_key,
            secrets,
        })
    }
}

fn read_key(value: Value) -> Result<SealingKey, JobSpecError> {
    serde_json::from_value(value).map_err(|_| JobSpecError::Contradiction {
        field: "result_key",
        problem: "64 hex digits; leave it out, and one is made".to_owned(),
    })
}

/// By hand: serde's messages would repeat what is wrong, and that may be a secret.
fn read_secrets(value: Value) -> Result<BTreeMap<SecretName, SecretValue>, JobSpecError> {
    let refuse = |problem: String| JobSpecError::Contradiction {
        field: "secrets",
        problem,
    };
    let Value::Object(fields) = value else {
        return Err(refuse("an object: {\"NAME\": \"value\"}".to_owned()));
    };
    let mut secrets = BTreeMap::new();
    for (name, value) in fields {
        let name = SecretName::try_from(name).map_err(|error| refuse(error.to_string()))?;
        let Value::String(value) = value else {
            return Err(refuse(format!("{name}: a text (base64 for what is none)")));
        };
        secrets.insert(name, SecretValue::new(value));
    }
    let bytes: usize = secrets.values().map(|value| value.reveal().len()).sum();
    if secrets.len() > MOST_SECRETS || bytes > SECRETS_LIMIT {
        return Err(refuse(format!(
            "{} secrets of {bytes} bytes together: at most {MOST_SECRETS} and {SECRETS_LIMIT}",
            secrets.len()
        )));
    }
    Ok(secrets)
}

/// Why a job spec was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobSpecError {
    /// It does not read as a job spec.
    #[error("job spec: {0}")]
    Written(#[from] WrittenError),
    /// Its fields contradict each other or are out of range.
    #[error("job spec: {field}: {problem}")]
    Contradiction {
        /// The field to change.
        field: &'static str,
        /// What is wrong with it and what would be right.
        problem: String,
    },
}

/// Largest job spec, written as JSON: with everything else that an award carries it must fit into one frame to a node.
pub const SPEC_LIMIT: usize = 512 << 10;
/// Longest name of a job, in characters, and longest path of an input, in bytes.
const LONGEST_NAME: usize = 200;
const LONGEST_PATH: usize = 1_024;
const LONGEST_PART: usize = 255;

/// Bounds of `scratch`.
const LEAST_SCRATCH: Bytes = Bytes::from_mib(16);
const MOST_SCRATCH: Bytes = Bytes::from_gib(1 << 10);

/// The shortest time that is billed and that a budget must cover (market.md §2, §5).
pub const LEAST_BILLED: Millis = Millis(60_000);

impl JobSpec {
    /// Reads and checks a job spec in which nothing confidential stands.
    ///
    /// # Errors
    /// Unknown (with the nearest name), missing, malformed or contradictory fields, each with what would be right.
    pub fn parse(json: &str) -> Result<Self, JobSpecError> {
        let submission = Submission::parse(json)?;
        if submission.result_key.is_some() || !submission.secrets.is_empty() {
            return Err(JobSpecError::Contradiction {
                field: "secrets",
                problem: "neither secrets nor result_key stand in a spec that others read".to_owned(),
            });
        }
        Ok(submission.spec)
    }

    fn from_value(value: Value) -> Result<Self, JobSpecError> {
        let spec: Self = written::read(value)?;
        spec.check()?;
        Ok(spec)
    }

    /// The expected work: as given, else the wall limit.
    pub fn expected_work(&self) -> Millis {
        self.work_ms.unwrap_or(self.wall_limit_ms)
    }

    fn check(&self) -> Result<(), JobSpecError> {
        let refuse = |field: &'static str, problem: String| Err(JobSpecError::Contradiction { field, problem });
        let written = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        if written > SPEC_LIMIT {
            return refuse(
                "env",
                format!(
                    "the whole spec has {written} bytes, and {SPEC_LIMIT} is the most: what is large belongs into inputs"
                ),
            );
        }
        if let Some(name) = &self.name
            && (name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control))
        {
            return refuse(
                "name",
                format!("at most {LONGEST_NAME} characters, and no control characters"),
            );
        }
        if self.wall_limit_ms.0 < 1_000 {
            return refuse("wall_limit_ms", "at least 1000 (one second)".into());
        }
        if let Some(work) = self.work_ms
            && (work.0 == 0 || work > self.wall_limit_ms)
        {
            return refuse(
                "work_ms",
                format!("between 1 and wall_limit_ms ({})", self.wall_limit_ms.0),
            );
        }
        if self.cap.0.0 <= 0 {
            return refuse("cap", "a price above zero per hour".into());
        }
        let least = self.cap.due(LEAST_BILLED);
        if self.budget < least {
            return refuse(
                "budget",
                format!("at least {least}: 60 seconds at the cap of {} per hour", self.cap),
            );
        }
        if let Some(checkpoint) = self.checkpoint
            && (checkpoint.interval_ms.0 < 1_000 || checkpoint.interval_ms > self.wall_limit_ms)
        {
            return refuse(
                "checkpoint.interval_ms",
                format!("between 1000 and wall_limit_ms ({})", self.wall_limit_ms.0),
            );
        }
        if self.memory < Bytes::from_mib(16) {
            return refuse("memory", "at least 16777216 (16 MiB)".into());
        }
        if let Some(scratch) = self.scratch
            && !(LEAST_SCRATCH..=MOST_SCRATCH).contains(&scratch)
        {
            return refuse(
                "scratch",
                format!("between {} (16 MiB) and {} (1 TiB)", LEAST_SCRATCH.0, MOST_SCRATCH.0),
            );
        }
        if self.shm_size > self.memory {
            return refuse(
                "shm_size",
                format!("at most memory ({}), of which it is a part", self.memory.0),
            );
        }
        if let Some((field, problem)) = self.network.as_ref().and_then(JobNetwork::problem) {
            return refuse(field, problem);
        }
        if let ImageSource::Registry { reference } = &self.image
            && !reference.contains("@sha256:")
        {
            return refuse(
                "image.reference",
                format!(
                    "\"{reference}\" names no digest; write host/repository@sha256:… so that nobody can change what runs"
                ),
            );
        }
        for input in &self.inputs {
            if !is_plain_relative(&input.path) {
                return refuse(
                    "inputs.path",
                    format!("\"{}\" must be a relative path without .. or empty parts", input.path),
                );
            }
        }
        if let Some((path, under)) = one_over_another(&self.inputs) {
            return refuse(
                "inputs.path",
                format!("\"{under}\" and \"{path}\" cannot both be there: each path is one file"),
            );
        }
        if let Some(word) = self.command.iter().find(|word| word.contains('\0')) {
            return refuse("command", format!("\"{}\" holds a zero byte", word.escape_debug()));
        }
        let bad_name = |name: &str| name.is_empty() || name.contains(['=', '\0']);
        for (name, value) in &self.env {
            if bad_name(name) {
                return refuse("env", format!("\"{}\" is no name of a variable", name.escape_debug()));
            }
            // What follows it would be lost in silence.
            if value.contains('\0') {
                return refuse("env", format!("the value of \"{name}\" holds a zero byte"));
            }
        }
        Ok(())
    }
}

fn is_plain_relative(path: &str) -> bool {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= LONGEST_PART;
    !path.contains('\0') && path.len() <= LONGEST_PATH && path.split('/').all(is_plain)
}

/// Two inputs of which one would overwrite the other, or would have to be a file and a folder at once.
fn one_over_another(inputs: &[JobInput]) -> Option<(&str, &str)> {
    let mut paths: Vec<Vec<&str>> = inputs.iter().map(|input| input.path.split('/').collect()).collect();
    let mut at: Vec<usize> = (0..inputs.len()).collect();
    at.sort_unstable_by(|one, other| paths[*one].cmp(&paths[*other]));
    paths.sort_unstable();
    // In this order what lies under a path follows it at once.
    let under = paths.windows(2).position(|pair| pair[1].starts_with(&pair[0]))?;
    Some((&inputs[at[under + 1]].path, &inputs[at[under]].path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec_with(
        change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
    ) -> Result<JobSpec, JobSpecError> {
        let mut value = serde_json::json!({
            "image": {"type": "archive", "blob": format!("sha256:{}", "0".repeat(64))},
            "cap": "0.600000", "budget": "1.000000", "wall_limit_ms": 600_000,
        });
        change(value.as_object_mut().expect("an object"));
        JobSpec::parse(&value.to_string())
    }

    fn two_inputs(spec: &mut serde_json::Map<String, serde_json::Value>, one: &str, other: &str) {
        let blob = format!("sha256:{}", "0".repeat(64));
        let inputs = [one, other].map(|path| serde_json::json!({"blob": blob, "path": path}));
        spec.insert("inputs".into(), inputs.to_vec().into());
    }

    #[test]
    fn inputs_beside_each_other_are_taken() {
        for (one, other) in [("a", "b"), ("a/b", "a/c"), ("a", "a-b/c"), ("a/b", "a.b")] {
            spec_with(|spec| two_inputs(spec, one, other)).unwrap_or_else(|error| panic!("{one}, {other}: {error}"));
        }
    }

    #[test]
    fn a_plain_spec_is_taken_with_its_defaults() {
        let spec = spec_with(|_| ()).expect("a good spec");
        assert_eq!((spec.tier, spec.expected_work()), (Tier::Silver, Millis(600_000)));
    }

    #[test]
    fn each_bad_spec_says_what_would_be_right() {
        type Change = fn(&mut serde_json::Map<String, serde_json::Value>);
        let cases: [(&str, Change); 20] = [
            ("524288 is the most", |spec| {
                drop(spec.insert("env".into(), serde_json::json!({"BLOB": "x".repeat(SPEC_LIMIT)})));
            }),
            ("no control characters", |spec| {
                drop(spec.insert("name".into(), "\u{1b}]0;yours\u{7}".into()));
            }),
            ("cannot both be there", |spec| two_inputs(spec, "a", "a")),
            ("\"a\" and \"a/b\" cannot both be there", |spec| {
                two_inputs(spec, "a/b", "a")
            }),
            ("scratch: between", |spec| {
                drop(spec.insert("scratch".into(), (1_u64 << 20).into()))
            }),
            ("must be a relative path", |spec| {
                two_inputs(spec, "a", &"x".repeat(256))
            }),
            ("did you mean \"wall_limit_ms\"", |spec| {
                drop(spec.insert("wall_limit".into(), 1.into()))
            }),
            ("missing field `wall_limit_ms`", |spec| {
                drop(spec.remove("wall_limit_ms"))
            }),
            ("missing field `cap`", |spec| drop(spec.remove("cap"))),
            ("work_ms: between 1 and", |spec| {
                drop(spec.insert("work_ms".into(), 600_001.into()))
            }),
            ("budget: at least 0.010000", |spec| {
                drop(spec.insert("budget".into(), "0.000001".into()))
            }),
            ("is not an amount", |spec| drop(spec.insert("cap".into(), "1,5".into()))),
            ("cap: a price above zero", |spec| {
                drop(spec.insert("cap".into(), "0.0".into()))
            }),
            ("names no digest", |spec| {
                drop(spec.insert(
                    "image".into(),
                    serde_json::json!({"type": "registry", "reference": "r/a:latest"}),
                ));
            }),
            ("checkpoint.interval_ms", |spec| {
                drop(spec.insert("checkpoint".into(), serde_json::json!({"interval_ms": 600_001})));
            }),
            ("env: \"A=B\" is no name", |spec| {
                drop(spec.insert("env".into(), serde_json::json!({"A=B": "c"})));
            }),
            ("env: the value of \"A\" holds a zero byte", |spec| {
                drop(spec.insert("env".into(), serde_json::json!({"A": "b\0c"})));
            }),
            ("command: \"a\\0b\" holds a zero byte", |spec| {
                drop(spec.insert("command".into(), serde_json::json!(["run", "a\0b"])));
            }),
            ("shm_size: at most memory", |spec| {
                drop(spec.insert("shm_size".into(), (1_u64 << 40).into()))
            }),
            ("must be a relative path", |spec| {
                let input = serde_json::json!([{"blob": format!("sha256:{}", "0".repeat(64)), "path": "../x"}]);
                drop(spec.insert("inputs".into(), input));
            }),
        ];
        for (says, change) in cases {
            let error = spec_with(change).expect_err(says).to_string();
            assert!(error.contains(says), "{error} should say {says}");
        }
    }

    const KEY: &str = "5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f";

    fn submission(secrets: serde_json::Value, key: serde_json::Value) -> Result<Submission, JobSpecError> {
        let value = serde_json::json!({
            "image": {"type": "archive", "blob": format!("sha256:{}", "0".repeat(64))},
            "cap": "0.600000", "budget": "1.000000", "wall_limit_ms": 600_000,
            "secrets": secrets, "result_key": key,
        });
        Submission::parse(&value.to_string())
    }

    #[test]
    fn what_is_confidential_is_kept_apart_from_the_spec() {
        let taken = submission(serde_json::json!({"TOKEN": "hunter2"}), KEY.into()).expect("a good job");
        assert_eq!(taken.secrets["TOKEN"].reveal(), "hunter2");
        assert_eq!(taken.result_key.as_ref().expect("a key").reveal().as_str(), KEY);
        let spec = serde_json::to_string(&taken.spec).expect("writes");
        assert!(!spec.contains("hunter2") && !spec.contains(KEY), "{spec}");
        let error = JobSpec::parse(r#"{"secret": {}}"#)
            .expect_err("a typing mistake")
            .to_string();
        assert!(error.contains("did you mean \"secrets\""), "{error}");
    }

    #[test]
    fn bad_secrets_are_refused_without_being_repeated() {
        let many: serde_json::Map<_, _> = (0..=MOST_SECRETS)
            .map(|number| (format!("S{number}"), "".into()))
            .collect();
        for (secrets, key, says) in [
            (serde_json::json!("hunter2"), KEY, "an object"),
            (serde_json::json!({"A": ["hunter2"]}), KEY, "A: a text"),
            (serde_json::json!({"a/b": "hunter2"}), KEY, "no name of a secret"),
            (serde_json::json!({"A": "hunter2".repeat(10_000)}), KEY, "at most"),
            (many.into(), KEY, "at most"),
            (serde_json::json!({}), "hunter2", "64 hex digits"),
        ] {
            let error = submission(secrets, key.into()).expect_err(says).to_string();
            assert!(
                error.contains(says) && !error.contains("hunter2"),
                "{error} should say {says}"
            );
        }
    }
}
