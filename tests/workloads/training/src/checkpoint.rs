//! A checkpoint: one safetensors file with everything that the next step depends on. A run that is stopped and resumed
//! goes on bit for bit where it stopped.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use candle_core::{DType, Device, Tensor};
use sela_workload_card::write_whole;

use crate::optimiser::Moments;
use crate::training::{Settings, Training};

const FILE: &str = "training.safetensors";

/// The folder that checkpoints are kept in.
#[derive(Debug)]
pub(crate) struct CheckpointFolder {
    file: PathBuf,
}

impl CheckpointFolder {
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("could not use {} for checkpoints", folder.display()))?;
        Ok(CheckpointFolder {
            file: folder.join(FILE),
        })
    }

    /// Writes the run's state in place of the previous one, whole or not at all.
    pub(crate) fn save(&self, training: &Training) -> anyhow::Result<()> {
        let tensors = to_tensors(training)?;
        write_whole(&self.file, |unfinished| {
            candle_core::safetensors::save(&tensors, unfinished).map_err(io::Error::other)
        })?;
        Ok(())
    }

    /// The run that the checkpoint holds, or `None` where there is no checkpoint yet.
    pub(crate) fn resume(&self, settings: Settings, device: &Device) -> anyhow::Result<Option<Training>> {
        if !self.file.exists() {
            return Ok(None);
        }
        let resumed = candle_core::safetensors::load(&self.file, &Device::Cpu)
            .map_err(anyhow::Error::from)
            .and_then(|tensors| from_tensors(&tensors, settings, device));
        resumed.map(Some).with_context(|| {
            format!(
                "the checkpoint {} cannot be resumed; start with an empty checkpoint folder to begin anew",
                self.file.display()
            )
        })
    }
}

fn to_tensors(training: &Training) -> anyhow::Result<HashMap<String, Tensor>> {
    let mut tensors = HashMap::new();
    for (name, parameter) in training.model.parameters() {
        tensors.insert(format!("parameter.{name}"), parameter.as_tensor().clone());
    }
    for (name, moments) in training.optimiser.moments() {
        tensors.insert(format!("first_moment.{name}"), moments.first.clone());
        tensors.insert(format!("second_moment.{name}"), moments.second.clone());
    }
    let settings = serde_json::to_vec(&training.settings)?;
    let position = training.random.get_word_pos().to_le_bytes();
    let mut small = |name: &str, bytes: &[u8]| -> anyhow::Result<()> {
        tensors.insert(name.to_owned(), Tensor::new(bytes, &Device::Cpu)?);
        Ok(())
    };
    small("settings", &settings)?;
    small("step", &training.step.to_le_bytes())?;
    small("loss", &training.loss.to_le_bytes())?;
    small("random_position", &position)?;
    Ok(tensors)
}

fn from_tensors(tensors: &HashMap<String, Tensor>, settings: Settings, device: &Device) -> anyhow::Result<Training> {
    let find = |name: &str| tensors.get(name).with_context(|| format!("it has no {name}"));
    let saved: Settings = serde_json::from_slice(&find("settings")?.to_vec1::<u8>()?)?;
    if saved != settings {
        bail!("it is of a run with other settings ({saved:?}, now {settings:?})");
    }

    let mut training = Training::new(settings, device)?;
    let of_shape = |name: String, like: &Tensor| -> anyhow::Result<Tensor> {
        let tensor = find(&name)?;
        ensure!(
            tensor.shape() == like.shape() && tensor.dtype() == DType::F32,
            "{name} has the wrong shape"
        );
        Ok(tensor.to_device(device)?)
    };
    for (name, parameter) in training.model.parameters() {
        parameter.set(&of_shape(format!("parameter.{name}"), parameter)?)?;
        let moments = Moments {
            first: of_shape(format!("first_moment.{name}"), parameter)?,
            second: of_shape(format!("second_moment.{name}"), parameter)?,
        };
        training.optimiser.set_moments(name, moments);
    }
    training.step = u32::from_le_bytes(bytes(find("step")?)?);
    training.loss = f32::from_le_bytes(bytes(find("loss")?)?);
    let position = u128::from_le_bytes(bytes(find("random_position")?)?);
    training.random.set_word_pos(position);
    Ok(training)
}

fn bytes<const N: usize>(tensor: &Tensor) -> anyhow::Result<[u8; N]> {
    let bytes = tensor.to_vec1::<u8>()?;
    bytes
        .try_into()
        .ok()
        .with_context(|| format!("a number of {N} bytes has another size"))
}
