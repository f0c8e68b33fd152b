//! How a run is told on the terminal: when something happened, what, and the sums at the end. Only words; nothing is asked or started here.

use std::time::Instant;

use sela_protocol::local::EarningsLine;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{JobState, JobView, LedgerCheck};

/// Tells what happens, with the time since the beginning.
#[derive(Debug)]
pub(crate) struct Story {
    begun: Instant,
}

impl Story {
    pub(crate) fn begin() -> Self {
        Self { begun: Instant::now() }
    }

    /// One thing that happened.
    pub(crate) fn tell(&self, text: impl AsRef<str>) {
        let seconds = self.begun.elapsed().as_secs();
        for (index, line) in text.as_ref().lines().enumerate() {
            if index == 0 {
                println!("[{:>3}:{:02}] {line}", seconds / 60, seconds % 60);
            } else {
                println!("         {line}");
            }
        }
    }
}

/// A heading of the closing report.
pub(crate) fn heading(text: &str) {
    println!("\n== {text} ==");
}

/// How a job is, in one line.
pub(crate) fn state(view: &JobView) -> String {
    match &view.state {
        JobState::Queued { why } => format!("waits: {why}"),
        JobState::Leased { phase } => {
            let card = view.leases.last().map_or("a card", |lease| lease.card.as_str());
            format!("{} on {card}", word(phase))
        }
        JobState::Done => "done".to_owned(),
        JobState::Failed { message, .. } => format!("failed: {message}"),
        JobState::Cancelled => "cancelled".to_owned(),
        JobState::Unknown => "in a state that this program does not know".to_owned(),
    }
}

/// The word that an enum of the protocol has on the wire.
pub(crate) fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value["type"].as_str().or(value.as_str()).unwrap_or("?").to_owned()
}

/// Where each lease of a job ran and what it cost.
pub(crate) fn leases(view: &JobView) -> Vec<String> {
    view.leases
        .iter()
        .map(|lease| {
            format!(
                "{} on {}, {}: {} ms billed at {} per hour = {} ({})",
                lease.lease,
                lease.card,
                lease.node,
                lease.billed_ms.0,
                lease.price,
                lease.paid,
                lease.end.as_ref().map_or_else(|| "open".to_owned(), word),
            )
        })
        .collect()
}

/// The owner's lines and their sums.
pub(crate) fn earnings(lines: &[EarningsLine]) -> Vec<String> {
    let sum = |of: fn(&EarningsLine) -> Micros| Micros(lines.iter().map(|line| of(line).0).sum());
    let electricity = sum(|line| line.electricity.unwrap_or_default());
    let net = sum(|line| line.net);
    let mut text: Vec<_> = lines
        .iter()
        .map(|line| {
            let electricity = line
                .electricity
                .map_or_else(|| "not measured".to_owned(), |cost| cost.to_string());
            format!(
                "{}: {} ms billed, gross {}, fee {}, net {}, electricity {electricity}",
                line.lease, line.billed_ms.0, line.gross, line.fee, line.net
            )
        })
        .collect();
    text.push(format!(
        "together: gross {}, fee {}, net of fee {net}, electricity {electricity}, left {}",
        sum(|line| line.gross),
        sum(|line| line.fee),
        Micros(net.0 - electricity.0),
    ));
    text
}

/// The ledger's sum, and what is wrong with it if anything is.
pub(crate) fn ledger(check: &LedgerCheck) -> Vec<String> {
    let sum = if check.postings_sum == Micros(0) {
        "0".to_owned()
    } else {
        check.postings_sum.to_string()
    };
    let mut text = vec![
        format!("postings sum: {sum}"),
        format!("{} postings in {} transfers", check.postings, check.transfers),
    ];
    text.extend(
        check
            .unbalanced
            .iter()
            .map(|transfer| format!("does not balance: {transfer}")),
    );
    text.extend(
        check
            .overdrawn
            .iter()
            .map(|account| format!("is below zero: {account}")),
    );
    text.extend(
        check
            .balances
            .iter()
            .map(|account| format!("{:>16}  {}", account.balance.to_string(), account.account)),
    );
    text
}

/// Whether the ledger is as it must be, always.
pub(crate) fn is_right(check: &LedgerCheck) -> bool {
    check.postings > 0 && check.postings_sum == Micros(0) && check.unbalanced.is_empty() && check.overdrawn.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::tenant::AccountBalance;

    fn check(sum: i64, unbalanced: &[&str]) -> LedgerCheck {
        LedgerCheck {
            postings_sum: Micros(sum),
            postings: 4,
            transfers: 2,
            unbalanced: unbalanced.iter().map(|text| (*text).to_owned()).collect(),
            overdrawn: Vec::new(),
            balances: vec![AccountBalance {
                account: "fees".into(),
                balance: Micros(1_500),
            }],
        }
    }

    #[test]
    fn a_right_ledger_says_that_its_postings_sum_to_0() {
        let check = check(0, &[]);
        assert!(is_right(&check));
        assert_eq!(
            ledger(&check),
            ["postings sum: 0", "4 postings in 2 transfers", "        0.001500  fees"]
        );
    }

    #[test]
    fn a_wrong_ledger_is_never_right_and_says_what_is_wrong() {
        assert!(!is_right(&check(1, &[])));
        assert!(
            !is_right(&LedgerCheck {
                postings: 0,
                ..check(0, &[])
            }),
            "an empty one proves nothing"
        );
        let unbalanced = check(0, &["transfer 7"]);
        assert!(!is_right(&unbalanced));
        assert!(ledger(&unbalanced).contains(&"does not balance: transfer 7".to_owned()));
        assert_eq!(ledger(&check(-1_000_000, &[]))[0], "postings sum: -1.000000");
    }

    #[test]
    fn a_word_of_the_protocol_is_shown_as_it_is_on_the_wire() {
        assert_eq!(word(&sela_protocol::lease::LeasePhase::Fetching), "fetching");
        assert_eq!(word(&sela_protocol::lease::EndCause::Exited { code: 0 }), "exited");
        assert_eq!(word(&sela_protocol::job::Tier::Silver), "silver");
    }
}
