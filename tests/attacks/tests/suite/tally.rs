//! What the attacks came to: each probe's row, the counts, and what is wrong. The rule is here, and it holds both ways: what is promised
//! as enforced must be tried and hold, and what is said to be absent must be seen to be.

use sela_attacks::catalogue::{self, Probe};
use sela_attacks::verdict::Seen;
use sela_sandbox::probe::{Guarantee, Strength};
use std::collections::BTreeMap;
use std::fmt;

/// How a probe went, outside and inside.
#[derive(Debug)]
struct Row {
    probe: Probe,
    control: Seen,
    job: Seen,
}

impl Row {
    /// Whether it proves anything: without a control that went through, it does not.
    fn counts(&self) -> bool {
        matches!(self.control, Seen::Visible { .. })
    }
}

#[derive(Debug)]
pub(crate) struct Tally {
    backend: &'static str,
    promises: Vec<Guarantee>,
    rows: BTreeMap<&'static str, Row>,
}

impl Tally {
    pub(crate) fn new(backend: &'static str, promises: Vec<Guarantee>) -> Self {
        Self {
            backend,
            promises,
            rows: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, probe: Probe, control: Seen, job: Seen) {
        let twice = self.rows.insert(probe.name, Row { probe, control, job });
        assert!(twice.is_none(), "{} was tried twice", probe.name);
    }

    fn strength(&self, promise: &str) -> &Strength {
        let found = self.promises.iter().find(|guarantee| guarantee.name == promise);
        let found = found.unwrap_or_else(|| panic!("{} promises nothing called \"{promise}\"", self.backend));
        &found.strength
    }

    /// Each thing that is wrong, as a sentence.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures: Vec<String> = self.rows.values().filter_map(|row| self.breach(row)).collect();
        for probe in catalogue::all() {
            if !self.rows.contains_key(probe.name) {
                failures.push(format!("\"{}\" was not tried", probe.name));
            }
        }
        failures.extend(self.promises.iter().filter_map(|guarantee| self.untried(guarantee)));
        failures
    }

    fn breach(&self, row: &Row) -> Option<String> {
        let Row { probe, control, job } = row;
        if !row.counts() {
            return match control.lacking() {
                Some(_) => None,
                None => Some(format!(
                    "\"{}\" proves nothing here, its control was {control}",
                    probe.name
                )),
            };
        }
        match (self.strength(probe.tries), job) {
            (Strength::Enforced, Seen::Visible { what }) => Some(format!(
                "\"{}\": \"{}\" is promised, and the attack went through: {what}",
                probe.name, probe.tries
            )),
            (Strength::Absent { .. }, Seen::Refused { what, .. } | Seen::Contained { what }) => Some(format!(
                "\"{}\": \"{}\" is said to be absent, and the attack did not go through: {what}",
                probe.name, probe.tries
            )),
            (Strength::Enforced | Strength::Weaker { .. } | Strength::Absent { .. }, _) => None,
        }
    }

    /// A promise that no probe tried: nobody knows whether it is kept.
    fn untried(&self, guarantee: &Guarantee) -> Option<String> {
        let tried = |row: &Row| row.probe.tries == guarantee.name && row.counts();
        let weaker = matches!(guarantee.strength, Strength::Weaker { .. });
        (!weaker && !self.rows.values().any(tried)).then(|| {
            format!(
                "\"{}\" is promised or denied, and no attack tries it on this machine: add one to tests/attacks",
                guarantee.name
            )
        })
    }

    fn count(&self, which: impl Fn(&Row) -> bool) -> usize {
        self.rows.values().filter(|row| which(row)).count()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<&Row> = self.rows.values().collect();
        rows.sort_by_key(|row| (row.probe.item, row.probe.name));
        for row in rows {
            let seen = match row.control.lacking() {
                Some(why) => format!("control impossible here: {why} (behind the walls: {})", row.job),
                None => row.job.to_string(),
            };
            writeln!(out, "{:<28} {:<76} {seen}", row.probe.item, row.probe.name)?;
        }
        let counted = |which: fn(&Seen) -> bool| self.count(|row| row.counts() && which(&row.job));
        write!(
            out,
            "{}: {} probes, {} refused, {} contained, {} visible, {} with a control that is impossible here",
            self.backend,
            self.rows.len(),
            counted(|seen| matches!(seen, Seen::Refused { .. })),
            counted(|seen| matches!(seen, Seen::Contained { .. })),
            counted(|seen| matches!(seen, Seen::Visible { .. })),
            self.count(|row| !row.counts()),
        )
    }
}
