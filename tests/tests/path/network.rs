//! A job that asks for hosts of the network: it waits for an owner who allows them, finds the proxy by itself, and what is refused is
//! told to both. What the proxy lets through is tried in the sandbox's own tests: nothing here leaves the machine.

use anyhow::ensure;
use sela_protocol::network::NetworkUse;
use sela_protocol::tenant::JobState;
use sela_tests::{Plan, in_a_world, test_job, wait_for};

const SCRIPT: &str = "ask() { printf 'CONNECT %s HTTP/1.1\\r\\n\\r\\n' $1 | nc ${HTTPS_PROXY#http://}; }; \
                      ask 192.168.1.1:80; ask other.example.net:443; echo asked; while :; do sleep 1; done";

#[test]
fn a_job_that_asks_for_hosts_waits_for_an_owner_who_allows_them_and_both_see_what_is_refused() {
    let plan = Plan::default();
    in_a_world(&plan, |world| {
        let image = sela_tests::image_of_a_script(SCRIPT, &world.folder().join("tenant/asking"))?;
        world.tenant.store(&image)?;
        let mut spec = test_job(image.blob, &[]);
        spec["network"] = serde_json::json!({"hosts": ["www.example.org"]});
        let job = world.tenant.submit(&spec)?;
        world.tenant.wait(
            job,
            "the reason",
            |view| matches!(&view.state, JobState::Queued { why } if why.contains("lends any network, and this job asks for www.example.org")),
        )?;

        let lending = format!("{}\n[network]\nhosts = [\"*.example.org\"]\n", world.settings_text());
        std::fs::write(world.owner.settings_file(), lending)?;
        world.tenant.wait_until_it_says(job, "asked")?;
        let told = world.tenant.log(job)?;
        ensure!(told.matches("HTTP/1.1 403 Forbidden").count() == 2, "{told}");

        let expected = NetworkUse {
            hosts: vec!["www.example.org".to_owned()],
            refused: 2,
            last_refusal: Some("other.example.net:443 is not among the hosts of the job's network".to_owned()),
            ..NetworkUse::default()
        };
        world.owner.wait("the refusals to show", |snapshot| {
            let lease = snapshot.cards[0].lease.as_ref();
            lease.is_some_and(|lease| lease.network.as_ref() == Some(&expected))
        })?;
        for command in ["status", "jobs"] {
            let shown = world.owner.sela(&[command])?;
            let shown = shown.good()?;
            ensure!(
                shown.contains("2 refused, last: other.example.net:443"),
                "{command}: {shown}"
            );
        }
        wait_for("the tenant's log to say what was refused", || {
            let path = format!("/v1/jobs/{job}/logs?stream=stderr&from=0");
            let reply = world.tenant.rest.ask(&path)?;
            let log = String::from_utf8_lossy(reply.good()?).into_owned();
            let lines = ["192.168.1.1:80 is not among", "other.example.net:443 is not among"];
            Ok(lines.iter().all(|line| log.contains(line)).then_some(()))
        })?;
        world
            .tenant
            .rest
            .post_text(&format!("/v1/jobs/{job}/cancel"), "")?
            .good()?;
        world.tenant.wait_for_end(job).map(drop)
    });
}
