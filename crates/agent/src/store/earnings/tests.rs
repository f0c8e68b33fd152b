//! What `earnings.db` promises: nothing written is changed or lost, and writing again changes nothing.

use super::*;
use ed25519_dalek::SigningKey;
use proptest::prelude::*;
use sela_protocol::id::{GpuUuid, IdSource};
use sela_protocol::lease::FencingToken;

const MINUTE: Millis = Millis(60_000);

struct Case {
    book: EarningsBook,
    ids: IdSource,
    key: SigningKey,
}

impl Case {
    fn new() -> Self {
        Self {
            book: EarningsBook::over(Connection::open_in_memory().expect("opens")).expect("migrates"),
            ids: IdSource::new(UtcMs(1), [3; 32]),
            key: SigningKey::from_bytes(&[1; 32]),
        }
    }

    fn lease(&mut self) -> OpenLease {
        OpenLease {
            lease: self.ids.draw(),
            node: self.ids.clone().draw(),
            fencing: FencingToken(1),
            job: self.ids.draw(),
            name: Some("batch".into()),
            gpu: GpuUuid("GPU-1".into()),
            price: HourlyPrice(Micros(600_000)),
            accepted_utc_ms: UtcMs(1_000),
            lab: true,
        }
    }

    fn accept(&mut self) -> OpenLease {
        let lease = self.lease();
        let exchange = Some(PublicKey::of(&self.key));
        self.commit(Entry::Accepted {
            lease: lease.clone(),
            exchange,
        });
        lease
    }

    fn commit(&mut self, entry: Entry) {
        self.book.commit(&[entry]).expect("commits");
    }

    fn note(&mut self, lease: &OpenLease, thawed_ms: Millis, closing: Option<EndCause>) -> MeterNote {
        let note = MeterNote {
            lease: lease.lease,
            fencing: lease.fencing,
            node: self.ids.clone().draw(),
            thawed_ms,
            frozen_ms: Millis(0),
            taken_utc_ms: UtcMs(2_000),
            closing,
            output: None,
        };
        let envelope = Box::new(Envelope::seal(&note, &self.key).expect("seals"));
        self.commit(Entry::Noted {
            note: note.clone(),
            envelope,
        });
        note
    }

    fn receipt(&mut self, lease: &OpenLease, billed: Millis, issued: UtcMs) -> Entry {
        let gross = lease.price.due(billed);
        let fee = gross.basis_points(1_000);
        let receipt = Receipt {
            receipt: self.ids.draw(),
            lease: lease.lease,
            job: lease.job,
            node: self.ids.clone().draw(),
            gpu: lease.gpu.clone(),
            owner: self.ids.clone().draw(),
            price: lease.price,
            billed_ms: billed,
            gross,
            fee,
            net: gross - fee,
            closed: None,
            issued_utc_ms: issued,
            lab: true,
        };
        Entry::Receipt {
            envelope: Box::new(Envelope::seal(&receipt, &self.key).expect("seals")),
            receipt: Box::new(receipt),
        }
    }

    fn closing(&self, note: MeterNote) -> UnsettledLease {
        UnsettledLease {
            cause: note.closing.clone().expect("a closing note"),
            note,
            output: None,
            energy_mwh: Some(1_500),
            ended_utc_ms: UtcMs(3_000),
            lasted: MINUTE,
        }
    }

    fn count(&self, table: &str) -> i64 {
        self.book
            .connection
            .query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| row.get(0))
            .expect("counts")
    }
}

#[test]
fn a_receipt_whose_numbers_no_database_holds_stops_nothing() {
    let mut case = Case::new();
    let lease = case.accept();
    let receipt = case.receipt(&lease, Millis(u64::MAX), UtcMs(5));
    case.commit(receipt);
    let note = case.note(&lease, Millis(u64::MAX), None);
    assert_eq!(note.thawed_ms, Millis(u64::MAX));
    assert_eq!((case.count("receipts"), case.count("notes")), (1, 1));
    case.book.sums(UtcMs(0)).expect("sums");
}

