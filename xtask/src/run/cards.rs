//! Which cards the run uses: the machine's own where its NVIDIA driver has one, else one SIMULATED card in a lab of its own.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use sela_nvml_sim::{CardPlan, FOLDER_VARIABLE, LIBRARY_FILE, Lab};

use crate::places::{Places, Profile};

/// The cards of a run.
#[derive(Debug)]
pub(crate) enum Cards {
    /// The machine's own, by name.
    Real(Vec<String>),
    /// One that is simulated.
    Simulated(Lab),
}

impl Cards {
    /// Asks the machine's driver; where there is none or it has no card, lays out a lab in `folder`.
    ///
    /// # Errors
    /// If the lab cannot be laid out.
    pub(crate) fn find(folder: &Path) -> anyhow::Result<Self> {
        let real = sela_gpu::Nvml::start(None).and_then(|driver| driver.cards());
        match real {
            Ok(cards) if !cards.is_empty() => Ok(Self::Real(cards.into_iter().map(|card| card.name).collect())),
            // A driver that is there and does not work is worth a word; one that is not there is the usual case.
            Ok(_) | Err(_) => {
                let lab = Lab::create(folder, &[CardPlan::rtx_3090()]).context("cannot lay out the simulated card")?;
                Ok(Self::Simulated(lab))
            }
        }
    }

    /// Whether the exchange and the agent must be told that this is a lab.
    pub(crate) fn are_simulated(&self) -> bool {
        match self {
            Self::Real(_) => false,
            Self::Simulated(_) => true,
        }
    }

    /// The names, for people.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::Real(names) => names.iter().map(String::as_str).collect(),
            Self::Simulated(lab) => lab.cards().iter().map(|card| card.name.as_str()).collect(),
        }
    }

    /// Lets `command` see the simulated driver in place of the machine's, if this is one.
    pub(crate) fn show_to(&self, places: &Places, command: &mut Command) {
        match self {
            Self::Real(_) => {}
            Self::Simulated(lab) => {
                command.env("SELA_NVML_LIBRARY", places.built(Profile::Dev).join(LIBRARY_FILE));
                command.env(FOLDER_VARIABLE, lab.folder());
            }
        }
    }
}
