//! When all goes well: a job is done, its results reach its tenant, and both sides' books agree to the micro-unit.

use anyhow::{Context, ensure};
use sela_oci_images::busybox_script;
use sela_protocol::blob::BlobId;
use sela_protocol::job::LEAST_BILLED;
use sela_protocol::lease::EndCause;
use sela_protocol::money::Micros;
use sela_tests::{PRICE, Plan, Registry, expected_result, in_a_world, test_job};

#[test]
fn a_strangers_container_earns_money_on_an_idle_card_and_all_books_agree_to_the_micro_unit() {
    in_a_world(&Plan::default(), |world| {
        let job = world.submit(&["--steps", "20", "--step-ms", "50"])?;
        let view = world.tenant.wait_until_done(job)?;
        // What the job made reaches its tenant, by its hash.
        let blob = view.output.context("no output")?;
        let bytes = world.tenant.rest.ask(&format!("/v1/blobs/{blob}"))?;
        ensure!(
            BlobId::of(bytes.good()?) == blob,
            "the output is not what its hash says"
        );
        let files = world.tenant.output(job)?;
        ensure!(files["result"] == expected_result(20).as_bytes(), "{files:?}");
        let log = world.tenant.log(job)?;
        ensure!(
            log.starts_with("holds 1024 MiB of a SIMULATED card\nbegins after step 0 of 20\nstep 1 of 20\n"),
            "{log}"
        );
        ensure!(log.ends_with("step 20 of 20\ndone\n"), "{log}");
        // One lease on a card that says what it is, at the cap since nobody else bid, for the least that is billed.
        let [lease] = view.leases.as_slice() else {
            anyhow::bail!("{:?}", view.leases)
        };
        ensure!(lease.card.contains("SIMULATED") && lease.price == PRICE, "{lease:?}");
        ensure!(lease.end == Some(EndCause::Exited { code: 0 }), "{lease:?}");
        ensure!(
            lease.billed_ms == LEAST_BILLED && view.paid == Micros(60_000),
            "{lease:?}"
        );
        // What the owner sees. That it agrees with everybody else's books is checked whenever a world closes.
        let lines = sela_tests::wait_for("the receipt", || {
            let lines = world.owner.earnings()?;
            Ok(lines.iter().all(|line| line.gross == Micros(60_000)).then_some(lines))
        })?;
        let [line] = lines.as_slice() else {
            anyhow::bail!("{lines:?}")
        };
        ensure!((line.fee, line.net) == (Micros(6_000), Micros(54_000)), "{line:?}");
        ensure!(
            line.energy_mwh.is_some() && line.electricity.is_some(),
            "no electricity in {line:?}"
        );
        let shown = world.owner.sela(&["earnings"])?;
        let shown = shown.good()?;
        for word in ["0.006000", "0.054000", "lectricity"] {
            ensure!(shown.contains(word), "`sela earnings` does not say {word}: {shown}");
        }
        Ok(())
    });
}

#[test]
fn jobs_wait_for_the_one_card_and_are_all_done_one_after_another() {
    in_a_world(&Plan::default(), |world| {
        let jobs: Vec<_> = (0..3)
            .map(|_| world.submit(&["--steps", "3", "--step-ms", "20"]))
            .collect::<anyhow::Result<_>>()?;
        for job in jobs {
            let view = world.tenant.wait_until_done(job)?;
            ensure!(view.leases.len() == 1, "{:?}", view.leases);
            ensure!(
                world.tenant.output(job)?["result"] == expected_result(3).as_bytes(),
                "another result"
            );
        }
        Ok(())
    });
}

#[test]
fn a_job_that_fails_says_so_and_is_paid_for_like_one_that_does_not() {
    in_a_world(&Plan::default(), |world| {
        let job = world.submit(&["--steps", "2", "--exit", "7"])?;
        let view = world.tenant.wait_for_end(job)?;
        let sela_protocol::tenant::JobState::Failed { cause, message } = &view.state else {
            anyhow::bail!("{:?}", view.state)
        };
        ensure!(
            *cause == EndCause::Exited { code: 7 } && message.contains("exit code 7"),
            "{message}"
        );
        ensure!(
            world.tenant.output(job)?.contains_key("result"),
            "what it left is still its tenant's"
        );
        ensure!(view.paid == Micros(60_000), "{}", view.paid);
        Ok(())
    });
}

#[test]
fn an_image_comes_from_a_registry_by_its_digest_and_one_that_is_not_there_is_the_jobs_fault() {
    in_a_world(&Plan::default(), |world| {
        let logs = world.folder().join("logs");
        let registry = Registry::start(&world.folder().join("registry"), &logs)?;
        let reference = registry.push(
            &busybox_script("echo pulled > /out/result")?,
            &world.folder().join("tenant/pushed"),
        )?;
        let spec = |reference: &str| {
            let mut spec = test_job(BlobId::of(b""), &[]);
            spec["image"] = serde_json::json!({"type": "registry", "reference": reference});
            spec
        };
        let job = world.tenant.submit(&spec(&reference))?;
        world.tenant.wait_until_done(job)?;
        ensure!(world.tenant.output(job)?["result"] == b"pulled\n", "another result");
        let other = registry.reference(&BlobId::of(b"never pushed").to_string());
        let view = world.tenant.wait_for_end(world.tenant.submit(&spec(&other))?)?;
        let sela_protocol::tenant::JobState::Failed { cause, message } = &view.state else {
            anyhow::bail!("{:?}", view.state)
        };
        ensure!(matches!(cause, EndCause::JobFault { .. }), "{cause:?}");
        ensure!(
            message.contains("no such manifest") && message.contains("tests/job"),
            "{message}"
        );
        Ok(())
    });
}
