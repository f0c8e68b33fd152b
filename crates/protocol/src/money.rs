//! Money in integer micro-units and what a lease owes. Never a float, never a bare number on the wire: a decimal string
//! with six places. Arithmetic that could overflow widens to i128. Who pays whom is the market's, not decided here.

use crate::units::Millis;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// An amount of the exchange's one asset, in millionths of its unit (1 USD = 1 000 000). Negative only in postings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS), ts(type = "string"))]
pub struct Micros(pub i64);

/// A price per GPU-hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(transparent)]
pub struct HourlyPrice(pub Micros);

/// Why a text is no amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not an amount: write it like 0.412500, at most six decimals, at most 9 223 372 036 854")]
pub struct AmountError(String);

const MICROS_PER_UNIT: u64 = 1_000_000;
const MILLIS_PER_HOUR: i128 = 3_600_000;

impl Micros {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// Whole units of the asset.
    pub const fn from_units(units: i64) -> Self {
        Self(units * 1_000_000)
    }

    /// The sum, or `None` where it does not fit.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or `None` where it does not fit.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The same amount with the other sign.
    pub const fn negated(self) -> Self {
        Self(-self.0)
    }

    /// A share in basis points (1/100 %), rounded down: what a fee takes of a cumulative due.
    pub fn basis_points(self, points: u32) -> Self {
        saturate(i128::from(self.0) * i128::from(points) / 10_000)
    }
}

impl HourlyPrice {
    /// floor(price × billed ms / 3 600 000): what is due for a cumulative billed time. Postings are differences of this,
    /// so rounding never adds up (conventions.md).
    pub fn due(self, billed: Millis) -> Micros {
        saturate(i128::from(self.0.0) * i128::from(billed.0) / MILLIS_PER_HOUR)
    }
}

fn saturate(amount: i128) -> Micros {
    Micros(i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX }))
}

impl std::ops::Add for Micros {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for Micros {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for Micros {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        saturate(amounts.map(|amount| i128::from(amount.0)).sum())
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(
            formatter,
            "{sign}{}.{:06}",
            magnitude / MICROS_PER_UNIT,
            magnitude % MICROS_PER_UNIT
        )
    }
}

impl fmt::Display for HourlyPrice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl FromStr for Micros {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        parse_amount(text).ok_or_else(|| AmountError(text.to_owned()))
    }
}

impl FromStr for HourlyPrice {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        text.parse().map(Self)
    }
}

fn parse_amount(text: &str) -> Option<Micros> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let scale = 10_i64.pow(u32::try_from(6 - fraction.len()).ok()?);
    let micros = whole
        .parse::<i64>()
        .ok()?
        .checked_mul(1_000_000)?
        .checked_add(fraction.parse::<i64>().ok()? * scale)?;
    Some(Micros(if negative { -micros } else { micros }))
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_back_as_written() {
        for (text, micros) in [
            ("0.412500", 412_500),
            ("-0.000001", -1),
            ("9223372036854.775807", i64::MAX),
            ("12", 12_000_000),
            ("1.5", 1_500_000),
        ] {
            let amount: Micros = text.parse().expect("an amount");
            assert_eq!(amount, Micros(micros));
            assert_eq!(amount.to_string().parse(), Ok(amount));
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "1.0000001",
            "1e3",
            "+1",
            "0x1",
            " 1",
            "9223372036854.775808",
            "--1",
        ] {
            assert!(text.parse::<Micros>().is_err(), "{text}");
        }
        assert!(
            serde_json::from_str::<Micros>("1").is_err(),
            "a bare number is no amount"
        );
    }

    #[test]
    fn differences_of_cumulative_dues_lose_nothing() {
        let price = HourlyPrice(Micros(333_333));
        let mut posted = Micros::ZERO;
        let mut before = Micros::ZERO;
        for second in 1..=7_200_u64 {
            let due = price.due(Millis::from_secs(second));
            posted = posted + (due - before);
            before = due;
        }
        assert_eq!(posted, Micros(666_666));
    }
}
