//! The store's tables, by numbered steps that only go forward. A step that has been released is never changed, and names
//! no type of the program: types change, what old folders hold does not.

use crate::store::StoreError;
use rusqlite::{Connection, TransactionBehavior};

/// Each step's SQL; the first is number 1. `PRAGMA user_version` says how many a file has been through.
const STEPS: &[&str] = &[RECORDS_LEDGER_BLOBS, CONFIDENTIAL, BLOBS_BY_TENANT];

/// How the books are held by the database itself, whatever the program does:
/// - records, transfers and postings can be added, never changed, removed or replaced;
/// - each posting carries its account's balance, which must be the one before plus the amount, and which only `outside`
///   may have below zero;
/// - a transfer's row comes after its postings and is refused unless they sum to zero; after it no posting can join; and
///   a posting whose transfer never comes fails the commit (deferred foreign key).
const RECORDS_LEDGER_BLOBS: &str = "
CREATE TABLE records (
    record INTEGER PRIMARY KEY CHECK (record > 0),
    utc_ms INTEGER NOT NULL,
    json TEXT NOT NULL CHECK (json_valid(json))
) STRICT;
CREATE TRIGGER records_not_changed BEFORE UPDATE ON records
    BEGIN SELECT RAISE(ABORT, 'records are only added, never changed'); END;
CREATE TRIGGER records_not_removed BEFORE DELETE ON records
    BEGIN SELECT RAISE(ABORT, 'records are only added, never removed'); END;
CREATE TRIGGER records_not_replaced BEFORE INSERT ON records
    WHEN EXISTS (SELECT 1 FROM records WHERE record = NEW.record)
    BEGIN SELECT RAISE(ABORT, 'records are only added, never replaced'); END;

CREATE TABLE transfers (
    transfer TEXT PRIMARY KEY,
    utc_ms INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE TABLE postings (
    posting INTEGER PRIMARY KEY CHECK (posting > 0),
    transfer TEXT NOT NULL REFERENCES transfers (transfer) DEFERRABLE INITIALLY DEFERRED,
    account TEXT NOT NULL CHECK (account <> ''),
    amount INTEGER NOT NULL CHECK (amount <> 0),
    balance INTEGER NOT NULL,
    CONSTRAINT overdraft CHECK (balance >= 0 OR account = 'outside')
) STRICT;
CREATE INDEX postings_by_account ON postings (account, posting);
CREATE INDEX postings_by_transfer ON postings (transfer);

CREATE TRIGGER transfers_not_changed BEFORE UPDATE ON transfers
    BEGIN SELECT RAISE(ABORT, 'transfers are only added, never changed'); END;
CREATE TRIGGER transfers_not_removed BEFORE DELETE ON transfers
    BEGIN SELECT RAISE(ABORT, 'transfers are only added, never removed'); END;
CREATE TRIGGER transfers_not_twice BEFORE INSERT ON transfers
    WHEN EXISTS (SELECT 1 FROM transfers WHERE transfer = NEW.transfer)
    BEGIN SELECT RAISE(ABORT, 'this transfer has been posted already'); END;
CREATE TRIGGER transfers_balanced BEFORE INSERT ON transfers
    WHEN (SELECT COALESCE(SUM(amount), 1) FROM postings WHERE transfer = NEW.transfer) <> 0
    BEGIN SELECT RAISE(ABORT, 'the postings of a transfer must sum to zero'); END;
CREATE TRIGGER postings_not_changed BEFORE UPDATE ON postings
    BEGIN SELECT RAISE(ABORT, 'postings are only added, never changed'); END;
CREATE TRIGGER postings_not_removed BEFORE DELETE ON postings
    BEGIN SELECT RAISE(ABORT, 'postings are only added, never removed'); END;
CREATE TRIGGER postings_at_the_end BEFORE INSERT ON postings
    WHEN NEW.posting <= (SELECT COALESCE(MAX(posting), 0) FROM postings) AND NEW.posting <> -1
    BEGIN SELECT RAISE(ABORT, 'postings are only added at the end, never replaced'); END;
CREATE TRIGGER postings_before_their_transfer BEFORE INSERT ON postings
    WHEN EXISTS (SELECT 1 FROM transfers WHERE transfer = NEW.transfer)
    BEGIN SELECT RAISE(ABORT, 'this transfer has been posted already'); END;
CREATE TRIGGER postings_carry_the_balance BEFORE INSERT ON postings
    WHEN NEW.balance <> NEW.amount + COALESCE(
        (SELECT balance FROM postings WHERE account = NEW.account ORDER BY posting DESC LIMIT 1), 0)
    BEGIN SELECT RAISE(ABORT, 'a posting must carry its account''s balance'); END;

CREATE TABLE submissions (
    tenant TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    spec_hash TEXT NOT NULL,
    job TEXT NOT NULL,
    utc_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, idempotency_key)
) STRICT;
CREATE TABLE blob_owners (
    blob TEXT NOT NULL,
    tenant TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    utc_ms INTEGER NOT NULL,
    PRIMARY KEY (blob, tenant)
) STRICT;
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
";

