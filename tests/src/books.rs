//! Whether money is where it belongs, by everybody's own account of it: the tenant's, the ledger's and the owner's. Every lease is
//! paid exactly once, to the micro-unit.

use crate::{Exchange, FUNDS, Owner, Tenant, wait_for};
use anyhow::{Context, ensure};
use sela_protocol::id::LeaseId;
use sela_protocol::job::LEAST_BILLED;
use sela_protocol::lease::{EndCause, EndedBy};
use sela_protocol::local::EarningsLine;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{JobView, LeaseView, PostingView};
use sela_protocol::units::Millis;

/// Checks all books against each other, once every lease has ended and every receipt has come.
///
/// # Errors
/// The first thing that does not add up.
pub fn check_the_books(exchange: &Exchange, tenant: &Tenant, owner: &Owner) -> anyhow::Result<()> {
    let jobs = wait_for("every lease to end", || {
        let jobs = tenant.jobs()?;
        let all = leases(&jobs).all(|lease| lease.end.is_some());
        Ok(all.then_some(jobs))
    })?;
    let accepted: Vec<&LeaseView> = leases(&jobs).filter(|lease| lease.accepted_utc_ms.is_some()).collect();
    let lines = wait_for("the closing receipt of every lease", || {
        let lines = owner.earnings()?;
        let has_closed = |lease: &&&LeaseView| lines.iter().any(|line| line.lease == lease.lease && line.end.is_some());
        let is_paid = |lease: &&LeaseView| has_closed(&lease) && gross(&lines, lease.lease) == lease.paid;
        Ok(accepted.iter().all(is_paid).then_some(lines))
    });
    let lines = lines.with_context(|| {
        format!(
            "the tenant's account: {accepted:#?}\nthe owner's: {:#?}",
            owner.earnings()
        )
    })?;
    for lease in &accepted {
        let mine: Vec<&EarningsLine> = lines.iter().filter(|line| line.lease == lease.lease).collect();
        ensure!(
            mine.len() == 1,
            "{} stands {} times in the owner's earnings",
            lease.lease,
            mine.len()
        );
        check_lease(lease, mine[0], exchange.fee_basis_points())?;
    }
    ensure!(
        lines.len() == accepted.len(),
        "the owner knows leases that the tenant does not: {lines:#?}"
    );
    check_tenant(&jobs, tenant)?;
    check_ledger(&accepted, exchange)
}

fn leases(jobs: &[JobView]) -> impl Iterator<Item = &LeaseView> {
    jobs.iter().flat_map(|job| &job.leases)
}

fn gross(lines: &[EarningsLine], lease: LeaseId) -> Micros {
    lines
        .iter()
        .filter(|line| line.lease == lease)
        .map(|line| line.gross)
        .sum()
}

/// One lease in both books, and by the rules of market.md §5.
fn check_lease(lease: &LeaseView, line: &EarningsLine, fee_basis_points: u32) -> anyhow::Result<()> {
    let id = lease.lease;
    let end = lease.end.as_ref().context("the lease has ended")?;
    let billed = billed(end, line.thawed_ms);
    ensure!(
        lease.billed_ms == billed && line.billed_ms == billed,
        "{id} ended by {end:?} after {} thawed: {} should be billed, the tenant's account says {}, the owner's {}",
        line.thawed_ms,
        billed,
        lease.billed_ms,
        line.billed_ms
    );
    let due = lease.price.due(billed);
    let fee = due.basis_points(fee_basis_points);
    ensure!(
        (lease.paid, line.gross, line.fee, line.net) == (due, due, fee, due - fee),
        "{id}: due {due} with a fee of {fee}; the tenant paid {}; the owner got {} − {} = {}",
        lease.paid,
        line.gross,
        line.fee,
        line.net
    );
    ensure!(line.lab, "{id} is not marked as of a lab");
    Ok(())
}

/// What is billed of a lease that has ended: at least a minute where its job or tenant ended it.
fn billed(end: &EndCause, thawed: Millis) -> Millis {
    let never_ran = *end == EndCause::TenantCancelled && thawed == Millis(0);
    match end.ended_by() {
        EndedBy::Job | EndedBy::Tenant if !never_ran => thawed.max(LEAST_BILLED),
        EndedBy::Job | EndedBy::Tenant | EndedBy::Exchange | EndedBy::Other => thawed,
    }
}

fn check_tenant(jobs: &[JobView], tenant: &Tenant) -> anyhow::Result<()> {
    for job in jobs {
        let by_lease: Micros = job.leases.iter().map(|lease| lease.paid).sum();
        ensure!(
            job.paid == by_lease,
            "{} cost {} but its leases {by_lease}",
            job.job,
            job.paid
        );
    }
    let paid: Micros = jobs.iter().map(|job| job.paid).sum();
    let account = tenant.account()?;
    ensure!(
        account.escrow == Micros::ZERO && account.available + paid == FUNDS,
        "of {FUNDS} the tenant paid {paid}, has {} and {} in escrow",
        account.available,
        account.escrow
    );
    Ok(())
}

fn check_ledger(accepted: &[&LeaseView], exchange: &Exchange) -> anyhow::Result<()> {
    let check = exchange.check_ledger()?;
    ensure!(
        check.postings_sum == Micros::ZERO && check.unbalanced.is_empty() && check.overdrawn.is_empty(),
        "the ledger is wrong: {check:#?}"
    );
    for balance in &check.balances {
        let may_be_negative = balance.account == "outside";
        ensure!(
            may_be_negative || balance.balance >= Micros::ZERO,
            "{} is below zero",
            balance.account
        );
    }
    let postings = exchange.postings()?;
    for lease in accepted {
        let escrow = format!("lease/{}/escrow", lease.lease);
        let of_lease: Vec<&PostingView> = postings.iter().filter(|posting| posting.account == escrow).collect();
        let paid: Micros = of_lease
            .iter()
            .filter(|posting| posting.reason == "posted")
            .map(|posting| posting.amount.negated())
            .sum();
        let left: Micros = of_lease.iter().map(|posting| posting.amount).sum();
        ensure!(
            paid == lease.paid && left == Micros::ZERO,
            "{}: the ledger posted {paid} and left {left} in escrow, the tenant's account says {}\n{of_lease:#?}",
            lease.lease,
            lease.paid
        );
    }
    let earned: Micros = check
        .balances
        .iter()
        .filter(|balance| balance.account == "fees" || balance.account.starts_with("owner/"))
        .map(|balance| balance.balance)
        .sum();
    let paid: Micros = accepted.iter().map(|lease| lease.paid).sum();
    ensure!(
        earned == paid,
        "owner and exchange got {earned}, the tenant paid {paid}"
    );
    Ok(())
}
