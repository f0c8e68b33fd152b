//! Money that moves, double entry: accounts, transfers whose postings sum to zero, and the rule that only `outside` may be
//! below zero (market.md §7). Who owes what is `billing`; keeping transfers on disk is the store's.

use sela_protocol::id::{LeaseId, OwnerId, TenantId, TransferId};
use sela_protocol::money::Micros;
use sela_protocol::tenant::{AccountBalance, LedgerCheck};
use sela_protocol::units::UtcMs;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Where money is. Written `tenant/ten_…/available`, `lease/lease_…/escrow`, `owner/own_…/held`, `fees`, `outside`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// A tenant's, free to spend.
    TenantAvailable(TenantId),
    /// Set aside for one lease of a tenant's job: a job's escrow is that of its leases, kept apart so that money held for late
    /// meter notes of one lease can never pay for another.
    Escrow(LeaseId),
    /// An owner's, earned and not yet paid out.
    OwnerHeld(OwnerId),
    /// An owner's, free to be paid out.
    OwnerAvailable(OwnerId),
    /// An owner's, to be spent on jobs only.
    OwnerCredits(OwnerId),
    /// The exchange's share.
    Fees,
    /// From which bonuses are paid.
    BonusPool,
    /// What was taken for fraud.
    SlashTreasury,
    /// The world: the only account that may be below zero.
    Outside,
}

impl Account {
    /// Whether it may be below zero.
    pub const fn may_be_negative(self) -> bool {
        match self {
            Self::Outside => true,
            Self::TenantAvailable(_)
            | Self::Escrow(_)
            | Self::OwnerHeld(_)
            | Self::OwnerAvailable(_)
            | Self::OwnerCredits(_)
            | Self::Fees
            | Self::BonusPool
            | Self::SlashTreasury => false,
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TenantAvailable(tenant) => write!(formatter, "tenant/{tenant}/available"),
            Self::Escrow(lease) => write!(formatter, "lease/{lease}/escrow"),
            Self::OwnerHeld(owner) => write!(formatter, "owner/{owner}/held"),
            Self::OwnerAvailable(owner) => write!(formatter, "owner/{owner}/available"),
            Self::OwnerCredits(owner) => write!(formatter, "owner/{owner}/credits"),
            Self::Fees => formatter.write_str("fees"),
            Self::BonusPool => formatter.write_str("bonus_pool"),
            Self::SlashTreasury => formatter.write_str("slash_treasury"),
            Self::Outside => formatter.write_str("outside"),
        }
    }
}

/// A text that names no account.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" names no account")]
pub struct AccountError(String);

impl FromStr for Account {
    type Err = AccountError;

    fn from_str(text: &str) -> Result<Self, AccountError> {
        let mut parts = text.split('/');
        let account = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("fees"), None, None, None) => Some(Self::Fees),
            (Some("bonus_pool"), None, None, None) => Some(Self::BonusPool),
            (Some("slash_treasury"), None, None, None) => Some(Self::SlashTreasury),
            (Some("outside"), None, None, None) => Some(Self::Outside),
            (Some("tenant"), Some(id), Some("available"), None) => id.parse().ok().map(Self::TenantAvailable),
            (Some("lease"), Some(id), Some("escrow"), None) => id.parse().ok().map(Self::Escrow),
            (Some("owner"), Some(id), Some("held"), None) => id.parse().ok().map(Self::OwnerHeld),
            (Some("owner"), Some(id), Some("available"), None) => id.parse().ok().map(Self::OwnerAvailable),
            (Some("owner"), Some(id), Some("credits"), None) => id.parse().ok().map(Self::OwnerCredits),
            _ => None,
        };
        account.ok_or_else(|| AccountError(text.to_owned()))
    }
}

impl Serialize for Account {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Account {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// One line of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posting {
    /// Whose.
    pub account: Account,
    /// What it gets; below zero: what it gives.
    pub amount: Micros,
}

/// An atomic movement of money: its postings sum to zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// This transfer.
    pub transfer: TransferId,
    /// When.
    pub at_utc_ms: UtcMs,
    /// Two or more, one per account.
    pub postings: Vec<Posting>,
}

