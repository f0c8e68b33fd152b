//! CUDA's C interface, as `cuda.h` of CUDA 12 declares it, as far as memory needs it: checks pointers, writes answers out, and
//! nothing more. What is answered is decided in `cuda`. A function that is not here does not exist for the caller.

use crate::cuda::{self, Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::driver::CUDA_VERSION;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

type Context = *mut c_void;

/// Length of a UUID, bytes.
const UUID: usize = 16;

fn code(answer: Answer<()>) -> c_int {
    match answer {
        Ok(()) => 0,
        Err(code) => code,
    }
}

/// Writes an answer to the place that the caller gave.
///
/// # Safety
/// `place` is null or valid for a write of `T`.
unsafe fn put<T>(place: *mut T, ask: impl FnOnce() -> Answer<T>) -> Answer<()> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    let value = ask()?;
    // SAFETY: not null, and valid by this function's contract.
    unsafe { place.write(value) };
    Ok(())
}

fn ordinal(device: c_int) -> Answer<usize> {
    usize::try_from(device).map_err(|_| INVALID_DEVICE)
}

/// A handle is a number in a pointer's clothes: nothing is behind it.
fn handle(context: Context) -> u64 {
    context.addr() as u64
}

fn context(handle: u64) -> Answer<Context> {
    let handle = usize::try_from(handle).map_err(|_| cuda::UNKNOWN)?;
    Ok(std::ptr::without_provenance_mut(handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    code(cuda::initialise())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: by CUDA's contract the caller passes a place for the answer, or null.
    code(unsafe { put(version, || Ok(CUDA_VERSION)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    let ask = || c_int::try_from(cuda::count()?).map_err(|_| cuda::UNKNOWN);
    // SAFETY: by CUDA's contract the caller passes a place for the answer, or null.
    code(unsafe { put(count, ask) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> c_int {
    let ask = || cuda::card(ordinal(number)?).map(|_| number);
    // SAFETY: by CUDA's contract the caller passes a place for the answer, or null.
    code(unsafe { put(device, ask) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> c_int {
    let told = || -> Answer<()> {
        let length = usize::try_from(length).map_err(|_| INVALID_VALUE)?;
        if name.is_null() || length == 0 {
            return Err(INVALID_VALUE);
        }
        let (text, _) = cuda::card(ordinal(device)?)?;
        let text = &text.as_bytes()[..text.len().min(length - 1)];
        // SAFETY: not null; by CUDA's contract it holds `length` bytes, and text plus zero are no more.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), name, text.len());
            name.add(text.len()).write(0);
        }
        Ok(())
    };
    code(told())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; UUID], device: c_int) -> c_int {
    let ask = || {
        let (_, text) = cuda::card(ordinal(device)?)?;
        let digits: String = text.trim_start_matches("GPU-").split('-').collect();
        let byte = |place: usize| u8::from_str_radix(digits.get(2 * place..2 * place + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..UUID).map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(cuda::UNKNOWN)
    };
    // SAFETY: by CUDA's contract the caller passes a place for the answer, or null.
    code(unsafe { put(uuid, ask) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxCreate_v2(made: *mut Context, _flags: c_uint, device: c_int) -> c_int {
    let ask = || cuda::make_context(ordinal(device)?).and_then(context);
    // SAFETY: by CUDA's contract the caller passes a place for the answer, or null.
    code(unsafe { put(made, ask) })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: Context) -> c_int {
    code(cuda::end_context(handle(context)))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Context) -> c_int {
    code(cuda::set_current(handle(context)))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> c_int {
    code(cuda::synchronise())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    let told = || -> Answer<()> {
        let (is_free, in_all) = cuda::memory()?;
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| cuda::UNKNOWN);
        // SAFETY: by CUDA's contract the caller passes places for the answers, or null.
        unsafe {
            put(free, || size(is_free))?;
            put(total, || size(in_all))
        }
    };
    code(told())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    // SAFETY: by CUDA's contract the caller passes a place for the answer, or null.
    code(unsafe { put(address, || cuda::allocate(bytes as u64)) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    code(cuda::give_back(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(address: u64, byte: c_uchar, count: usize) -> c_int {
    code(cuda::set(address, byte, count as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32_v2(address: u64, word: c_uint, count: usize) -> c_int {
    let [byte, rest @ ..] = word.to_ne_bytes();
    if rest != [byte; 3] {
        // One byte says what lies in a MiB.
        return INVALID_VALUE;
    }
    code(cuda::set(address, byte, count as u64 * 4))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(target: *mut c_void, address: u64, bytes: usize) -> c_int {
    let told = || -> Answer<()> {
        if target.is_null() {
            return Err(INVALID_VALUE);
        }
        let content = cuda::read(address, bytes as u64)?;
        if content.len() != bytes {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; by CUDA's contract it holds `bytes` bytes, and that many were read.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), target.cast::<u8>(), bytes) };
        Ok(())
    };
    code(told())
}
