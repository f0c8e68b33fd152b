//! The calls of CUDA's driver interface that wiping needs, and the order in which they are made. The library is loaded when it runs:
//! nothing here is linked against a driver. The names are those under which `cuda.h` has each call's current form.
//!
//! A context takes some of the memory itself, and what lay there before is not wiped by allocating the rest. So it is done twice: the
//! second context is made in memory that the first has wiped, and wipes, when the first is gone, what that had taken.

use super::Wiped;
use libloading::{Library, Symbol};
use sela_protocol::id::GpuUuid;
use sela_protocol::units::Bytes;
use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;

type Status = c_int;
type Device = c_int;
type Handle = *mut c_void;
type Address = u64;

const OUT_OF_MEMORY: Status = 2;
/// Wait for the card by sleeping, not by spinning.
const BLOCKING_SYNC: c_uint = 4;

/// Allocations begin at this size, bytes, and fall by halves where the card has no such piece left.
const LARGEST: usize = 1 << 40;
/// To this.
const SMALLEST: usize = 64 << 10;
/// How much may be called free and not be had in the smallest pieces: what drivers count as free and keep.
const KEPT_BY_DRIVER: usize = 32 << 20;
/// What is made free for a second context at first.
const ROOM: usize = 1 << 30;
/// What is read back of each end of a piece.
const SAMPLE: usize = 4 << 10;

/// Why a card was not wiped.
#[derive(Debug, thiserror::Error)]
pub(super) enum CudaError {
    /// The library is not there, or is none.
    #[error("the driver's library {0}")]
    Library(String),
    /// A call failed.
    #[error("{name} answered {status}")]
    Call { name: &'static str, status: Status },
    /// The card is not shown, or another one.
    #[error("the driver shows {shown} instead of the one card {wanted}")]
    OtherCard { shown: String, wanted: GpuUuid },
    /// Some that is called free cannot be had, so nobody knows what lies there.
    #[error("{kept} of memory are called free and cannot be allocated, so they cannot be wiped")]
    Withheld { kept: Bytes },
    /// The driver answered success and did not do it.
    #[error("memory that was set to zero is not zero")]
    NotZero,
}

type Answer<T> = Result<T, CudaError>;

/// The driver's library.
#[derive(Debug)]
pub(super) struct Driver(Library);

/// Calls a function of the driver and turns its status into a `Result`.
macro_rules! call {
    ($driver:expr, $name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        let function = $driver.symbol::<unsafe extern "C" fn($($type),*) -> Status>($name)?;
        // SAFETY: the arguments are those that cuda.h asks for, and every pointer outlives the call.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            status => Err(CudaError::Call { name: $name, status }),
        }
    }};
}

/// A piece of the card's memory.
#[derive(Debug, Clone, Copy)]
struct Piece {
    at: Address,
    bytes: usize,
}

/// A context, current on this thread when it is made.
#[derive(Debug)]
struct Context<'a> {
    driver: &'a Driver,
    handle: Handle,
}

impl Driver {
    pub(super) fn load(library: &Path) -> Answer<Self> {
        // SAFETY: loading the driver's library runs its initialisers, which is what any CUDA program does.
        let loaded = unsafe { Library::new(library) };
        loaded.map(Self).map_err(|error| CudaError::Library(error.to_string()))
    }

