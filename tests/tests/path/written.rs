//! What people write and get wrong: job specs, keys, addresses. The exchange says what would be right, and nothing is left of it.

use sela_protocol::blob::BlobId;
use sela_protocol::money::Micros;
use sela_tests::{FUNDS, Plan, Rest, World, in_a_world, test_job};
use serde_json::{Value, json};

fn without_an_agent() -> Plan {
    Plan {
        agent: false,
        ..Plan::default()
    }
}

type Change = fn(&mut serde_json::Map<String, Value>);

fn put(spec: &mut serde_json::Map<String, Value>, name: &str, value: Value) {
    spec.insert(name.to_owned(), value);
}

/// What is wrong with a spec, the code that says so, and words that the sentence must have.
const BAD_SPECS: [(&str, &[&str], Change); 11] = [
    (
        "unknown_field",
        &["wall_limit", "did you mean \"wall_limit_ms\""],
        |spec| put(spec, "wall_limit", json!(1)),
    ),
    ("unknown_field", &["image.digest"], |spec| {
        spec["image"]["digest"] = json!("x")
    }),
    ("malformed", &["missing field `wall_limit_ms`"], |spec| {
        drop(spec.remove("wall_limit_ms"))
    }),
    ("malformed", &["missing field `cap`"], |spec| drop(spec.remove("cap"))),
    ("malformed", &["not an amount"], |spec| put(spec, "cap", json!("a lot"))),
    ("contradiction", &["work_ms", "between 1 and wall_limit_ms"], |spec| {
        put(spec, "work_ms", json!(999_999_999))
    }),
    ("contradiction", &["budget", "at least 0.060000"], |spec| {
        put(spec, "budget", json!("0.059999"))
    }),
    ("contradiction", &["cap", "above zero"], |spec| {
        put(spec, "cap", json!("0.000000"))
    }),
    ("contradiction", &["shm_size", "at most memory"], |spec| {
        put(spec, "shm_size", json!(1_u64 << 40))
    }),
    ("contradiction", &["names no digest"], |spec| {
        put(
            spec,
            "image",
            json!({"type": "registry", "reference": "example.org/a:latest"}),
        )
    }),
    ("blob_not_stored", &["image.blob", "put it first"], |spec| {
        spec["image"]["blob"] = json!(BlobId::of(b"never stored"))
    }),
];

#[test]
fn a_job_spec_that_is_wrong_is_refused_with_what_would_be_right_and_costs_nothing() {
    in_a_world(&without_an_agent(), |world| {
        let image = world.test_image()?;
        for (code, words, change) in BAD_SPECS {
            let mut spec = test_job(image.blob, &[]);
            change(spec.as_object_mut().expect("a spec is an object"));
            world
                .tenant
                .rest
                .post_text("/v1/jobs", &spec.to_string())?
                .refused(422, code, words)?;
            let file = world.folder().join("tenant/spec.json");
            std::fs::write(&file, spec.to_string())?;
        }
        world
            .tenant
            .rest
            .post_text("/v1/jobs", "{\"name\":")?
            .refused(422, "malformed", &["not JSON"])?;
        nothing_happened(world)
    });
}

#[test]
fn an_unknown_api_key_opens_nothing() {
    in_a_world(&without_an_agent(), |world| {
        let image = world.test_image()?;
        for key in ["", "sela_0000", &world.tenant.rest.key()[1..]] {
            let stranger = Rest::new(&world.exchange.url(), key);
            let blob = format!("/v1/blobs/{}", image.blob);
            stranger.ask("/v1/account")?.refused(401, "unknown_key", &["key"])?;
            stranger.ask("/v1/jobs")?.refused(401, "unknown_key", &["key"])?;
            stranger.ask(&blob)?.refused(401, "unknown_key", &["key"])?;
            stranger
                .ask("/v1/admin/ledger/check")?
                .refused(401, "unknown_key", &["key"])?;
            stranger.put(&blob, b"bytes")?.refused(401, "unknown_key", &["key"])?;
            let spec = test_job(image.blob, &[]).to_string();
            stranger
                .post_text("/v1/jobs", &spec)?
                .refused(401, "unknown_key", &["key"])?;
        }
        nothing_happened(world)
    });
}

#[test]
fn a_blob_whose_bytes_are_not_those_of_its_address_is_refused_and_not_kept() {
    in_a_world(&without_an_agent(), |world| {
        let path = format!("/v1/blobs/{}", BlobId::of(b"the bytes that were promised"));
        let reply = world.tenant.rest.put(&path, b"other bytes")?;
        anyhow::ensure!(reply.status == 422 || reply.status == 400, "{reply:?}");
        world
            .tenant
            .rest
            .ask(&path)?
            .refused(404, "unknown_blob", &["put it first"])?;
        nothing_happened(world)
    });
}

#[test]
fn a_tenant_sees_nothing_of_another_tenant() {
    in_a_world(&without_an_agent(), |world| {
        let job = world.submit(&["--steps", "1"])?;
        let image = world.test_image()?;
        let other = world.exchange.new_tenant()?;
        let other = Rest::new(&world.exchange.url(), &other.api_key);
        for path in [
            format!("/v1/jobs/{job}"),
            format!("/v1/jobs/{job}/output"),
            format!("/v1/blobs/{}", image.blob),
        ] {
            let reply = other.ask(&path)?;
            anyhow::ensure!(reply.status == 404, "{path}: {reply:?}");
        }
        let reply = other.post_text(&format!("/v1/jobs/{job}/cancel"), "")?;
        anyhow::ensure!(reply.status == 404, "cancel: {reply:?}");
        let spec = test_job(image.blob, &[]).to_string();
        other
            .post_text("/v1/jobs", &spec)?
            .refused(422, "blob_not_stored", &["put it first"])?;
        anyhow::ensure!(!world.tenant.view(job)?.state.is_final(), "the other tenant ended it");
        Ok(())
    });
}

/// No job, no money moved.
fn nothing_happened(world: &World) -> anyhow::Result<()> {
    let account = world.tenant.account()?;
    anyhow::ensure!(world.tenant.jobs()?.is_empty(), "a job is there");
    anyhow::ensure!(
        (account.available, account.escrow) == (FUNDS, Micros::ZERO),
        "money moved: {account:?}"
    );
    Ok(())
}
