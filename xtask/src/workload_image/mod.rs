//! Makes OCI images of the workloads under `tests/workloads`, without Docker: the program, the libraries that it asks for,
//! its files, and nothing else. What an image is made of is decided here; how one is written is `sela-oci-images`' work,
//! and running one is the agent's.

mod model;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use sela_oci_images::{Compression, Content, Image, ImageOnDisk, Layer, libraries_of};

use crate::commands;
use crate::places::{Places, Profile};

pub(crate) use model::fetch_smollm2;

/// What goes into an image.
#[derive(Debug, Clone)]
pub(crate) struct WorkloadPlan {
    /// The name that the image's index gives it.
    pub(crate) name: &'static str,
    /// The compiled program on this machine; it stands under `/usr/local/bin` in the image and is what starts.
    pub(crate) program: PathBuf,
    /// Files on this machine, and the absolute paths at which the program finds them.
    pub(crate) files: Vec<(PathBuf, &'static str)>,
}

impl WorkloadPlan {
    /// A language model that answers a file of prompts. [`compile`] first; `model` is what [`fetch_smollm2`] gives.
    pub(crate) fn batch_inference(places: &Places, model: &Path) -> Self {
        Self {
            name: "batch-inference",
            program: places.program(Profile::Release, "batch-inference"),
            files: vec![(model.to_path_buf(), "/model/model.gguf")],
        }
    }

    /// The training of a small transformer. [`compile`] first.
    pub(crate) fn training(places: &Places) -> Self {
        Self {
            name: "training",
            program: places.program(Profile::Release, "char-transformer"),
            files: Vec::new(),
        }
    }
}

/// The packages of the workloads. Always built together: cargo would compile candle anew for another choice of them.
pub(crate) const PACKAGES: [&str; 6] = [
    "-p",
    "sela-batch-inference",
    "-p",
    "sela-training",
    "-p",
    "sela-workload-card",
];

/// Compiles the workloads, with CUDA where there are both a card and its compiler.
///
/// # Errors
/// If cargo fails.
pub(crate) fn compile(places: &Places) -> anyhow::Result<()> {
    let mut cargo = commands::cargo(places, ["build", "--release"]);
    cargo.args(PACKAGES);
    if Path::new("/dev/nvidiactl").exists() && has_cuda_compiler() {
        cargo.args(["--features", "sela-batch-inference/cuda,sela-training/cuda"]);
    }
    commands::run(&mut cargo)
}

fn has_cuda_compiler() -> bool {
    let answer = Command::new("nvcc").arg("--version").output();
    answer.is_ok_and(|answer| answer.status.success())
}

/// Writes the image to `folder/layout/` and `folder/image.tar`. The same program and files give the same digests.
///
/// # Errors
/// If the program or a file is not there, or a library that it asks for is not.
pub(crate) fn build(plan: &WorkloadPlan, folder: &Path) -> anyhow::Result<ImageOnDisk> {
    let image = image(plan).with_context(|| format!("cannot make the image {}", plan.name))?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    sela_oci_images::write(&image, folder).with_context(|| format!("cannot write the image {}", plan.name))
}

/// What changes least is lowest: the libraries are the same for all workloads, the program changes with every build.
fn image(plan: &WorkloadPlan) -> anyhow::Result<Image> {
    let mut libraries = Layer::new().mount_points();
    for library in libraries_of(&plan.program)? {
        libraries = libraries.content(inside(&library)?, 0o755, Content::File(library.clone()));
    }
    let mut layers = vec![libraries];
    if !plan.files.is_empty() {
        // Quantised weights are noise to a compressor.
        let mut files = Layer::new().compressed(Compression::None);
        for (from, to) in &plan.files {
            files = files.content(inside(Path::new(to))?, 0o644, Content::File(from.clone()));
        }
        layers.push(files);
    }
    let program = plan.program.file_name().and_then(|name| name.to_str());
    let program = format!("/usr/local/bin/{}", program.context("the program has no name")?);
    layers.push(Layer::new().content(inside(Path::new(&program))?, 0o755, Content::File(plan.program.clone())));

    let mut image = Image::new(layers, [program]);
    image.reference_name = plan.name.to_owned();
    Ok(image)
}

/// An absolute path as a layer names it.
fn inside(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .and_then(|path| path.strip_prefix('/'))
        .with_context(|| format!("{} is not an absolute path in UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of_this_program(folder: &Path) -> WorkloadPlan {
        let model = folder.join("weights");
        std::fs::write(&model, "weights").unwrap();
        WorkloadPlan {
            name: "test",
            program: std::env::current_exe().unwrap(),
            files: vec![(model, "/model/model.gguf")],
        }
    }

    /// Every entry of the image's uncompressed layers.
    fn entries(image: &ImageOnDisk) -> Vec<String> {
        let mut names = Vec::new();
        for blob in std::fs::read_dir(image.layout.join("blobs/sha256")).unwrap() {
            let bytes = std::fs::read(blob.unwrap().path()).unwrap();
            for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
                match entry {
                    Ok(entry) => names.push(entry.path().unwrap().to_string_lossy().into_owned()),
                    // A blob that is no tar: the config, the manifest, or a compressed layer.
                    Err(_) => break,
                }
            }
        }
        names
    }

    #[test]
    fn an_image_holds_the_files_at_their_places_and_starts_the_program() {
        let folder = temporary("holds");
        let plan = plan_of_this_program(&folder);
        let image = build(&plan, &folder.join("image")).unwrap();
        assert!(entries(&image).contains(&"model/model.gguf".to_owned()));
        assert!(image.bytes > std::fs::metadata(&plan.program).unwrap().len() / 4);
        assert_eq!(image.archive, folder.join("image/image.tar"));

        let described = super::image(&plan).unwrap();
        assert_eq!(described.user, "65534:65534");
        assert_eq!(described.layers.len(), 3);
        assert!(described.entrypoint[0].starts_with("/usr/local/bin/"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_same_program_and_files_give_the_same_image() {
        let folder = temporary("same");
        let plan = plan_of_this_program(&folder);
        let one = build(&plan, &folder.join("one")).unwrap();
        let other = build(&plan, &folder.join("other")).unwrap();
        assert_eq!(one.manifest_digest, other.manifest_digest);
        assert_eq!(one.archive_sha256, other.archive_sha256);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_program_that_was_not_built_is_named() {
        let folder = temporary("missing");
        let mut plan = plan_of_this_program(&folder);
        plan.program = folder.join("not-built");
        let error = format!("{:#}", build(&plan, &folder.join("image")).unwrap_err());
        assert!(error.contains("not-built"), "{error}");
        assert!(!folder.join("image").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn temporary(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sela-xtask-image-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }
}