impl Transfer {
    /// A movement of `amount` from one account to another; `None` where there is nothing to move.
    pub fn between(transfer: TransferId, at_utc_ms: UtcMs, from: Account, to: Account, amount: Micros) -> Option<Self> {
        Self::of(transfer, at_utc_ms, [(from, amount.negated()), (to, amount)])
    }

    /// A movement with these postings, those of zero left out; `None` where nothing is left.
    pub fn of(
        transfer: TransferId,
        at_utc_ms: UtcMs,
        postings: impl IntoIterator<Item = (Account, Micros)>,
    ) -> Option<Self> {
        let postings: Vec<Posting> = postings
            .into_iter()
            .filter(|(_, amount)| *amount != Micros::ZERO)
            .map(|(account, amount)| Posting { account, amount })
            .collect();
        (!postings.is_empty()).then_some(Self {
            transfer,
            at_utc_ms,
            postings,
        })
    }
}

/// Why a transfer was not booked. Nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Money would appear or vanish.
    #[error("the postings of {transfer} sum to {sum} millionths, not to zero")]
    Unbalanced {
        /// Which.
        transfer: TransferId,
        /// In millionths.
        sum: i128,
    },
    /// An account would be below zero.
    #[error("{account} has {balance} and cannot give {asked}")]
    Overdrawn {
        /// Which.
        account: Account,
        /// What it has.
        balance: Micros,
        /// What it should give.
        asked: Micros,
    },
    /// An account would hold more than can be counted.
    #[error("{0} would hold more than can be counted")]
    TooMuch(Account),
    /// It was booked before, or names an account twice.
    #[error("{0} was booked before, or names an account twice")]
    Repeated(TransferId),
}

/// The balances, and the one way to change them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    balances: BTreeMap<Account, Micros>,
    booked: BTreeSet<TransferId>,
}

impl Ledger {
    /// What an account holds; zero for one that was never used.
    pub fn balance(&self, account: Account) -> Micros {
        self.balances.get(&account).copied().unwrap_or_default()
    }

    /// Books a transfer, all of it or none.
    ///
    /// # Errors
    /// Where its postings do not sum to zero, an account would be overdrawn or overflow, or it was booked before.
    pub fn book(&mut self, transfer: &Transfer) -> Result<(), LedgerError> {
        let sum: i128 = transfer
            .postings
            .iter()
            .map(|posting| i128::from(posting.amount.0))
            .sum();
        if sum != 0 {
            return Err(LedgerError::Unbalanced {
                transfer: transfer.transfer,
                sum,
            });
        }
        let mut after = BTreeMap::new();
        for Posting { account, amount } in &transfer.postings {
            let balance = self.balance(*account);
            let new = balance.checked_add(*amount).ok_or(LedgerError::TooMuch(*account))?;
            if new < Micros::ZERO && !account.may_be_negative() {
                return Err(LedgerError::Overdrawn {
                    account: *account,
                    balance,
                    asked: amount.negated(),
                });
            }
            if after.insert(*account, new).is_some() {
                return Err(LedgerError::Repeated(transfer.transfer));
            }
        }
        if !self.booked.insert(transfer.transfer) {
            return Err(LedgerError::Repeated(transfer.transfer));
        }
        self.balances.extend(after);
        Ok(())
    }
}

