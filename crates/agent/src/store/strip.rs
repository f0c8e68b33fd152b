//! The gap strip's part of `telemetry.db`: stretches of time in which a card was offered, sold or held, and each time that it
//! was given back. When one ends and the next begins is decided in `run::strip`; here it is kept and read.

use super::StoreError;
use super::telemetry::{FILE, TelemetryBook, failed};
use rusqlite::{Connection, Row, params};
use sela_protocol::id::GpuUuid;
use sela_protocol::local::{Stretch, StripRecord, YieldMeasure};
use sela_protocol::units::UtcMs;
use serde::de::DeserializeOwned;
use serde::ser::Serialize;

/// The most stretches, and the most yields, of one answer.
const MOST: usize = 20_000;

/// What became of the cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StripEntry {
    /// The open stretch of a card ended.
    Ended {
        /// Which card.
        gpu: GpuUuid,
        /// The first moment after it.
        at: UtcMs,
    },
    /// A stretch began; it is open. The one before has ended.
    Began(Stretch),
    /// Whatever is open went on at least until then.
    Seen(UtcMs),
    /// A card was given back.
    Yielded(YieldMeasure),
}

impl TelemetryBook {
    /// Closes what the last run left open, at the last moment of which it is known.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn close_left_open(&self) -> Result<(), StoreError> {
        self.connection
            .execute("UPDATE stretches SET open = 0 WHERE open = 1", [])
            .map_err(failed)?;
        Ok(())
    }

    /// Keeps what became of the cards, all of it or nothing.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn keep_strip(&mut self, entries: &[StripEntry]) -> Result<(), StoreError> {
        let transaction = self.connection.transaction().map_err(failed)?;
        for entry in entries {
            keep(&transaction, entry)?;
        }
        transaction.commit().map_err(failed)
    }

    /// Stretches and yields from `from` up to `to`, oldest first. A stretch that reaches over an edge is told whole; one that
    /// goes on ends at `now`. Those of one card never overlap, even where the clock was set back.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn strip(&self, from: UtcMs, to: UtcMs, now: UtcMs) -> Result<StripRecord, StoreError> {
        let stretches = self.rows(
            "SELECT gpu, from_utc_ms, end_utc_ms, held, sold FROM (
                SELECT number, gpu, from_utc_ms, held, sold,
                    CASE open WHEN 1 THEN MAX(to_utc_ms, ?3) ELSE to_utc_ms END AS end_utc_ms
                FROM stretches WHERE (to_utc_ms > ?1 OR open = 1) AND from_utc_ms < ?2)
             WHERE end_utc_ms > ?1 AND end_utc_ms > from_utc_ms ORDER BY from_utc_ms, number LIMIT ?4",
            params![from.0, to.0, now.0, MOST + 1],
            stretch,
        )?;
        let yields = self.rows(
            "SELECT entry FROM yields WHERE at_utc_ms >= ?1 AND at_utc_ms < ?2 ORDER BY at_utc_ms, number LIMIT ?3",
            params![from.0, to.0, MOST + 1],
            |row| row.get::<_, String>(0),
        )?;
        Ok(StripRecord {
            stretches: apart(stretches.into_iter().collect::<Result<_, _>>()?),
            yields: yields
                .iter()
                .map(|text| read::<YieldMeasure>(text))
                .collect::<Result<_, _>>()?,
        })
    }

    fn rows<T>(
        &self,
        query: &str,
        values: &[&dyn rusqlite::ToSql],
        show: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(query).map_err(failed)?;
        let rows: Vec<T> = statement
            .query_map(values, show)
            .and_then(Iterator::collect)
            .map_err(failed)?;
        if rows.len() > MOST {
            return Err(StoreError::TooMany { most: MOST });
        }
        Ok(rows)
    }
}

/// Forgets what ended before a moment.
pub(super) fn forget(connection: &Connection, before: UtcMs) -> Result<(), StoreError> {
    for query in [
        "DELETE FROM stretches WHERE open = 0 AND to_utc_ms < ?1",
        "DELETE FROM yields WHERE at_utc_ms < ?1",
    ] {
        connection.execute(query, [before.0]).map_err(failed)?;
    }
    Ok(())
}

fn keep(connection: &Connection, entry: &StripEntry) -> Result<(), StoreError> {
    let changed = |query, values: &[&dyn rusqlite::ToSql]| {
        connection
            .prepare_cached(query)
            .and_then(|mut statement| statement.execute(values))
            .map_err(failed)
    };
    match entry {
        StripEntry::Ended { gpu, at } => changed(
            "UPDATE stretches SET to_utc_ms = MAX(from_utc_ms, ?2), open = 0 WHERE gpu = ?1 AND open = 1",
            params![gpu.0, at.0],
        ),
        StripEntry::Began(stretch) => changed(
            "INSERT INTO stretches (gpu, from_utc_ms, to_utc_ms, open, held, sold) VALUES (?1, ?2, ?3, 1, ?4, ?5)",
            params![
                stretch.gpu.0,
                stretch.from_utc_ms.0,
                stretch.to_utc_ms.0,
                stretch.held.as_ref().map(write).transpose()?,
                stretch.sold.as_ref().map(write).transpose()?,
            ],
        ),
        StripEntry::Seen(now) => changed(
            "UPDATE stretches SET to_utc_ms = MAX(to_utc_ms, ?1) WHERE open = 1",
            params![now.0],
        ),
        StripEntry::Yielded(measure) => changed(
            "INSERT INTO yields (gpu, at_utc_ms, entry) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
            params![measure.gpu.0, measure.at_utc_ms.0, write(measure)?],
        ),
    }?;
    Ok(())
}

