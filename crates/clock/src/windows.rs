//! Windows: the biased interrupt time counts sleep and hibernation; the registry counts boots.

use std::time::{SystemTime, UNIX_EPOCH};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_DWORD, RegGetValueW};
use windows_sys::Win32::System::WindowsProgramming::QueryInterruptTimePrecise;
use windows_sys::w;

pub(crate) fn boot_us() -> u64 {
    let mut tenths_of_a_microsecond = 0;
    // SAFETY: writes one u64 to where the pointer points.
    unsafe { QueryInterruptTimePrecise(&raw mut tenths_of_a_microsecond) };
    tenths_of_a_microsecond / 10
}

#[expect(clippy::disallowed_methods, reason = "this crate is where time is read")]
pub(crate) fn utc_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

pub(crate) fn boot_id() -> std::io::Result<String> {
    let mut boots = 0_u32;
    let mut size = 4_u32;
    // SAFETY: both names are NUL-terminated UTF-16, the value is restricted to a DWORD and 4 bytes are writable for it.
    let error = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!(r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"),
            w!("BootId"),
            RRF_RT_REG_DWORD,
            std::ptr::null_mut(),
            (&raw mut boots).cast(),
            &raw mut size,
        )
    };
    if error == 0 {
        Ok(boots.to_string())
    } else {
        Err(std::io::Error::from_raw_os_error(error.cast_signed()))
    }
}
