//! Subordinate ids: the range of the machine's user and group ids that a job's own ids are mapped to. The owner's own id is
//! never in it. Who maps it, and when, is `native`'s.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// A run of user and group ids of this machine. Id 0 inside a job is `first` outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The id outside that 0 inside is mapped to.
    pub first: u32,
    /// How many ids are mapped, at least 1.
    pub count: u32,
}

/// Why a range of subordinate ids cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdRangeError {
    /// It would reach into ids of people or services, or wrap around.
    #[error(
        "the subordinate ids {first} … +{count} are not safe for jobs: use a range of 65 536 that starts at 100 000 or above"
    )]
    Unsafe {
        /// The range's first id.
        first: u32,
        /// Its length.
        count: u32,
    },
    /// The file with the ranges has a line that is none.
    #[error("{file} line {line}: a line reads name:first:count")]
    Malformed {
        /// Which file.
        file: String,
        /// Which line, from 1.
        line: usize,
    },
}

/// Used by a rootful agent where `/etc/subuid` names no range for [`IdRange::ENTRY`]. Ids from 1 879 048 192 on are handed out
/// neither by `useradd` nor to systemd's containers (systemd's UIDS-GIDS document lists them as unused), and fit in 31 bits.
pub const ROOTFUL_RANGE: IdRange = IdRange {
    first: 0x7000_0000,
    count: 65_536,
};

impl IdRange {
    /// The name that an entry in `/etc/subuid` must carry to be used by a rootful agent.
    pub const ENTRY: &'static str = "sela";

    /// A range, checked: nothing below 100 000 (people and services), nothing that wraps, room for `nobody` (65 534).
    ///
    /// # Errors
    /// [`IdRangeError::Unsafe`].
    pub const fn new(first: u32, count: u32) -> Result<Self, IdRangeError> {
        if first < 100_000 || count < 65_536 || first.checked_add(count).is_none() {
            return Err(IdRangeError::Unsafe { first, count });
        }
        Ok(Self { first, count })
    }

    /// The id outside for an id inside; `None` where it is not mapped.
    pub const fn outside(self, inside: u32) -> Option<u32> {
        if inside < self.count {
            Some(self.first + inside)
        } else {
            None
        }
    }

    /// Whether an id of this machine belongs to jobs.
    pub const fn holds(self, outside: u32) -> bool {
        outside >= self.first && outside - self.first < self.count
    }

    /// The range inside a rootless agent's own user namespace, where 0 is its own user: every subordinate id that it maps.
    pub const INSIDE: Self = Self {
        first: 1,
        count: 65_536,
    };

    /// Whether jobs may have it: outside of a rootless agent's own namespace as [`Self::new`], inside whatever does not hold its user.
    pub(crate) fn is_for_jobs(self, inside: bool) -> bool {
        if inside {
            self.first > 0 && self.count >= Self::INSIDE.count && self.first.checked_add(self.count).is_some()
        } else {
            Self::new(self.first, self.count).is_ok()
        }
    }

    /// The range for this agent, rootful or inside its own namespace: see [`Self::rootful`] and [`Self::INSIDE`].
    ///
    /// # Errors
    /// As [`Self::rootful`].
    pub fn of_agent(subuid: &Path) -> Result<Self, IdRangeError> {
        if crate::rootless::is_inside(Path::new("/proc")) {
            return Ok(Self::INSIDE);
        }
        Self::rootful(subuid)
    }

    /// The range for a rootful agent: the entry `sela` of this file (`/etc/subuid`), else [`ROOTFUL_RANGE`].
    ///
    /// # Errors
    /// [`IdRangeError`] where the file has an entry for `sela` that cannot be used. A missing file is no error.
    pub fn rootful(subuid: &Path) -> Result<Self, IdRangeError> {
        Ok(Self::named(subuid, &[Self::ENTRY])?.unwrap_or(ROOTFUL_RANGE))
    }

    /// The first range of a file like `/etc/subuid` that is for one of these names.
    ///
    /// # Errors
    /// [`IdRangeError`] where that cannot be used. A missing file holds none.
    pub(crate) fn named(file: &Path, names: &[&str]) -> Result<Option<Self>, IdRangeError> {
        let Ok(text) = std::fs::read_to_string(file) else {
            return Ok(None);
        };
        for (index, line) in text.lines().enumerate() {
            let mut fields = line.trim().split(':');
            if !fields.next().is_some_and(|name| names.contains(&name)) {
                continue;
            }
            let mut number = || fields.next().and_then(|field| field.parse::<u32>().ok());
            let (Some(first), Some(count)) = (number(), number()) else {
                return Err(IdRangeError::Malformed {
                    file: file.display().to_string(),
                    line: index + 1,
                });
            };
            return Self::new(first, count).map(Some);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_for_sela_is_used_and_an_unsafe_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("subuid");
        assert_eq!(IdRange::rootful(&file), Ok(ROOTFUL_RANGE), "no file");
        for (text, expected) in [
            ("anna:100000:65536\n", Ok(ROOTFUL_RANGE)),
            (
                "anna:100000:65536\nsela:165536:65536\n",
                Ok(IdRange {
                    first: 165_536,
                    count: 65_536,
                }),
            ),
            (
                "sela:1000:65536\n",
                Err(IdRangeError::Unsafe {
                    first: 1000,
                    count: 65_536,
                }),
            ),
            (
                "sela:4294967295:65536\n",
                Err(IdRangeError::Unsafe {
                    first: u32::MAX,
                    count: 65_536,
                }),
            ),
            (
                "\nsela:many\n",
                Err(IdRangeError::Malformed {
                    file: file.display().to_string(),
                    line: 2,
                }),
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(IdRange::rootful(&file), expected, "{text:?}");
        }
    }

    #[test]
    fn inside_an_agents_own_namespace_a_job_may_have_all_but_its_user() {
        let range = |first, count| IdRange { first, count };
        for (range, outside, inside) in [
            (IdRange::INSIDE, false, true),
            (range(0, 65_536), false, false),
            (range(1, 1_000), false, false),
            (ROOTFUL_RANGE, true, true),
            (range(u32::MAX, 65_536), false, false),
        ] {
            assert_eq!(range.is_for_jobs(false), outside, "{range:?}");
            assert_eq!(range.is_for_jobs(true), inside, "{range:?}");
        }
    }

    #[test]
    fn only_ids_of_the_range_are_mapped() {
        let range = IdRange {
            first: 200_000,
            count: 65_536,
        };
        for (inside, outside) in [(0, Some(200_000)), (65_535, Some(265_535)), (65_536, None)] {
            assert_eq!(range.outside(inside), outside);
        }
        assert!(range.holds(200_000) && range.holds(265_535));
        assert!(!range.holds(199_999) && !range.holds(265_536) && !range.holds(0));
    }
}
