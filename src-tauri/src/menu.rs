//! The tray's menu as a list: which rows there are, what they say, and what is chosen by each. How a system draws rows is not
//! known here.

use crate::controller::{Choice, TrayView};
use crate::words::{Key, Words};

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Row {
    /// A line between.
    Line,
    /// Something to read or to choose.
    Item(Item),
}

/// What can be read or chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// The same whatever it says.
    pub(crate) id: &'static str,
    /// What it says.
    pub(crate) label: String,
    /// Whether it can be chosen now.
    pub(crate) enabled: bool,
    /// Whether it is checked, where it can be.
    pub(crate) checked: Option<bool>,
}

/// The choices by the ids of their items.
const CHOICES: &[(&str, Choice)] = &[
    ("share", Choice::Share),
    ("pause_hour", Choice::PauseHour),
    ("pause_tomorrow", Choice::PauseTomorrow),
    ("open", Choice::Open),
    ("at_login", Choice::StartAtLogin),
    ("quit", Choice::Quit),
];

/// What is chosen by this item; what is only there to be read chooses nothing.
pub(crate) fn choice_of(id: &str) -> Option<Choice> {
    let found = CHOICES.iter().find(|(known, _)| *known == id);
    found.map(|(_, choice)| *choice)
}

/// The rows' words that never change.
#[derive(Debug, Clone)]
pub(crate) struct Labels {
    share: String,
    pause_hour: String,
    pause_tomorrow: String,
    open: String,
    at_login: String,
    quit: String,
}

impl Labels {
    pub(crate) fn of(words: &Words) -> Self {
        let say = |key| words.say(key, &[]);
        Self {
            share: say(Key::TrayShare),
            pause_hour: say(Key::TrayPauseHour),
            pause_tomorrow: say(Key::TrayPauseTomorrow),
            open: say(Key::TrayOpen),
            at_login: say(Key::TrayStartAtLogin),
            quit: say(Key::TrayQuit),
        }
    }

    /// The menu, top to bottom: always the same rows.
    pub(crate) fn rows(&self, view: &TrayView) -> [Row; 11] {
        let plain = |id, label: &str, enabled| {
            Row::Item(Item {
                id,
                label: label.to_owned(),
                enabled,
                checked: None,
            })
        };
        let check = |id, label: &str, enabled, checked| {
            Row::Item(Item {
                id,
                label: label.to_owned(),
                enabled,
                checked: Some(checked),
            })
        };
        let at_login = view.at_login;
        [
            plain("state", &view.state, false),
            plain("earned", &view.earned, false),
            Row::Line,
            check("share", &self.share, view.can_share, view.sharing),
            plain("pause_hour", &self.pause_hour, view.can_pause),
            plain("pause_tomorrow", &self.pause_tomorrow, view.can_pause),
            Row::Line,
            plain("open", &self.open, true),
            check("at_login", &self.at_login, at_login.is_some(), at_login == Some(true)),
            Row::Line,
            plain("quit", &self.quit, true),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Language;
    use crate::words::Locale;

    #[test]
    fn every_row_that_can_be_chosen_chooses_something_and_no_two_the_same() {
        let words = Words::of(Locale {
            language: Language::En,
            region: None,
        });
        let mut view = TrayView::at_start(&words);
        (view.can_share, view.can_pause, view.at_login) = (true, true, Some(false));
        let mut choices = Vec::new();
        for row in Labels::of(&words).rows(&view) {
            let Row::Item(item) = row else {
                continue;
            };
            let choice = choice_of(item.id);
            assert_eq!(choice.is_some(), item.enabled, "{item:?}");
            assert!(choice.is_none() || !choices.contains(&choice), "{item:?}");
            choices.push(choice);
        }
        assert_eq!(choices.iter().flatten().count(), CHOICES.len());
    }
}
