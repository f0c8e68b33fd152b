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
