//! Pages of `earnings.db` for people: earnings and jobs, newest first. A cursor is the number of the last line shown.

use super::StoreError;
use super::earnings::{EarningsBook, read};
use rusqlite::Row;
use sela_core::{OpenLease, UnsettledLease};
use sela_protocol::lease::MeterNote;
use sela_protocol::local::{EarningsLine, JobLine, Page};
use sela_protocol::money::Micros;
use sela_protocol::units::Millis;

/// Lines on one page.
const PAGE: usize = 100;

/// One lease with the newest of everything that is known of it.
struct Line {
    number: i64,
    lease: OpenLease,
    note: Option<MeterNote>,
    closing: Option<UnsettledLease>,
    electricity: Option<Micros>,
    billed: Option<Receipted>,
}

struct Receipted {
    billed_ms: Millis,
    gross: Micros,
    fee: Micros,
    net: Micros,
}

impl EarningsBook {
    /// Leases with what each earned.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn earnings(&self, cursor: Option<&str>) -> Result<Page<EarningsLine>, StoreError> {
        self.page(cursor, |line| EarningsLine {
            thawed_ms: line.thawed(),
            end: line.closing.as_ref().map(|closing| closing.cause.clone()),
            energy_mwh: line.closing.as_ref().and_then(|closing| closing.energy_mwh),
            billed_ms: line.billed.as_ref().map_or(Millis(0), |receipt| receipt.billed_ms),
            gross: line.billed.as_ref().map_or(Micros::ZERO, |receipt| receipt.gross),
            fee: line.billed.as_ref().map_or(Micros::ZERO, |receipt| receipt.fee),
            net: line.billed.as_ref().map_or(Micros::ZERO, |receipt| receipt.net),
            electricity: line.electricity,
            lease: line.lease.lease,
            job: line.lease.job,
            gpu: line.lease.gpu,
            started_utc_ms: line.lease.accepted_utc_ms,
            price: line.lease.price,
            lab: line.lease.lab,
        })
    }

    /// Leases with how each ended. How far an open one is, only the running agent knows: `phase` is `None` here.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn jobs(&self, cursor: Option<&str>) -> Result<Page<JobLine>, StoreError> {
        self.page(cursor, |line| JobLine {
            thawed_ms: line.thawed(),
            end: line.closing.as_ref().map(|closing| closing.cause.clone()),
            lease: line.lease.lease,
            job: line.lease.job,
            name: line.lease.name,
            gpu: line.lease.gpu,
            started_utc_ms: line.lease.accepted_utc_ms,
            phase: None,
            network: None,
            transfer: None,
            wiped: None,
        })
    }

    fn page<T>(&self, cursor: Option<&str>, show: impl Fn(Line) -> T) -> Result<Page<T>, StoreError> {
        let before: i64 = match cursor {
            None => i64::MAX,
            Some(text) => text.parse().map_err(|_| StoreError::Cursor(text.to_owned()))?,
        };
        let rows = self.rows(
            "SELECT leases.number, leases.entry,
                (SELECT entry FROM notes WHERE notes.lease = leases.lease ORDER BY number DESC LIMIT 1),
                (SELECT entry FROM closings WHERE closings.lease = leases.lease ORDER BY number DESC LIMIT 1),
                (SELECT electricity FROM closings WHERE closings.lease = leases.lease ORDER BY number DESC LIMIT 1),
                receipt.billed_ms, receipt.gross, receipt.fee, receipt.net
             FROM leases LEFT JOIN receipts AS receipt ON receipt.number =
                (SELECT number FROM receipts WHERE receipts.lease = leases.lease
                 ORDER BY billed_ms DESC, number DESC LIMIT 1)
             WHERE leases.number < ?1 ORDER BY leases.number DESC LIMIT ?2",
            (before, PAGE + 1),
            raw,
        )?;
        let more = rows.len() > PAGE;
        let lines = rows.into_iter().take(PAGE).map(line).collect::<Result<Vec<_>, _>>()?;
        let next = lines.last().filter(|_| more).map(|line| line.number.to_string());
        Ok(Page {
            items: lines.into_iter().map(show).collect(),
            next,
        })
    }
}

impl Line {
    fn thawed(&self) -> Millis {
        self.note.as_ref().map_or(Millis(0), |note| note.thawed_ms)
    }
}

type Raw = (
    i64,
    String,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<[i64; 4]>,
);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    let receipt = match row.get::<_, Option<i64>>(5)? {
        Some(billed) => Some([billed, row.get(6)?, row.get(7)?, row.get(8)?]),
        None => None,
    };
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, receipt))
}

fn line((number, lease, note, closing, electricity, receipt): Raw) -> Result<Line, StoreError> {
    Ok(Line {
        number,
        lease: read(&lease)?,
        note: note.as_deref().map(read).transpose()?,
        closing: closing.as_deref().map(read).transpose()?,
        electricity: electricity.map(Micros),
        billed: receipt.map(|[billed, gross, fee, net]| Receipted {
            billed_ms: Millis(billed.unsigned_abs()),
            gross: Micros(gross),
            fee: Micros(fee),
            net: Micros(net),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Entry;
    use sela_protocol::id::{GpuUuid, IdSource};
    use sela_protocol::lease::FencingToken;
    use sela_protocol::money::HourlyPrice;
    use sela_protocol::units::UtcMs;

    #[test]
    fn pages_show_every_lease_once_newest_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut book = EarningsBook::open(folder.path()).expect("opens");
        let mut ids = IdSource::new(UtcMs(1), [5; 32]);
        let leases: Vec<OpenLease> = (0..250)
            .map(|number| OpenLease {
                lease: ids.draw(),
                node: ids.draw(),
                fencing: FencingToken(1),
                job: ids.draw(),
                name: None,
                gpu: GpuUuid("GPU-1".into()),
                price: HourlyPrice(Micros(1)),
                accepted_utc_ms: UtcMs(number),
                lab: false,
            })
            .collect();
        let entries: Vec<Entry> = leases
            .iter()
            .map(|lease| Entry::Accepted {
                lease: lease.clone(),
                exchange: None,
            })
            .collect();
        book.commit(&entries).expect("commits");
        let mut shown = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = book.earnings(cursor.as_deref()).expect("a page");
            shown.extend(page.items.into_iter().map(|line| line.lease));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let expected: Vec<_> = leases.iter().rev().map(|lease| lease.lease).collect();
        assert_eq!(shown, expected);
        assert!(matches!(book.jobs(Some("x")), Err(StoreError::Cursor(_))));
    }
}
