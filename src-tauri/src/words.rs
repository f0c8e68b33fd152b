//! The words of tray and notifications: the same messages as the window's, `ui/messages/*.json`, in the language that the
//! system or its owner asks for. Which word is said when is the controller's.

use crate::language::Language;
use serde::Deserialize;
use std::collections::HashMap;

const ENGLISH: &str = include_str!("../../ui/messages/en.json");
const INDONESIAN: &str = include_str!("../../ui/messages/id.json");

/// A language, and the region by whose habits numbers and times are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locale {
    /// The language.
    pub(crate) language: Language,
    /// Two letters, where the system names a region.
    pub(crate) region: Option<String>,
}

impl Locale {
    /// What was asked for, else what the system says in `LC_ALL`, `LC_MESSAGES` or `LANG` (the first that is set counts), else
    /// English.
    pub(crate) fn find(asked: Option<Language>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let named = ["LC_ALL", "LC_MESSAGES", "LANG"]
            .into_iter()
            .filter_map(variable)
            .find(|value| !value.is_empty())
            .unwrap_or_default();
        let name = named.split(['.', '@']).next().unwrap_or_default();
        let (tag, region) = name.split_once(['_', '-']).unwrap_or((name, ""));
        let spoken = if tag == Language::Id.tag() {
            Language::Id
        } else {
            Language::En
        };
        let language = asked.unwrap_or(spoken);
        // The region of another language says nothing about how this one writes.
        let region = (tag == language.tag() && !region.is_empty()).then(|| region.to_owned());
        Self { language, region }
    }
}

macro_rules! keys {
    ($($key:ident = $name:literal),+ $(,)?) => {
        /// What can be said.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Key { $(#[doc = $name] $key),+ }

        impl Key {
            /// All of them.
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$key),+];

            const fn name(self) -> &'static str {
                match self { $(Self::$key => $name),+ }
            }
        }
    };
}

keys! {
    Earning = "sentence.earning",
    Sharing = "sentence.sharing",
    Held = "sentence.held",
    PausedUntil = "sentence.paused_until",
    Paused = "sentence.paused",
    GivingBack = "sentence.giving_back",
    Preparing = "sentence.preparing",
    NoCard = "sentence.no_card",
    NoExchange = "sentence.no_exchange",
    Looking = "sentence.looking",
    Unreachable = "sentence.unreachable",
    Refused = "sentence.refused",
    NoIsolation = "sentence.no_isolation",
    Starting = "sentence.starting",
    Stopping = "sentence.stopping",
    Asking = "missing.loading",
    Missing = "missing.title",
    OtherVersion = "skew.title",
    AgentNewer = "skew.agent_newer",
    AgentOlder = "skew.agent_older",
    Broken = "error.title",
    Lab = "badge.lab",
    Simulated = "badge.simulated",
    NoticeRefused = "notice.refused",
    NoticeSettings = "notice.settings",
    CommandFailed = "notice.command_failed",
    TrayOpen = "tray.open",
    TrayShare = "tray.share",
    TrayPauseHour = "tray.pause_hour",
    TrayPauseTomorrow = "tray.pause_tomorrow",
    TrayEarned = "tray.earned_today",
    TrayQuit = "tray.quit",
    TrayStartAtLogin = "tray.start_at_login",
    TrayNotAllowed = "tray.not_allowed",
    FirstJob = "notify.first_job",
    FirstJobText = "notify.first_job_text",
    Hot = "notify.hot",
    HotText = "notify.hot_text",
    Attention = "notify.attention",
    MissingText = "notify.missing_text",
    QuitFailed = "notify.quit_failed",
    QuitFailedText = "notify.quit_failed_text",
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Message {
    Text(String),
    Forms { one: Option<String>, other: String },
}

/// A speaker of one language.
#[derive(Debug)]
pub(crate) struct Words {
    /// The language and the habits of figures.
    pub(crate) locale: Locale,
    messages: HashMap<String, Message>,
}

impl Words {
    pub(crate) fn of(locale: Locale) -> Self {
        let text = match locale.language {
            Language::En => ENGLISH,
            Language::Id => INDONESIAN,
        };
        let messages = serde_json::from_str(text).expect("the messages were compiled in, and a test reads them");
        Self { locale, messages }
    }

    /// A message with its places filled. A plural also needs the place `count`, a number.
    pub(crate) fn say(&self, key: Key, places: &[(&str, &str)]) -> String {
        let text = match self.messages.get(key.name()) {
            Some(Message::Text(text)) => text,
            Some(Message::Forms { one, other }) => {
                let alone = places.iter().any(|(place, value)| *place == "count" && *value == "1");
                one.as_ref().filter(|_| alone).unwrap_or(other)
            }
            // Compiled in and held by a test; its name is better than nothing.
            None => key.name(),
        };
        let mut said = String::with_capacity(text.len());
        let mut rest: &str = text;
        // Once through the message: what fills a place is not looked at for places.
        while let Some((before, after)) = rest.split_once('{') {
            let Some((place, after)) = after.split_once('}') else {
                break;
            };
            said.push_str(before);
            let value = places.iter().find(|(name, _)| *name == place).map(|(_, value)| *value);
            said.push_str(value.unwrap_or(place));
            rest = after;
        }
        said.push_str(rest);
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(asked: Option<Language>, variables: &[(&str, &str)]) -> (Language, Option<String>) {
        let locale = Locale::find(asked, |name| {
            let set = variables.iter().find(|(known, _)| *known == name);
            set.map(|(_, value)| (*value).to_owned())
        });
        (locale.language, locale.region)
    }

    #[test]
    fn the_language_follows_the_system_and_can_be_asked_for() {
        use Language::{En, Id};
        let region = |text: &str| Some(text.to_owned());
        assert_eq!(found(None, &[]), (En, None));
        assert_eq!(found(None, &[("LANG", "id_ID.UTF-8")]), (Id, region("ID")));
        assert_eq!(found(None, &[("LANG", "de_DE.UTF-8")]), (En, None));
        assert_eq!(found(None, &[("LANG", "C.UTF-8")]), (En, None));
        assert_eq!(
            found(None, &[("LC_ALL", "en_GB.UTF-8"), ("LANG", "id_ID")]),
            (En, region("GB"))
        );
        assert_eq!(found(None, &[("LC_ALL", ""), ("LANG", "id")]), (Id, None));
        assert_eq!(found(Some(Id), &[("LANG", "en_US.UTF-8")]), (Id, None));
        assert_eq!(found(Some(En), &[("LANG", "en_US.UTF-8")]), (En, region("US")));
    }

    #[test]
    fn everything_is_said_in_every_language() {
        for language in [Language::En, Language::Id] {
            let words = Words::of(Locale { language, region: None });
            for key in Key::ALL {
                let message = words.messages.get(key.name());
                assert!(message.is_some(), "{} says nothing for {}", language.tag(), key.name());
            }
        }
    }

    #[test]
    fn places_are_filled_once_and_a_single_card_has_its_own_words() {
        let words = Words::of(Locale {
            language: Language::En,
            region: None,
        });
        let earning = |count: &str| words.say(Key::Earning, &[("count", count), ("earning", "1")]);
        assert_eq!(earning("1"), "Earning on your card.");
        assert_eq!(earning("2"), "Earning on 1 of 2 cards.");
        let said = words.say(Key::NoticeRefused, &[("url", "{why}"), ("why", "no")]);
        assert!(said.contains("{why}"), "an address is shown as it is: {said}");
    }
}
