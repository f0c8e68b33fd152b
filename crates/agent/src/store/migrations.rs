//! How the two databases came to their present layout: numbered steps, only ever forward, never changed once released. The
//! steps are plain SQL and import no type of the program, so that an old step means the same forever.

use super::StoreError;
use rusqlite::Connection;

/// One step: the layout number that it leads to is its place in the list, counted from 1.
type Steps = &'static [&'static str];

/// `earnings.db`. Amounts are micro-units, times milliseconds. `entries` columns hold what the program wrote, as JSON.
pub(crate) const EARNINGS: Steps = &["
    CREATE TABLE leases (
        number INTEGER PRIMARY KEY,
        lease TEXT NOT NULL UNIQUE,
        exchange TEXT,
        accepted_utc_ms INTEGER NOT NULL,
        price INTEGER NOT NULL,
        entry TEXT NOT NULL
    ) STRICT;
    CREATE TABLE notes (
        number INTEGER PRIMARY KEY,
        lease TEXT NOT NULL REFERENCES leases (lease),
        thawed_ms INTEGER NOT NULL,
        frozen_ms INTEGER NOT NULL,
        closing TEXT,
        entry TEXT NOT NULL,
        envelope TEXT NOT NULL,
        UNIQUE (lease, entry)
    ) STRICT;
    CREATE TABLE closings (
        number INTEGER PRIMARY KEY,
        lease TEXT NOT NULL REFERENCES leases (lease),
        ended_utc_ms INTEGER NOT NULL,
        energy_mwh INTEGER,
        electricity INTEGER,
        entry TEXT NOT NULL,
        UNIQUE (lease, entry)
    ) STRICT;
    CREATE TABLE receipts (
        number INTEGER PRIMARY KEY,
        receipt TEXT NOT NULL UNIQUE,
        lease TEXT NOT NULL,
        billed_ms INTEGER NOT NULL,
        gross INTEGER NOT NULL,
        fee INTEGER NOT NULL,
        net INTEGER NOT NULL,
        issued_utc_ms INTEGER NOT NULL,
        lab INTEGER NOT NULL,
        entry TEXT NOT NULL,
        envelope TEXT NOT NULL
    ) STRICT;
    CREATE TABLE settled (
        number INTEGER PRIMARY KEY,
        lease TEXT NOT NULL UNIQUE
    ) STRICT;
    CREATE TABLE pauses (
        number INTEGER PRIMARY KEY,
        entry TEXT NOT NULL
    ) STRICT;
    CREATE INDEX notes_by_lease ON notes (lease, number);
    CREATE INDEX closings_by_lease ON closings (lease, number);
    CREATE INDEX receipts_by_lease ON receipts (lease, billed_ms);

    CREATE TRIGGER leases_stay BEFORE UPDATE ON leases BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER leases_kept BEFORE DELETE ON leases BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER notes_stay BEFORE UPDATE ON notes BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER notes_kept BEFORE DELETE ON notes BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER closings_stay BEFORE UPDATE ON closings BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER closings_kept BEFORE DELETE ON closings BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER receipts_stay BEFORE UPDATE ON receipts BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER receipts_kept BEFORE DELETE ON receipts BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER settled_stay BEFORE UPDATE ON settled BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER settled_kept BEFORE DELETE ON settled BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER pauses_stay BEFORE UPDATE ON pauses BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
    CREATE TRIGGER pauses_kept BEFORE DELETE ON pauses BEGIN SELECT RAISE(ABORT, 'earnings are append only'); END;
",
    // The owner's sums, kept along by the database itself, in the transaction of each entry: all that was ever earned is too much to
    // add up at each receipt. What no integer holds is the largest; it must not stop the entries that come after it.
    "
    CREATE INDEX receipts_by_time ON receipts (issued_utc_ms);
    CREATE TABLE totals (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        net INTEGER NOT NULL,
        fee INTEGER NOT NULL,
        electricity INTEGER NOT NULL
    ) STRICT;
    INSERT INTO totals SELECT 1,
        (SELECT IFNULL(SUM(net), 0) FROM receipts AS newest WHERE number =
            (SELECT number FROM receipts WHERE receipts.lease = newest.lease ORDER BY billed_ms DESC, number DESC LIMIT 1)),
        (SELECT IFNULL(SUM(fee), 0) FROM receipts AS newest WHERE number =
            (SELECT number FROM receipts WHERE receipts.lease = newest.lease ORDER BY billed_ms DESC, number DESC LIMIT 1)),
        (SELECT IFNULL(SUM(electricity), 0) FROM closings AS newest WHERE number =
            (SELECT MAX(number) FROM closings WHERE closings.lease = newest.lease));
    CREATE TRIGGER receipts_counted AFTER INSERT ON receipts
    WHEN NEW.number = (SELECT number FROM receipts WHERE lease = NEW.lease ORDER BY billed_ms DESC, number DESC LIMIT 1)
    BEGIN
        UPDATE totals SET (net, fee) = (
            SELECT CASE typeof(more_net) WHEN 'integer' THEN more_net ELSE 9223372036854775807 END,
                   CASE typeof(more_fee) WHEN 'integer' THEN more_fee ELSE 9223372036854775807 END
            FROM (SELECT
                totals.net - IFNULL((SELECT net FROM receipts WHERE lease = NEW.lease AND number <> NEW.number
                    ORDER BY billed_ms DESC, number DESC LIMIT 1), 0) + NEW.net AS more_net,
                totals.fee - IFNULL((SELECT fee FROM receipts WHERE lease = NEW.lease AND number <> NEW.number
                    ORDER BY billed_ms DESC, number DESC LIMIT 1), 0) + NEW.fee AS more_fee));
    END;
    CREATE TRIGGER closings_counted AFTER INSERT ON closings BEGIN
        UPDATE totals SET electricity = (
            SELECT CASE typeof(more) WHEN 'integer' THEN more ELSE 9223372036854775807 END
            FROM (SELECT totals.electricity - IFNULL((SELECT electricity FROM closings WHERE lease = NEW.lease AND number <> NEW.number
                ORDER BY number DESC LIMIT 1), 0) + IFNULL(NEW.electricity, 0) AS more));
    END;
    CREATE TABLE not_settled (lease TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
    INSERT INTO not_settled SELECT lease FROM leases
        WHERE NOT EXISTS (SELECT 1 FROM settled WHERE settled.lease = leases.lease);
    CREATE TRIGGER leases_open AFTER INSERT ON leases BEGIN
        INSERT INTO not_settled SELECT NEW.lease WHERE NOT EXISTS (SELECT 1 FROM settled WHERE settled.lease = NEW.lease);
    END;
    CREATE TRIGGER leases_over AFTER INSERT ON settled BEGIN
        DELETE FROM not_settled WHERE lease = NEW.lease;
    END;
",
];

/// `telemetry.db`. `span_ms` is 60 000 or 3 600 000. `held` and `sold` are what the program wrote, as JSON; an open stretch goes on.
pub(crate) const TELEMETRY: Steps = &[
    "
    CREATE TABLE samples (
        number INTEGER PRIMARY KEY,
        gpu TEXT NOT NULL,
        at_utc_ms INTEGER NOT NULL,
        span_ms INTEGER NOT NULL,
        temperature_most INTEGER,
        power_mean INTEGER,
        utilisation_mean INTEGER,
        vram_most INTEGER,
        UNIQUE (gpu, span_ms, at_utc_ms)
    ) STRICT;
    CREATE INDEX samples_by_age ON samples (span_ms, at_utc_ms);
",
    "
    CREATE TABLE stretches (
        number INTEGER PRIMARY KEY,
        gpu TEXT NOT NULL,
        from_utc_ms INTEGER NOT NULL,
        to_utc_ms INTEGER NOT NULL CHECK (to_utc_ms >= from_utc_ms),
        open INTEGER NOT NULL,
        held TEXT,
        sold TEXT
    ) STRICT;
    CREATE UNIQUE INDEX one_stretch_is_open ON stretches (gpu) WHERE open = 1;
    CREATE INDEX stretches_by_end ON stretches (to_utc_ms);
    CREATE TABLE yields (
        number INTEGER PRIMARY KEY,
        gpu TEXT NOT NULL,
        at_utc_ms INTEGER NOT NULL,
        entry TEXT NOT NULL,
        UNIQUE (gpu, at_utc_ms)
    ) STRICT;
    CREATE INDEX yields_by_time ON yields (at_utc_ms);
",
];

/// Brings a database to the newest layout, each step in a transaction of its own.
///
/// # Errors
/// A layout newer than this program, or SQLite's refusal; then the database is as before the step that failed.
pub(crate) fn migrate(connection: &mut Connection, file: &'static str, steps: Steps) -> Result<(), StoreError> {
    let failed = |source| StoreError::Database { file, source };
    let found: u32 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(failed)?;
    let known = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::Newer { file, found, known });
    }
    for (step, number) in steps.iter().zip(1..=known).skip(found as usize) {
        let transaction = connection.transaction().map_err(failed)?;
        transaction.execute_batch(step).map_err(failed)?;
        transaction
            .pragma_update(None, "user_version", number)
            .map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(connection: &Connection) -> u32 {
        connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .expect("a version")
    }

    #[test]
    fn every_released_layout_comes_to_the_newest_and_stays_there() {
        for (file, steps) in [("earnings.db", EARNINGS), ("telemetry.db", TELEMETRY)] {
            for released in 0..=steps.len() {
                let mut connection = Connection::open_in_memory().expect("opens");
                migrate(&mut connection, file, &steps[..released]).expect("as released");
                migrate(&mut connection, file, steps).expect("migrates");
                migrate(&mut connection, file, steps).expect("again, nothing to do");
                assert_eq!(version(&connection) as usize, steps.len());
            }
        }
    }

    #[test]
    fn a_newer_layout_is_refused_and_not_touched() {
        let mut connection = Connection::open_in_memory().expect("opens");
        connection.pragma_update(None, "user_version", 99).expect("set");
        let error = migrate(&mut connection, "earnings.db", EARNINGS).expect_err("newer");
        assert!(error.to_string().contains("update sela"), "{error}");
        assert_eq!(version(&connection), 99);
    }

    #[test]
    fn a_step_that_fails_leaves_the_layout_before_it() {
        let mut connection = Connection::open_in_memory().expect("opens");
        let steps: Steps = &["CREATE TABLE a (b) STRICT", "CREATE TABLE c (d TEXT) STRICT"];
        assert!(
            migrate(&mut connection, "earnings.db", steps).is_err(),
            "STRICT needs types"
        );
        assert_eq!(version(&connection), 0);
        let good: Steps = &["CREATE TABLE a (b TEXT) STRICT", "CREATE TABLE a (b TEXT) STRICT"];
        assert!(migrate(&mut connection, "earnings.db", good).is_err());
        assert_eq!(version(&connection), 1, "the first step stands");
    }
}
