//! The words between a checkup and its program inside a job: a question is a few system calls, spelled out; an answer is what the
//! kernel said to the first that it refused, or to the last. What is asked, and what an answer means, is decided elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The program that is asked, for the machine that this crate is built for.
pub(super) const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sela-asks"));

/// An argument of a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    /// What an earlier step answered, counted from 0.
    Answer(usize),
    /// The address of these bytes, which a zero follows.
    Bytes(Vec<u8>),
    /// The address of so many bytes of room.
    Room(usize),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// A question: its name, and what the program does for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) name: String,
    deed: Deed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Deed {
    Calls {
        steps: Vec<Vec<Value>>,
        /// How often the last step is made.
        times: u32,
        /// Whether what lies in the last room is shown.
        show: bool,
    },
    Fork {
        most: u32,
    },
    Touch {
        bytes: u64,
    },
    Noise {
        bytes: u64,
    },
    Stand {
        spinning: u32,
    },
}

/// A call by its number.
pub(super) fn call(number: libc::c_long, arguments: impl IntoIterator<Item = Value>) -> Vec<Value> {
    std::iter::once(Value::Number(number)).chain(arguments).collect()
}

impl Question {
    fn new(name: &str, deed: Deed) -> Self {
        Self {
            name: name.to_owned(),
            deed,
        }
    }

    /// Calls, each made if those before it were answered.
    pub(super) fn calls(name: &str, steps: Vec<Vec<Value>>) -> Self {
        let (times, show) = (1, false);
        Self::new(name, Deed::Calls { steps, times, show })
    }

    /// The same, with what the last one that was given room wrote there.
    pub(super) fn shown(name: &str, steps: Vec<Vec<Value>>) -> Self {
        let (times, show) = (1, true);
        Self::new(name, Deed::Calls { steps, times, show })
    }

    /// The same, the last one as often as this, and how often it went through.
    pub(super) fn repeated(name: &str, times: u32, steps: Vec<Vec<Value>>) -> Self {
        let show = false;
        Self::new(name, Deed::Calls { steps, times, show })
    }

    /// How many processes there can be more, up to this many.
    pub(super) fn fork(name: &str, most: u32) -> Self {
        Self::new(name, Deed::Fork { most })
    }

    /// Takes memory.
    pub(super) fn touch(name: &str, bytes: u64) -> Self {
        Self::new(name, Deed::Touch { bytes })
    }

    /// Prints dots.
    pub(super) fn noise(name: &str, bytes: u64) -> Self {
        Self::new(name, Deed::Noise { bytes })
    }

    /// Says so and stands until it is killed, beside processes of its own that never stop. The last question of all.
    pub(super) fn stand(name: &str, spinning: u32) -> Self {
        Self::new(name, Deed::Stand { spinning })
    }

    /// As the program reads it.
    pub(super) fn word(&self) -> String {
        let deed = match &self.deed {
            Deed::Calls { steps, times, show } => {
                let kind = match (times, show) {
                    (1, false) => "c".to_owned(),
                    (1, true) => "s".to_owned(),
                    (times, _) => format!("r{times}"),
                };
                steps.iter().fold(kind, |word, step| {
                    let values: Vec<String> = step.iter().map(spelled).collect();
                    word + ";" + &values.join(",")
                })
            }
            Deed::Fork { most } => format!("f{most}"),
            Deed::Touch { bytes } => format!("m{bytes}"),
            Deed::Noise { bytes } => format!("w{bytes}"),
            Deed::Stand { spinning } => format!("t{spinning}"),
        };
        format!("{}={deed}", self.name)
    }
}

fn spelled(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Answer(step) => format!("${step}"),
        Value::Bytes(bytes) => bytes.iter().fold("x".to_owned(), |mut text, byte| {
            // Writing to a text never fails.
            let _ = write!(text, "{byte:02x}");
            text
        }),
        Value::Room(size) => format!("z{size}"),
    }
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Every call went through.
    Done {
        /// What the last one answered, or how often it was made.
        value: i64,
        /// What was shown.
        shown: Vec<u8>,
    },
    /// One was refused.
    Refused {
        /// Which, from 0; of one that was repeated, after how often.
        step: i64,
        /// With which error.
        error: i32,
    },
    /// Whoever asked was killed.
    Killed {
        /// By which signal.
        signal: i64,
    },
}

/// Every answer by its question's name.
pub(super) type Answers = BTreeMap<String, Answer>;

/// What the program printed. Lines that are no answers are nothing: whoever prints them is behind the walls that are looked at.
pub(super) fn read(printed: &[u8]) -> Answers {
    let text = String::from_utf8_lossy(printed);
    text.lines().filter_map(read_line).collect()
}

fn read_line(line: &str) -> Option<(String, Answer)> {
    let mut words = line.split(' ');
    let (name, sign) = (words.next()?.to_owned(), words.next()?);
    let first = words.next()?.parse().ok()?;
    let answer = match sign {
        "=" => Answer::Done {
            value: first,
            shown: words.next().map_or_else(Vec::new, unhex),
        },
        "!" => Answer::Refused {
            step: first,
            error: words.next()?.parse().ok()?,
        },
        "killed" => Answer::Killed { signal: first },
        _ => return None,
    };
    Some((name, answer))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits
        .filter_map(|pair| std::str::from_utf8(pair).ok())
        .filter_map(|pair| u8::from_str_radix(pair, 16).ok())
        .collect()
}

/// The names in what `getdents64` wrote.
pub(super) fn names(entries: &[u8]) -> Vec<String> {
    // struct linux_dirent64: inode and offset of 8 bytes each, the length of the entry in 2, its kind in 1, its name to a zero.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut found = Vec::new();
    let mut rest = entries;
    while let Some(&[low, high]) = rest.get(LENGTH..LENGTH + 2) {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(entry) = rest.get(NAME..length) else { break };
        let name = entry.split(|byte| *byte == 0).next().unwrap_or_default();
        found.push(String::from_utf8_lossy(name).into_owned());
        rest = rest.get(length..).unwrap_or_default();
    }
    found.retain(|name| name != "." && name != "..");
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_spelled_and_an_answer_read() {
        let open = call(5, [Value::from(-100), "/a".into(), 0.into()]);
        let read_it = call(0, [Value::Answer(0), Value::Room(64), 64.into()]);
        let question = Question::shown("file", vec![open, read_it]);
        assert_eq!(question.word(), "file=s;5,-100,x2f61,0;0,$0,z64,64");
        assert_eq!(Question::repeated("open", 9, vec![call(5, [])]).word(), "open=r9;5");
        assert_eq!(Question::fork("fork", 3).word(), "fork=f3");
    }

    #[test]
    fn what_is_printed_is_read_and_anything_else_is_nothing() {
        let printed = b"a = 3 0a0b\nb ! 1 13\nnoise\nc killed 9\nd = x\ne ? 1\n\xff\n";
        let answers = read(printed);
        let expected = [
            (
                "a",
                Answer::Done {
                    value: 3,
                    shown: vec![10, 11],
                },
            ),
            ("b", Answer::Refused { step: 1, error: 13 }),
            ("c", Answer::Killed { signal: 9 }),
        ];
        assert_eq!(answers.len(), expected.len(), "{answers:?}");
        for (name, answer) in expected {
            assert_eq!(answers[name], answer);
        }
    }
}
