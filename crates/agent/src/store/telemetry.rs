//! `telemetry.db`: what cards reported, as minutes and, once they are old, as hours (the gap strip, which lies in the same
//! file, is in `strip`). Prunable: nothing here is owed to anybody. Readings of one minute are gathered in memory and written once.

use super::StoreError;
use super::migrations::{TELEMETRY, migrate};
use super::strip;
use rusqlite::{Connection, params};
use sela_protocol::card::CardReading;
use sela_protocol::id::GpuUuid;
use sela_protocol::local::{Page, Sample};
use sela_protocol::units::{Bytes, Celsius, Millis, Milliwatts, Percent, UtcMs};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const FILE: &str = "telemetry.db";
const MINUTE: Millis = Millis(60_000);
const HOUR: Millis = Millis(3_600_000);
/// Minutes become hours when they are older than a week; hours are kept for two years.
const KEEP_MINUTES: Millis = Millis(7 * 24 * HOUR.0);
const KEEP_HOURS: Millis = Millis(2 * 365 * 24 * HOUR.0);
const PAGE: usize = 1_000;

/// Readings of the minute that runs.
#[derive(Debug, Default)]
pub(crate) struct Minute {
    start: Option<UtcMs>,
    cards: BTreeMap<GpuUuid, Gathered>,
}

#[derive(Debug, Default)]
struct Gathered {
    temperature_most: Option<Celsius>,
    power: Mean,
    utilisation: Mean,
    vram_most: Option<Bytes>,
}

#[derive(Debug, Default)]
struct Mean {
    sum: u64,
    count: u64,
}

impl Minute {
    /// Adds readings; gives the samples of the minute before when a new one begins.
    pub(crate) fn add(&mut self, now: UtcMs, readings: &[CardReading]) -> Vec<Sample> {
        let start = span_start(now, MINUTE);
        let finished = match self.start.replace(start) {
            Some(before) if before != start => std::mem::take(&mut self.cards)
                .into_iter()
                .map(|(gpu, gathered)| gathered.sample(gpu, before))
                .collect(),
            Some(_) | None => Vec::new(),
        };
        for reading in readings {
            self.cards.entry(reading.uuid.clone()).or_default().add(reading);
        }
        finished
    }
}

impl Gathered {
    fn add(&mut self, reading: &CardReading) {
        self.temperature_most = self.temperature_most.max(reading.temperature.value().copied());
        self.vram_most = self.vram_most.max(reading.vram_used.value().copied());
        self.power.add(reading.power.value().map(|power| u64::from(power.0)));
        self.utilisation
            .add(reading.utilisation.value().map(|share| u64::from(share.0)));
    }

    fn sample(self, gpu: GpuUuid, at_utc_ms: UtcMs) -> Sample {
        Sample {
            gpu,
            at_utc_ms,
            span_ms: MINUTE,
            temperature_most: self.temperature_most,
            power_mean: self
                .power
                .value()
                .and_then(|mean| u32::try_from(mean).ok())
                .map(Milliwatts),
            utilisation_mean: self
                .utilisation
                .value()
                .and_then(|mean| u8::try_from(mean).ok())
                .map(Percent),
            vram_most: self.vram_most,
        }
    }
}

impl Mean {
    fn add(&mut self, value: Option<u64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    const fn value(&self) -> Option<u64> {
        self.sum.checked_div(self.count)
    }
}

fn span_start(moment: UtcMs, span: Millis) -> UtcMs {
    let span = i64::try_from(span.0).unwrap_or(i64::MAX);
    UtcMs(moment.0.div_euclid(span) * span)
}

/// The open database.
#[derive(Debug)]
pub(crate) struct TelemetryBook {
    pub(super) connection: Connection,
}

impl TelemetryBook {
    /// Opens or makes it, and brings it to the newest layout.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn open(folder: &Path) -> Result<Self, StoreError> {
        let mut connection = Connection::open(folder.join(FILE)).map_err(failed)?;
        // NORMAL: a minute lost with the power is no loss.
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -128;")
            .map_err(failed)?;
        migrate(&mut connection, FILE, TELEMETRY)?;
        Ok(Self { connection })
    }

