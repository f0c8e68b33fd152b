//! `sela doctor sandbox`: tries the walls on this machine, and says of each what was tried, what came and what to do.

use crate::cli::end::{CliError, Outcome};
use crate::cli::output::{Output, Tone};
use crate::doctor::sandbox::{CannotTry, Checkup, check};
use crate::paths::Paths;
use sela_client::Client;
use sela_protocol::local::IsolationState;
use sela_protocol::node::Isolation;
use sela_sandbox::checkup::{Finding, FindingVerdict};

/// Tries them; fails where one does not stand.
///
/// # Errors
/// [`CliError::Refused`] where only root may, [`CliError::Failed`] where nothing could be tried, [`CliError::Said`] where a wall is bad.
pub(crate) async fn sandbox(paths: &Paths, lab: bool, output: &mut Output) -> Outcome {
    // As the agent that runs here does it; without one, as its settings say.
    let snapshot = Client::at(paths.socket()).snapshot().await.ok();
    let lab = lab || snapshot.as_ref().is_some_and(|snapshot| snapshot.lab);
    let running = snapshot.and_then(|snapshot| match snapshot.isolation {
        IsolationState::Ready { level } => Some(level),
        IsolationState::Missing { .. } => None,
    });
    let checkup = check(paths, lab, running).await.map_err(|error| match &error {
        CannotTry::NotRoot(_) => CliError::Refused(error.to_string()),
        CannotTry::Missing(_) | CannotTry::Failed(_) => CliError::Failed(error.to_string()),
    })?;
    if output.is_json() {
        output.document(&checkup)?;
    } else {
        show(&checkup, output)?;
    }
    if count(&checkup.findings, FindingVerdict::Bad) > 0 {
        return Err(CliError::Said);
    }
    Ok(())
}

fn count(findings: &[Finding], verdict: FindingVerdict) -> usize {
    findings.iter().filter(|finding| finding.verdict == verdict).count()
}

fn show(checkup: &Checkup, output: &Output) -> Outcome {
    output.line(headline(checkup))?;
    for finding in &checkup.findings {
        let mark = match finding.verdict {
            FindingVerdict::Good => "good  ".to_owned(),
            FindingVerdict::Weaker => output.tone(Tone::Held, "weaker"),
            FindingVerdict::Absent => output.tone(Tone::Held, "absent"),
            FindingVerdict::Bad => output.tone(Tone::Alarm, "BAD   "),
        };
        let Finding {
            guarantee, tried, came, ..
        } = finding;
        output.line(format!("{mark}  {guarantee}: {tried}: {came}"))?;
        if let Some(remedy) = finding.remedy {
            output.line(format!("        {remedy}"))?;
        }
    }
    Ok(())
}

fn headline(checkup: &Checkup) -> String {
    let by = match checkup.isolation {
        Isolation::Native => "native",
        Isolation::Docker => "docker",
        Isolation::Podman => "podman",
        Isolation::LabCgroupV1 => "native, LAB: mixed cgroups",
        Isolation::Unknown => "a newer agent's way",
    };
    let seconds = checkup.took_ms.div_ceil(1000);
    let [good, weaker, absent, bad] = [
        FindingVerdict::Good,
        FindingVerdict::Weaker,
        FindingVerdict::Absent,
        FindingVerdict::Bad,
    ]
    .map(|verdict| count(&checkup.findings, verdict));
    let first = match bad {
        0 => "Every wall that is promised here stands".to_owned(),
        1 => "One wall does not stand".to_owned(),
        bad => format!("{bad} walls do not stand"),
    };
    format!("{first} ({by}; {good} good, {weaker} weaker, {absent} absent, {bad} bad; {seconds} s).")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_whether_a_wall_is_down() {
        let finding = |verdict| Finding {
            guarantee: "no network",
            tried: "called",
            came: "refused".to_owned(),
            verdict,
            remedy: None,
        };
        let checkup = |verdicts: &[FindingVerdict]| Checkup {
            isolation: Isolation::Native,
            took_ms: 2_500,
            findings: verdicts.iter().copied().map(finding).collect(),
        };
        use FindingVerdict::{Absent, Bad, Good, Weaker};
        for (verdicts, expected) in [
            (
                [Good, Good, Weaker, Absent].as_slice(),
                "Every wall that is promised here stands (native; 2 good, 1 weaker, 1 absent, 0 bad; 3 s).",
            ),
            (
                &[Good, Bad],
                "One wall does not stand (native; 1 good, 0 weaker, 0 absent, 1 bad; 3 s).",
            ),
            (
                &[Bad, Bad],
                "2 walls do not stand (native; 0 good, 0 weaker, 0 absent, 2 bad; 3 s).",
            ),
        ] {
            assert_eq!(headline(&checkup(verdicts)), expected);
        }
    }
}
