//! What can be said on the command line, by people and by the entry that starts this program at login.

use crate::language::Language;
use crate::sign::Panel;
use clap::Parser;

/// The word that the entry for login adds, so that only the tray appears.
pub(crate) const HIDDEN: &str = "--hidden";

/// The window and the tray of Sela. The agent runs by itself: see `sela status`.
#[derive(Debug, Clone, Parser)]
#[command(name = "sela-desktop", version)]
pub(crate) struct Arguments {
    /// Show only the tray; the window opens from there
    #[arg(long)]
    pub(crate) hidden: bool,
    /// The language of window, tray and notifications; else the system's
    #[arg(long, env = "SELA_LANGUAGE", value_enum, value_name = "LANGUAGE")]
    pub(crate) language: Option<Language>,
    /// What the panel with the tray looks like; else what the desktop tells, else dark
    #[arg(long, env = "SELA_PANEL", value_enum, value_name = "PANEL")]
    pub(crate) panel: Option<Panel>,
}

/// Whether a second start wants only the tray, which is there already.
#[cfg(any(test, not(target_os = "linux")))]
pub(crate) fn is_hidden(words: &[String]) -> bool {
    words.iter().any(|word| word == HIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_the_login_entry_is_understood() {
        let arguments = Arguments::try_parse_from(["sela-desktop", HIDDEN]).expect("known");
        assert!(arguments.hidden);
        assert!(is_hidden(&["sela-desktop".to_owned(), HIDDEN.to_owned()]));
        assert!(!is_hidden(&["sela-desktop".to_owned()]));
    }

    #[test]
    fn a_language_that_is_not_spoken_is_refused() {
        assert!(Arguments::try_parse_from(["sela-desktop", "--language", "id"]).is_ok());
        assert!(Arguments::try_parse_from(["sela-desktop", "--language", "fr"]).is_err());
    }
}
