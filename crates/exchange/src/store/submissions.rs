//! Which job was submitted under which idempotency key, so that sending a submission again makes no second job.

use crate::store::StoreError;
use rusqlite::{Connection, params};
use sela_protocol::id::{JobId, TenantId};
use sela_protocol::units::{Millis, UtcMs};

/// How long a key is remembered: 7 days.
const REMEMBERED: Millis = Millis(7 * 24 * 3_600_000);

/// One submission under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Submission {
    /// Whose key.
    pub(crate) tenant: TenantId,
    /// As sent.
    pub(crate) idempotency_key: String,
    /// Of the job as sent (`crate::vault`): the same key with another job is a mistake.
    pub(crate) fingerprint: String,
    /// The job that it became.
    pub(crate) job: JobId,
}

/// Keeps one, within a transaction.
///
/// # Errors
/// Where the store cannot be written.
pub(crate) fn keep(connection: &Connection, submission: &Submission, now: UtcMs) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO submissions (tenant, idempotency_key, spec_hash, job, utc_ms)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            submission.tenant.to_string(),
            submission.idempotency_key,
            submission.fingerprint,
            submission.job.to_string(),
            now.0
        ])?;
    Ok(())
}

/// Those that are still remembered. Older ones are forgotten for good.
///
/// # Errors
/// Where the store cannot be read or one does not read.
pub(crate) fn load(connection: &Connection, now: UtcMs) -> Result<Vec<Submission>, StoreError> {
    let oldest = now.0.saturating_sub_unsigned(REMEMBERED.0);
    connection.execute("DELETE FROM submissions WHERE utc_ms < ?1", [oldest])?;
    let mut statement = connection.prepare("SELECT tenant, idempotency_key, spec_hash, job FROM submissions")?;
    let mut rows = statement.query([])?;
    let mut submissions = Vec::new();
    while let Some(row) = rows.next()? {
        let (tenant, job): (String, String) = (row.get(0)?, row.get(3)?);
        submissions.push(Submission {
            tenant: tenant.parse().map_err(damaged)?,
            idempotency_key: row.get(1)?,
            fingerprint: row.get(2)?,
            job: job.parse().map_err(damaged)?,
        });
    }
    Ok(submissions)
}

fn damaged(error: sela_protocol::id::IdError) -> StoreError {
    StoreError::Damaged(error.to_string())
}
