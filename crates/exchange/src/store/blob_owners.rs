//! Whose a blob is: the tenants that put its bytes, or whose jobs did. The bytes are in the folder of blobs.

use crate::store::StoreError;
use rusqlite::{Connection, params};
use sela_protocol::blob::BlobId;
use sela_protocol::id::TenantId;
use sela_protocol::units::{Bytes, UtcMs};

/// A right to a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobOwner {
    /// Which.
    pub(crate) blob: BlobId,
    /// Whose.
    pub(crate) tenant: TenantId,
    /// Its size.
    pub(crate) size: Bytes,
}

/// Keeps one, within a transaction or alone; again is nothing new.
///
/// # Errors
/// Where the store cannot be written.
pub(crate) fn keep(connection: &Connection, owner: &BlobOwner, now: UtcMs) -> Result<(), StoreError> {
    let bytes = i64::try_from(owner.size.0).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "INSERT INTO blob_owners (blob, tenant, bytes, utc_ms) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
        )?
        .execute(params![owner.blob.to_string(), owner.tenant.to_string(), bytes, now.0])?;
    Ok(())
}

/// Whether a tenant has a right to a blob.
///
/// # Errors
/// Where the store cannot be read.
pub(crate) fn owns(connection: &Connection, tenant: TenantId, blob: BlobId) -> Result<bool, StoreError> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM blob_owners WHERE blob = ?1 AND tenant = ?2")?
        .exists(params![blob.to_string(), tenant.to_string()])?)
}

/// Whether anybody has a right to a blob.
///
/// # Errors
/// Where the store cannot be read.
pub(crate) fn is_owned(connection: &Connection, blob: BlobId) -> Result<bool, StoreError> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM blob_owners WHERE blob = ?1")?
        .exists([blob.to_string()])?)
}