#[test]
fn nothing_that_was_written_can_be_changed_or_removed() {
    let mut case = Case::new();
    let lease = case.accept();
    let note = case.note(&lease, MINUTE, Some(EndCause::OwnerInput));
    let closing = case.closing(note);
    case.commit(Entry::Closed { closing, per_kwh: None });
    let receipt = case.receipt(&lease, MINUTE, UtcMs(5_000));
    case.commit(receipt);
    case.commit(Entry::Settled { lease: lease.lease });
    case.commit(Entry::Pause { pause: None });
    for (table, column) in [
        ("leases", "price = 1"),
        ("notes", "thawed_ms = 1"),
        ("closings", "electricity = 1"),
        ("receipts", "gross = 1"),
        ("settled", "lease = 'x'"),
        ("pauses", "entry = 'x'"),
    ] {
        let count = case.count(table);
        assert!(count > 0, "{table} must hold something to be tested");
        for sql in [
            format!("UPDATE {table} SET {column}"),
            format!("DELETE FROM {table}"),
            format!("INSERT OR REPLACE INTO {table} SELECT * FROM {table}"),
        ] {
            let error = case.book.connection.execute(&sql, []).expect_err(&sql).to_string();
            assert!(error.contains("append only"), "{sql}: {error}");
        }
        assert_eq!(case.count(table), count);
    }
}

#[test]
fn writing_an_entry_again_changes_nothing() {
    let mut case = Case::new();
    let lease = case.accept();
    let note = case.note(&lease, MINUTE, Some(EndCause::OwnerInput));
    let closing = case.closing(note.clone());
    let receipt = case.receipt(&lease, MINUTE, UtcMs(5_000));
    let envelope = Box::new(Envelope::seal(&note, &case.key).expect("seals"));
    let entries = [
        Entry::Accepted {
            lease: lease.clone(),
            exchange: None,
        },
        Entry::Noted { note, envelope },
        Entry::Closed {
            closing,
            per_kwh: Some(Micros(300_000)),
        },
        receipt,
        Entry::Settled { lease: lease.lease },
    ];
    for _ in 0..3 {
        case.book.commit(&entries).expect("commits");
    }
    for table in ["leases", "notes", "closings", "receipts", "settled"] {
        assert_eq!(case.count(table), 1, "{table}");
    }
}

#[test]
fn entries_are_committed_together_or_not_at_all() {
    let mut case = Case::new();
    let (known, unknown) = (case.lease(), case.lease());
    let node = case.ids.draw();
    let note = case.closing(MeterNote {
        lease: unknown.lease,
        fencing: FencingToken(1),
        node,
        thawed_ms: MINUTE,
        frozen_ms: Millis(0),
        taken_utc_ms: UtcMs(1),
        closing: Some(EndCause::Hot),
        output: None,
    });
    let entries = [
        Entry::Accepted {
            lease: known,
            exchange: None,
        },
        Entry::Closed {
            closing: note,
            per_kwh: None,
        },
    ];
    assert!(case.book.commit(&entries).is_err(), "a closing needs its lease");
    assert_eq!(case.count("leases"), 0);
}

#[test]
fn after_a_crash_an_open_lease_comes_back_with_its_newest_note() {
    let mut case = Case::new();
    let (never_ran, ran, ended) = (case.accept(), case.accept(), case.accept());
    case.note(&ran, Millis(1_000), None);
    case.note(&ran, Millis(2_000), None);
    let note = case.note(&ended, MINUTE, Some(EndCause::Exited { code: 0 }));
    let closing = case.closing(note);
    case.commit(Entry::Closed {
        closing: closing.clone(),
        per_kwh: None,
    });
    let exchange = Some(PublicKey::of(&case.key));
    let recovered = case.book.recover(exchange).expect("recovers");
    let open: Vec<_> = recovered
        .open
        .iter()
        .map(|open| (open.lease.lease, open.thawed_ms))
        .collect();
    assert_eq!(open, [(never_ran.lease, Millis(0)), (ran.lease, Millis(2_000))]);
    assert!(recovered.open.iter().all(|open| open.cause == EndCause::AgentRestarted));
    assert_eq!(recovered.unsettled, [closing]);
    let stranger = Some(PublicKey::of(&SigningKey::from_bytes(&[9; 32])));
    assert_eq!(
        case.book.recover(stranger).expect("recovers").unsettled,
        [],
        "not told to another exchange"
    );
    case.commit(Entry::Settled { lease: ended.lease });
    assert_eq!(case.book.recover(exchange).expect("recovers").unsettled, []);
}

