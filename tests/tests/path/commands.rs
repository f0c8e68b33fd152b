//! `sela` as tenants and owners type it: every command, its exit code, and what it says when something is wrong.

use anyhow::ensure;
use sela_protocol::id::JobId;
use sela_protocol::local::{DoctorLine, JobLine, Page, Verdict};
use sela_protocol::money::Micros;
use sela_protocol::tenant::{JobState, JobView, Stored, Submitted, TenantAccount};
use sela_tests::{FUNDS, Plan, expected_result, image_of_the_test_job, in_a_world, test_job};

#[test]
fn a_tenant_pushes_an_image_submits_watches_reads_and_fetches_by_the_command_line() {
    in_a_world(&Plan::default(), |world| {
        let image = image_of_the_test_job(&world.folder().join("tenant/image"))?;
        let pushed = world.as_tenant(&["images", "push", "--json", &image.archive.to_string_lossy()])?;
        ensure!(
            pushed.json::<Stored>()?.blob == image.blob,
            "pushed as another: {}",
            pushed.stdout
        );
        let spec = world.folder().join("tenant/job.json");
        let words = ["--steps", "5", "--step-ms", "20"];
        std::fs::write(&spec, test_job(image.blob, &words).to_string())?;
        let submitted: Submitted = world
            .as_tenant(&["job", "submit", "--json", &spec.to_string_lossy()])?
            .json()?;
        let job = submitted.job.to_string();
        let watched = world.as_tenant(&["job", "watch", &job])?;
        let told = watched.good()?;
        ensure!(
            told.lines()
                .last()
                .is_some_and(|line| line.contains("done; paid 0.060000")),
            "{told}"
        );
        let log = world.as_tenant(&["job", "logs", &job])?;
        ensure!(
            log.good()? == world.tenant.log(submitted.job)?,
            "another log: {}",
            log.stdout
        );
        let folder = world.folder().join("tenant/results");
        world
            .as_tenant(&["job", "output", &job, &folder.to_string_lossy()])?
            .good()?;
        ensure!(
            std::fs::read_to_string(folder.join("result"))? == expected_result(5),
            "another result"
        );
        let again = world.as_tenant(&["job", "output", &job, &folder.to_string_lossy()])?;
        again.refused(2, &["is not an empty folder"])?;
        let jobs: Vec<JobView> = world.as_tenant(&["job", "list", "--json"])?.json()?;
        ensure!(jobs.len() == 1 && jobs[0].state == JobState::Done, "{jobs:?}");
        // More than the exchange gives in one answer, and too cheap for anybody to take.
        let mut cheap = test_job(image.blob, &words);
        cheap["cap"] = "0.000001".into();
        // Control characters are refused with the job; what turns a line round is none of them.
        cheap["name"] = "\u{202e}cheap".into();
        let waiting = (0..60).map(|_| world.tenant.submit(&cheap));
        let waiting = waiting.collect::<anyhow::Result<Vec<JobId>>>()?;
        let jobs: Vec<JobView> = world.as_tenant(&["job", "list", "--json"])?.json()?;
        let newest_first = waiting.iter().rev().chain([&submitted.job]);
        ensure!(
            jobs.iter().map(|view| &view.job).eq(newest_first),
            "{} jobs are listed",
            jobs.len()
        );
        let listed = world.as_tenant(&["job", "list"])?;
        let listed = listed.good()?;
        ensure!(
            listed.lines().count() == 61 && listed.contains("\\u{202e}cheap"),
            "a name is shown as it is: {listed:?}"
        );
        let account: TenantAccount = world.as_tenant(&["account", "--json"])?.json()?;
        ensure!(
            account.available == FUNDS - Micros(60_000) && account.lab,
            "{account:?}"
        );
        let shown = world.as_tenant(&["account"])?;
        ensure!(
            shown.good()?.contains("LAB"),
            "`sela account` does not say LAB: {}",
            shown.stdout
        );
        // The owner sees the same job.
        let lines: Page<JobLine> = world.owner.sela(&["jobs", "--json"])?.json()?;
        ensure!(
            lines.items.len() == 1 && lines.items[0].job == submitted.job,
            "{lines:?}"
        );
        Ok(())
    });
}

