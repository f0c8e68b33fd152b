//! Text of strangers (names, messages, what a job prints) made safe to show: control characters, escape sequences and what turns the
//! direction of writing are shown as what they are and do nothing. The one place for it; what shows text calls this.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

/// Whether a letter only shows itself: neither a control character (of which escape sequences are made), nor one that reorders, joins
/// to lines, or hides what stands around it (Unicode 16, general categories Cc, Zl, Zp and the format characters of UAX 9).
pub const fn is_plain(letter: char) -> bool {
    !matches!(
        letter,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200b}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// As one line: everything that is not plain is escaped, ends of lines and tabs too (`\n`, `\u{1b}`).
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_plain, in_words)
}

/// As lines: like [`line`], but ends of lines and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(
        text,
        |letter| is_plain(letter) || matches!(letter, '\n' | '\t'),
        in_words,
    )
}

/// JSON text that means the same: letters in its strings that are not plain are escaped the JSON way (`\u001b`).
pub fn json(text: &str) -> Cow<'_, str> {
    // Outside of strings JSON has of these letters only ends of lines and tabs, inside it has neither.
    escaped(
        text,
        |letter| is_plain(letter) || matches!(letter, '\n' | '\t' | '\r'),
        |letter, into| {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _written = write!(into, "\\u{unit:04x}");
            }
        },
    )
}

fn escaped(text: &str, stays: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if text.chars().all(&stays) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if stays(letter) {
            shown.push(letter);
        } else {
            escape(letter, &mut shown);
        }
    }
    Cow::Owned(shown)
}

fn in_words(letter: char, into: &mut String) {
    match letter {
        '\n' => into.push_str("\\n"),
        '\r' => into.push_str("\\r"),
        '\t' => into.push_str("\\t"),
        other => {
            let _written = write!(into, "\\u{{{:x}}}", u32::from(other));
        }
    }
}

/// Writes each piece that it is given as one line, whatever is in it: for logs, whose events come in one piece.
#[derive(Debug)]
pub struct OneLine<W>(pub W);

impl<W: io::Write> io::Write for OneLine<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        match text.strip_suffix('\n') {
            Some(event) => writeln!(self.0, "{}", line(event))?,
            None => write!(self.0, "{}", line(&text))?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Bytes that somebody's program printed, piece by piece, as text for a terminal. A letter may come in two pieces.
#[derive(Debug, Default)]
pub struct Printed {
    begun: Vec<u8>,
}

impl Printed {
    /// The next piece as lines; what is no UTF-8 is shown as `\xff`, and an end of line in the way of Windows as one.
    pub fn show(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.begun);
        let mut shown = String::with_capacity(all.len());
        let mut rest = all.as_slice();
        loop {
            let (text, wrong, after) = match std::str::from_utf8(rest) {
                Ok(text) => (text, &[][..], &[][..]),
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    let good = std::str::from_utf8(good).unwrap_or_default();
                    match error.error_len() {
                        Some(length) => (good, &bad[..length], &bad[length..]),
                        None => {
                            self.begun = bad.to_vec();
                            (good, &[][..], &[][..])
                        }
                    }
                }
            };
            // An end of line may come in two pieces as well.
            let text = match text.strip_suffix('\r') {
                Some(before) if wrong.is_empty() && after.is_empty() && self.begun.is_empty() => {
                    self.begun.push(b'\r');
                    before
                }
                _ => text,
            };
            shown.push_str(&lines(&text.replace("\r\n", "\n")));
            for byte in wrong {
                let _written = write!(shown, "\\x{byte:02x}");
            }
            if after.is_empty() {
                return shown;
            }
            rest = after;
        }
    }

    /// What was begun and will not be ended.
    pub fn end(self) -> String {
        let mut shown = String::new();
        for byte in self.begun {
            match byte {
                b'\r' => shown.push_str("\\r"),
                other => {
                    let _written = write!(shown, "\\x{other:02x}");
                }
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        for (text, one_line, several) in [
            (
                "plain, also ünïcödé 日本 🙂",
                "plain, also ünïcödé 日本 🙂",
                "plain, also ünïcödé 日本 🙂",
            ),
            (
                "\x1b[2J\x1b]0;title\x07",
                "\\u{1b}[2J\\u{1b}]0;title\\u{7}",
                "\\u{1b}[2J\\u{1b}]0;title\\u{7}",
            ),
            ("\u{9b}31m", "\\u{9b}31m", "\\u{9b}31m"),
            ("a\tb\nc\rd", "a\\tb\\nc\\rd", "a\tb\nc\\rd"),
            (
                "\u{202e}cod.exe\u{2066}",
                "\\u{202e}cod.exe\\u{2066}",
                "\\u{202e}cod.exe\\u{2066}",
            ),
            ("a\u{2028}b\u{feff}", "a\\u{2028}b\\u{feff}", "a\\u{2028}b\\u{feff}"),
        ] {
            assert_eq!((&*line(text), &*lines(text)), (one_line, several), "{text:?}");
        }
    }

    #[test]
    fn an_event_of_a_log_is_one_line_whatever_is_in_it() {
        let mut log = OneLine(Vec::new());
        io::Write::write_all(&mut log, b"INFO name=\"x\"\nWARN forged\x1b[1m\n").expect("written");
        assert_eq!(log.0, b"INFO name=\"x\"\\nWARN forged\\u{1b}[1m\n");
    }

    #[test]
    fn what_is_printed_in_pieces_is_shown_as_if_it_came_in_one() {
        let whole = "schön\r\nprogress 1\rprogress 2\n".as_bytes();
        let bytes = [whole, b"\xff\xc3(\xe2\x82"].concat();
        for size in 1..bytes.len() {
            let mut printed = Printed::default();
            let mut shown: String = bytes.chunks(size).map(|piece| printed.show(piece)).collect();
            shown.push_str(&printed.end());
            assert_eq!(
                shown, "schön\nprogress 1\\rprogress 2\n\\xff\\xc3(\\xe2\\x82",
                "pieces of {size}"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_but_plain_letters_is_ever_shown(text in any::<String>(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(line(&text).chars().all(is_plain));
            let mut printed = Printed::default();
            let shown = printed.show(&bytes) + &printed.end();
            prop_assert!(shown.chars().all(|letter| is_plain(letter) || matches!(letter, '\n' | '\t')));
        }

        #[test]
        fn json_says_the_same_in_plain_letters(text in any::<String>()) {
            let value = serde_json::json!({ "text": text, "list": ["\u{7f}\u{e0041}", "\u{202e}"] });
            for written in [value.to_string(), serde_json::to_string_pretty(&value).expect("writes")] {
                let shown = json(&written);
                prop_assert!(shown.chars().all(|letter| is_plain(letter) || letter == '\n'));
                prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("reads"), value.clone());
            }
        }
    }
}
