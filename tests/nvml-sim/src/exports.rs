//! NVML's C interface, as `nvml.h` of NVML 12 declares it (types by `nvml-wrapper-sys`): checks pointers, writes answers out, and
//! nothing more. What is answered is decided in `card` and `driver`. A function that is not here does not exist for the caller.

use crate::card::{Answer, Card};
use crate::{driver, plan};
use nvml_wrapper_sys::bindings as c;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};

const SUCCESS: c::nvmlReturn_t = c::nvmlReturn_enum_NVML_SUCCESS;
const INVALID: c::nvmlReturn_t = c::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const NOT_FOUND: c::nvmlReturn_t = c::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
const TOO_SMALL: c::nvmlReturn_t = c::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
const NOT_SUPPORTED: c::nvmlReturn_t = c::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;

/// PCI identity of an RTX 3090, which NVML packs as device then vendor.
const PCI_DEVICE_AND_VENDOR: c_uint = 0x2204_10de;

/// A handle is the card's index + 1 in a pointer's clothes: nothing is behind it, and 0 is no card.
fn handle(index: usize) -> c::nvmlDevice_t {
    std::ptr::without_provenance_mut(index + 1)
}

fn on_card<T>(device: c::nvmlDevice_t, ask: impl FnOnce(&mut Card<'_>) -> Answer<T>) -> Answer<T> {
    let index = device.addr().checked_sub(1).ok_or(INVALID)?;
    driver::with_card(index, |card| {
        card.answers()?;
        ask(card)
    })
}

fn code(answer: Answer<()>) -> c::nvmlReturn_t {
    match answer {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// Writes an answer to the place that the caller gave.
///
/// # Safety
/// `place` is null or valid for a write of `T`.
unsafe fn put<T>(place: *mut T, ask: impl FnOnce() -> Answer<T>) -> Answer<()> {
    if place.is_null() {
        return Err(INVALID);
    }
    let value = ask()?;
    // SAFETY: not null, and valid by this function's contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes text with its closing zero.
///
/// # Safety
/// `place` is null or valid for writes of `length` bytes.
unsafe fn put_text(place: *mut c_char, length: c_uint, ask: impl FnOnce() -> Answer<String>) -> Answer<()> {
    if place.is_null() {
        return Err(INVALID);
    }
    let text = ask()?;
    let length = usize::try_from(length).map_err(|_| INVALID)?;
    if text.len() >= length {
        return Err(TOO_SMALL);
    }
    // SAFETY: `place` holds `length` bytes by contract, and text plus zero are no more.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), place, text.len());
        place.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list in NVML's way: too small a room (or none) answers how much is needed.
///
/// # Safety
/// `count` is null or valid for reads and writes; `place` is null or valid for `*count` writes of `T`.
unsafe fn put_list<T>(count: *mut c_uint, place: *mut T, ask: impl FnOnce() -> Answer<Vec<T>>) -> Answer<()> {
    if count.is_null() {
        return Err(INVALID);
    }
    let items = ask()?;
    // SAFETY: not null, and valid by this function's contract.
    let room = unsafe { count.read() };
    let needed = c_uint::try_from(items.len()).map_err(|_| INVALID)?;
    // SAFETY: as above.
    unsafe { count.write(needed) };
    if needed == 0 {
        return Ok(());
    }
    if place.is_null() || room < needed {
        return Err(TOO_SMALL);
    }
    for (index, item) in items.into_iter().enumerate() {
        // SAFETY: `index` is below `needed`, which is at most the room that the caller says is there.
        unsafe { place.add(index).write(item) };
    }
    Ok(())
}

/// # Safety
/// `text` is null or points to a string that ends in zero.
unsafe fn text_of<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(INVALID);
    }
    // SAFETY: not null, and ends in zero by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| INVALID)
}

/// Functions that answer one value about a card.
macro_rules! answers {
    ($($name:ident($($argument:ident: $type:ty),*) -> $out:ty = |$card:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: c::nvmlDevice_t, $($argument: $type,)* out: *mut $out) -> c::nvmlReturn_t {
            // SAFETY: by NVML's contract the caller passes a place for the answer, or null.
            code(unsafe { put(out, || on_card(device, |$card| $body)) })
        }
    )*};
}

/// Functions that answer a text.
macro_rules! tells {
    ($($name:ident = |$card:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: c::nvmlDevice_t, text: *mut c_char, length: c_uint) -> c::nvmlReturn_t {
            // SAFETY: by NVML's contract the caller passes room of that length, or null.
            code(unsafe { put_text(text, length, || on_card(device, |$card| $body)) })
        }
    )*};
}

// ---- the driver ----

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c::nvmlReturn_t {
    code(driver::initialise())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c::nvmlReturn_t {
    code(driver::initialise())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c::nvmlReturn_t {
    code(driver::shut_down())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: c::nvmlReturn_t) -> *const c_char {
    let text = match result {
        SUCCESS => c"Success",
        c::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        INVALID => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        c::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        NOT_FOUND => c"Not Found",
        TOO_SMALL => c"Insufficient Size",
        c::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        c::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        c::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        driver::NO_LAB => c"SIMULATED driver: SELA_NVML_SIM_DIR names no lab",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, length: c_uint) -> c::nvmlReturn_t {
    let version = || driver::with_lab(|_| Ok(driver::DRIVER_VERSION.to_owned()));
    // SAFETY: by NVML's contract the caller passes room of that length, or null.
    code(unsafe { put_text(text, length, version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(text: *mut c_char, length: c_uint) -> c::nvmlReturn_t {
    // SAFETY: by NVML's contract the caller passes room of that length, or null.
    code(unsafe { put_text(text, length, || Ok(driver::LIBRARY_VERSION.to_owned())) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> c::nvmlReturn_t {
    // SAFETY: by NVML's contract the caller passes a place for the answer, or null.
    code(unsafe { put(version, || Ok(driver::CUDA_VERSION)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> c::nvmlReturn_t {
    // SAFETY: as this function's own contract, which is the same.
    unsafe { nvmlSystemGetCudaDriverVersion(version) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(pid: c_uint, text: *mut c_char, length: c_uint) -> c::nvmlReturn_t {
    let name = || {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
        let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let mut name = String::from_utf8_lossy(program).into_owned();
        // NVML cuts a name to the room that it has rather than refuse it.
        let room = usize::try_from(length).unwrap_or(0).saturating_sub(1);
        while name.len() > room {
            name.pop();
        }
        Ok(name)
    };
    // SAFETY: by NVML's contract the caller passes room of that length, or null.
    code(unsafe { put_text(text, length, name) })
}

// ---- finding cards ----

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c::nvmlReturn_t {
    let ask = || driver::with_lab(|lab| c_uint::try_from(lab.cards().len()).map_err(|_| INVALID));
    // SAFETY: by NVML's contract the caller passes a place for the answer, or null.
    code(unsafe { put(count, ask) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut c::nvmlDevice_t) -> c::nvmlReturn_t {
    let ask = || {
        let index = usize::try_from(index).map_err(|_| INVALID)?;
        driver::with_lab(|lab| lab.cards().get(index).map(|_| handle(index)).ok_or(INVALID))
    };
    // SAFETY: by NVML's contract the caller passes a place for the answer, or null.
    code(unsafe { put(device, ask) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut c::nvmlDevice_t) -> c::nvmlReturn_t {
    // SAFETY: by NVML's contract the caller passes a string, or null.
    let asked = unsafe { text_of(uuid) };
    let ask = || {
        let asked = asked?;
        driver::with_lab(|lab| {
            let index = lab.cards().iter().position(|card| card.uuid == asked);
            index.map(handle).ok_or(NOT_FOUND)
        })
    };
    // SAFETY: by NVML's contract the caller passes a place for the answer, or null.
    code(unsafe { put(device, ask) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    id: *const c_char,
    device: *mut c::nvmlDevice_t,
) -> c::nvmlReturn_t {
    // SAFETY: by NVML's contract the caller passes a string, or null.
    let asked = unsafe { text_of(id) };
    let ask = || {
        let asked = asked?;
        driver::with_lab(|lab| {
            let index = (0..lab.cards().len()).find(|index| bus_id(*index) == asked);
            index.map(handle).ok_or(NOT_FOUND)
        })
    };
    // SAFETY: by NVML's contract the caller passes a place for the answer, or null.
    code(unsafe { put(device, ask) })
}

// ---- what a card is ----

tells! {
    nvmlDeviceGetName = |card| Ok(card.plan.name.clone());
    nvmlDeviceGetUUID = |card| Ok(card.plan.uuid.clone());
    nvmlDeviceGetVbiosVersion = |_card| Ok(plan::SIMULATED.to_owned());
    nvmlDeviceGetSerial = |_card| Err(NOT_SUPPORTED);
    nvmlDeviceGetBoardPartNumber = |_card| Err(NOT_SUPPORTED);
}

answers! {
    nvmlDeviceGetIndex() -> c_uint = |card| index_of(card);
    nvmlDeviceGetMinorNumber() -> c_uint = |card| index_of(card);
    nvmlDeviceGetBrand() -> c::nvmlBrandType_t = |_card| Ok(c::nvmlBrandType_enum_NVML_BRAND_GEFORCE);
    nvmlDeviceGetNumFans() -> c_uint = |_card| Ok(1);
    nvmlDeviceGetPersistenceMode() -> c::nvmlEnableState_t = |_card| Ok(c::nvmlEnableState_enum_NVML_FEATURE_DISABLED);
    nvmlDeviceGetComputeMode() -> c::nvmlComputeMode_t = |_card| Ok(c::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT);
    nvmlDeviceGetDisplayActive() -> c::nvmlEnableState_t = |_card| Ok(c::nvmlEnableState_enum_NVML_FEATURE_DISABLED);
    nvmlDeviceGetArchitecture() -> c::nvmlDeviceArchitecture_t = |card| Ok(match card.plan.compute_capability {
        (8, 9) => c::NVML_DEVICE_ARCH_ADA,
        (8, _) => c::NVML_DEVICE_ARCH_AMPERE,
        _ => c::NVML_DEVICE_ARCH_UNKNOWN,
    });
    nvmlDeviceGetPciInfo_v3() -> c::nvmlPciInfo_t = |card| Ok(pci(card.index));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: c::nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> c::nvmlReturn_t {
    let answer = on_card(device, |card| Ok(card.plan.compute_capability));
    // SAFETY: by NVML's contract the caller passes places for both answers, or null.
    code(answer.and_then(|(first, second)| unsafe { put(major, || Ok(first)).and(put(minor, || Ok(second))) }))
}

fn index_of(card: &Card<'_>) -> Answer<c_uint> {
    c_uint::try_from(card.index).map_err(|_| INVALID)
}

/// Bus of the card with this index; bus 0 belongs to the root.
fn bus(index: usize) -> c_uint {
    c_uint::try_from(index).unwrap_or(0) + 1
}

fn bus_id(index: usize) -> String {
    format!("00000000:{:02X}:00.0", bus(index))
}

fn pci(index: usize) -> c::nvmlPciInfo_t {
    let mut pci = c::nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: bus(index),
        device: 0,
        pciDeviceId: PCI_DEVICE_AND_VENDOR,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    fill(&mut pci.busId, &bus_id(index));
    fill(&mut pci.busIdLegacy, &bus_id(index)[4..]);
    pci
}

/// Copies ASCII text, always leaving the closing zero.
fn fill(room: &mut [c_char], text: &str) {
    let last = room.len() - 1;
    for (place, byte) in room[..last].iter_mut().zip(text.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
}

// ---- memory and processes ----

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: c::nvmlDevice_t,
    out: *mut c::nvmlMemory_v2_t,
) -> c::nvmlReturn_t {
    if out.is_null() {
        return INVALID;
    }
    // SAFETY: not null; by NVML's contract a caller of the second version has written its version number.
    let version = unsafe { (&raw const (*out).version).read() };
    let size = size_of::<c::nvmlMemory_v2_t>();
    if usize::try_from(version) != Ok(size | (2 << 24)) {
        return c::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    let ask = || {
        let memory = on_card(device, |card| card.memory())?;
        Ok(c::nvmlMemory_v2_t {
            version,
            total: memory.total,
            reserved: memory.reserved,
            free: memory.free,
            used: memory.used,
        })
    };
    // SAFETY: by NVML's contract the caller passes a place for the answer.
    code(unsafe { put(out, ask) })
}

answers! {
    nvmlDeviceGetMemoryInfo() -> c::nvmlMemory_t = |card| {
        let memory = card.memory()?;
        // The first version knows no reserve and counts it as used.
        Ok(c::nvmlMemory_t { total: memory.total, free: memory.free, used: memory.used + memory.reserved })
    };
}

/// Functions that list processes.
macro_rules! lists {
    ($($name:ident = |$card:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: c::nvmlDevice_t, count: *mut c_uint, out: *mut c::nvmlProcessInfo_t) -> c::nvmlReturn_t {
            let ask = || {
                let processes: Vec<(u32, u64)> = on_card(device, |$card| $body)?;
                Ok(processes.into_iter().map(process).collect())
            };
            // SAFETY: by NVML's contract the caller passes room for `*count`, or null.
            code(unsafe { put_list(count, out, ask) })
        }
    )*};
}

lists! {
    nvmlDeviceGetComputeRunningProcesses_v3 = |card| card.processes(false);
    nvmlDeviceGetGraphicsRunningProcesses_v3 = |card| card.processes(true);
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = |_card| Ok(Vec::new());
}

fn process((pid, bytes): (u32, u64)) -> c::nvmlProcessInfo_t {
    c::nvmlProcessInfo_t {
        pid,
        usedGpuMemory: bytes,
        // All ones: the card is not cut into instances.
        gpuInstanceId: c_uint::MAX,
        computeInstanceId: c_uint::MAX,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: c::nvmlDevice_t,
    out: *mut c::nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen: c_ulonglong,
) -> c::nvmlReturn_t {
    let ask = || {
        let (shares, moment) = on_card(device, |card| card.process_utilisation())?;
        if moment <= last_seen {
            return Err(NOT_FOUND);
        }
        Ok(shares
            .into_iter()
            .map(|(pid, share)| c::nvmlProcessUtilizationSample_t {
                pid,
                timeStamp: moment,
                smUtil: share,
                memUtil: share / 2,
                encUtil: 0,
                decUtil: 0,
            })
            .collect())
    };
    // SAFETY: by NVML's contract the caller passes room for `*count`, or null.
    code(unsafe { put_list(count, out, ask) })
}

// ---- sensors ----

answers! {
    nvmlDeviceGetTemperature(sensor: c::nvmlTemperatureSensors_t) -> c_uint = |card| match sensor {
        c::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU => card.temperature(),
        _ => Err(INVALID),
    };
    // Thresholds of an RTX 3090, °C.
    nvmlDeviceGetTemperatureThreshold(threshold: c::nvmlTemperatureThresholds_t) -> c_uint = |_card| match threshold {
        c::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => Ok(98),
        c::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => Ok(95),
        c::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX => Ok(93),
        _ => Err(NOT_SUPPORTED),
    };
    nvmlDeviceGetUtilizationRates() -> c::nvmlUtilization_t = |card| {
        let gpu = card.utilisation()?;
        Ok(c::nvmlUtilization_t { gpu, memory: gpu / 2 })
    };
    nvmlDeviceGetFanSpeed() -> c_uint = |card| card.fan_percent();
    nvmlDeviceGetFanSpeed_v2(fan: c_uint) -> c_uint = |card| if fan == 0 { card.fan_percent() } else { Err(INVALID) };
    nvmlDeviceGetClockInfo(clock: c::nvmlClockType_t) -> c_uint = |card| match clock {
        c::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | c::nvmlClockType_enum_NVML_CLOCK_SM => card.core_clock_mhz(),
        c::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(card.plan.clocks.memory_mhz),
        _ => Err(NOT_SUPPORTED),
    };
    nvmlDeviceGetMaxClockInfo(clock: c::nvmlClockType_t) -> c_uint = |card| match clock {
        c::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | c::nvmlClockType_enum_NVML_CLOCK_SM => Ok(card.plan.clocks.core_boost_mhz),
        c::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(card.plan.clocks.memory_mhz),
        _ => Err(NOT_SUPPORTED),
    };
    nvmlDeviceGetCurrentClocksThrottleReasons() -> c_ulonglong = |card| throttle_reasons(card);
    nvmlDeviceGetCurrentClocksEventReasons() -> c_ulonglong = |card| throttle_reasons(card);
    nvmlDeviceGetPerformanceState() -> c::nvmlPstates_t = |card| Ok(if card.utilisation()? > 0 {
        c::nvmlPStates_enum_NVML_PSTATE_2
    } else {
        c::nvmlPStates_enum_NVML_PSTATE_8
    });
}

fn throttle_reasons(card: &mut Card<'_>) -> Answer<c_ulonglong> {
    let reason = if card.utilisation()? == 0 {
        c::nvmlClocksThrottleReasonGpuIdle
    } else if card.power_capped()? {
        c::nvmlClocksThrottleReasonSwPowerCap
    } else {
        c::nvmlClocksThrottleReasonNone
    };
    Ok(c_ulonglong::from(reason))
}

/// No field is supported: GeForce cards have no sensor at the memory junction, and nothing else asks by field.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: c::nvmlDevice_t,
    count: c_int,
    values: *mut c::nvmlFieldValue_t,
) -> c::nvmlReturn_t {
    let Ok(count) = usize::try_from(count) else {
        return INVALID;
    };
    if values.is_null() {
        return INVALID;
    }
    code(on_card(device, |_| Ok(())).map(|()| {
        for index in 0..count {
            // SAFETY: by NVML's contract the caller passes `count` values that it has set up.
            unsafe { (&raw mut (*values.add(index)).nvmlReturn).write(NOT_SUPPORTED) };
        }
    }))
}

/// There is no encoder: its share of time is 0, looked at every second.
unsafe fn no_video_engine(device: c::nvmlDevice_t, share: *mut c_uint, period_us: *mut c_uint) -> c::nvmlReturn_t {
    let answer = on_card(device, |_| Ok(()));
    // SAFETY: by NVML's contract the callers pass places for both answers, or null.
    code(answer.and_then(|()| unsafe { put(share, || Ok(0)).and(put(period_us, || Ok(1_000_000))) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEncoderUtilization(
    device: c::nvmlDevice_t,
    share: *mut c_uint,
    period_us: *mut c_uint,
) -> c::nvmlReturn_t {
    // SAFETY: as this function's own contract, which is the same.
    unsafe { no_video_engine(device, share, period_us) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDecoderUtilization(
    device: c::nvmlDevice_t,
    share: *mut c_uint,
    period_us: *mut c_uint,
) -> c::nvmlReturn_t {
    // SAFETY: as this function's own contract, which is the same.
    unsafe { no_video_engine(device, share, period_us) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEncoderSessions(
    device: c::nvmlDevice_t,
    count: *mut c_uint,
    out: *mut c::nvmlEncoderSessionInfo_t,
) -> c::nvmlReturn_t {
    // SAFETY: by NVML's contract the caller passes room for `*count`, or null.
    code(unsafe { put_list(count, out, || on_card(device, |_| Ok(Vec::new()))) })
}

// ---- power ----

answers! {
    nvmlDeviceGetPowerUsage() -> c_uint = |card| card.power_mw();
    nvmlDeviceGetTotalEnergyConsumption() -> c_ulonglong = |card| card.energy_mj();
    nvmlDeviceGetPowerManagementMode() -> c::nvmlEnableState_t = |_card| Ok(c::nvmlEnableState_enum_NVML_FEATURE_ENABLED);
    nvmlDeviceGetPowerManagementLimit() -> c_uint = |card| card.limit_mw();
    nvmlDeviceGetEnforcedPowerLimit() -> c_uint = |card| card.limit_mw();
    nvmlDeviceGetPowerManagementDefaultLimit() -> c_uint = |card| {
        card.limits_supported()?;
        Ok(card.plan.power.limit_factory_mw)
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: c::nvmlDevice_t,
    least: *mut c_uint,
    most: *mut c_uint,
) -> c::nvmlReturn_t {
    let answer = on_card(device, |card| {
        card.limits_supported()?;
        Ok((card.plan.power.limit_least_mw, card.plan.power.limit_most_mw))
    });
    // SAFETY: by NVML's contract the caller passes places for both answers, or null.
    code(answer.and_then(|(low, high)| unsafe { put(least, || Ok(low)).and(put(most, || Ok(high))) }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPowerManagementLimit(device: c::nvmlDevice_t, limit_mw: c_uint) -> c::nvmlReturn_t {
    code(on_card(device, |card| card.set_limit_mw(limit_mw)))
}
