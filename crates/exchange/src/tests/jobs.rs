//! What tenants and the operator ask for over HTTP, and what is refused.

use super::Lab;
use super::client::{Rest, job_spec};
use reqwest::Method;
use sela_protocol::blob::BlobId;
use sela_protocol::local::Page;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{Deposit, JobState, JobView, PostingView, Submitted, TenantAccount};

async fn submit(tenant: &Rest, spec: &serde_json::Value, idempotency_key: Option<&str>) -> super::client::Reply {
    let mut request = tenant.request(Method::POST, "/v1/jobs").json(spec);
    if let Some(key) = idempotency_key {
        request = request.header("Idempotency-Key", key);
    }
    Rest::reply(request).await
}

#[tokio::test]
async fn an_unknown_key_is_refused_with_what_to_do_and_errors_are_problems() {
    let lab = Lab::start().await;
    let stranger = lab.operator.with_key("sela_key_unknown");
    let reply = stranger.get("/v1/account").await;
    reply.refused(401, "unknown_key");
    assert!(reply.problem().1.starts_with("this API key is not known here; "));
    assert_eq!(reply.headers["www-authenticate"].as_bytes(), b"Bearer");
    stranger.get("/v1/admin/nodes").await.refused(401, "unknown_key");
    let (tenant, _) = lab.operator.new_tenant(1).await;
    tenant.get("/v1/admin/ledger/check").await.refused(401, "unknown_key");
    tenant.get("/v1/nothing").await.refused(404, "unknown_path");
    tenant
        .send(Method::DELETE, "/v1/jobs", "")
        .await
        .refused(405, "method_not_allowed");
    tenant.get("/v1/jobs/lease_1").await.refused(400, "bad_id");
    tenant.get("/v1/nodes/session").await.refused(400, "not_a_websocket");
    tenant
        .send(Method::POST, "/v1/jobs", vec![b' '; (1 << 20) + 1])
        .await
        .refused(413, "too_large");
    tenant
        .send(Method::POST, "/v1/jobs", vec![0xff])
        .await
        .refused(400, "not_utf8");
    assert_eq!(lab.operator.get("/healthz").await.body, b"ok\n");
    assert_eq!(lab.operator.get("/readyz").await.body, b"ready\n");
}

#[tokio::test]
async fn a_bad_job_spec_says_what_would_be_right() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(1).await;
    let image = tenant.put_blob(b"an image").await;
    for (name, value, code, says) in [
        (
            "wall_limit",
            serde_json::json!(1),
            "unknown_field",
            "did you mean \"wall_limit_ms\"",
        ),
        ("cap", serde_json::json!(1), "malformed", "invalid type"),
        ("work_ms", serde_json::json!(0), "contradiction", "work_ms: between 1"),
        (
            "inputs",
            serde_json::json!([{"blob": BlobId::of(b"absent"), "path": "a"}]),
            "blob_not_stored",
            "inputs[0].blob: sha256:",
        ),
    ] {
        let mut spec = job_spec(image);
        spec[name] = value;
        let reply = submit(&tenant, &spec, None).await;
        reply.refused(422, code);
        assert!(
            reply.problem().1.contains(says),
            "{} should say {says}",
            reply.problem().1
        );
    }
    let jobs: Page<JobView> = tenant.get("/v1/jobs").await.json();
    assert!(jobs.items.is_empty(), "nothing of the refused is left");
}

