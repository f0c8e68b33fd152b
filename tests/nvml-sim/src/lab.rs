//! The folder that a simulated driver lives in: which cards there are, their device nodes, the faults that a test asks for, and
//! where a card's state is kept. Tests and `cargo xtask run` create it; the driver finds it by `SELA_NVML_SIM_DIR`.
//!
//! ```text
//! cards.toml             the cards, in NVML's order
//! faults.toml            faults asked for; absent where there are none
//! dev/sela-sim<N>        device nodes, N = NVML's minor number = position in cards.toml
//! state/<uuid>.*         what a card remembers between calls and processes; see `state`
//! ```
//!
//! Anybody may read and write it: a lab is no boundary. Of it, a job sees one device node and nothing else.

use crate::cuda::CudaUse;
use crate::faults::Faults;
use crate::plan::{CardPlan, PlanError};
use serde::{Deserialize, Serialize};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Names the lab's folder to the driver. The folder must be absolute.
pub const FOLDER_VARIABLE: &str = "SELA_NVML_SIM_DIR";

/// A lab on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Lab {
    folder: PathBuf,
    cards: Vec<CardPlan>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardsFile {
    #[serde(rename = "card")]
    cards: Vec<CardPlan>,
}

/// Why there is no lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A lab is there already; opening it keeps its cards' temperatures and limits.
    #[error("{0} holds a lab already: open it, or remove the folder first")]
    AlreadyThere(PathBuf),
    /// A card that cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Two cards of one UUID.
    #[error("card {0} is listed twice")]
    Twice(String),
    /// A file that people write does not parse.
    #[error("{path}: {message}")]
    Syntax {
        /// Which.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
}

impl Lab {
    /// Lays out a new lab in `folder`, which is made where it is missing. Leaves nothing behind where it fails before any
    /// file is written; `cards.toml` is written last, so a lab that opens is whole.
    pub fn create(folder: &Path, cards: &[CardPlan]) -> Result<Self, LabError> {
        for (index, card) in cards.iter().enumerate() {
            card.check()?;
            if cards[..index].iter().any(|other| other.uuid == card.uuid) {
                return Err(LabError::Twice(card.uuid.clone()));
            }
        }
        if folder.join("cards.toml").exists() {
            return Err(LabError::AlreadyThere(folder.to_owned()));
        }
        for part in ["", "dev", "state"] {
            let part = folder.join(part);
            std::fs::create_dir_all(&part).map_err(at(&part))?;
            std::fs::set_permissions(&part, Permissions::from_mode(0o777)).map_err(at(&part))?;
        }
        let lab = Self {
            folder: std::path::absolute(folder).map_err(at(folder))?,
            cards: cards.to_vec(),
        };
        for (minor, card) in lab.cards.iter().enumerate() {
            make_node(&lab.device_node(minor), card)?;
            write_whole(&lab.state_file(card, "lock"), &[])?;
            write_whole(&lab.state_file(card, "cuda"), &[])?;
        }
        let file = CardsFile {
            cards: lab.cards.clone(),
        };
        let text =
            toml::to_string_pretty(&file).expect("a plan holds only numbers and text, all of which TOML can say");
        write_whole(&lab.folder.join("cards.toml"), text.as_bytes())?;
        Ok(lab)
    }

    /// Opens the lab in `folder`.
    pub fn open(folder: &Path) -> Result<Self, LabError> {
        let path = folder.join("cards.toml");
        let file: CardsFile = parse(&path, &std::fs::read_to_string(&path).map_err(at(&path))?)?;
        for card in &file.cards {
            card.check()?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            cards: file.cards,
        })
    }

    /// The folder, to be handed to processes as [`FOLDER_VARIABLE`].
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The cards, in NVML's order.
    pub fn cards(&self) -> &[CardPlan] {
        &self.cards
    }

    /// The device node of the card with this minor number.
    pub fn device_node(&self, minor: usize) -> PathBuf {
        self.folder.join("dev").join(format!("sela-sim{minor}"))
    }

    /// Asks for faults from now on, in every process; the default asks for none.
    pub fn set_faults(&self, faults: &Faults) -> Result<(), LabError> {
        let text =
            toml::to_string_pretty(faults).expect("faults hold only numbers and text, all of which TOML can say");
        write_whole(&self.folder.join("faults.toml"), text.as_bytes())
    }

    /// The faults that are asked for now.
    pub fn faults(&self) -> Result<Faults, LabError> {
        let path = self.folder.join("faults.toml");
        match std::fs::read_to_string(&path) {
            Ok(text) => parse(&path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Faults::default()),
            Err(source) => Err(LabError::File { path, source }),
        }
    }

    /// What CUDA programs have done to a card's memory since the lab was made: the driver's own count.
    pub fn cuda_use(&self, card: &CardPlan) -> Result<Vec<CudaUse>, LabError> {
        let path = self.state_file(card, "cuda");
        let text = std::fs::read_to_string(&path).map_err(at(&path))?;
        let said = |line: &str| {
            serde_json::from_str(line).map_err(|error| LabError::Syntax {
                path: path.clone(),
                message: error.to_string(),
            })
        };
        text.lines().map(said).collect()
    }

    /// Where a card's state of one kind is kept.
    pub(crate) fn state_file(&self, card: &CardPlan, kind: &str) -> PathBuf {
        self.folder.join("state").join(format!("{}.{kind}", card.uuid))
    }
}

fn make_node(path: &Path, card: &CardPlan) -> Result<(), LabError> {
    let node = std::fs::File::create(path).map_err(at(path))?;
    node.set_len(card.allocatable_mib()).map_err(at(path))?;
    node.set_permissions(Permissions::from_mode(0o666)).map_err(at(path))
}

/// Writes a file so that a reader sees the old text or the new one, never half.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), LabError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = std::fs::write(&temporary, bytes)
        .and_then(|()| std::fs::set_permissions(&temporary, Permissions::from_mode(0o666)))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report; an unlink that fails too changes nothing about it.
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(at(path))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, LabError> {
    toml::from_str(text).map_err(|error| LabError::Syntax {
        path: path.to_owned(),
        message: error.to_string(),
    })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> LabError {
    let path = path.to_owned();
    move |source| LabError::File { path, source }
}