#[test]
fn the_newest_closing_of_a_lease_counts() {
    let mut case = Case::new();
    let lease = case.accept();
    let note = case.note(&lease, MINUTE, Some(EndCause::Exited { code: 0 }));
    let before = case.closing(note);
    let after = UnsettledLease {
        output: Some(sela_protocol::blob::BlobId::of(b"out")),
        ..before.clone()
    };
    for closing in [before, after.clone()] {
        case.commit(Entry::Closed {
            closing,
            per_kwh: Some(Micros(300_000)),
        });
    }
    let recovered = case.book.recover(Some(PublicKey::of(&case.key))).expect("recovers");
    assert_eq!(recovered.unsettled, [after]);
    let sums = case.book.sums(UtcMs(0)).expect("sums");
    assert_eq!(sums.total_electricity, Micros(450), "1.5 Wh at 0.30 per kWh, once");
}

#[test]
fn a_pause_survives_a_restart() {
    let mut case = Case::new();
    let pause = Pause {
        since_utc_ms: UtcMs(1),
        until_utc_ms: None,
    };
    case.commit(Entry::Pause { pause: Some(pause) });
    assert_eq!(case.book.recover(None).expect("recovers").pause, Some(pause));
    case.commit(Entry::Pause { pause: None });
    assert_eq!(case.book.recover(None).expect("recovers").pause, None);
}

#[test]
fn sums_count_the_newest_receipt_of_each_lease_and_today_from_midnight_on() {
    let mut case = Case::new();
    let (first, second) = (case.accept(), case.accept());
    let midnight = UtcMs(100_000);
    for (lease, minutes, issued) in [(&first, 1, 50_000), (&first, 3, 150_000), (&second, 2, 150_000)] {
        let receipt = case.receipt(lease, Millis(minutes * MINUTE.0), UtcMs(issued));
        case.commit(receipt);
    }
    case.note(&second, Millis(4 * MINUTE.0), None);
    let sums = case.book.sums(midnight).expect("sums");
    assert_eq!(
        sums.total_net,
        Micros(27_000 + 18_000),
        "3 and 2 minutes at 0.6 an hour less a tenth"
    );
    assert_eq!(sums.today_net, Micros(45_000 - 9_000));
    assert_eq!(sums.total_fee, Micros(5_000));
    assert_eq!(sums.pending_gross, Micros(20_000), "two minutes of the second lease");
}

/// The owner's sums by the whole of what was written, as they were before the database kept them along.
fn added_up(book: &EarningsBook, midnight: UtcMs) -> Earned {
    let newest = |before: UtcMs| -> (i64, i64) {
        let sql = "SELECT IFNULL(SUM(net), 0), IFNULL(SUM(fee), 0) FROM receipts AS newest WHERE number =
             (SELECT number FROM receipts WHERE receipts.lease = newest.lease AND issued_utc_ms < ?1
              ORDER BY billed_ms DESC, number DESC LIMIT 1)";
        let row = book
            .connection
            .query_row(sql, [before.0], |row| Ok((row.get(0)?, row.get(1)?)));
        row.expect("sums")
    };
    let electricity = "SELECT IFNULL(SUM(electricity), 0) FROM closings AS newest WHERE number =
        (SELECT MAX(number) FROM closings WHERE closings.lease = newest.lease)";
    let pending = "SELECT price, (SELECT MAX(thawed_ms) FROM notes WHERE notes.lease = leases.lease),
        (SELECT MAX(gross) FROM receipts WHERE receipts.lease = leases.lease)
        FROM leases WHERE NOT EXISTS (SELECT 1 FROM settled WHERE settled.lease = leases.lease)";
    let pending = book.rows(pending, [], |row| {
        let (price, thawed, receipted): (i64, Option<u64>, Option<i64>) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let due = HourlyPrice(Micros(price)).due(Millis(thawed.unwrap_or(0)));
        Ok((due - Micros(receipted.unwrap_or(0))).max(Micros::ZERO))
    });
    let ((net, fee), (net_before, _)) = (newest(UtcMs(i64::MAX)), newest(midnight));
    let electricity = book.connection.query_row(electricity, [], |row| row.get(0));
    Earned {
        today_net: Micros(net - net_before),
        total_net: Micros(net),
        total_fee: Micros(fee),
        total_electricity: Micros(electricity.expect("sums")),
        pending_gross: pending.expect("sums").into_iter().sum(),
    }
}

