//! The images of test jobs, as OCI archives on disk: a line of busybox shell, or the test program with the libraries that it asks for.

use crate::{program, work};
use anyhow::Context;
use sela_oci_images::{Content, Image, Layer, busybox_layer, busybox_script, libraries_of, write};
use sela_protocol::blob::BlobId;
use std::path::{Path, PathBuf};

/// An image on disk.
#[derive(Debug, Clone)]
pub struct TestImage {
    /// The OCI archive.
    pub archive: PathBuf,
    /// Its address.
    pub blob: BlobId,
}

/// Writes an image below `folder`.
///
/// # Errors
/// Where the disk or a part of the image is missing.
pub fn write_image(image: &Image, folder: &Path) -> anyhow::Result<TestImage> {
    std::fs::create_dir_all(folder)?;
    let written = write(image, folder)?;
    let bytes = std::fs::read(&written.archive)?;
    Ok(TestImage {
        archive: written.archive,
        blob: BlobId::of(&bytes),
    })
}

/// An image that runs a line of shell.
///
/// # Errors
/// Where busybox is missing.
pub fn image_of_a_script(script: &str, folder: &Path) -> anyhow::Result<TestImage> {
    write_image(&busybox_script(script)?, folder)
}

/// The image of `sela-test-job`.
///
/// # Errors
/// Where it was not built.
pub fn image_of_the_test_job(folder: &Path) -> anyhow::Result<TestImage> {
    image_of_a_program(&program("sela-test-job")?, "sela-test-job", folder)
}

/// The image of a program of this machine's, with the libraries that it asks for and busybox.
///
/// # Errors
/// Where the program or a library of it is missing.
pub fn image_of_a_program(program: &Path, name: &str, folder: &Path) -> anyhow::Result<TestImage> {
    let mut libraries = busybox_layer()?;
    for library in libraries_of(program)? {
        libraries = libraries.content(inside(&library)?, 0o755, Content::File(library.clone()));
    }
    let place = format!("usr/local/bin/{name}");
    let layer = Layer::new().content(&place, 0o755, Content::File(program.to_owned()));
    let mut image = Image::new(vec![libraries, layer], [format!("/{place}")]);
    image.reference_name = name.to_owned();
    write_image(&image, folder)
}

/// What `/out/result` must say after `steps`, computed here anew.
pub fn expected_result(steps: u64) -> String {
    let value = (0..steps).fold(0, |value, _| work::step(value));
    format!("{steps} {value:016x}\n")
}

fn inside(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .and_then(|path| path.strip_prefix('/'))
        .with_context(|| format!("{} is not an absolute path in UTF-8", path.display()))
}
