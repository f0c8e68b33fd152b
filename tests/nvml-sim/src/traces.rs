//! Reads recorded cards: `nvidia-smi` CSV files of the GPU_Power_Benchmark kind and Salad node reports. Only text in,
//! samples out; fitting lives in `fit`.

use crate::fit::Sample;
use serde::Deserialize;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The heading lacks a column.
    #[error("the recording has no column \"{0}\": is it the right file?")]
    NoColumn(&'static str),
    /// A line that is no sample.
    #[error("line {line} of the recording is no sample: {text}")]
    BadLine {
        /// Counted from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Not the JSON report that a Salad node writes.
    #[error("the recording is not a node report: {0}")]
    NotAReport(#[from] serde_json::Error),
}

/// Samples of an `nvidia-smi` CSV: time of day, temperature, and the momentary power. Lines that start with `#` are comments.
pub fn read_benchmark_csv(text: &str) -> Result<Vec<Sample>, TraceError> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let heading: Vec<&str> = lines
        .next()
        .map(|(_, line)| line.split(',').map(str::trim).collect())
        .unwrap_or_default();
    let time = column(&heading, "timestamp")?;
    let celsius = column(&heading, "temperature.gpu")?;
    let watts = column(&heading, "power.draw.instant [W]")?;
    let mut samples: Vec<Sample> = Vec::new();
    let mut origin = None;
    for (index, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let sample = (|| {
            let moment = seconds_of_day(fields.get(time)?)?;
            Some(Sample {
                seconds: moment - *origin.get_or_insert(moment),
                watts: fields.get(watts)?.parse().ok()?,
                celsius: fields.get(celsius)?.parse().ok()?,
            })
        })();
        samples.push(sample.ok_or_else(|| TraceError::BadLine {
            line: index + 1,
            text: line.to_owned(),
        })?);
    }
    Ok(samples)
}

/// Samples of a Salad node report, one a minute. A row with power 0 is one in which the node did not report it, and is left out.
pub fn read_node_report(text: &str) -> Result<Vec<Sample>, TraceError> {
    #[derive(Deserialize)]
    struct Report {
        metric_interval_s: f64,
        history_column: String,
        history: Vec<String>,
    }
    let report: Report = serde_json::from_str(text)?;
    let heading: Vec<&str> = report.history_column.split(',').map(str::trim).collect();
    let number = column(&heading, "no")?;
    let celsius = column(&heading, "gpu_temperature_C")?;
    let watts = column(&heading, "power_watts")?;
    let mut samples = Vec::new();
    for (index, line) in report.history.iter().enumerate() {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
        let sample = (|| {
            Some(Sample {
                seconds: field(number)? * report.metric_interval_s,
                watts: field(watts)?,
                celsius: field(celsius)?,
            })
        })()
        .ok_or_else(|| TraceError::BadLine {
            line: index + 1,
            text: line.clone(),
        })?;
        if sample.watts > 0.0 {
            samples.push(sample);
        }
    }
    Ok(samples)
}

fn column(heading: &[&str], name: &'static str) -> Result<usize, TraceError> {
    heading
        .iter()
        .position(|column| *column == name)
        .ok_or(TraceError::NoColumn(name))
}

/// Seconds since midnight of "2023/07/08 19:27:36.359". The recordings are of seconds and cross no midnight.
fn seconds_of_day(moment: &str) -> Option<f64> {
    let (_, clock) = moment.split_once(' ')?;
    let mut parts = clock.split(':');
    let hours: f64 = parts.next()?.parse().ok()?;
    let minutes: f64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}