/// Checks a whole ledger anew from its transfers as stored, trusting no balance that is kept anywhere.
pub fn check<'a>(transfers: impl IntoIterator<Item = &'a Transfer>) -> LedgerCheck {
    let mut balances: BTreeMap<Account, i128> = BTreeMap::new();
    let mut overdrawn = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let (mut postings, mut count, mut unbalanced) = (0, 0, Vec::new());
    for transfer in transfers {
        count += 1;
        let mut sum = 0_i128;
        for posting in &transfer.postings {
            postings += 1;
            sum += i128::from(posting.amount.0);
            *balances.entry(posting.account).or_default() += i128::from(posting.amount.0);
        }
        // A transfer that is there twice is as wrong as one that does not balance.
        if sum != 0 || !seen.insert(transfer.transfer) {
            unbalanced.push(transfer.transfer.to_string());
        }
        // Below zero at any time, not only at the end.
        overdrawn.extend(
            transfer
                .postings
                .iter()
                .map(|posting| posting.account)
                .filter(|account| !account.may_be_negative() && balances.get(account).is_some_and(|held| *held < 0)),
        );
    }
    let in_micros =
        |amount: i128| Micros(i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX }));
    LedgerCheck {
        postings_sum: in_micros(balances.values().sum()),
        postings,
        transfers: count,
        unbalanced,
        overdrawn: overdrawn.iter().map(ToString::to_string).collect(),
        balances: balances
            .iter()
            .map(|(account, balance)| AccountBalance {
                account: account.to_string(),
                balance: in_micros(*balance),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::id::IdSource;

    fn ids() -> IdSource {
        IdSource::new(UtcMs(1), [3; 32])
    }

    #[test]
    fn each_broken_transfer_is_refused_and_changes_nothing() {
        let mut ids = ids();
        let (tenant, at) = (Account::TenantAvailable(ids.draw()), UtcMs(1));
        let mut ledger = Ledger::default();
        let deposit = Transfer::between(ids.draw(), at, Account::Outside, tenant, Micros(100)).expect("moves");
        ledger.book(&deposit).expect("a deposit");
        let before = ledger.clone();
        let mut refused = |postings: &[(Account, Micros)], says: &str| {
            let transfer = Transfer::of(ids.draw(), at, postings.iter().copied()).expect("moves");
            let error = ledger.book(&transfer).expect_err(says).to_string();
            assert!(error.contains(says), "{error} should say {says}");
        };
        refused(&[(tenant, Micros(-1)), (Account::Fees, Micros(2))], "sum to 1");
        refused(
            &[(tenant, Micros(-101)), (Account::Fees, Micros(101))],
            "has 0.000100 and cannot give",
        );
        refused(
            &[(Account::Outside, Micros(-i64::MAX)), (tenant, Micros(i64::MAX))],
            "more than can be counted",
        );
        refused(
            &[
                (tenant, Micros(-200)),
                (tenant, Micros(100)),
                (Account::Fees, Micros(100)),
            ],
            "cannot give",
        );
        refused(
            &[
                (Account::Fees, Micros(50)),
                (Account::Fees, Micros(50)),
                (tenant, Micros(-100)),
            ],
            "twice",
        );
        assert!(ledger.book(&deposit).is_err(), "a transfer is booked once");
        assert_eq!(ledger, before);
    }

    #[test]
    fn the_check_finds_what_the_books_would_have_refused() {
        let mut ids = ids();
        let tenant = Account::TenantAvailable(ids.draw());
        let mut between =
            |from, to, amount| Transfer::between(ids.draw(), UtcMs(1), from, to, Micros(amount)).expect("moves");
        let good = [
            between(Account::Outside, tenant, 100),
            between(tenant, Account::Fees, 40),
        ];
        let checked = check(&good);
        assert_eq!(
            (checked.postings_sum, checked.postings, checked.transfers),
            (Micros::ZERO, 4, 2)
        );
        assert!(checked.unbalanced.is_empty() && checked.overdrawn.is_empty());
        assert_eq!(checked.balances.len(), 3);

        let overdrawn_for_a_while = [
            between(Account::Outside, tenant, 10),
            between(tenant, Account::Fees, 40),
            between(Account::Outside, tenant, 100),
        ];
        assert_eq!(check(&overdrawn_for_a_while).overdrawn, vec![tenant.to_string()]);
        let mut lossy = good.clone();
        lossy[1].postings[1].amount = Micros(39);
        let checked = check(&lossy);
        assert_eq!((checked.postings_sum, checked.unbalanced.len()), (Micros(-1), 1));
        let [first, second] = good;
        assert_eq!(
            check([&first, &second, &second]).unbalanced,
            vec![second.transfer.to_string()]
        );
    }

    #[test]
    fn an_account_reads_back_as_written() {
        let mut ids = ids();
        for account in [
            Account::TenantAvailable(ids.draw()),
            Account::Escrow(ids.draw()),
            Account::OwnerHeld(ids.draw()),
            Account::OwnerAvailable(ids.draw()),
            Account::OwnerCredits(ids.draw()),
            Account::Fees,
            Account::BonusPool,
            Account::SlashTreasury,
            Account::Outside,
        ] {
            assert_eq!(account.to_string().parse(), Ok(account));
        }
        assert!("fees/x".parse::<Account>().is_err() && "tenant/own_1/available".parse::<Account>().is_err());
    }
}