#[tokio::test]
async fn the_same_idempotency_key_gives_the_same_job_also_after_a_restart() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(1).await;
    let image = tenant.put_blob(b"an image").await;
    let spec = job_spec(image);
    let first: Submitted = submit(&tenant, &spec, Some("a")).await.json();
    let again: Submitted = submit(&tenant, &spec, Some("a")).await.json();
    let other: Submitted = submit(&tenant, &spec, Some("b")).await.json();
    assert_eq!(first, again);
    assert_ne!(first, other);
    let mut changed = spec.clone();
    changed["cap"] = "0.500000".into();
    submit(&tenant, &changed, Some("a"))
        .await
        .refused(409, "idempotency_key_used");
    submit(&tenant, &spec, Some(""))
        .await
        .refused(400, "bad_idempotency_key");
    // Both at once, before either is committed.
    let (left, right) = tokio::join!(submit(&tenant, &spec, Some("c")), submit(&tenant, &spec, Some("c")));
    assert_eq!(left.json::<Submitted>(), right.json::<Submitted>());

    let lab = lab.restart().await;
    let tenant = Rest::new(lab.address(), tenant.key());
    assert_eq!(first, submit(&tenant, &spec, Some("a")).await.json());
    let jobs: Page<JobView> = tenant.get("/v1/jobs").await.json();
    assert_eq!(jobs.items.len(), 3);
}

#[tokio::test]
async fn a_long_list_of_jobs_comes_in_pages_newest_first_and_each_job_once() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(1).await;
    let image = tenant.put_blob(b"an image").await;
    let spec = job_spec(image);
    let mut submitted = Vec::new();
    for _ in 0..120 {
        submitted.push(submit(&tenant, &spec, None).await.json::<Submitted>().job);
    }
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let query = cursor.map(|cursor| format!("?cursor={cursor}")).unwrap_or_default();
        let page: Page<JobView> = tenant.get(&format!("/v1/jobs{query}")).await.json();
        assert!(page.items.len() <= 50, "{}", page.items.len());
        seen.extend(page.items.into_iter().map(|view| view.job));
        // What is submitted meanwhile moves nothing from one page to another.
        submit(&tenant, &spec, None).await.json::<Submitted>();
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    submitted.reverse();
    assert_eq!((seen, pages), (submitted, 3));
    tenant.get("/v1/jobs?cursor=job_x").await.refused(400, "bad_cursor");
    tenant.get("/v1/jobs?curser=1").await.refused(400, "bad_query");
}

#[tokio::test]
async fn the_same_deposit_is_booked_once() {
    let lab = Lab::start().await;
    let (tenant, created) = lab.operator.new_tenant(5).await;
    let path = format!("/v1/admin/tenants/{}/deposits", created.tenant);
    let deposit = |amount: &str, key: &str| {
        let idempotency_key = key.to_owned();
        let amount = amount.parse().expect("an amount");
        Deposit {
            amount,
            idempotency_key,
        }
    };
    let again: TenantAccount = lab.operator.post(&path, &deposit("5", "first")).await.json();
    assert_eq!(again.available, Micros::from_units(5));
    lab.operator
        .post(&path, &deposit("6", "first"))
        .await
        .refused(409, "idempotency_key_used");
    lab.operator
        .post(&path, &deposit("-1", "second"))
        .await
        .refused(422, "bad_amount");
    let written = r#"{"amout": "1", "idempotency_key": "x"}"#;
    let misspelt = lab.operator.send(Method::POST, &path, written).await;
    misspelt.refused(422, "unknown_field");
    assert!(misspelt.problem().1.contains("did you mean \"amount\""));
    let account: TenantAccount = tenant.get("/v1/account").await.json();
    assert_eq!(account.available, Micros::from_units(5));
    let postings: Vec<PostingView> = lab.operator.get("/v1/admin/ledger").await.json();
    assert_eq!(postings.len(), 2);
    let rest: Vec<PostingView> = lab.operator.get("/v1/admin/ledger?after=1").await.json();
    assert_eq!(rest, postings[1..]);
    lab.operator
        .get("/v1/admin/ledger?before=1")
        .await
        .refused(400, "bad_query");
    assert_eq!(lab.balance("outside").await, "-5.000000");
}

