//! What a lease costs: escrow, billed time, due, fee, and what is held for late notes (market.md §2, §5, §7). Arithmetic only;
//! moving the money is `floor` and `ledger`.

use sela_protocol::job::LEAST_BILLED;
use sela_protocol::lease::{EndCause, EndedBy};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::units::Millis;

/// How long after a lease was lost its node may still bring the signed notes for it (market.md §7), in time that the exchange is up.
pub const LATE_NOTES: Millis = Millis(7 * 24 * 3_600_000);

/// A cumulative charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// floor(price × billed / 3 600 000).
    pub gross: Micros,
    /// The exchange's share of the gross, rounded down.
    pub fee: Micros,
    /// What the owner gets.
    pub net: Micros,
}

/// What is due for a cumulative billed time; postings are differences of this.
pub fn charge(price: HourlyPrice, fee_basis_points: u32, billed: Millis) -> Charge {
    let gross = price.due(billed);
    let fee = gross.basis_points(fee_basis_points.min(10_000));
    Charge {
        gross,
        fee,
        net: gross - fee,
    }
}

/// Why a lease cannot be paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortfall {
    /// The job's budget leaves too little for 60 s.
    Budget {
        /// 60 s at this price.
        needs: Micros,
        /// What the budget leaves.
        left: Micros,
    },
    /// The tenant's account has too little for 60 s.
    Account {
        /// 60 s at this price.
        needs: Micros,
        /// What it has.
        available: Micros,
    },
}

/// What to set aside for a lease: the price of its run limit, at least of 60 s, cut to what the budget leaves and the account has.
///
/// # Errors
/// Where either does not cover 60 s.
pub fn escrow(
    price: HourlyPrice,
    run_limit: Millis,
    budget_left: Micros,
    available: Micros,
) -> Result<Micros, Shortfall> {
    let needs = price.due(LEAST_BILLED);
    if budget_left < needs {
        return Err(Shortfall::Budget {
            needs,
            left: budget_left,
        });
    }
    if available < needs {
        return Err(Shortfall::Account { needs, available });
    }
    Ok(full_escrow(price, run_limit).min(budget_left).min(available))
}

/// What a lease can cost at most.
pub fn full_escrow(price: HourlyPrice, run_limit: Millis) -> Micros {
    price.due(run_limit.max(LEAST_BILLED))
}

/// Most that a lease may bill: its run limit, at least 60 s, or what its escrow pays if that is less.
pub fn limit(price: HourlyPrice, run_limit: Millis, escrow: Micros) -> Millis {
    run_limit.max(LEAST_BILLED).min(affordable(price, escrow))
}

/// The longest billed time whose due is not above `amount`.
fn affordable(price: HourlyPrice, amount: Micros) -> Millis {
    if price.0 <= Micros::ZERO {
        return Millis(u64::MAX);
    }
    let longest = ((i128::from(amount.0) + 1) * 3_600_000 - 1) / i128::from(price.0.0);
    Millis(u64::try_from(longest.max(0)).unwrap_or(u64::MAX))
}

/// The billed time of a lease that goes on, or that ended through no doing of its tenant's: what the node noted, within what its
/// renewals and its limit allow.
pub fn billed(noted: Millis, billable: Millis, limit: Millis) -> Millis {
    noted.min(billable).min(limit)
}

/// The billed time at the close of a lease that ended for `cause`.
pub fn billed_at_close(billed: Millis, noted: Millis, limit: Millis, cause: &EndCause) -> Millis {
    if least_applies(cause, noted) {
        billed.max(LEAST_BILLED.min(limit))
    } else {
        billed
    }
}

