//! What an image is before it is written: layers, how it starts, and what is deliberately wrong with it.

use serde_json::{Value, json};

use crate::layer::{Entry, Layer};

/// The OCI (Go) name of the processor architecture that this program was compiled for.
pub fn native_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "riscv64" => "riscv64",
        other => other,
    }
}

/// Something wrong with an image that its parts cannot express, done while it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The first layer's bytes are not those that its digest names.
    LayerContentAltered,
    /// The first layer ends early (under its right name).
    LayerTruncated,
    /// The first layer's blob is not there.
    LayerMissing,
    /// The manifest claims one byte less for the first layer than it has.
    LayerSizeUnderstated,
    /// The first layer has a media type that is no layer's.
    LayerMediaTypeUnknown,
    /// The config names another content hash for the first layer's tar.
    DiffIdWrong,
    /// The config lists no content hashes at all.
    DiffIdsMissing,
    /// The config's bytes are not those that its digest names.
    ConfigAltered,
    /// The config's blob is not there.
    ConfigMissing,
    /// The manifest's bytes are not those that its digest names.
    ManifestAltered,
    /// The manifest is not JSON (under its right digest).
    ManifestNotJson,
    /// The index names no manifest.
    IndexEmpty,
    /// A digest that is a path: `sha256:../../escaped`.
    LayerDigestIsPath,
}

/// An image to write. `Image::new` is honest: this machine's architecture, a non-root user.
#[derive(Debug, Clone)]
pub struct Image {
    /// The lowest layer first.
    pub layers: Vec<Layer>,
    /// OCI architecture name, such as `amd64`.
    pub architecture: String,
    /// OCI operating system name, such as `linux`.
    pub os: String,
    /// `Entrypoint` of the config. Empty: the field is left out.
    pub entrypoint: Vec<String>,
    /// `Cmd` of the config. Empty: the field is left out.
    pub command: Vec<String>,
    /// `Env` of the config, `NAME=value`.
    pub environment: Vec<String>,
    /// `WorkingDir` of the config.
    pub working_dir: String,
    /// `User` of the config.
    pub user: String,
    /// The name that the index gives to the manifest (`org.opencontainers.image.ref.name`).
    pub reference_name: String,
    /// What is done wrong on purpose.
    pub faults: Vec<Fault>,
    /// Entries that stand in the archive's tar before the image's own, exactly as given.
    pub archive_entries: Vec<Entry>,
}

impl Image {
    /// An image of these layers that starts `entrypoint`.
    pub fn new<S: Into<String>>(layers: Vec<Layer>, entrypoint: impl IntoIterator<Item = S>) -> Self {
        Image {
            layers,
            architecture: native_architecture().to_owned(),
            os: "linux".to_owned(),
            entrypoint: entrypoint.into_iter().map(Into::into).collect(),
            command: Vec::new(),
            environment: vec!["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()],
            working_dir: "/".to_owned(),
            user: "65534:65534".to_owned(),
            reference_name: "latest".to_owned(),
            faults: Vec::new(),
            archive_entries: Vec::new(),
        }
    }

    /// The same image with one more thing wrong.
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// The config blob for layers whose uncompressed tars have these hashes (hex).
    pub(crate) fn config_json(&self, diff_ids: &[String]) -> Value {
        let mut run = serde_json::Map::new();
        run.insert("User".to_owned(), json!(self.user));
        run.insert("WorkingDir".to_owned(), json!(self.working_dir));
        run.insert("Env".to_owned(), json!(self.environment));
        if !self.entrypoint.is_empty() {
            run.insert("Entrypoint".to_owned(), json!(self.entrypoint));
        }
        if !self.command.is_empty() {
            run.insert("Cmd".to_owned(), json!(self.command));
        }
        let diff_ids: Vec<String> = if self.has(Fault::DiffIdsMissing) {
            Vec::new()
        } else {
            diff_ids.iter().map(|hash| format!("sha256:{hash}")).collect()
        };
        json!({
            "created": "1970-01-01T00:00:00Z",
            "architecture": self.architecture,
            "os": self.os,
            "config": run,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        })
    }
}
