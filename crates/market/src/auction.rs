//! Who gets a job and at what price: the reverse auction with second score (market.md §2), as integer arithmetic. Who is
//! eligible is asked by the floor; nothing here knows of connections or money in accounts.

use sela_protocol::id::{AwardId, GpuUuid, JobId, NodeId, OwnerId};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::units::Millis;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of these rules, written into every award.
pub const RULES_VERSION: u32 = 1;

/// One eligible card as it was scored: `A = floor · duration + other`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwardRow {
    /// Whose.
    pub owner: OwnerId,
    /// On which node.
    pub node: NodeId,
    /// Which.
    pub gpu: GpuUuid,
    /// b: what the owner asks for an hour.
    pub floor: HourlyPrice,
    /// τ: how long the work takes on it. At present the expected work for every card: throughput is not measured yet.
    pub duration_ms: Millis,
    /// C: all terms without b. At present 0: transfer, loss and reliability are not measured yet.
    pub other: Micros,
}

/// How an award came about: enough to compute it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwardTable {
    /// [`RULES_VERSION`] then.
    pub rules: u32,
    /// The award; also what breaks ties.
    pub award: AwardId,
    /// The job.
    pub job: JobId,
    /// Most that an hour may cost.
    pub cap: HourlyPrice,
    /// All eligible cards.
    pub rows: Vec<AwardRow>,
}

/// What an award table comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The row with the best score.
    pub winner: &'a AwardRow,
    /// What the winner is paid for an hour: at least its floor, at most the cap.
    pub price: HourlyPrice,
    /// A*: the best score among owners other than the winner; `None` where there is none.
    pub best_other: Option<Score>,
}

/// A score in millionths × milliseconds per hour: the lower, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(pub i128);

const MILLIS_PER_HOUR: i128 = 3_600_000;

impl AwardRow {
    /// A = b·τ + C·3 600 000: exact, nothing is rounded here.
    pub fn score(&self) -> Score {
        Score((i128::from(self.floor.0.0) * i128::from(self.duration_ms.0)).saturating_add(self.without_floor()))
    }

    fn without_floor(&self) -> i128 {
        i128::from(self.other.0) * MILLIS_PER_HOUR
    }

    /// Ties are broken by lot, never by the floor, so that nobody gains by bidding a hair less.
    fn lot(&self, award: AwardId) -> [u8; 32] {
        Sha256::new()
            .chain_update(award.to_string())
            .chain_update(self.node.to_string())
            .finalize()
            .into()
    }

    fn may_win(&self, cap: HourlyPrice) -> bool {
        self.floor.0 >= Micros::ZERO && self.floor <= cap && self.duration_ms.0 > 0 && self.other >= Micros::ZERO
    }
}

