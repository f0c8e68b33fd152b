//! Spans of time as people write them: `90s`, `30m`, `1h`, `2d`.

use sela_protocol::units::Millis;

/// Reads a span.
///
/// # Errors
/// What would be right.
pub(crate) fn parse(text: &str) -> Result<Millis, String> {
    let wrong = || format!("\"{text}\" is no span of time; write it like 90s, 30m, 1h or 2d");
    let text_trimmed = text.trim();
    let unit = text_trimmed.chars().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text_trimmed[..text_trimmed.len() - 1].parse().map_err(|_| wrong())?;
    let ms = number.checked_mul(seconds * 1_000).filter(|ms| *ms > 0);
    ms.map(Millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_unit_and_nothing_else_is() {
        for (text, ms) in [
            ("90s", 90_000),
            ("30m", 1_800_000),
            ("1h", 3_600_000),
            (" 2d ", 172_800_000),
        ] {
            assert_eq!(parse(text), Ok(Millis(ms)));
        }
        for text in ["", "h", "1", "0h", "-1h", "1.5h", "1w", "99999999999999999d", "ü"] {
            assert!(parse(text).expect_err(text).contains("1h"), "{text}");
        }
    }
}
