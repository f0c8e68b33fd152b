//! `earnings.db`: every entry is written once and stays; writing one again changes nothing. Sums and pages are read here
//! and in `pages`; who may be paid what is not decided here.

use super::StoreError;
use super::migrations::{EARNINGS, migrate};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use sela_core::{OpenLease, RecoveredLease, UnsettledLease};
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::LeaseId;
use sela_protocol::lease::{EndCause, MeterNote, Receipt};
use sela_protocol::local::{Earned, Pause};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::units::{Millis, UtcMs};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

const FILE: &str = "earnings.db";

const TOTALS: &str = "SELECT net, fee, electricity FROM totals";
const TODAY: &str = "
    SELECT IFNULL(SUM(
        (SELECT net FROM receipts WHERE lease = today.lease ORDER BY billed_ms DESC, number DESC LIMIT 1)
        - IFNULL((SELECT net FROM receipts WHERE lease = today.lease AND issued_utc_ms < ?1
            ORDER BY billed_ms DESC, number DESC LIMIT 1), 0)), 0)
    FROM (SELECT DISTINCT lease FROM receipts INDEXED BY receipts_by_time WHERE issued_utc_ms >= ?1) AS today";
const PENDING: &str = "
    SELECT price,
        (SELECT MAX(thawed_ms) FROM notes WHERE notes.lease = leases.lease),
        (SELECT MAX(gross) FROM receipts WHERE receipts.lease = leases.lease)
    FROM not_settled CROSS JOIN leases ON leases.lease = not_settled.lease";

/// One entry to be committed.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// A lease was accepted, from the exchange with this key.
    Accepted {
        /// As accepted.
        lease: OpenLease,
        /// Who gave it.
        exchange: Option<PublicKey>,
    },
    /// A note and its signed form.
    Noted {
        /// The note.
        note: MeterNote,
        /// Signed.
        envelope: Box<Envelope<MeterNote>>,
    },
    /// A lease has ended here; what its energy costs by the tariff of this moment.
    Closed {
        /// As it ended.
        closing: UnsettledLease,
        /// Price of a kilowatt-hour.
        per_kwh: Option<Micros>,
    },
    /// A receipt whose signature was checked, and its signed form.
    Receipt {
        /// The receipt.
        receipt: Box<Receipt>,
        /// Signed.
        envelope: Box<Envelope<Receipt>>,
    },
    /// Nothing of the lease needs to be said again.
    Settled {
        /// Which.
        lease: LeaseId,
    },
    /// Paused or resumed.
    Pause {
        /// The pause in force.
        pause: Option<Pause>,
    },
}

impl Entry {
    /// Whether the owner's sums change by it.
    pub(crate) const fn changes_sums(&self) -> bool {
        match self {
            Self::Closed { .. } | Self::Receipt { .. } => true,
            Self::Accepted { .. } | Self::Noted { .. } | Self::Settled { .. } | Self::Pause { .. } => false,
        }
    }
}

/// Whether `earnings.db` is whole; `false` where there is none. Reads only, also while an agent has it open.
///
/// # Errors
/// See [`StoreError`].
pub(crate) fn check(folder: &Path) -> Result<bool, StoreError> {
    let path = folder.join(FILE);
    if !path.exists() {
        return Ok(false);
    }
    let connection = Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(failed)?;
    if verdict == "ok" {
        return Ok(true);
    }
    Err(StoreError::Entry {
        file: FILE,
        why: verdict,
    })
}

/// What an agent that starts must know of its last run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Recovered {
    /// Accepted and never closed.
    pub(crate) open: Vec<RecoveredLease>,
    /// Closed and not settled with the exchange asked for.
    pub(crate) unsettled: Vec<UnsettledLease>,
    /// The pause in force.
    pub(crate) pause: Option<Pause>,
}

/// The open database.
#[derive(Debug)]
pub(crate) struct EarningsBook {
    pub(super) connection: Connection,
}

