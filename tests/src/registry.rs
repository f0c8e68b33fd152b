//! A real image registry on loopback, Debian's `docker-registry`, and pushing an image to it as its clients do.

use crate::{Part, wait_for};
use anyhow::{Context, ensure};
use sela_oci_images::{Image, write};
use sela_protocol::blob::BlobId;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const REPOSITORY: &str = "tests/job";

/// A registry.
#[derive(Debug)]
pub struct Registry {
    _server: Part,
    address: SocketAddr,
    http: ureq::Agent,
}

impl Registry {
    /// Starts one that keeps its things in `folder`.
    ///
    /// # Errors
    /// Where it does not come up; `cargo xtask setup` installs it.
    pub fn start(folder: &Path, logs: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        // Free now; another process could take it before the registry does, and then the test fails in the open.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let settings = json!({
            "version": 0.1,
            "log": { "level": "error" },
            "storage": { "filesystem": { "rootdirectory": folder.join("storage") } },
            "http": { "addr": address.to_string() },
        });
        // JSON is YAML.
        let file = folder.join("registry.yml");
        std::fs::write(&file, settings.to_string())?;
        let mut server = Part::new("registry", logs.join("registry.log"));
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(file).env("OTEL_TRACES_EXPORTER", "none");
        server
            .start(&mut command)
            .context("install docker-registry, or run `cargo xtask setup`")?;
        wait_for("the registry", || {
            server.is_up()?;
            Ok(TcpStream::connect(address).ok().map(drop))
        })?;
        let http = ureq::Agent::config_builder().proxy(None).build().into();
        Ok(Self {
            _server: server,
            address,
            http,
        })
    }

    /// Pushes an image and gives the reference by which a job names it.
    ///
    /// # Errors
    /// Where the registry refuses.
    pub fn push(&self, image: &Image, folder: &Path) -> anyhow::Result<String> {
        std::fs::create_dir_all(folder)?;
        let written = write(image, folder)?;
        let blob = |digest: &str| -> anyhow::Result<Vec<u8>> {
            let name = digest.strip_prefix("sha256:").context("a digest of sha256")?;
            Ok(std::fs::read(written.layout.join("blobs/sha256").join(name))?)
        };
        let manifest = blob(&written.manifest_digest)?;
        let parsed: Value = serde_json::from_slice(&manifest)?;
        let layers = parsed["layers"].as_array().context("a manifest has layers")?;
        for descriptor in layers.iter().chain([&parsed["config"]]) {
            self.push_blob(&blob(descriptor["digest"].as_str().context("a digest")?)?)?;
        }
        let url = self.url(&format!("manifests/{}", written.manifest_digest));
        let put = self.http.put(url).content_type(MANIFEST).send(&manifest)?;
        ensure!(put.status() == 201, "the registry answered {}", put.status());
        Ok(self.reference(&written.manifest_digest))
    }

    /// The reference by which a job names the image of a digest.
    pub fn reference(&self, digest: &str) -> String {
        format!("{}/{REPOSITORY}@{digest}", self.address)
    }

    fn push_blob(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let begun = self.http.post(self.url("blobs/uploads/")).send_empty()?;
        let place = begun
            .headers()
            .get("location")
            .context("the registry names no place")?
            .to_str()?;
        let put = self.http.put(format!("{place}&digest={}", BlobId::of(bytes)));
        let put = put.content_type("application/octet-stream").send(bytes)?;
        ensure!(put.status() == 201, "the registry answered {}", put.status());
        Ok(())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/v2/{REPOSITORY}/{path}", self.address)
    }
}
