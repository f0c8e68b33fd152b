//! What is offered, as an iCalendar text (RFC 5545) for the owner's own calendar: one event for each slot, in UTC, so that no
//! program can misread a zone.

use super::slots::Slots;
use super::week::moment;
use jiff::tz::TimeZone;
use sela_protocol::units::UtcMs;

/// Octets of a line, its break not counted (RFC 5545, 3.1).
const LINE: usize = 75;

/// Writes slots as a calendar. `title` is what each event is called, `stamp` when it was written.
pub fn export(slots: &Slots, title: &str, stamp: UtcMs) -> String {
    let mut text = String::new();
    let mut line = |content: &str| fold(&mut text, content);
    line("BEGIN:VCALENDAR");
    line("VERSION:2.0");
    line("PRODID:-//Sela//Sela//EN");
    line("CALSCALE:GREGORIAN");
    for slot in slots.as_slice() {
        let (Some(from), Some(to), Some(written)) = (written(slot.from), written(slot.to), written(stamp)) else {
            continue;
        };
        line("BEGIN:VEVENT");
        line(&format!("UID:{from}-{to}@schedule.sela"));
        line(&format!("DTSTAMP:{written}"));
        line(&format!("DTSTART:{from}"));
        line(&format!("DTEND:{to}"));
        line(&format!("SUMMARY:{}", escaped(title)));
        line("TRANSP:TRANSPARENT");
        line("END:VEVENT");
    }
    line("END:VCALENDAR");
    text
}

fn written(at: UtcMs) -> Option<String> {
    let at = TimeZone::UTC.to_datetime(moment(at)?);
    Some(format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        at.year(),
        at.month(),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    ))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | ';' | ',' => escaped.extend(['\\', letter]),
            '\n' => escaped.push_str("\\n"),
            letter if letter.is_control() => {}
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Adds a line, broken where it is too long, never within a letter.
fn fold(text: &mut String, content: &str) {
    let mut room = LINE;
    for letter in content.chars() {
        if letter.len_utf8() > room {
            text.push_str("\r\n ");
            room = LINE - 1;
        }
        text.push(letter);
        room -= letter.len_utf8();
    }
    text.push_str("\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Slot;

    #[test]
    fn what_is_exported_is_folded_escaped_and_in_utc() {
        let slots = Slots::of(vec![Slot {
            from: UtcMs(1_774_749_600_000),
            to: UtcMs(1_774_753_200_000),
        }]);
        let title = format!("Sela, {}; \u{7}kartu\nanda", "é".repeat(60));
        let text = export(&slots, &title, UtcMs(0));
        assert!(text.split("\r\n").all(|line| line.len() <= 75), "{text}");
        let unfolded = text.replace("\r\n ", "");
        assert!(
            unfolded.contains("DTSTART:20260329T020000Z\r\nDTEND:20260329T030000Z\r\n"),
            "{text}"
        );
        assert!(
            unfolded.contains(&format!("SUMMARY:Sela\\, {}\\; kartu\\nanda\r\n", "é".repeat(60))),
            "{text}"
        );
        assert!(text.starts_with("BEGIN:VCALENDAR\r\nVERSION:2.0\r\n") && text.ends_with("END:VCALENDAR\r\n"));
    }
}