impl EarningsBook {
    /// Opens or makes it, and brings it to the newest layout.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn open(folder: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(folder.join(FILE)).map_err(failed)?;
        Self::over(connection)
    }

    fn over(mut connection: Connection) -> Result<Self, StoreError> {
        // FULL: a committed entry survives loss of power. Recursive triggers: a REPLACE is a DELETE, and refused like one.
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;
                 PRAGMA recursive_triggers = ON; PRAGMA cache_size = -256; PRAGMA temp_store = MEMORY;",
            )
            .map_err(failed)?;
        migrate(&mut connection, FILE, EARNINGS)?;
        Ok(Self { connection })
    }

    /// Commits all of these, or none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn commit(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        let transaction = self.connection.transaction().map_err(failed)?;
        for entry in entries {
            write(&transaction, entry)?;
        }
        transaction.commit().map_err(failed)
    }

    /// What the last run left. `exchange` is the one that this agent will speak to: leases of others are not told to it.
    /// Open leases come with what the newest note said, and [`EndCause::AgentRestarted`].
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn recover(&self, exchange: Option<PublicKey>) -> Result<Recovered, StoreError> {
        Ok(Recovered {
            open: self.open_leases()?,
            unsettled: self.unsettled(exchange)?,
            pause: self.pause()?,
        })
    }

    fn open_leases(&self) -> Result<Vec<RecoveredLease>, StoreError> {
        let rows = self.rows(
            "SELECT entry, (SELECT entry FROM notes WHERE notes.lease = leases.lease ORDER BY number DESC LIMIT 1)
             FROM leases WHERE NOT EXISTS (SELECT 1 FROM closings WHERE closings.lease = leases.lease) ORDER BY number",
            [],
            |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?)),
        )?;
        rows.into_iter()
            .map(|(lease, note)| {
                let note: Option<MeterNote> = note.as_deref().map(read).transpose()?;
                Ok(RecoveredLease {
                    lease: read(&lease)?,
                    thawed_ms: note.as_ref().map_or(Millis(0), |note| note.thawed_ms),
                    frozen_ms: note.as_ref().map_or(Millis(0), |note| note.frozen_ms),
                    cause: note.and_then(|note| note.closing).unwrap_or(EndCause::AgentRestarted),
                })
            })
            .collect()
    }

    fn unsettled(&self, exchange: Option<PublicKey>) -> Result<Vec<UnsettledLease>, StoreError> {
        let newest = self.rows(
            "SELECT entry FROM closings AS newest WHERE number =
                 (SELECT MAX(number) FROM closings WHERE closings.lease = newest.lease)
             AND NOT EXISTS (SELECT 1 FROM settled WHERE settled.lease = newest.lease)
             AND EXISTS (SELECT 1 FROM leases WHERE leases.lease = newest.lease AND leases.exchange IS ?1)
             ORDER BY number",
            [exchange.map(|key| key.to_string())],
            |row| row.get::<_, String>(0),
        )?;
        newest.iter().map(|entry| read(entry)).collect()
    }

    fn pause(&self) -> Result<Option<Pause>, StoreError> {
        let newest: Option<String> = self
            .connection
            .query_row("SELECT entry FROM pauses ORDER BY number DESC LIMIT 1", [], |row| {
                row.get(0)
            })
            .optional()
            .map_err(failed)?;
        newest.as_deref().map_or(Ok(None), read)
    }

    /// The owner's sums. Receipts are cumulative, so the newest of each lease counts; what a lease brought today is the newest
    /// less the newest from before `midnight`. What this costs grows with the present day and the leases that are not settled, not with
    /// all that was ever earned: the rest the database keeps along (`totals`).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn sums(&self, midnight: UtcMs) -> Result<Earned, StoreError> {
        let one = |sql: &str, parameters: &[&dyn rusqlite::ToSql]| {
            let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
            statement.query_row(parameters, |row| row.get(0)).map_err(failed)
        };
        let mut totals = self.rows(TOTALS, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let (net, fee, electricity): (i64, i64, i64) = totals.pop().unwrap_or_default();
        let today_net: i64 = one(TODAY, params![midnight.0])?;
        Ok(Earned {
            today_net: Micros(today_net),
            total_net: Micros(net),
            total_fee: Micros(fee),
            total_electricity: Micros(electricity),
            pending_gross: self.pending()?,
        })
    }

    /// Metered and not yet receipted, of leases that are not settled.
    fn pending(&self) -> Result<Micros, StoreError> {
        let rows = self.rows(PENDING, [], |row| {
            Ok((
                row.get(0)?,
                row.get::<_, Option<u64>>(1)?,
                row.get::<_, Option<i64>>(2)?,
            ))
        })?;
        Ok(rows
            .into_iter()
            .map(|(price, thawed, receipted)| {
                let due = HourlyPrice(Micros(price)).due(Millis(thawed.unwrap_or(0)));
                (due - Micros(receipted.unwrap_or(0))).max(Micros::ZERO)
            })
            .sum())
    }

    pub(super) fn rows<T>(
        &self,
        sql: &str,
        parameters: impl rusqlite::Params,
        row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        let rows = statement.query_map(parameters, row).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)
    }
}

