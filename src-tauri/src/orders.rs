//! What the program with the tray and the program of the window say to each other on Linux, a line of JSON each: orders into
//! the window's standard input, whose end ends it, and reports out of its standard output. What either does about it stands
//! in `linux/window_program.rs` and `sela_window.rs`.

use serde::{Deserialize, Serialize};

/// What the window is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// It is wanted again: show it above the others. Answered by [`Report::InFront`].
    ComeToFront,
    /// The supervisor was asked for the agent; the page shows what came of it.
    SupervisorSaid {
        /// What it said, for people.
        sentence: String,
    },
}

/// What the window tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// It has come to the front.
    InFront,
    /// Its owner closed it; what is left of the program ends by itself, and takes no order any more.
    Closed,
}

/// As it goes through the pipe, with its line's end.
pub(crate) fn line(said: &impl Serialize) -> String {
    let mut line = serde_json::to_string(said).expect("words without maps and numbers always write");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_takes_one_line_whatever_is_in_it() {
        let sentence = "two\nlines, \"quoted\"".to_owned();
        let order = Order::SupervisorSaid { sentence };
        let line = line(&order);
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        assert_eq!(serde_json::from_str::<Order>(&line).expect("reads"), order);
    }
}
