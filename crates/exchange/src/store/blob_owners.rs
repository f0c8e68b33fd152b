//! Whose a blob is: the tenants that put its bytes, or whose jobs did; when it was last put or asked for, and how much each tenant
//! has. The bytes are in the folder of blobs.

use crate::store::StoreError;
use rusqlite::{Connection, TransactionBehavior, params};
use sela_protocol::blob::BlobId;
use sela_protocol::id::TenantId;
use sela_protocol::units::{Bytes, UtcMs};
use std::collections::BTreeSet;

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

/// Keeps one, within a transaction or alone; again only says that it is wanted still.
///
/// # Errors
/// Where the store cannot be written.
pub(crate) fn keep(connection: &Connection, owner: &BlobOwner, now: UtcMs) -> Result<(), StoreError> {
    let bytes = i64::try_from(owner.size.0).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "INSERT INTO blob_owners (blob, tenant, bytes, utc_ms) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET utc_ms = MAX(utc_ms, excluded.utc_ms)",
        )?
        .execute(params![owner.blob.to_string(), owner.tenant.to_string(), bytes, now.0])?;
    Ok(())
}

/// Keeps one if its tenant then has no more than `quota`; says whether it did.
///
/// # Errors
/// Where the store cannot be written.
pub(crate) fn keep_within(
    connection: &mut Connection,
    owner: &BlobOwner,
    quota: Bytes,
    now: UtcMs,
) -> Result<bool, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    keep(&transaction, owner, now)?;
    if stored(&transaction, owner.tenant)? > quota {
        return Ok(false);
    }
    transaction.commit()?;
    Ok(true)
}

/// How much a tenant has stored.
///
/// # Errors
/// Where the store cannot be read.
pub(crate) fn stored(connection: &Connection, tenant: TenantId) -> Result<Bytes, StoreError> {
    let bytes: i64 = connection
        .prepare_cached("SELECT COALESCE(SUM(bytes), 0) FROM blob_owners WHERE tenant = ?1")?
        .query_row([tenant.to_string()], |row| row.get(0))?;
    Ok(Bytes(bytes.unsigned_abs()))
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

/// Whether a tenant has a right to a blob; if so it keeps it for as long as if it had just been put, so that it is not forgotten
/// between this answer and the job that needs it.
///
/// # Errors
/// Where the store cannot be written.
pub(crate) fn wants(connection: &Connection, tenant: TenantId, blob: BlobId, now: UtcMs) -> Result<bool, StoreError> {
    let found = connection
        .prepare_cached("UPDATE blob_owners SET utc_ms = MAX(utc_ms, ?3) WHERE blob = ?1 AND tenant = ?2")?
        .execute(params![blob.to_string(), tenant.to_string(), now.0])?;
    Ok(found > 0)
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

/// Ends all rights to blobs that nobody wanted since `before`, those `in_use` aside; gives the blobs, which others may still own.
///
/// # Errors
/// Where the store cannot be written; then nothing is forgotten.
pub(crate) fn forget(
    connection: &mut Connection,
    before: UtcMs,
    in_use: &BTreeSet<BlobId>,
) -> Result<BTreeSet<BlobId>, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut forgotten = BTreeSet::new();
    {
        let mut old = transaction.prepare_cached("SELECT DISTINCT blob FROM blob_owners WHERE utc_ms < ?1")?;
        let mut rows = old.query([before.0])?;
        while let Some(row) = rows.next()? {
            let text: String = row.get(0)?;
            let blob: BlobId = text
                .parse()
                .map_err(|error: sela_protocol::blob::BlobIdError| StoreError::Damaged(error.to_string()))?;
            if !in_use.contains(&blob) {
                forgotten.insert(blob);
            }
        }
        let mut forget = transaction.prepare_cached("DELETE FROM blob_owners WHERE blob = ?1 AND utc_ms < ?2")?;
        for blob in &forgotten {
            forget.execute(params![blob.to_string(), before.0])?;
        }
    }
    transaction.commit()?;
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::connect_for_tests;
    use sela_protocol::id::IdSource;

    #[test]
    fn a_right_ends_when_nobody_wanted_the_blob_for_long_and_no_job_needs_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut connection = connect_for_tests(folder.path());
        let mut ids = IdSource::new(UtcMs(1), [3; 32]);
        let (alice, bob): (TenantId, TenantId) = (ids.draw(), ids.draw());
        let [old, put_again, named, needed, shared] =
            ["old", "put again", "named", "needed", "shared"].map(|text| BlobId::of(text.as_bytes()));
        let owner = |blob, tenant| BlobOwner {
            blob,
            tenant,
            size: Bytes(10),
        };
        for blob in [old, put_again, named, needed, shared] {
            keep(&connection, &owner(blob, alice), UtcMs(100)).expect("kept");
        }
        keep(&connection, &owner(put_again, alice), UtcMs(500)).expect("again");
        keep(&connection, &owner(shared, bob), UtcMs(500)).expect("another's");
        assert!(wants(&connection, alice, named, UtcMs(500)).expect("asked"));
        assert!(!wants(&connection, bob, named, UtcMs(500)).expect("asked"), "not bob's");
        assert_eq!(stored(&connection, alice).expect("a sum"), Bytes(50));

        let in_use = BTreeSet::from([needed]);
        let forgotten = forget(&mut connection, UtcMs(400), &in_use).expect("forgets");
        assert_eq!(forgotten, BTreeSet::from([old, shared]));
        for (blob, tenant, stays) in [
            (old, alice, false),
            (shared, alice, false),
            (shared, bob, true),
            (put_again, alice, true),
            (named, alice, true),
            (needed, alice, true),
        ] {
            assert_eq!(owns(&connection, tenant, blob).expect("asked"), stays, "{blob}");
        }
        assert!(is_owned(&connection, shared).expect("asked"), "bob wants it still");
    }

    #[test]
    fn a_quota_is_used_to_its_last_byte_and_what_is_over_it_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut connection = connect_for_tests(folder.path());
        let tenant: TenantId = IdSource::new(UtcMs(1), [3; 32]).draw();
        let mut put = |text: &str, bytes| {
            let owner = BlobOwner {
                blob: BlobId::of(text.as_bytes()),
                tenant,
                size: Bytes(bytes),
            };
            keep_within(&mut connection, &owner, Bytes(20), UtcMs(1)).expect("asked")
        };
        for (text, bytes, kept) in [
            ("a", 12, true),
            ("b", 9, false),
            ("a", 12, true),
            ("b", 8, true),
            ("c", 1, false),
        ] {
            assert_eq!(put(text, bytes), kept, "{text} of {bytes}");
        }
        assert_eq!(stored(&connection, tenant).expect("a sum"), Bytes(20));
    }
}