    fn symbol<F>(&self, name: &'static str) -> Answer<Symbol<'_, F>> {
        // SAFETY: each caller names the type that cuda.h declares for this function.
        unsafe { self.0.get(name.as_bytes()) }.map_err(|error| CudaError::Library(error.to_string()))
    }

    /// Wipes everything that is free on the card, which must be the only one that the driver shows.
    pub(super) fn wipe(&self, card: &GpuUuid) -> Answer<Wiped> {
        call!(self, "cuInit", (c_uint), 0)?;
        let device = self.only(card)?;
        let first = Context::new(self, device)?;
        let mut held = first.take_all()?;
        first.clear(&held)?;
        let second = self.second(device, &first, &mut held)?;
        first.make_current()?;
        held.into_iter().try_for_each(|piece| first.give_back(piece))?;
        first.end()?;
        second.make_current()?;
        let (free, _) = second.memory()?;
        let held = second.take_all()?;
        second.clear(&held)?;
        let wiped: usize = held.iter().map(|piece| piece.bytes).sum();
        held.into_iter().try_for_each(|piece| second.give_back(piece))?;
        second.end()?;
        let bytes = |count: usize| Bytes(count as u64);
        Ok(Wiped {
            free: bytes(free.max(wiped)),
            wiped: bytes(wiped),
        })
    }

    fn only(&self, card: &GpuUuid) -> Answer<Device> {
        let mut count: c_int = 0;
        call!(self, "cuDeviceGetCount", (*mut c_int), &raw mut count)?;
        let other = |shown: String| CudaError::OtherCard {
            shown,
            wanted: card.clone(),
        };
        if count != 1 {
            return Err(other(format!("{count} cards")));
        }
        let mut device: Device = 0;
        call!(self, "cuDeviceGet", (*mut Device, c_int), &raw mut device, 0)?;
        let mut bytes = [0_u8; 16];
        call!(self, "cuDeviceGetUuid", (*mut [u8; 16], Device), &raw mut bytes, device)?;
        let shown = written(&bytes);
        if shown.eq_ignore_ascii_case(&card.0) {
            Ok(device)
        } else {
            Err(other(shown))
        }
    }

    /// A second context, in memory that the first has wiped and now gives back.
    fn second<'a>(&'a self, device: Device, first: &Context<'_>, held: &mut Vec<Piece>) -> Answer<Context<'a>> {
        let mut room = ROOM;
        loop {
            let mut freed = 0;
            first.make_current()?;
            while freed < room
                && let Some(piece) = held.pop()
            {
                first.give_back(piece)?;
                freed += piece.bytes;
            }
            match Context::new(self, device) {
                Err(CudaError::Call {
                    status: OUT_OF_MEMORY, ..
                }) if !held.is_empty() => room *= 2,
                made => return made,
            }
        }
    }
}

impl<'a> Context<'a> {
    fn new(driver: &'a Driver, device: Device) -> Answer<Self> {
        let mut handle: Handle = std::ptr::null_mut();
        call!(
            driver,
            "cuCtxCreate_v2",
            (*mut Handle, c_uint, Device),
            &raw mut handle,
            BLOCKING_SYNC,
            device
        )?;
        Ok(Self { driver, handle })
    }

    fn make_current(&self) -> Answer<()> {
        call!(self.driver, "cuCtxSetCurrent", (Handle), self.handle)
    }

    fn end(self) -> Answer<()> {
        call!(self.driver, "cuCtxDestroy_v2", (Handle), self.handle)
    }

    /// Bytes that are free, and all there are.
    fn memory(&self) -> Answer<(usize, usize)> {
        let (mut free, mut total) = (0_usize, 0_usize);
        call!(
            self.driver,
            "cuMemGetInfo_v2",
            (*mut usize, *mut usize),
            &raw mut free,
            &raw mut total
        )?;
        Ok((free, total))
    }

    /// Takes everything that is free, large pieces first.
    fn take_all(&self) -> Answer<Vec<Piece>> {
        let mut held = Vec::new();
        let (free, _) = self.memory()?;
        let mut bytes = LARGEST;
        while bytes > free.max(SMALLEST) {
            bytes /= 2;
        }
        while bytes >= SMALLEST {
            let mut at: Address = 0;
            match call!(self.driver, "cuMemAlloc_v2", (*mut Address, usize), &raw mut at, bytes) {
                Ok(()) => held.push(Piece { at, bytes }),
                Err(CudaError::Call {
                    status: OUT_OF_MEMORY, ..
                }) => bytes /= 2,
                Err(other) => return Err(other),
            }
        }
        let (left, _) = self.memory()?;
        if left > KEPT_BY_DRIVER {
            return Err(CudaError::Withheld {
                kept: Bytes(left as u64),
            });
        }
        Ok(held)
    }

    /// Sets it all to zero, and sees that it is.
    fn clear(&self, held: &[Piece]) -> Answer<()> {
        for piece in held {
            call!(
                self.driver,
                "cuMemsetD32_v2",
                (Address, c_uint, usize),
                piece.at,
                0,
                piece.bytes / size_of::<c_uint>()
            )?;
        }
        call!(self.driver, "cuCtxSynchronize", (),)?;
        for piece in held {
            for at in [piece.at, piece.at + (piece.bytes - SAMPLE) as Address] {
                let mut sample = [0xff_u8; SAMPLE];
                call!(
                    self.driver,
                    "cuMemcpyDtoH_v2",
                    (*mut c_void, Address, usize),
                    sample.as_mut_ptr().cast(),
                    at,
                    SAMPLE
                )?;
                if sample.iter().any(|byte| *byte != 0) {
                    return Err(CudaError::NotZero);
                }
            }
        }
        Ok(())
    }

    fn give_back(&self, piece: Piece) -> Answer<()> {
        call!(self.driver, "cuMemFree_v2", (Address), piece.at)
    }
}

/// In the form in which NVML gives it.
fn written(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_named_as_nvml_names_it() {
        let bytes = [0x0a, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];
        assert_eq!(written(&bytes), "GPU-0a010203-0405-0607-0809-0a0b0c0d0eff");
    }
}