fn stretch(row: &Row<'_>) -> rusqlite::Result<Result<Stretch, StoreError>> {
    let (held, sold): (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
    let (gpu, from, to) = (GpuUuid(row.get(0)?), UtcMs(row.get(1)?), UtcMs(row.get(2)?));
    Ok(held.as_deref().map(read).transpose().and_then(|held| {
        Ok(Stretch {
            gpu,
            from_utc_ms: from,
            to_utc_ms: to,
            held,
            sold: sold.as_deref().map(read).transpose()?,
        })
    }))
}

/// Ends each stretch where the next of its card begins: where the clock was set back, one time was recorded twice.
fn apart(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    let mut next = std::collections::BTreeMap::new();
    for stretch in stretches.iter_mut().rev() {
        if let Some(next) = next.insert(stretch.gpu.clone(), stretch.from_utc_ms) {
            stretch.to_utc_ms = stretch.to_utc_ms.min(next);
        }
    }
    stretches.retain(|stretch| stretch.to_utc_ms > stretch.from_utc_ms);
    stretches
}

fn write<T: Serialize>(entry: &T) -> Result<String, StoreError> {
    serde_json::to_string(entry).map_err(|error| unreadable(&error))
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> StoreError {
    StoreError::Entry {
        file: FILE,
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::lease::EndCause;
    use sela_protocol::presence::HoldReason;

    fn began(from: i64, held: Option<HoldReason>) -> StripEntry {
        StripEntry::Began(Stretch {
            gpu: GpuUuid("GPU-1".into()),
            from_utc_ms: UtcMs(from),
            to_utc_ms: UtcMs(from),
            held,
            sold: None,
        })
    }

    fn ended(at: i64) -> StripEntry {
        StripEntry::Ended {
            gpu: GpuUuid("GPU-1".into()),
            at: UtcMs(at),
        }
    }

    fn spans(record: &StripRecord) -> Vec<(i64, i64)> {
        let span = |stretch: &Stretch| (stretch.from_utc_ms.0, stretch.to_utc_ms.0);
        record.stretches.iter().map(span).collect()
    }

    fn all(book: &TelemetryBook, now: i64) -> Vec<(i64, i64)> {
        spans(&book.strip(UtcMs(i64::MIN), UtcMs(i64::MAX), UtcMs(now)).expect("reads"))
    }

    #[test]
    fn what_a_killed_agent_left_open_ends_at_the_last_moment_that_it_knew() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = TelemetryBook::open(folder.path()).expect("opens");
        book.keep_strip(&[began(100, None), StripEntry::Seen(UtcMs(160))])
            .expect("kept");
        assert_eq!(all(&book, 175), [(100, 175)], "it goes on");
        drop(book);
        let mut book = TelemetryBook::open(folder.path()).expect("opens again");
        book.close_left_open().expect("closes");
        assert_eq!(all(&book, 900), [(100, 160)]);
        book.keep_strip(&[began(900, None)]).expect("a new one may begin");
        assert_eq!(all(&book, 950), [(100, 160), (900, 950)]);
    }

    #[test]
    fn an_answer_holds_what_touches_its_time_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = TelemetryBook::open(folder.path()).expect("opens");
        let yielded = |at| {
            StripEntry::Yielded(YieldMeasure {
                at_utc_ms: UtcMs(at),
                gpu: GpuUuid("GPU-1".into()),
                cause: EndCause::Hot,
                frozen_ms: None,
                quiet_ms: None,
                vram_free_ms: None,
            })
        };
        book.keep_strip(&[
            began(0, None),
            ended(100),
            yielded(100),
            yielded(100),
            began(100, Some(HoldReason::Starting)),
            ended(200),
            yielded(200),
            began(200, None),
        ])
        .expect("kept");
        for (from, to, expected, yields) in [
            (0, 100, vec![(0, 100)], 0),
            (100, 200, vec![(100, 200)], 1),
            (150, 201, vec![(100, 200), (200, 300)], 1),
            (300, 400, vec![], 0),
        ] {
            let record = book.strip(UtcMs(from), UtcMs(to), UtcMs(300)).expect("reads");
            assert_eq!(
                (spans(&record), record.yields.len()),
                (expected, yields),
                "{from}..{to}"
            );
        }
    }

    #[test]
    fn stretches_of_a_card_do_not_overlap_though_the_clock_was_set_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = TelemetryBook::open(folder.path()).expect("opens");
        book.keep_strip(&[began(1_000, None), ended(1_500), began(400, None), ended(1_200)])
            .expect("kept");
        assert_eq!(all(&book, 9_999), [(400, 1_000), (1_000, 1_500)]);
    }

    #[test]
    fn an_entry_of_a_batch_that_cannot_be_kept_keeps_the_others_out_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = TelemetryBook::open(folder.path()).expect("opens");
        book.keep_strip(&[began(1, None)]).expect("kept");
        book.keep_strip(&[StripEntry::Seen(UtcMs(50)), began(60, None)])
            .expect_err("a card has one open stretch");
        book.close_left_open().expect("closes");
        assert_eq!(
            all(&book, 99),
            [(0, 0); 0],
            "nothing is known of it after its first moment"
        );
    }

    #[test]
    fn the_oldest_is_forgotten_with_the_samples_but_never_what_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = TelemetryBook::open(folder.path()).expect("opens");
        book.keep_strip(&[began(0, None), ended(10), began(10, None)])
            .expect("kept");
        let years = 3 * 365 * 24 * 3_600_000;
        book.prune(UtcMs(years)).expect("prunes");
        assert_eq!(all(&book, years), [(10, years)]);
    }
}
