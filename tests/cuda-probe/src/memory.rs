//! What lies in a card's memory: all that is free is filled with one byte, or searched for it. One who fills and ends, and another
//! who searches, show whether anything of the first reaches the second; `again` shows in one process that the search can find.

use crate::cuda::{Context, Cuda, Device, DevicePointer, Fault, OUT_OF_MEMORY, call};
use crate::say;
use std::ffi::{c_int, c_uchar, c_uint, c_void};

/// Allocations begin at this size, bytes, and fall by halves where the card has no such piece left.
const LARGEST: usize = 1 << 34;
/// To this.
const SMALLEST: usize = 1 << 20;
/// How much of each MiB is looked at.
const SAMPLE: usize = 4 << 10;
const MIB: usize = 1 << 20;

/// Starts the driver and takes the first card.
pub(crate) fn begin(cuda: &Cuda) -> Result<Device, Fault> {
    call!(cuda, "cuInit", (c_uint), 0)?;
    let mut device: Device = 0;
    call!(cuda, "cuDeviceGet", (*mut Device, c_int), &raw mut device, 0)?;
    Ok(device)
}

/// A context, current from here on.
pub(crate) fn context(cuda: &Cuda, device: Device) -> Result<Context, Fault> {
    let mut context: Context = std::ptr::null_mut();
    call!(
        cuda,
        "cuCtxCreate_v2",
        (*mut Context, c_uint, Device),
        &raw mut context,
        0,
        device
    )?;
    Ok(context)
}

/// Fills everything that is free, and leaves it so.
pub(crate) fn fill(byte: u8) -> Result<bool, Fault> {
    let cuda = Cuda::load()?;
    let device = begin(&cuda)?;
    let context = context(&cuda, device)?;
    let held = take_all(&cuda)?;
    let filled = set_all(&cuda, &held, byte)?;
    say(&serde_json::json!({ "filled_mib": filled, "byte": byte }));
    give_back(&cuda, held)?;
    call!(cuda, "cuCtxDestroy_v2", (Context), context)?;
    Ok(filled > 0)
}

/// Searches everything that is free; right where nothing is found.
pub(crate) fn look(byte: u8) -> Result<bool, Fault> {
    let cuda = Cuda::load()?;
    let device = begin(&cuda)?;
    let context = context(&cuda, device)?;
    let found = search(&cuda, byte)?;
    call!(cuda, "cuCtxDestroy_v2", (Context), context)?;
    Ok(found == 0)
}

/// Fills, gives back and searches in one context; right where it is found, since nobody has wiped in between.
pub(crate) fn again(byte: u8) -> Result<bool, Fault> {
    let cuda = Cuda::load()?;
    let device = begin(&cuda)?;
    let context = context(&cuda, device)?;
    let held = take_all(&cuda)?;
    set_all(&cuda, &held, byte)?;
    give_back(&cuda, held)?;
    let found = search(&cuda, byte)?;
    call!(cuda, "cuCtxDestroy_v2", (Context), context)?;
    Ok(found > 0)
}

/// How many MiB hold the byte and nothing else where they are looked at.
fn search(cuda: &Cuda, byte: u8) -> Result<usize, Fault> {
    let held = take_all(cuda)?;
    let (mut looked_at, mut found) = (0, 0);
    for (at, bytes) in &held {
        for place in 0..bytes / MIB {
            let mut sample = [!byte; SAMPLE];
            call!(
                cuda,
                "cuMemcpyDtoH_v2",
                (*mut c_void, DevicePointer, usize),
                sample.as_mut_ptr().cast(),
                at + (place * MIB) as u64,
                SAMPLE
            )?;
            looked_at += 1;
            found += usize::from(sample.iter().all(|there| *there == byte));
        }
    }
    say(&serde_json::json!({ "looked_at_mib": looked_at, "found_mib": found, "byte": byte }));
    give_back(cuda, held)?;
    Ok(found)
}

fn take_all(cuda: &Cuda) -> Result<Vec<(DevicePointer, usize)>, Fault> {
    let mut held = Vec::new();
    let mut bytes = LARGEST;
    while bytes >= SMALLEST {
        let mut at: DevicePointer = 0;
        match call!(cuda, "cuMemAlloc_v2", (*mut DevicePointer, usize), &raw mut at, bytes) {
            Ok(()) => held.push((at, bytes)),
            Err(Fault::Call {
                status: OUT_OF_MEMORY, ..
            }) => bytes /= 2,
            Err(other) => return Err(other),
        }
    }
    Ok(held)
}

/// Sets all of it; how many MiB that are.
fn set_all(cuda: &Cuda, held: &[(DevicePointer, usize)], byte: u8) -> Result<usize, Fault> {
    for (at, bytes) in held {
        call!(
            cuda,
            "cuMemsetD8_v2",
            (DevicePointer, c_uchar, usize),
            *at,
            byte,
            *bytes
        )?;
    }
    call!(cuda, "cuCtxSynchronize", (),)?;
    Ok(held.iter().map(|(_, bytes)| bytes / MIB).sum())
}

fn give_back(cuda: &Cuda, held: Vec<(DevicePointer, usize)>) -> Result<(), Fault> {
    held.into_iter()
        .try_for_each(|(at, _)| call!(cuda, "cuMemFree_v2", (DevicePointer), at))
}
