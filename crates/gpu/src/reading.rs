//! From what NVML answered to a reading: a value, or the reason why there is none. 511 °C and the all-ones value are how cards
//! say "none", and never leave this file as numbers. Pure.

use crate::error::GpuError;
use nvml_wrapper::error::NvmlError;
use sela_protocol::card::Reading;
use sela_protocol::id::GpuUuid;
use sela_protocol::units::{Celsius, Megahertz, Milliwatts, Percent};

/// What a card without a temperature reports, °C.
const NO_TEMPERATURE: u32 = 511;

/// An answer as a reading. A card or a driver that is gone is an error, since then no sensor will answer.
pub(crate) fn reading<T>(answer: Result<T, NvmlError>, uuid: &GpuUuid) -> Result<Reading<T>, GpuError> {
    let error = match answer {
        Ok(value) => return Ok(Reading::of(value)),
        Err(error) => error,
    };
    match GpuError::of(&error, uuid, "read the card") {
        GpuError::NotSupported { .. } => Ok(Reading::NotSupported),
        gone @ (GpuError::Lost(_)
        | GpuError::UnknownCard(_)
        | GpuError::DriverMismatch
        | GpuError::NoDriver { .. }
        | GpuError::SimulationMissing) => Err(gone),
        GpuError::NoPermission { .. }
        | GpuError::LimitOutOfRange { .. }
        | GpuError::LimitNotApplied { .. }
        | GpuError::Failed { .. } => Ok(Reading::invalid(error.to_string())),
    }
}

/// A reading of another kind, where the value is one.
pub(crate) fn and_then<T, U>(reading: Reading<T>, convert: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
    match reading {
        Reading::Value { value } => convert(value),
        Reading::NotSupported => Reading::NotSupported,
        Reading::Invalid { why } => Reading::Invalid { why },
    }
}

/// From degrees as NVML reports them.
pub(crate) fn celsius(degrees: u32) -> Reading<Celsius> {
    match i32::try_from(degrees) {
        Ok(degrees) if degrees.unsigned_abs() != NO_TEMPERATURE => Reading::of(Celsius(degrees)),
        Ok(_) => Reading::invalid("511 °C: what the card reports when it has no temperature"),
        Err(_) => not_told(),
    }
}

/// From milliwatts.
pub(crate) fn milliwatts(power: u32) -> Reading<Milliwatts> {
    if power == u32::MAX {
        return not_told();
    }
    Reading::of(Milliwatts(power))
}

/// From megahertz.
pub(crate) fn megahertz(clock: u32) -> Reading<Megahertz> {
    if clock == u32::MAX {
        return not_told();
    }
    Reading::of(Megahertz(clock))
}

/// From a share of a whole. Fans may report a little above 100: that is their full speed.
pub(crate) fn percent(share: u32) -> Reading<Percent> {
    if share == u32::MAX {
        return not_told();
    }
    Reading::of(Percent(u8::try_from(share.min(100)).unwrap_or(100)))
}

/// For a value whose bits are all ones.
pub(crate) fn not_told<T>() -> Reading<T> {
    Reading::invalid("the all-ones value: what the driver reports when it does not tell")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid() -> GpuUuid {
        GpuUuid("GPU-1".to_owned())
    }

    #[test]
    fn what_means_none_is_never_a_number() {
        assert_eq!(celsius(62), Reading::of(Celsius(62)));
        assert_eq!(celsius(0), Reading::of(Celsius(0)));
        for none in [511, u32::MAX, u32::MAX - 1] {
            assert_eq!(celsius(none).value(), None, "{none}");
        }
        assert_eq!(milliwatts(u32::MAX).value(), None);
        assert_eq!(megahertz(u32::MAX).value(), None);
        assert_eq!(percent(u32::MAX).value(), None);
        assert_eq!(percent(104), Reading::of(Percent(100)));
    }

    #[test]
    fn a_missing_sensor_a_failed_one_and_a_lost_card_are_told_apart() {
        let told = |error| reading::<u32>(Err(error), &uuid());
        assert_eq!(told(NvmlError::NotSupported), Ok(Reading::NotSupported));
        assert_eq!(
            told(NvmlError::FailedToLoadSymbol("old driver".to_owned())),
            Ok(Reading::NotSupported)
        );
        assert!(matches!(told(NvmlError::Unknown), Ok(Reading::Invalid { .. })));
        assert_eq!(told(NvmlError::GpuLost), Err(GpuError::Lost(uuid())));
        assert!(matches!(told(NvmlError::Uninitialized), Err(GpuError::NoDriver { .. })));
    }
}
