//! The append-only list of records: what the floor is rebuilt from. A record's movement of money is posted in the same
//! transaction, so that neither is ever there without the other.

use crate::store::StoreError;
use crate::store::{blob_owners, confidential, ledger, submissions};
use rusqlite::{Connection, TransactionBehavior, params};
use sela_market::record::Record;
use sela_protocol::units::UtcMs;

/// What is committed together: all or none.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// In the order in which they came about.
    pub(crate) records: Vec<Record>,
    /// What the edge keeps beside them.
    pub(crate) beside: Vec<Beside>,
}

/// What the edge keeps beside the records, because no rule of the market needs it.
#[derive(Debug)]
pub(crate) enum Beside {
    /// A job was submitted under an idempotency key.
    Submission(submissions::Submission),
    /// A blob belongs to a tenant.
    BlobOwner(blob_owners::BlobOwner),
    /// What only a job may read is kept from now on.
    Confidential(confidential::Kept),
}

impl Batch {
    /// Whether there is nothing to commit.
    pub(crate) const fn is_empty(&self) -> bool {
        self.records.is_empty() && self.beside.is_empty()
    }
}

/// Commits a batch; when this returns it is on the disk.
///
/// # Errors
/// Where the disk is full or a rule of the store would be broken; then nothing of it is kept.
pub(crate) fn commit(connection: &mut Connection, batch: &Batch, now: UtcMs) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for record in &batch.records {
        let json = serde_json::to_value(record).map_err(|error| StoreError::Refused(error.to_string()))?;
        transaction
            .prepare_cached("INSERT INTO records (utc_ms, json) VALUES (?1, ?2)")?
            .execute(params![now.0, json.to_string()])?;
        if let Some(transfer) = record.transfer() {
            let reason = json.get("type").and_then(serde_json::Value::as_str).unwrap_or_default();
            ledger::post(&transaction, transfer, reason)?;
        }
    }
    for beside in &batch.beside {
        match beside {
            Beside::Submission(submission) => submissions::keep(&transaction, submission, now)?,
            Beside::BlobOwner(owner) => blob_owners::keep(&transaction, owner, now)?,
            Beside::Confidential(kept) => confidential::keep(&transaction, kept)?,
        }
    }
    Ok(transaction.commit()?)
}

/// All records, oldest first.
///
/// # Errors
/// Where one does not read, or where records and postings do not tell of the same transfers.
pub(crate) fn load(connection: &Connection) -> Result<Vec<Record>, StoreError> {
    let mut statement = connection.prepare("SELECT record, json FROM records ORDER BY record")?;
    let mut rows = statement.query([])?;
    let mut records: Vec<Record> = Vec::new();
    while let Some(row) = rows.next()? {
        let (number, json): (i64, String) = (row.get(0)?, row.get(1)?);
        let record = serde_json::from_str(&json)
            .map_err(|error| StoreError::Damaged(format!("record {number} does not read: {error}")))?;
        records.push(record);
    }
    let told = records.iter().filter(|record| record.transfer().is_some()).count();
    let posted: i64 = connection.query_row("SELECT COUNT(*) FROM transfers", [], |row| row.get(0))?;
    if i64::try_from(told) != Ok(posted) {
        return Err(StoreError::Damaged(format!(
            "the records tell of {told} transfers, and {posted} are posted"
        )));
    }
    Ok(records)
}