impl AwardTable {
    /// Computes the award; `None` where no row may win. The payment is the second score: what the winner could have asked and
    /// still been best, so that its true floor is its best floor (for an owner with one node; Che 1993).
    pub fn decide(&self) -> Option<Outcome<'_>> {
        let eligible = || self.rows.iter().filter(|row| row.may_win(self.cap));
        let winner = eligible().min_by_key(|row| (row.score(), row.lot(self.award), &row.gpu))?;
        let best_other = eligible()
            .filter(|row| row.owner != winner.owner)
            .map(AwardRow::score)
            .min();
        let price = match best_other {
            None => self.cap,
            Some(Score(best)) => {
                let second = (best - winner.without_floor()) / i128::from(winner.duration_ms.0);
                HourlyPrice(Micros(i64::try_from(second).unwrap_or(i64::MAX))).min(self.cap)
            }
        };
        Some(Outcome {
            winner,
            price,
            best_other,
        })
    }

    /// The hash that each side is shown, so that the whole table can be proved later: sha256 of its JSON.
    pub fn hash(&self) -> String {
        let json = serde_json::to_vec(self).unwrap_or_default();
        hex::encode(Sha256::digest(json))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sela_protocol::id::IdSource;
    use sela_protocol::units::UtcMs;

    const HOUR: u64 = 3_600_000;

    /// owner number, floor, hours × 1000, C
    type Bid = (u8, i64, u64, i64);

    fn table(cap: i64, bids: &[Bid]) -> AwardTable {
        let mut ids = IdSource::new(UtcMs(1), [5; 32]);
        let (award, job) = (ids.draw(), ids.draw());
        let rows = bids.iter().map(|(owner, floor, duration, other)| AwardRow {
            owner: IdSource::new(UtcMs(1), [*owner; 32]).draw(),
            node: ids.draw(),
            gpu: GpuUuid("GPU-0".into()),
            floor: HourlyPrice(Micros(*floor)),
            duration_ms: Millis(*duration),
            other: Micros(*other),
        });
        AwardTable {
            rules: RULES_VERSION,
            award,
            job,
            cap: HourlyPrice(Micros(cap)),
            rows: rows.collect(),
        }
    }

    #[test]
    fn the_best_score_wins_and_is_paid_the_second() {
        // (cap, bids, Some((winner's place, price)))
        type Case<'a> = (&'a str, i64, &'a [Bid], Option<(usize, i64)>);
        let cases: [Case<'_>; 10] = [
            ("nobody", 100, &[], None),
            (
                "one owner alone is paid the cap",
                100,
                &[(1, 40, HOUR, 0)],
                Some((0, 100)),
            ),
            (
                "second price",
                100,
                &[(1, 40, HOUR, 0), (2, 70, HOUR, 0)],
                Some((0, 70)),
            ),
            (
                "never above the cap: a floor above it is no rival",
                100,
                &[(1, 40, HOUR, 0), (2, 101, HOUR, 0)],
                Some((0, 100)),
            ),
            (
                "an owner's second node is no rival of its first",
                100,
                &[(1, 40, HOUR, 0), (1, 50, HOUR, 0), (2, 80, HOUR, 0)],
                Some((0, 80)),
            ),
            (
                "a faster card at a higher floor",
                100,
                &[(1, 40, HOUR, 0), (2, 70, HOUR / 2, 0)],
                Some((1, 80)),
            ),
            (
                "other terms count",
                100,
                &[(1, 40, HOUR, 50), (2, 70, HOUR, 0)],
                Some((1, 90)),
            ),
            (
                "the price is capped",
                100,
                &[(1, 40, HOUR, 0), (2, 90, HOUR, 50)],
                Some((0, 100)),
            ),
            ("rounded down", 100, &[(1, 10, 7, 0), (2, 33, 3, 0)], Some((0, 14))),
            (
                "a floor below zero, no time, or a bonus term is no bid",
                100,
                &[(1, -1, HOUR, 0), (2, 5, 0, 0), (3, 5, HOUR, -1)],
                None,
            ),
        ];
        for (name, cap, bids, expected) in cases {
            let table = table(cap, bids);
            let outcome = table.decide();
            let found = outcome.map(|outcome| {
                let place = table.rows.iter().position(|row| row == outcome.winner).expect("a row");
                (place, outcome.price.0.0)
            });
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn a_tie_is_broken_by_lot_and_pays_the_floor() {
        let bids = [(1, 50, HOUR, 0), (2, 50, HOUR, 0)];
        let tie = table(100, &bids);
        let outcome = tie.decide().expect("a winner");
        assert_eq!(outcome.price.0.0, 50);
        let winners: std::collections::BTreeSet<_> = (0..32_u8)
            .map(|seed| AwardTable {
                award: IdSource::new(UtcMs(1), [seed; 32]).draw(),
                ..tie.clone()
            })
            .map(|table| table.decide().expect("a winner").winner.node)
            .collect();
        assert_eq!(winners.len(), 2, "other awards draw other lots");
    }

    #[test]
    fn the_hash_changes_with_any_row() {
        let one = table(100, &[(1, 50, HOUR, 0), (2, 60, HOUR, 0)]);
        let other = table(100, &[(1, 50, HOUR, 0), (2, 61, HOUR, 0)]);
        assert_eq!(one.hash(), one.clone().hash());
        assert_ne!(one.hash(), other.hash());
    }

    proptest! {
        #[test]
        fn floor_at_most_price_at_most_cap_and_the_order_of_rows_is_no_matter(
            cap in any::<i64>(),
            bids in prop::collection::vec((0..4_u8, any::<i64>(), any::<u64>(), any::<i64>()), 0..6),
            small in prop::collection::vec((0..4_u8, 0..1000_i64, 1..100_000_u64, 0..1000_i64), 0..6),
        ) {
            for (cap, bids) in [(cap, bids), (1_000, small)] {
                let mut table = table(cap, &bids);
                let Some(outcome) = table.decide() else { continue };
                prop_assert!(outcome.winner.floor <= outcome.price);
                prop_assert!(outcome.price <= table.cap);
                let (winner, price) = (outcome.winner.clone(), outcome.price);
                table.rows.reverse();
                let again = table.decide().expect("still a winner");
                prop_assert_eq!((again.winner, again.price), (&winner, price));
            }
        }

        /// What makes a true floor the best floor: as long as the winner wins, its floor does not change what it is paid,
        /// and asking more than it was paid loses.
        #[test]
        fn a_winner_cannot_gain_by_another_floor(
            bids in prop::collection::vec((0..1000_i64, 1..100_000_u64, 0..1000_i64), 2..6),
            other_floor in 0..1000_i64,
        ) {
            let bids: Vec<Bid> = (0..).zip(&bids).map(|(owner, (floor, duration, other))| (owner, *floor, *duration, *other)).collect();
            let table = table(1_000, &bids);
            let outcome = table.decide().expect("a winner");
            let place = table.rows.iter().position(|row| row == outcome.winner).expect("a row");
            let mut changed = table.clone();
            changed.rows[place].floor = HourlyPrice(Micros(other_floor));
            let again = changed.decide().expect("a winner");
            if again.winner.node == outcome.winner.node {
                prop_assert_eq!(again.price, outcome.price);
            } else {
                prop_assert!(HourlyPrice(Micros(other_floor)) >= outcome.price);
            }
        }
    }
}