#[test]
fn a_job_described_by_options_runs_and_one_that_is_cancelled_ends_watching_with_a_failure() {
    in_a_world(&Plan::default(), |world| {
        let image = world.test_image()?.blob.to_string();
        let submit = |steps: &str| -> anyhow::Result<String> {
            let words = [
                "job",
                "submit",
                "--image",
                &image,
                "--cap",
                "1.2",
                "--budget",
                "1",
                "--wall-limit",
                "10m",
            ];
            let more = [
                "--vram-mib",
                "256",
                "--memory-mib",
                "128",
                "--checkpoint-every",
                "1s",
                "--",
                "--steps",
                steps,
            ];
            let ran = world.as_tenant(&[&words[..], &more[..], &["--step-ms", "50"]].concat())?;
            Ok(ran.good()?.trim().to_owned())
        };
        let job = submit("2")?;
        world.as_tenant(&["job", "watch", &job])?.good()?;
        let job = submit("5000")?;
        world.tenant.wait_until_it_says(job.parse()?, "step 2 of")?;
        world.as_tenant(&["job", "cancel", &job])?.good()?;
        world.as_tenant(&["job", "watch", &job])?.refused(1, &["cancelled"])
    });
}

#[test]
fn what_is_wrong_ends_with_the_exit_code_for_it_and_says_what_to_do() {
    in_a_world(&Plan::default(), |world| {
        let image = world.test_image()?;
        let url = world.exchange.url();
        let stranger = |words: &[&str]| world.owner.sela_as_tenant(words, &url, "no-such-key");
        stranger(&["account"])?.refused(4, &["not known here"])?;
        stranger(&["job", "list"])?.refused(4, &["not known here"])?;
        let spec = world.folder().join("tenant/bad.json");
        let submit = ["job", "submit", &*spec.to_string_lossy()];
        for (change, words) in [
            ("wall_limit", ["unknown field", "did you mean \"wall_limit_ms\""]),
            ("work_ms", ["work_ms", "between 1 and wall_limit_ms"]),
        ] {
            let mut bad = test_job(image.blob, &[]);
            bad[change] = 999_999_999.into();
            std::fs::write(&spec, bad.to_string())?;
            world.as_tenant(&submit)?.refused(2, &words)?;
        }
        let missing = "job_01890a5d-ac96-774b-bcce-b302099a8057";
        ensure!(
            world.as_tenant(&["job", "watch", missing])?.code == Some(1),
            "a job that is not there"
        );
        world
            .owner
            .sela(&["end", "lease_01890a5d-ac96-774b-bcce-b302099a8057"])?
            .refused(4, &["does not run here"])?;
        ensure!(
            world.owner.sela(&["pause", "--for", "soon"])?.code == Some(2),
            "a span that is none"
        );
        ensure!(
            world.owner.sela(&["why", "7"])?.code == Some(2),
            "a card that is not there"
        );
        ensure!(world.tenant.jobs()?.is_empty(), "a job came of it");
        world.owner.agent.end()?;
        world.owner.sela(&["status"])?.refused(3, &["sela agent run"])?;
        world.exchange.part.end()?;
        world.as_tenant(&["account"])?.refused(5, &["is not reached"])?;
        world.exchange.start_again()
    });
}

#[test]
fn doctor_finds_everything_good_while_the_agent_runs_and_says_how_to_start_it_when_it_does_not() {
    in_a_world(&Plan::default(), |world| {
        let lines: Vec<DoctorLine> = world.owner.sela(&["doctor", "--json"])?.json()?;
        ensure!(lines.iter().all(|line| line.verdict != Verdict::Bad), "{lines:#?}");
        let simulated = lines.iter().any(|line| line.found.contains("SIMULATED"));
        ensure!(simulated, "that the card is SIMULATED does not show: {lines:#?}");
        world.owner.agent.end()?;
        world
            .owner
            .sela(&["doctor"])?
            .refused(1, &["BAD", "it is not running", "sela agent run"])
    });
}