/// What of a job only the job may read, sealed by the program before it comes here.
const CONFIDENTIAL: &str = "
CREATE TABLE confidential (
    job TEXT PRIMARY KEY,
    sealed BLOB NOT NULL
) STRICT;
";

/// How much a tenant has stored is asked for with each blob that it puts.
const BLOBS_BY_TENANT: &str = "
CREATE INDEX blob_owners_by_tenant ON blob_owners (tenant, bytes);
";

/// Takes the file through the steps that it has not been through, all or none.
///
/// # Errors
/// A file that a newer program wrote, or a step that fails; then nothing was changed.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    migrate_through(connection, STEPS)
}

fn migrate_through(connection: &mut Connection, steps: &[&str]) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    if done > steps.len() {
        return Err(StoreError::Newer {
            found: done,
            known: steps.len(),
        });
    }
    for sql in &steps[done..] {
        transaction.execute_batch(sql)?;
    }
    let reached = i64::try_from(steps.len()).unwrap_or(i64::MAX);
    transaction.pragma_update(None, "user_version", reached)?;
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(connection: &Connection) -> Vec<String> {
        let mut statement = connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            .expect("reads");
        let names = statement.query_map([], |row| row.get(0)).expect("reads");
        names.map(|name| name.expect("a name")).collect()
    }

    #[test]
    fn an_empty_file_and_a_file_of_each_earlier_step_come_to_the_same_tables() {
        let mut fresh = Connection::open_in_memory().expect("opens");
        migrate(&mut fresh).expect("migrates");
        for released in 1..=STEPS.len() {
            let mut old = Connection::open_in_memory().expect("opens");
            migrate_through(&mut old, &STEPS[..released]).expect("as released");
            migrate(&mut old).expect("migrates");
            assert_eq!(tables(&old), tables(&fresh), "from step {released}");
        }
    }

    #[test]
    fn a_step_runs_once_and_a_failing_step_changes_nothing() {
        let mut connection = Connection::open_in_memory().expect("opens");
        let first = "CREATE TABLE a (x INTEGER) STRICT;";
        migrate_through(&mut connection, &[first]).expect("first");
        migrate_through(&mut connection, &[first]).expect("not again");
        let failing = [first, "CREATE TABLE b (x INTEGER) STRICT; CREATE TABLE a (x INTEGER);"];
        migrate_through(&mut connection, &failing).expect_err("a exists");
        assert_eq!(tables(&connection), ["a"]);
    }

    #[test]
    fn a_file_of_a_newer_program_is_refused_untouched() {
        let mut connection = Connection::open_in_memory().expect("opens");
        connection.pragma_update(None, "user_version", 99).expect("set");
        let error = migrate(&mut connection).expect_err("newer").to_string();
        assert!(error.contains("newer"), "{error}");
        assert_eq!(tables(&connection), Vec::<String>::new());
    }
}
