//! The languages that are spoken. What is said in them stands in `words`, and in the page.

/// A language that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    /// English.
    En,
    /// Bahasa Indonesia.
    Id,
}

impl Language {
    /// As the page and the system name it.
    pub(crate) const fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Id => "id",
        }
    }
}