#[tokio::test]
async fn another_tenants_job_is_as_if_it_were_not_there() {
    let lab = Lab::start().await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let (bob, _) = lab.operator.new_tenant(1).await;
    let image = alice.put_blob(b"an image").await;
    submit(&bob, &job_spec(image), None)
        .await
        .refused(422, "blob_not_stored");
    let Submitted { job } = submit(&alice, &job_spec(image), None).await.json();
    for path in ["", "/events", "/logs?stream=stdout", "/output"] {
        bob.get(&format!("/v1/jobs/{job}{path}"))
            .await
            .refused(404, "unknown_job");
    }
    bob.send(Method::POST, &format!("/v1/jobs/{job}/cancel"), "")
        .await
        .refused(404, "unknown_job");
    let view: JobView = alice.get(&format!("/v1/jobs/{job}")).await.json();
    let JobState::Queued { why } = view.state else {
        panic!("{:?}", view.state);
    };
    assert!(!why.is_empty(), "says why it waits");
}

#[tokio::test]
async fn a_watcher_sees_each_change_until_the_last() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(1).await;
    let image = tenant.put_blob(b"an image").await;
    let Submitted { job } = submit(&tenant, &job_spec(image), None).await.json();
    let events = tenant.request(Method::GET, &format!("/v1/jobs/{job}/events")).send();
    let mut events = events.await.expect("a stream");
    let mut heard = String::new();
    let mut cancelled = false;
    while let Some(chunk) = events.chunk().await.expect("reads") {
        heard.push_str(&String::from_utf8_lossy(&chunk));
        if !cancelled && heard.contains("queued") {
            cancelled = true;
            let path = format!("/v1/jobs/{job}/cancel");
            let view: JobView = tenant.send(Method::POST, &path, "").await.json();
            assert_eq!(view.state, JobState::Cancelled);
            tenant.send(Method::POST, &path, "").await;
        }
    }
    let last = heard.trim().lines().last().and_then(|line| line.strip_prefix("data: "));
    let view: JobView = serde_json::from_str(last.expect("a view")).expect("reads");
    assert_eq!(view.state, JobState::Cancelled);
    assert!(heard.starts_with("event: job\n"));
}

#[tokio::test]
async fn streams_end_when_the_exchange_stops() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(1).await;
    let image = tenant.put_blob(b"an image").await;
    let Submitted { job } = submit(&tenant, &job_spec(image), None).await.json();
    let events = tenant.request(Method::GET, &format!("/v1/jobs/{job}/events")).send();
    let mut events = events.await.expect("a stream");
    assert!(events.chunk().await.expect("reads").is_some());
    let tail = tokio::spawn({
        let tenant = tenant.clone();
        async move {
            tenant
                .get(&format!("/v1/jobs/{job}/logs?stream=stdout&wait_ms=30000"))
                .await
        }
    });
    // The task has not run yet: it is first polled while this waits.
    lab.running.one_more_stays().await;
    lab.running.stop().await.expect("stops");
    while events.chunk().await.expect("ends cleanly").is_some() {}
    assert_eq!(tail.await.expect("answered").body, b"");
}

#[tokio::test]
async fn many_at_once_share_commits_and_each_counts_once() {
    let lab = Lab::start().await;
    let (tenant, created) = lab.operator.new_tenant(1).await;
    let path = format!("/v1/admin/tenants/{}/deposits", created.tenant);
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..60 {
        let (operator, path) = (lab.operator.clone(), path.clone());
        asked.spawn(async move {
            let deposit = Deposit {
                amount: Micros::from_units(1),
                // Each key comes twice.
                idempotency_key: format!("deposit {}", number / 2),
            };
            operator.post(&path, &deposit).await.status
        });
    }
    while let Some(status) = asked.join_next().await {
        assert!(status.expect("answered").is_success());
    }
    let account: TenantAccount = tenant.get("/v1/account").await.json();
    assert_eq!(account.available, Micros::from_units(31));
    assert_eq!(lab.ledger().await.transfers, 31);
}
