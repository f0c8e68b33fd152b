//! What a simulated card remembers between calls and between processes: when it was last looked at, its warmth, its holders'
//! processor time, and its power limit. Files in the lab's `state` folder, replaced whole, so that no reader ever sees half
//! and a killed or stopped process blocks nobody. How a card changes lives in `card`.

use crate::lab::{self, Lab, LabError};
use crate::plan::CardPlan;
use crate::thermal::ThermalState;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::File;

/// A card as it was last looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Which boot `boot_nanos` counts from: a record of another boot is worth nothing.
    pub(crate) boot_id: String,
    /// When, on `CLOCK_BOOTTIME`.
    pub(crate) boot_nanos: u64,
    pub(crate) thermal: ThermalState,
    /// Share of the last window in which the card worked, 0 to 1.
    pub(crate) busy: f64,
    /// Power over the last window.
    pub(crate) watts: f64,
    /// Energy since this boot.
    pub(crate) joules: f64,
    pub(crate) holders: Vec<HolderRecord>,
    /// What the temperature has read since a test asked for it to stick.
    pub(crate) stuck_celsius: Option<u32>,
}

/// A holder's processor time, to be subtracted from what it has used at the next look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HolderRecord {
    pub(crate) pid: u32,
    /// Tells this process from a later one of the same id.
    pub(crate) started_nanos: u64,
    pub(crate) used_nanos: u64,
    /// Share of the last window in which it worked, 0 to 1.
    pub(crate) busy: f64,
}

/// This boot's id, as the kernel says it.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// The record that was last written, if it is of this boot.
pub(crate) fn read(lab: &Lab, card: &CardPlan, boot_id: &str) -> Option<Record> {
    let text = std::fs::read_to_string(lab.state_file(card, "json")).ok()?;
    let record: Record = serde_json::from_str(&text).ok()?;
    (record.boot_id == boot_id).then_some(record)
}

/// Replaces the record, unless another process is at it just now or was stopped while it was: its record then serves as well.
pub(crate) fn write(lab: &Lab, card: &CardPlan, record: &Record) -> Result<(), LabError> {
    let path = lab.state_file(card, "lock");
    let lock = File::open(&path).map_err(|source| LabError::File { path, source })?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    let newer_is_there = read(lab, card, &record.boot_id).is_some_and(|written| written.boot_nanos > record.boot_nanos);
    if newer_is_there {
        return Ok(());
    }
    let text = serde_json::to_vec(record).expect("a record holds only numbers and text");
    lab::write_whole(&lab.state_file(card, "json"), &text)
}

/// The power limit that was last set, milliwatts; the factory's where none was. A real card forgets it with its driver, at
/// the latest at shutdown: so does this one, at the next boot.
pub(crate) fn read_limit(lab: &Lab, card: &CardPlan, boot_id: &str) -> u32 {
    std::fs::read_to_string(lab.state_file(card, "limit"))
        .ok()
        .and_then(|text| {
            let (boot, limit) = text.trim().split_once(' ')?;
            (boot == boot_id).then(|| limit.parse().ok())?
        })
        .unwrap_or(card.power.limit_factory_mw)
}

/// Sets the power limit, milliwatts.
pub(crate) fn write_limit(lab: &Lab, card: &CardPlan, boot_id: &str, limit_mw: u32) -> Result<(), LabError> {
    lab::write_whole(
        &lab.state_file(card, "limit"),
        format!("{boot_id} {limit_mw}\n").as_bytes(),
    )
}