fn write(transaction: &Transaction<'_>, entry: &Entry) -> Result<(), StoreError> {
    let execute = |sql: &str, parameters: &[&dyn rusqlite::ToSql]| {
        let mut statement = transaction.prepare_cached(sql).map_err(failed)?;
        statement.execute(parameters).map(drop).map_err(failed)
    };
    match entry {
        Entry::Accepted { lease, exchange } => execute(
            "INSERT INTO leases (lease, exchange, accepted_utc_ms, price, entry) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO NOTHING",
            params![
                lease.lease.to_string(),
                exchange.map(|key| key.to_string()),
                lease.accepted_utc_ms.0,
                lease.price.0.0,
                text(lease)?
            ],
        ),
        Entry::Noted { note, envelope } => execute(
            "INSERT INTO notes (lease, thawed_ms, frozen_ms, closing, entry, envelope) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO NOTHING",
            params![
                note.lease.to_string(),
                countable(note.thawed_ms),
                countable(note.frozen_ms),
                note.closing.as_ref().map(text).transpose()?,
                text(note)?,
                text(envelope)?
            ],
        ),
        Entry::Closed { closing, per_kwh } => execute(
            "INSERT INTO closings (lease, ended_utc_ms, energy_mwh, electricity, entry) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO NOTHING",
            params![
                closing.note.lease.to_string(),
                closing.ended_utc_ms.0,
                closing
                    .energy_mwh
                    .map(|energy| i64::try_from(energy).unwrap_or(i64::MAX)),
                cost(closing.energy_mwh, *per_kwh).map(|cost| cost.0),
                text(closing)?
            ],
        ),
        Entry::Receipt { receipt, envelope } => execute(
            "INSERT INTO receipts (receipt, lease, billed_ms, gross, fee, net, issued_utc_ms, lab, entry, envelope)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING",
            params![
                receipt.receipt.to_string(),
                receipt.lease.to_string(),
                countable(receipt.billed_ms),
                receipt.gross.0,
                receipt.fee.0,
                receipt.net.0,
                receipt.issued_utc_ms.0,
                receipt.lab,
                text(receipt)?,
                text(envelope)?
            ],
        ),
        Entry::Settled { lease } => execute(
            "INSERT INTO settled (lease) VALUES (?1) ON CONFLICT DO NOTHING",
            params![lease.to_string()],
        ),
        Entry::Pause { pause } => execute("INSERT INTO pauses (entry) VALUES (?1)", params![text(pause)?]),
    }
}

/// A database's numbers end sooner than ours. What an exchange signs is written as said in `entry`; a number that no database
/// holds must not stop every entry that comes after it.
fn countable(span: Millis) -> i64 {
    i64::try_from(span.0).unwrap_or(i64::MAX)
}

/// Milliwatt-hours at a price per kilowatt-hour, rounded up: a cost is not made smaller by rounding.
fn cost(energy_mwh: Option<u64>, per_kwh: Option<Micros>) -> Option<Micros> {
    let product = u128::from(energy_mwh?) * u128::from(per_kwh?.0.unsigned_abs());
    Some(Micros(i64::try_from(product.div_ceil(1_000_000)).unwrap_or(i64::MAX)))
}

fn text(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Entry {
        file: FILE,
        why: error.to_string(),
    })
}

pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Entry {
        file: FILE,
        why: error.to_string(),
    })
}

pub(super) fn failed(source: rusqlite::Error) -> StoreError {
    StoreError::Database { file: FILE, source }
}

#[cfg(test)]
mod tests;
