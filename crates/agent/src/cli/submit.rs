//! `sela job submit`: a job from a file, or from options, checked here before it travels, by the same code as at the exchange.

use super::end::{CliError, Outcome};
use super::exchange::Exchange;
use super::output::Output;
use super::span;
use clap::Args;
use reqwest::Method;
use sela_protocol::confidential::SealingKey;
use sela_protocol::job::Submission;
use sela_protocol::tenant::Submitted;
use sela_protocol::units::Millis;
use serde_json::{Map, Value, json};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// How often a submission whose answer was lost is sent again: its key makes it one job all the same.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// What is submitted.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "image"]))]
pub(crate) struct Submit {
    /// A job spec in JSON; `-` reads it from standard input
    file: Option<PathBuf>,
    /// The image instead: the address that `sela images push` printed, or host/repository@sha256:…
    #[arg(long, requires_all = ["cap", "budget", "wall_limit"])]
    image: Option<String>,
    /// Most that an hour may cost
    #[arg(long, requires = "image")]
    cap: Option<String>,
    /// Most that the job may cost in all
    #[arg(long, requires = "image")]
    budget: Option<String>,
    /// Longest run: 90s, 30m, 2h
    #[arg(long, requires = "image", value_parser = span::parse)]
    wall_limit: Option<Millis>,
    /// A name for people
    #[arg(long, requires = "image")]
    name: Option<String>,
    /// Least memory that the card must have, in MiB
    #[arg(long, requires = "image", value_name = "MIB")]
    vram_mib: Option<u64>,
    /// Main memory, in MiB
    #[arg(long, requires = "image", value_name = "MIB")]
    memory_mib: Option<u64>,
    /// An encrypted disk for /tmp, /out and /checkpoint, in MiB; without it they lie in memory
    #[arg(long, requires = "image", value_name = "MIB")]
    scratch_mib: Option<u64>,
    /// bronze, silver or gold
    #[arg(long, requires = "image")]
    tier: Option<String>,
    /// How often /checkpoint is stored: 30s, 5m
    #[arg(long, requires = "image", value_parser = span::parse)]
    checkpoint_every: Option<Millis>,
    /// A variable for the job
    #[arg(long, requires = "image", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// A file under /in: its name there and the address that `sela images push` printed
    #[arg(long, requires = "image", value_name = "PATH=ADDRESS")]
    input: Vec<String>,
    /// A host that the job may reach, through the node's proxy: example.org, example.org:8443, *.example.org
    #[arg(long, requires = "image", value_name = "HOST")]
    host: Vec<String>,
    /// A secret for the job, from the environment variable of that name: the job finds it as the file /run/secrets/NAME
    #[arg(long, value_name = "NAME")]
    secret: Vec<String>,
    /// A secret for the job, from a file
    #[arg(long, value_name = "NAME=FILE")]
    secret_file: Vec<String>,
    /// Replaces the image's command
    #[arg(last = true, requires = "image")]
    command: Vec<String>,
}

/// Submits it and prints the job's id.
///
/// # Errors
/// A spec that is not right, or an exchange that refuses it or is not reached.
pub(crate) async fn submit(exchange: &Exchange, submit: Submit, output: &mut Output) -> Outcome {
    let text = with_confidential(&submit.text()?, &submit.secrets()?)?;
    Submission::parse(&text).map_err(|error| CliError::Usage(error.to_string()))?;
    let key = hex::encode(random::<16>()?);
    let mut tried = 1;
    let submitted: Submitted = loop {
        let request = exchange
            .request(Method::POST, "/v1/jobs")
            .header("idempotency-key", &key)
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(text.as_str().to_owned());
        match exchange.ask(request).await {
            Err(CliError::Unavailable(_)) if tried < TRIES => {
                tried += 1;
                tokio::time::sleep(PAUSE).await;
            }
            result => break result?,
        }
    };
    if output.is_json() {
        return Ok(output.document(&submitted)?);
    }
    Ok(output.line(submitted.job)?)
}

/// The job as it is sent: what only it may read stands beside the spec. The key for its results is made here, where they will be read.
fn with_confidential(text: &str, secrets: &[(String, Zeroizing<String>)]) -> Result<Zeroizing<String>, CliError> {
    let usage = |problem: &str| CliError::Usage(format!("job spec: {problem}"));
    let mut value: Value = serde_json::from_str(text).map_err(|error| usage(&format!("this is not JSON: {error}")))?;
    let job = value.as_object_mut().ok_or_else(|| usage("it must be an object"))?;
    if !job.contains_key("result_key") {
        let key = SealingKey::from_bytes(random()?);
        job.insert("result_key".to_owned(), Value::from(key.reveal().as_str()));
    }
    if !secrets.is_empty() {
        let written = job.entry("secrets").or_insert_with(|| json!({}));
        let written = written.as_object_mut().ok_or_else(|| usage("secrets: an object"))?;
        for (name, secret) in secrets {
            if written.insert(name.clone(), Value::from(secret.as_str())).is_some() {
                return Err(usage(&format!("the secret {name} is given twice")));
            }
        }
    }
    Ok(Zeroizing::new(value.to_string()))
}