    /// Keeps samples; one that is there already stays.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn keep(&mut self, samples: &[Sample]) -> Result<(), StoreError> {
        let transaction = self.connection.transaction().map_err(failed)?;
        for sample in samples {
            transaction
                .prepare_cached(
                    "INSERT INTO samples (gpu, at_utc_ms, span_ms, temperature_most, power_mean, utilisation_mean, vram_most)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
                )
                .and_then(|mut statement| {
                    statement.execute(params![
                        sample.gpu.0,
                        sample.at_utc_ms.0,
                        sample.span_ms.0,
                        sample.temperature_most.map(|value| value.0),
                        sample.power_mean.map(|value| value.0),
                        sample.utilisation_mean.map(|value| value.0),
                        sample.vram_most.map(|value| value.0),
                    ])
                })
                .map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    /// Turns old minutes into hours, and forgets the oldest hours and what the strip shows of that time.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn prune(&mut self, now: UtcMs) -> Result<(), StoreError> {
        let past = |span: Millis| now.0.saturating_sub(i64::try_from(span.0).unwrap_or(i64::MAX));
        // Whole hours only: an hour whose minutes are not all old is left alone.
        let oldest_minute = span_start(UtcMs(past(KEEP_MINUTES)), HOUR).0;
        let transaction = self.connection.transaction().map_err(failed)?;
        transaction
            .execute(
                "INSERT INTO samples (gpu, at_utc_ms, span_ms, temperature_most, power_mean, utilisation_mean, vram_most)
                 SELECT gpu, at_utc_ms / ?1 * ?1, ?1, MAX(temperature_most), CAST(AVG(power_mean) AS INTEGER),
                        CAST(AVG(utilisation_mean) AS INTEGER), MAX(vram_most)
                 FROM samples WHERE span_ms = ?2 AND at_utc_ms < ?3 GROUP BY gpu, at_utc_ms / ?1
                 ON CONFLICT DO NOTHING",
                params![HOUR.0, MINUTE.0, oldest_minute],
            )
            .map_err(failed)?;
        for (span, before) in [(MINUTE, oldest_minute), (HOUR, past(KEEP_HOURS))] {
            transaction
                .execute(
                    "DELETE FROM samples WHERE span_ms = ?1 AND at_utc_ms < ?2",
                    params![span.0, before],
                )
                .map_err(failed)?;
        }
        strip::forget(&transaction, UtcMs(past(KEEP_HOURS)))?;
        transaction.commit().map_err(failed)
    }

    /// Samples, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn samples(&self, cursor: Option<&str>) -> Result<Page<Sample>, StoreError> {
        let bad = |text: &str| StoreError::Cursor(text.to_owned());
        let (at, number) = match cursor {
            None => (i64::MAX, i64::MAX),
            Some(text) => {
                let (at, number) = text.split_once('_').ok_or_else(|| bad(text))?;
                (
                    at.parse().map_err(|_| bad(text))?,
                    number.parse().map_err(|_| bad(text))?,
                )
            }
        };
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT number, gpu, at_utc_ms, span_ms, temperature_most, power_mean, utilisation_mean, vram_most
                 FROM samples WHERE (at_utc_ms, number) < (?1, ?2) ORDER BY at_utc_ms DESC, number DESC LIMIT ?3",
            )
            .map_err(failed)?;
        let rows: Vec<(i64, Sample)> = statement
            .query_map((at, number, PAGE + 1), |row| {
                let sample = Sample {
                    gpu: GpuUuid(row.get(1)?),
                    at_utc_ms: UtcMs(row.get(2)?),
                    span_ms: Millis(row.get(3)?),
                    temperature_most: row.get::<_, Option<i32>>(4)?.map(Celsius),
                    power_mean: row.get::<_, Option<u32>>(5)?.map(Milliwatts),
                    utilisation_mean: row.get::<_, Option<u8>>(6)?.map(Percent),
                    vram_most: row.get::<_, Option<u64>>(7)?.map(Bytes),
                };
                Ok((row.get(0)?, sample))
            })
            .and_then(Iterator::collect)
            .map_err(failed)?;
        let last = rows.get(PAGE - 1).filter(|_| rows.len() > PAGE);
        let next = last.map(|(number, sample)| format!("{}_{number}", sample.at_utc_ms.0));
        Ok(Page {
            items: rows.into_iter().take(PAGE).map(|(_, sample)| sample).collect(),
            next,
        })
    }
}

