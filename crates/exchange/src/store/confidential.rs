//! What is kept of jobs that only they may read, sealed (`crate::vault`): one row a job, replaced when its secrets are forgotten.

use crate::store::StoreError;
use rusqlite::{Connection, OptionalExtension, params};
use sela_protocol::id::JobId;

/// Of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Which.
    pub(crate) job: JobId,
    /// Sealed.
    pub(crate) sealed: Vec<u8>,
}

/// Keeps one, within a transaction, in place of what was kept before.
///
/// # Errors
/// Where the store cannot be written.
pub(crate) fn keep(connection: &Connection, kept: &Kept) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO confidential (job, sealed) VALUES (?1, ?2)
             ON CONFLICT (job) DO UPDATE SET sealed = excluded.sealed",
        )?
        .execute(params![kept.job.to_string(), kept.sealed])?;
    Ok(())
}

/// Any one, to try a key on; `None` where there is none.
///
/// # Errors
/// Where the store cannot be read, or a row of it.
pub(crate) fn any(connection: &Connection) -> Result<Option<Kept>, StoreError> {
    let row = connection
        .prepare_cached("SELECT job, sealed FROM confidential LIMIT 1")?
        .query_row([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))
        .optional()?;
    row.map(|(job, sealed)| {
        let job = job.parse().map_err(|error| StoreError::Damaged(format!("{error}")))?;
        Ok(Kept { job, sealed })
    })
    .transpose()
}

/// What is kept of a job; `None` where it was submitted before anything was.
///
/// # Errors
/// Where the store cannot be read.
pub(crate) fn of(connection: &Connection, job: JobId) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(connection
        .prepare_cached("SELECT sealed FROM confidential WHERE job = ?1")?
        .query_row([job.to_string()], |row| row.get(0))
        .optional()?)
}
