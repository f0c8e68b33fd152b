//! Everything that a job needs before it can start: its image in the cache, its inputs and its checkpoint in the lease's
//! scratch folder. Dropping the future half-way leaves what was fetched in that folder, which its owner removes.

use super::Workshop;
use crate::market::{Blobs, TransferError};
use sela_protocol::job::JobInput;
use sela_protocol::lease::EndCause;
use sela_protocol::local::ImageTransfer;
use sela_protocol::node::Award;
use sela_sandbox::docker::image::GivenImage;
use sela_sandbox::image::{Blame, ImageError, ImageReference, LOGIN_SECRET, PreparedImage, Progress, RegistryLogin};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How often an image is tried again when the way to it breaks, and after which pause.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(3);

/// What was fetched.
#[derive(Debug)]
pub(super) struct Fetched {
    /// The image; must live until nothing is mounted from it.
    pub(super) image: PreparedImage,
    /// The image in the engine, where one walls jobs in: it keeps it for as long as this lives.
    pub(super) given: Option<GivenImage>,
    /// The folder that becomes `/in`.
    pub(super) inputs: Option<PathBuf>,
    /// The archive to go on from.
    pub(super) checkpoint: Option<PathBuf>,
}

/// Fetches all of it into `folder`, which is made. `told` hears how far the image is, each time that something came.
///
/// # Errors
/// On whose account the failure goes, with the reason.
pub(super) async fn fetch(
    workshop: &Workshop,
    award: &Award,
    blobs: &Blobs,
    folder: &Path,
    told: &watch::Sender<Option<ImageTransfer>>,
) -> Result<Fetched, EndCause> {
    make_folder(folder, 0o700).await?;
    let image = image(workshop, award, blobs, told).await?;
    let given = match &workshop.engine {
        None => None,
        Some(engine) => {
            let given = engine.load(image.digest, &image.layers).await;
            Some(given.map_err(|error| EndCause::NodeFault {
                message: error.to_string(),
            })?)
        }
    };
    let inputs = if award.spec.inputs.is_empty() {
        None
    } else {
        Some(inputs(&award.spec.inputs, blobs, &folder.join("in")).await?)
    };
    let checkpoint = match award.checkpoint {
        None => None,
        Some(blob) => {
            let path = folder.join("resume.sealed");
            blobs.fetch(blob, &path).await.map_err(|error| transfer_fault(&error))?;
            Some(path)
        }
    };
    Ok(Fetched {
        image,
        given,
        inputs,
        checkpoint,
    })
}

async fn image(
    workshop: &Workshop,
    award: &Award,
    blobs: &Blobs,
    told: &watch::Sender<Option<ImageTransfer>>,
) -> Result<PreparedImage, EndCause> {
    let reference = ImageReference::try_from(&award.spec.image).map_err(|error| image_fault(&error))?;
    let login = login_of(award)?;
    let mut tries = 0;
    loop {
        let teller = Mutex::new(Teller {
            tell: told.clone(),
            logged: 0,
        });
        let report = move |progress| {
            let mut teller = teller.lock().unwrap_or_else(PoisonError::into_inner);
            teller.note(progress);
        };
        match workshop.cache.prepare(&reference, login.as_ref(), blobs, report).await {
            Ok(image) => return Ok(image),
            Err(error) if error.blame() == Blame::Network && tries < TRIES => {
                tracing::info!(%error, "the image is tried again");
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(image_fault(&error)),
        }
    }
}

/// The login at the image's registry, where the job brings one among its secrets.
fn login_of(award: &Award) -> Result<Option<RegistryLogin>, EndCause> {
    let secrets = award.confidential.as_ref().map(|confidential| &confidential.secrets);
    let secret = secrets.and_then(|secrets| secrets.get(LOGIN_SECRET));
    let login = secret.map(|secret| RegistryLogin::parse(secret.reveal())).transpose();
    login.map_err(|error| EndCause::JobFault {
        message: error.to_string(),
    })
}

/// Tells how far the making ready of an image is: the agent a few times a second, and the log at each tenth of it, or each quarter
/// of a gigabyte where nobody knows how much it is.
struct Teller {
    tell: watch::Sender<Option<ImageTransfer>>,
    logged: u64,
}

impl Teller {
    fn note(&mut self, progress: Progress) {
        let Progress {
            done,
            total,
            layers_done,
            layers,
        } = progress;
        let step = total.map_or(256 << 20, |total| (total.0 / 10).max(1));
        let steps = done.0 / step;
        if self.logged < steps {
            self.logged = steps;
            tracing::info!(
                done = done.0,
                total = total.map(|total| total.0),
                layers_done,
                layers,
                "bytes of the image are here"
            );
        }
        self.tell.send_replace(Some(ImageTransfer {
            done,
            total,
            layers_done,
            layers,
        }));
    }
}

async fn inputs(inputs: &[JobInput], blobs: &Blobs, folder: &Path) -> Result<PathBuf, EndCause> {
    make_folder(folder, 0o755).await?;
    for input in inputs {
        let path = folder.join(&input.path);
        // The spec was checked where it was submitted; that an exchange passes on nothing else is not relied on.
        if !path.starts_with(folder) || input.path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(EndCause::JobFault {
                message: format!("input path \"{}\" must be a relative path without ..", input.path),
            });
        }
        let mut parents: Vec<&Path> = path
            .ancestors()
            .skip(1)
            .take_while(|parent| *parent != folder)
            .collect();
        parents.reverse();
        for parent in parents {
            make_folder(parent, 0o755).await?;
        }
        blobs
            .fetch(input.blob, &path)
            .await
            .map_err(|error| transfer_fault(&error))?;
        // The job's ids are others than the agent's: it reads as one of "all".
        set_mode(&path, 0o644).await?;
    }
    Ok(folder.to_owned())
}

async fn make_folder(folder: &Path, mode: u32) -> Result<(), EndCause> {
    match tokio::fs::create_dir(folder).await {
        Ok(()) => set_mode(folder, mode).await,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(file_fault(folder, &error)),
    }
}

async fn set_mode(path: &Path, mode: u32) -> Result<(), EndCause> {
    let permissions = std::fs::Permissions::from_mode(mode);
    let set = tokio::fs::set_permissions(path, permissions).await;
    set.map_err(|error| file_fault(path, &error))
}

fn file_fault(path: &Path, error: &std::io::Error) -> EndCause {
    EndCause::NodeFault {
        message: format!("{} could not be written: {error}", path.display()),
    }
}

fn transfer_fault(error: &TransferError) -> EndCause {
    EndCause::NodeFault {
        message: error.to_string(),
    }
}

fn image_fault(error: &ImageError) -> EndCause {
    let message = error.to_string();
    match error.blame() {
        Blame::Image => EndCause::JobFault { message },
        Blame::Machine | Blame::Network => EndCause::NodeFault { message },
    }
}