fn random<const COUNT: usize>() -> Result<[u8; COUNT], CliError> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes)
        .map_err(|error| CliError::Failed(format!("the system gives no randomness: {error}")))?;
    Ok(bytes)
}

impl Submit {
    /// Never from the command line itself, which everybody on this machine can read.
    fn secrets(&self) -> Result<Vec<(String, Zeroizing<String>)>, CliError> {
        let mut secrets = Vec::new();
        for name in &self.secret {
            if name.contains('=') {
                return Err(CliError::Usage(
                    "--secret takes a NAME only: the value stands in the environment variable of that name, or in a file \
                     (--secret-file NAME=FILE); everybody on this machine can read a command line"
                        .to_owned(),
                ));
            }
            let value = std::env::var(name)
                .map_err(|error| CliError::Usage(format!("--secret {name}: the environment variable {name}: {error}")));
            secrets.push((name.clone(), Zeroizing::new(value?)));
        }
        for (name, file) in pairs(&self.secret_file, "--secret-file NAME=FILE")? {
            let value =
                std::fs::read(file).map_err(|error| CliError::Failed(format!("{file} cannot be read: {error}")))?;
            let value = String::from_utf8(value)
                .map_err(|_| CliError::Usage(format!("{file} holds no UTF-8 text: encode it, with base64 say")))?;
            secrets.push((name.to_owned(), Zeroizing::new(value)));
        }
        Ok(secrets)
    }

    fn text(&self) -> Result<Zeroizing<String>, CliError> {
        match (&self.file, &self.image) {
            (Some(file), _) => read(file).map(Zeroizing::new),
            (None, Some(image)) => self.described(image).map(|spec| Zeroizing::new(spec.to_string())),
            (None, None) => Err(CliError::Usage("give a FILE or --image".to_owned())),
        }
    }

    fn described(&self, image: &str) -> Result<Value, CliError> {
        let mut spec = Map::new();
        let source = if image.starts_with("sha256:") {
            json!({"type": "archive", "blob": image})
        } else {
            json!({"type": "registry", "reference": image})
        };
        spec.insert("image".to_owned(), source);
        let mib = |mib: u64| mib.saturating_mul(1 << 20);
        let fields = [
            ("name", self.name.clone().map(Value::from)),
            ("cap", self.cap.clone().map(Value::from)),
            ("budget", self.budget.clone().map(Value::from)),
            ("wall_limit_ms", self.wall_limit.map(|span| span.0.into())),
            ("vram", self.vram_mib.map(|size| mib(size).into())),
            ("memory", self.memory_mib.map(|size| mib(size).into())),
            ("scratch", self.scratch_mib.map(|size| mib(size).into())),
            ("tier", self.tier.clone().map(Value::from)),
            ("network", (!self.host.is_empty()).then(|| json!({"hosts": self.host}))),
            (
                "checkpoint",
                self.checkpoint_every.map(|span| json!({"interval_ms": span.0})),
            ),
        ];
        spec.extend(
            fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?))),
        );
        if !self.command.is_empty() {
            spec.insert("command".to_owned(), json!(self.command));
        }
        let mut env = Map::new();
        for (name, value) in pairs(&self.env, "--env NAME=VALUE")? {
            env.insert(name.to_owned(), value.into());
        }
        if !env.is_empty() {
            spec.insert("env".to_owned(), env.into());
        }
        let inputs: Vec<Value> = pairs(&self.input, "--input PATH=ADDRESS")?
            .into_iter()
            .map(|(path, blob)| json!({"path": path, "blob": blob}))
            .collect();
        if !inputs.is_empty() {
            spec.insert("inputs".to_owned(), inputs.into());
        }
        Ok(spec.into())
    }
}

fn pairs<'a>(texts: &'a [String], form: &str) -> Result<Vec<(&'a str, &'a str)>, CliError> {
    texts
        .iter()
        .map(|text| {
            text.split_once('=')
                .ok_or_else(|| CliError::Usage(format!("\"{text}\" should read {form}")))
        })
        .collect()
}

fn read(file: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let result = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text))
    };
    match result {
        Ok(_) => Ok(text),
        Err(error) => Err(CliError::Failed(format!("{} cannot be read: {error}", file.display()))),
    }
}