pub(super) fn failed(source: rusqlite::Error) -> StoreError {
    StoreError::Database { file: FILE, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::card::Reading;

    fn reading(watts: u32, celsius: Option<i32>) -> CardReading {
        CardReading {
            uuid: GpuUuid("GPU-1".into()),
            temperature: celsius.map_or(Reading::NotSupported, |value| Reading::of(Celsius(value))),
            memory_temperature: Reading::NotSupported,
            power: Reading::of(Milliwatts::from_watts(watts)),
            power_limit: Reading::NotSupported,
            utilisation: Reading::invalid("no answer"),
            vram_used: Reading::of(Bytes(1)),
            fan: Reading::NotSupported,
            core_clock: Reading::NotSupported,
        }
    }

    #[test]
    fn a_minute_is_written_once_with_means_and_peaks_and_what_was_not_reported_stays_absent() {
        let mut minute = Minute::default();
        assert!(minute.add(UtcMs(60_000), &[reading(100, Some(50))]).is_empty());
        assert!(minute.add(UtcMs(119_999), &[reading(200, Some(60))]).is_empty());
        let samples = minute.add(UtcMs(120_000), &[reading(1, None)]);
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0].at_utc_ms, UtcMs(60_000));
        assert_eq!(samples[0].power_mean, Some(Milliwatts::from_watts(150)));
        assert_eq!(samples[0].temperature_most, Some(Celsius(60)));
        assert_eq!(samples[0].utilisation_mean, None);
    }

    #[test]
    fn old_minutes_become_hours_and_nothing_is_counted_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = TelemetryBook::open(folder.path()).expect("opens");
        let sample = |minute: i64| Sample {
            gpu: GpuUuid("GPU-1".into()),
            at_utc_ms: UtcMs(minute * 60_000),
            span_ms: MINUTE,
            temperature_most: Some(Celsius(i32::try_from(minute).expect("small"))),
            power_mean: Some(Milliwatts(100)),
            utilisation_mean: None,
            vram_most: None,
        };
        let samples: Vec<Sample> = (0..120).map(sample).collect();
        book.keep(&samples).expect("kept");
        book.keep(&samples).expect("kept once");
        assert_eq!(book.samples(None).expect("a page").items.len(), 120);
        let week_and_an_hour = UtcMs(i64::try_from(KEEP_MINUTES.0 + HOUR.0).expect("fits"));
        for _ in 0..2 {
            book.prune(week_and_an_hour).expect("prunes");
            let items = book.samples(None).expect("a page").items;
            assert_eq!(items.len(), 61, "one hour of minutes, and one hour as one");
            let hour = items.iter().find(|sample| sample.span_ms == HOUR).expect("an hour");
            assert_eq!((hour.at_utc_ms, hour.temperature_most), (UtcMs(0), Some(Celsius(59))));
        }
    }

    #[test]
    fn pages_of_samples_go_on_where_the_last_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = TelemetryBook::open(folder.path()).expect("opens");
        let samples: Vec<Sample> = (0..i64::try_from(PAGE + 5).expect("fits"))
            .map(|minute| Sample {
                gpu: GpuUuid("GPU-1".into()),
                at_utc_ms: UtcMs(minute * 60_000),
                span_ms: MINUTE,
                temperature_most: None,
                power_mean: None,
                utilisation_mean: None,
                vram_most: None,
            })
            .collect();
        book.keep(&samples).expect("kept");
        let first = book.samples(None).expect("a page");
        let second = book.samples(first.next.as_deref()).expect("a page");
        assert_eq!((first.items.len(), second.items.len(), second.next), (PAGE, 5, None));
        assert!(matches!(book.samples(Some("x")), Err(StoreError::Cursor(_))));
    }
}