/// Whether at least 60 s are billed (market.md §5): the job ended by itself or by its tenant. That includes a start that failed
/// by the job's own fault, since only the node's fault is free: an image that cannot run must not be a free way to keep owners'
/// machines fetching. A cancel before the program ran is free: no job had begun that could end.
fn least_applies(cause: &EndCause, noted: Millis) -> bool {
    match cause.ended_by() {
        EndedBy::Job => true,
        EndedBy::Tenant => noted > Millis(0),
        EndedBy::Exchange | EndedBy::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOURLY: HourlyPrice = HourlyPrice(Micros(600_000));

    #[test]
    fn each_line_of_who_pays_for_what() {
        let node_fault = EndCause::NodeFault {
            message: "no space".into(),
        };
        let job_fault = EndCause::JobFault {
            message: "no entrypoint".into(),
        };
        let program = EndCause::OwnerProgram { name: None };
        // (cause, noted ms, billable ms, limit ms, billed ms)
        let cases: [(&EndCause, u64, u64, u64, u64); 19] = [
            (&EndCause::Exited { code: 0 }, 90_000, 150_000, 600_000, 90_000),
            (&EndCause::Exited { code: 0 }, 5_000, 65_000, 600_000, 60_000),
            (&EndCause::Exited { code: 1 }, 0, 61_000, 600_000, 60_000),
            (&EndCause::OutOfMemory, 5_000, 65_000, 600_000, 60_000),
            (&EndCause::WallLimit, 600_000, 660_000, 600_000, 600_000),
            (&EndCause::WallLimit, 600_900, 660_000, 600_000, 600_000),
            (&EndCause::WallLimit, 1_000, 61_000, 60_000, 60_000),
            (&EndCause::TenantCancelled, 5_000, 65_000, 600_000, 60_000),
            (&EndCause::TenantCancelled, 0, 65_000, 600_000, 0),
            (&EndCause::BudgetUsed, 59_000, 119_000, 60_000, 60_000),
            (&job_fault, 0, 60_000, 600_000, 60_000),
            (&node_fault, 0, 60_000, 600_000, 0),
            (&node_fault, 7, 60_000, 600_000, 7),
            (&EndCause::OwnerInput, 5_000, 65_000, 600_000, 5_000),
            (&program, 5_000, 65_000, 600_000, 5_000),
            (&EndCause::Hot, 5_000, 65_000, 600_000, 5_000),
            (&EndCause::Displaced, 5_000, 65_000, 600_000, 5_000),
            (&EndCause::Lost, 5_000, 65_000, 600_000, 5_000),
            (&EndCause::AgentRestarted, 90_000, 65_000, 600_000, 65_000),
        ];
        for (cause, noted, billable, limit, expected) in cases {
            let before = billed(Millis(noted), Millis(billable), Millis(limit));
            let found = billed_at_close(before, Millis(noted), Millis(limit), cause);
            assert_eq!(found, Millis(expected), "{cause:?} at {noted}");
            if matches!(cause.ended_by(), EndedBy::Exchange | EndedBy::Other) {
                assert!(found.0 <= noted, "{cause:?} is no reason for a least billed time");
            }
        }
    }

    #[test]
    fn escrow_is_cut_to_budget_and_account_but_covers_a_minute() {
        // (run limit s, budget left, available, expected)
        let cases = [
            (3_600, 5_000_000, 5_000_000, Ok(600_000)),
            (1, 5_000_000, 5_000_000, Ok(10_000)),
            (3_600, 50_000, 5_000_000, Ok(50_000)),
            (3_600, 5_000_000, 40_000, Ok(40_000)),
            (3_600, 10_000, 10_000, Ok(10_000)),
            (
                3_600,
                9_999,
                5_000_000,
                Err(Shortfall::Budget {
                    needs: Micros(10_000),
                    left: Micros(9_999),
                }),
            ),
            (
                3_600,
                5_000_000,
                9_999,
                Err(Shortfall::Account {
                    needs: Micros(10_000),
                    available: Micros(9_999),
                }),
            ),
        ];
        for (run, budget, available, expected) in cases {
            let found = escrow(HOURLY, Millis::from_secs(run), Micros(budget), Micros(available));
            assert_eq!(found, expected.map(Micros), "{run} s, {budget}, {available}");
        }
    }

    #[test]
    fn nothing_overflows_at_the_ends_of_the_range() {
        let dear = HourlyPrice(Micros(i64::MAX));
        assert_eq!(charge(dear, u32::MAX, Millis(u64::MAX)).net, Micros::ZERO);
        assert_eq!(
            limit(HourlyPrice(Micros::ZERO), Millis(u64::MAX), Micros::ZERO),
            Millis(u64::MAX)
        );
        assert_eq!(limit(dear, Millis(u64::MAX), Micros(i64::MIN)), Millis(0));
    }

    proptest! {
        #[test]
        fn the_limit_is_the_last_millisecond_that_the_escrow_pays(price in 1..i64::MAX / 4, amount in 0..i64::MAX / 4) {
            let (price, amount) = (HourlyPrice(Micros(price)), Micros(amount));
            let longest = affordable(price, amount);
            prop_assert!(price.due(longest) <= amount);
            prop_assert!(longest.0 == u64::MAX || price.due(Millis(longest.0 + 1)) > amount);
        }

        #[test]
        fn an_escrow_pays_its_limit_and_the_limit_is_at_least_a_minute(
            price in 0..10_000_000_i64, run in 1_000..100_000_000_u64, budget in 0..100_000_000_i64, account in 0..100_000_000_i64,
        ) {
            let price = HourlyPrice(Micros(price));
            if let Ok(amount) = escrow(price, Millis(run), Micros(budget), Micros(account)) {
                let limit = limit(price, Millis(run), amount);
                prop_assert!(limit >= LEAST_BILLED && limit <= Millis(run).max(LEAST_BILLED));
                prop_assert!(price.due(limit) <= amount);
                prop_assert!(amount <= Micros(budget).min(Micros(account)));
            }
        }

        #[test]
        fn cumulative_charges_never_fall_and_never_owe_anybody(
            price in 0..10_000_000_i64, points in 0..=10_000_u32, mut times in prop::collection::vec(0..100_000_000_u64, 1..20),
        ) {
            times.sort_unstable();
            let mut before = charge(HourlyPrice(Micros(price)), points, Millis(0));
            for time in times {
                let now = charge(HourlyPrice(Micros(price)), points, Millis(time));
                prop_assert!(now.gross >= before.gross && now.fee >= before.fee && now.net >= before.net);
                prop_assert_eq!(now.gross, now.fee + now.net);
                before = now;
            }
        }
    }
}
