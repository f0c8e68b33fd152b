//! The ledger's tables: transfers and their postings. That they balance, stay and overdraw nothing is held by the
//! database's own triggers (see `migrations`); who pays whom is `sela_market`'s.

use crate::store::StoreError;
use rusqlite::{Connection, params};
use sela_market::ledger::{self, Account, Posting, Transfer};
use sela_protocol::money::Micros;
use sela_protocol::tenant::{LedgerCheck, PostingView};
use sela_protocol::units::UtcMs;
use std::collections::HashMap;

/// Posts a transfer within a transaction.
///
/// # Errors
/// [`StoreError::Refused`] where it does not balance, overdraws an account, or was posted before.
pub(crate) fn post(connection: &Connection, transfer: &Transfer, reason: &str) -> Result<(), StoreError> {
    let id = transfer.transfer.to_string();
    let mut postings = transfer.postings.clone();
    // Who gets before who gives, so that no account is below zero in between when it is not at the end.
    postings.sort_by_key(|posting| -i128::from(posting.amount.0));
    let mut add = connection.prepare_cached(
        "INSERT INTO postings (transfer, account, amount, balance) SELECT ?1, ?2, ?3, ?3 + COALESCE(
            (SELECT balance FROM postings WHERE account = ?2 ORDER BY posting DESC LIMIT 1), 0)",
    )?;
    for Posting { account, amount } in &postings {
        add.execute(params![id, account.to_string(), amount.0])?;
    }
    connection
        .prepare_cached("INSERT INTO transfers (transfer, utc_ms, reason) VALUES (?1, ?2, ?3)")?
        .execute(params![id, transfer.at_utc_ms.0, reason])?;
    Ok(())
}

/// Checks the whole ledger anew from its postings.
///
/// # Errors
/// Where a posting does not read, or where the balances carried along are not the sums of the postings.
pub(crate) fn check(connection: &Connection) -> Result<LedgerCheck, StoreError> {
    let check = ledger::check(&transfers(connection)?);
    // Each lease has an account of its own, so there are very many: looked up, not searched for.
    let summed: HashMap<&str, i64> = check
        .balances
        .iter()
        .map(|balance| (balance.account.as_str(), balance.balance.0))
        .collect();
    let mut statement = connection.prepare(
        "SELECT account, balance FROM postings AS newest
         WHERE posting = (SELECT MAX(posting) FROM postings WHERE account = newest.account)",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (account, carried): (String, i64) = (row.get(0)?, row.get(1)?);
        if summed.get(account.as_str()) != Some(&carried) {
            return Err(StoreError::Damaged(format!(
                "{account} carries a balance of {} that is not the sum of its postings",
                Micros(carried)
            )));
        }
    }
    Ok(check)
}