/// One random entry about one of a few leases.
#[derive(Debug, Clone, Copy)]
enum Written {
    Note(usize, u64),
    Closed(usize, Option<i64>),
    Receipt(usize, u64, i64),
    ReceiptAgain,
    Settled(usize),
}

fn written() -> impl Strategy<Value = Written> {
    let lease = 0..6_usize;
    prop_oneof![
        2 => (lease.clone(), 0..500_000_u64).prop_map(|(lease, thawed)| Written::Note(lease, thawed)),
        2 => (lease.clone(), prop::option::of(0..900_000_i64)).prop_map(|(lease, per_kwh)| Written::Closed(lease, per_kwh)),
        3 => (lease.clone(), 0..500_000_u64, 0..10_i64).prop_map(|(lease, billed, hour)| Written::Receipt(lease, billed, hour)),
        1 => Just(Written::ReceiptAgain),
        1 => lease.prop_map(Written::Settled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_sums_that_are_kept_along_are_those_of_all_that_was_written(
        before in prop::collection::vec(written(), 0..20),
        after in prop::collection::vec(written(), 0..40),
        midnight in 0..10_i64,
    ) {
        // Some of it written by a version that kept no sums.
        let mut connection = Connection::open_in_memory().expect("opens");
        migrate(&mut connection, FILE, &EARNINGS[..1]).expect("as released");
        let mut case = Case { book: EarningsBook { connection }, ..Case::new() };
        let leases: Vec<OpenLease> = (0..6).map(|_| case.accept()).collect();
        let mut last_receipt = None;
        let write = |case: &mut Case, what: Written, last_receipt: &mut Option<Entry>| match what {
            Written::Note(lease, thawed) => drop(case.note(&leases[lease], Millis(thawed), None)),
            Written::Closed(lease, per_kwh) => {
                let note = case.note(&leases[lease], MINUTE, Some(EndCause::OwnerInput));
                let closing = UnsettledLease { lasted: Millis(per_kwh.unwrap_or(0).unsigned_abs()), ..case.closing(note) };
                case.commit(Entry::Closed { closing, per_kwh: per_kwh.map(Micros) });
            }
            Written::Receipt(lease, billed, hour) => {
                let receipt = case.receipt(&leases[lease], Millis(billed), UtcMs(hour));
                case.commit(receipt.clone());
                *last_receipt = Some(receipt);
            }
            Written::ReceiptAgain => last_receipt.iter().for_each(|receipt| case.commit(receipt.clone())),
            Written::Settled(lease) => case.commit(Entry::Settled { lease: leases[lease].lease }),
        };
        for what in before {
            write(&mut case, what, &mut last_receipt);
        }
        migrate(&mut case.book.connection, FILE, EARNINGS).expect("migrates");
        prop_assert_eq!(case.book.sums(UtcMs(midnight)).expect("sums"), added_up(&case.book, UtcMs(midnight)));
        for what in after {
            write(&mut case, what, &mut last_receipt);
            prop_assert_eq!(case.book.sums(UtcMs(midnight)).expect("sums"), added_up(&case.book, UtcMs(midnight)));
        }
    }
}

#[test]
fn sums_that_no_database_holds_stop_nothing_either() {
    let mut case = Case::new();
    for _ in 0..3 {
        let lease = OpenLease {
            price: HourlyPrice(Micros(i64::MAX / 2)),
            ..case.accept()
        };
        let receipt = case.receipt(&lease, Millis(7_200_000), UtcMs(5));
        case.commit(receipt);
    }
    assert_eq!(case.count("receipts"), 3);
    assert_eq!(case.book.sums(UtcMs(6)).expect("sums").total_net, Micros(i64::MAX));
}

#[test]
fn what_the_sums_cost_does_not_grow_with_all_that_was_ever_earned() {
    let case = Case::new();
    for sql in [TOTALS, TODAY, PENDING] {
        let plan = case
            .book
            .rows(&format!("EXPLAIN QUERY PLAN {}", sql.replace("?1", "5")), [], |row| {
                row.get::<_, String>(3)
            });
        for step in plan.expect("a plan") {
            // One row, what is open, and what came today.
            let few = ["SCAN totals", "SCAN not_settled", "SCAN today"];
            let through = step.starts_with("SCAN") && !few.iter().any(|small| step.starts_with(small));
            assert!(!through, "{sql} goes through all of a table: {step}");
        }
    }
}
