//! What the program that measures said, line by line, and the order statistics of it. What it means is in `figures`.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::Deserialize;

/// Everything that was said.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// (What was measured, of whom) → values, in the order in which they were measured.
    series: BTreeMap<(String, String), Vec<f64>>,
    /// Whoever took part and what they call their version, in the order in which they said so.
    pub(crate) versions: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Series {
        series: String,
        peer: String,
        values: Vec<f64>,
    },
    Version {
        peer: String,
        version: String,
    },
}

impl Found {
    /// Takes one line.
    ///
    /// # Errors
    /// If it is no line of that program's.
    pub(crate) fn take(&mut self, line: &str) -> anyhow::Result<()> {
        let line =
            serde_json::from_str(line).with_context(|| format!("the measurement said something else: {line}"))?;
        match line {
            Line::Series { series, peer, values } => drop(self.series.insert((series, peer), values)),
            Line::Version { peer, version } => self.versions.push((peer, version)),
        }
        Ok(())
    }

    /// The values of one series; none where it was not measured.
    pub(crate) fn values(&self, series: &str, peer: &str) -> &[f64] {
        let found = self.series.get(&(series.to_owned(), peer.to_owned()));
        found.map_or(&[], Vec::as_slice)
    }

    /// A quantile of one series by nearest rank; `None` where it was not measured.
    pub(crate) fn quantile(&self, series: &str, peer: &str, quantile: f64) -> Option<f64> {
        nearest_rank(self.values(series, peer), quantile)
    }

    /// The middle of one series.
    pub(crate) fn middle(&self, series: &str, peer: &str) -> Option<f64> {
        self.quantile(series, peer, 0.5)
    }
}

/// The smallest value that so large a part of all values does not exceed. With fewer than a hundred, the 0.99 is the worst.
pub(crate) fn nearest_rank(values: &[f64], quantile: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (quantile * sorted.len() as f64).ceil().max(1.0);
    sorted.get(rank as usize - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        for (quantile, value) in [(0.5, 100.0), (0.99, 198.0), (1.0, 200.0), (0.0, 1.0)] {
            assert_eq!(nearest_rank(&values, quantile), Some(value), "{quantile}");
        }
        assert_eq!(nearest_rank(&[3.0, 1.0, 2.0], 0.99), Some(3.0));
        assert_eq!(nearest_rank(&[], 0.5), None);
    }

    #[test]
    fn what_is_said_is_found_and_what_is_not_understood_is_refused() {
        let mut found = Found::default();
        for line in [
            r#"{"series":"start","peer":"crun","unit":"ms","values":[2.0,1.0,4.0]}"#,
            r#"{"peer":"crun","version":"crun version 1.8"}"#,
        ] {
            found.take(line).unwrap();
        }
        assert_eq!(found.middle("start", "crun"), Some(2.0));
        assert_eq!(found.middle("start", "runc"), None);
        assert_eq!(found.versions, [("crun".to_owned(), "crun version 1.8".to_owned())]);
        assert!(found.take("panicked").is_err());
    }
}