/// Postings after number `after`, oldest first, at most `limit`.
///
/// # Errors
/// Where the store cannot be read.
pub(crate) fn page(connection: &Connection, after: i64, limit: u32) -> Result<Vec<PostingView>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT posting, transfer, utc_ms, reason, account, amount, balance
         FROM postings JOIN transfers USING (transfer) WHERE posting > ?1 ORDER BY posting LIMIT ?2",
    )?;
    let rows = statement.query_map(params![after, limit], |row| {
        Ok(PostingView {
            posting: row.get(0)?,
            transfer: row.get(1)?,
            utc_ms: UtcMs(row.get(2)?),
            reason: row.get(3)?,
            account: row.get(4)?,
            amount: Micros(row.get(5)?),
            balance: Micros(row.get(6)?),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn transfers(connection: &Connection) -> Result<Vec<Transfer>, StoreError> {
    let mut statement = connection.prepare(
        "SELECT transfer, utc_ms, account, amount FROM postings JOIN transfers USING (transfer) ORDER BY posting",
    )?;
    let mut rows = statement.query([])?;
    let mut transfers: Vec<Transfer> = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, account): (String, String) = (row.get(0)?, row.get(2)?);
        let damaged = |error: String| StoreError::Damaged(error);
        let id = id.parse().map_err(|error| damaged(format!("{error}")))?;
        let account: Account = account.parse().map_err(|error| damaged(format!("{error}")))?;
        let posting = Posting {
            account,
            amount: Micros(row.get(3)?),
        };
        match transfers.last_mut() {
            Some(last) if last.transfer == id => last.postings.push(posting),
            _ => transfers.push(Transfer {
                transfer: id,
                at_utc_ms: UtcMs(row.get(1)?),
                postings: vec![posting],
            }),
        }
    }
    Ok(transfers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::connect_for_tests;
    use sela_protocol::id::{IdSource, TenantId, TransferId};

    struct Ledger {
        connection: Connection,
        ids: IdSource,
        tenant: Account,
        _folder: tempfile::TempDir,
    }

    impl Ledger {
        /// With 10 units at one tenant.
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let mut ids = IdSource::new(UtcMs(1_700_000_000_000), [3; 32]);
            let mut ledger = Self {
                connection: connect_for_tests(folder.path()),
                tenant: Account::TenantAvailable(ids.draw::<TenantId>()),
                ids,
                _folder: folder,
            };
            let deposit = ledger.transfer(&[(Account::Outside, -10), (ledger.tenant, 10)]);
            ledger.post(&deposit).expect("a deposit");
            ledger
        }

        fn transfer(&mut self, postings: &[(Account, i64)]) -> Transfer {
            Transfer {
                transfer: self.ids.draw::<TransferId>(),
                at_utc_ms: UtcMs(1_700_000_000_000),
                postings: postings
                    .iter()
                    .map(|(account, units)| Posting {
                        account: *account,
                        amount: Micros::from_units(*units),
                    })
                    .collect(),
            }
        }

        fn post(&mut self, transfer: &Transfer) -> Result<(), StoreError> {
            let transaction = self.connection.transaction().expect("begins");
            post(&transaction, transfer, "test")?;
            Ok(transaction.commit()?)
        }

        fn refuses(&mut self, transfer: &Transfer, says: &str) {
            let error = self.post(transfer).expect_err(says).to_string();
            assert!(error.contains(says), "{error} should say {says}");
        }
    }

    #[test]
    fn what_is_posted_checks_and_reads_back() {
        let mut ledger = Ledger::new();
        let spent = ledger.transfer(&[(ledger.tenant, -4), (Account::Fees, 1), (Account::BonusPool, 3)]);
        ledger.post(&spent).expect("balanced");
        let check = check(&ledger.connection).expect("checks");
        assert_eq!(
            (check.postings_sum, check.postings, check.transfers),
            (Micros::ZERO, 5, 2)
        );
        assert!(check.unbalanced.is_empty() && check.overdrawn.is_empty());
        let page = page(&ledger.connection, 2, 100).expect("reads");
        assert_eq!(page.len(), 3);
        assert_eq!(page.last().map(|row| row.balance), Some(Micros::from_units(6)));
    }

    #[test]
    fn the_store_refuses_what_does_not_balance_overdraws_or_comes_twice() {
        let mut ledger = Ledger::new();
        let unbalanced = ledger.transfer(&[(ledger.tenant, -4), (Account::Fees, 3)]);
        ledger.refuses(&unbalanced, "must sum to zero");
        let empty = ledger.transfer(&[]);
        ledger.refuses(&empty, "must sum to zero");
        let overdraft = ledger.transfer(&[(ledger.tenant, -11), (Account::Fees, 11)]);
        ledger.refuses(&overdraft, "overdraft");
        let spent = ledger.transfer(&[(ledger.tenant, -4), (Account::Fees, 4)]);
        ledger.post(&spent).expect("balanced");
        ledger.refuses(&spent, "posted already");
        let check = check(&ledger.connection).expect("checks");
        assert_eq!(
            (check.postings_sum, check.transfers),
            (Micros::ZERO, 2),
            "nothing of the refused is kept"
        );
    }

    #[test]
    fn only_outside_may_be_below_zero() {
        let mut ledger = Ledger::new();
        let more = ledger.transfer(&[(Account::Outside, -1_000), (ledger.tenant, 1_000)]);
        ledger.post(&more).expect("outside may");
        let fees = ledger.transfer(&[(Account::Fees, -1), (ledger.tenant, 1)]);
        ledger.refuses(&fees, "overdraft");
    }

    #[test]
    fn postings_without_a_transfer_fail_the_commit() {
        let mut ledger = Ledger::new();
        let transaction = ledger.connection.transaction().expect("begins");
        transaction
            .execute(
                "INSERT INTO postings (transfer, account, amount, balance) VALUES ('trf_x', 'fees', 5, 5)",
                [],
            )
            .expect("not yet");
        let error = transaction.commit().expect_err("no transfer").to_string();
        assert!(error.contains("FOREIGN KEY"), "{error}");
    }

    #[test]
    fn nothing_that_was_written_can_be_changed_removed_replaced_or_joined() {
        let ledger = Ledger::new();
        let transfer: String = ledger
            .connection
            .query_row("SELECT transfer FROM transfers", [], |row| row.get(0))
            .expect("one");
        ledger
            .connection
            .execute("INSERT INTO records (utc_ms, json) VALUES (1, '{}')", [])
            .expect("a record");
        for (sql, says) in [
            ("UPDATE records SET json = '[]'".to_owned(), "never changed"),
            ("DELETE FROM records".to_owned(), "never removed"),
            (
                "INSERT OR REPLACE INTO records (record, utc_ms, json) VALUES (1, 2, '[]')".to_owned(),
                "never",
            ),
            (
                "UPDATE postings SET amount = 1, balance = 1".to_owned(),
                "never changed",
            ),
            ("DELETE FROM postings".to_owned(), "never removed"),
            ("UPDATE transfers SET reason = ''".to_owned(), "never changed"),
            ("DELETE FROM transfers".to_owned(), "never removed"),
            (
                format!("INSERT OR REPLACE INTO transfers VALUES ('{transfer}', 1, '')"),
                "already",
            ),
            (
                format!(
                    "INSERT INTO postings (transfer, account, amount, balance) VALUES ('{transfer}', 'fees', 5, 5)"
                ),
                "posted already",
            ),
            (
                "INSERT OR REPLACE INTO postings (posting, transfer, account, amount, balance)
                 VALUES (1, 'trf_x', 'fees', 5, 5)"
                    .to_owned(),
                "never replaced",
            ),
            (
                "INSERT INTO postings (transfer, account, amount, balance) VALUES ('trf_x', 'fees', 5, 6)".to_owned(),
                "carry its account's balance",
            ),
        ] {
            let error = ledger.connection.execute(&sql, []).expect_err(&sql).to_string();
            assert!(error.contains(says), "{sql}: {error} should say {says}");
        }
        let check = check(&ledger.connection).expect("checks");
        assert_eq!((check.postings, check.transfers), (2, 1));
    }
}
