//! A job's whole way: submitted, awarded, run by a scripted node, metered, stored, paid; and what a lease's token opens.

use super::Lab;
use super::client::{Node, Rest, job_spec};
use reqwest::Method;
use sela_protocol::blob::BlobId;
use sela_protocol::id::JobId;
use sela_protocol::lease::{EndCause, LeasePhase};
use sela_protocol::node::{Award, ExchangeMessage, LeaseBeat, NodeMessage};
use sela_protocol::tenant::{
    JobState, JobView, LOG_COMPLETE_HEADER, LOG_NEXT_HEADER, LogPosition, Stored, Submitted, TenantAccount,
};
use sela_protocol::units::Millis;

struct Scene {
    lab: Lab,
    tenant: Rest,
    image: BlobId,
    node: Node,
    job: JobId,
    award: Box<Award>,
}

impl Scene {
    /// A job of a tenant with 10 units, awarded to a node that has accepted it.
    async fn accepted() -> Self {
        let lab = Lab::start().await;
        let (tenant, _) = lab.operator.new_tenant(10).await;
        let image = tenant.put_blob(b"an image").await;
        let mut node = Node::join(lab.address(), &lab.operator, 1).await;
        node.offer("0.100000").await;
        let Submitted { job } = tenant.post("/v1/jobs", &job_spec(image)).await.json();
        let award = node.award().await;
        node.accept(&award).await;
        node.settled().await;
        Self {
            lab,
            tenant,
            image,
            node,
            job,
            award,
        }
    }

    fn holder(&self) -> Rest {
        self.lab.operator.with_key(&self.award.token)
    }

    async fn view(&self) -> JobView {
        self.tenant.get(&format!("/v1/jobs/{}", self.job)).await.json()
    }

    fn lease_path(&self, rest: &str) -> String {
        format!("/v1/leases/{}/{rest}", self.award.lease)
    }
}

#[tokio::test]
async fn a_job_goes_from_submission_to_a_signed_receipt_and_right_balances() {
    let mut scene = Scene::accepted().await;
    let award = scene.award.clone();
    assert_eq!((award.job, award.checkpoint), (scene.job, None));
    let escrowed: TenantAccount = scene.tenant.get("/v1/account").await.json();
    assert!(escrowed.escrow.0 > 0 && escrowed.available.0 + escrowed.escrow.0 == 10_000_000);

    // The node fetches the image, runs, and sends what the job prints.
    let holder = scene.holder();
    assert_eq!(
        holder.get(&format!("/v1/blobs/{}", scene.image)).await.body,
        b"an image"
    );
    let (lease, fencing) = (award.lease, award.fencing);
    let phase = LeasePhase::Running;
    scene.node.say(NodeMessage::Progress { lease, fencing, phase }).await;
    scene.node.settled().await;
    assert_eq!(scene.view().await.state, JobState::Leased { phase });
    let log = scene.lease_path("logs?stream=stdout&offset=0");
    let position: LogPosition = holder.send(Method::POST, &log, "42\n").await.json();
    assert_eq!(position.next, 3);
    scene.node.meter(&award, 30_000, None).await;
    let output = BlobId::of(b"a tar");
    let stored = holder
        .send(Method::PUT, &scene.lease_path(&format!("blobs/{output}")), "a tar")
        .await;
    assert_eq!(stored.json::<Stored>().blob, output);

    // It ends by itself after 31 s: the least billed time of 60 s applies.
    let cause = EndCause::Exited { code: 0 };
    scene.node.meter(&award, 31_000, Some(cause.clone())).await;
    scene.node.result(&award, cause.clone(), Some(output)).await;
    let receipt = loop {
        let receipt = scene.node.receipt().await;
        if receipt.closed.is_some() {
            break receipt;
        }
    };
    assert_eq!(
        (receipt.lease, receipt.job, receipt.node),
        (lease, scene.job, scene.node.node)
    );
    assert_eq!(
        (receipt.owner, receipt.price, receipt.lab),
        (scene.node.owner, award.price, true)
    );
    assert_eq!(receipt.closed, Some(cause.clone()));
    assert_eq!(receipt.billed_ms, Millis(60_000));
    assert_eq!(receipt.gross, award.price.due(Millis(60_000)));
    assert_eq!(receipt.fee, receipt.gross.basis_points(1_000));
    assert_eq!(receipt.net, receipt.gross - receipt.fee);

    // Tenant, owner and ledger agree with it.
    let view = scene.view().await;
    assert_eq!(
        (&view.state, view.output, view.paid),
        (&JobState::Done, Some(output), receipt.gross)
    );
    assert_eq!(view.leases[0].end, Some(cause));
    assert!(view.leases[0].card.contains("SIMULATED"));
    let (lab, tenant) = (&scene.lab, &scene.tenant);
    let account: TenantAccount = tenant.get("/v1/account").await.json();
    assert_eq!(
        (account.available.0 + receipt.gross.0, account.escrow.0),
        (10_000_000, 0)
    );
    assert_eq!(lab.balance("fees").await, receipt.fee.to_string());
    assert_eq!(
        lab.balance(&format!("owner/{}/held", receipt.owner)).await,
        receipt.net.to_string()
    );
    assert_eq!(lab.balance(&format!("lease/{lease}/escrow")).await, "0.000000");
    assert_eq!(lab.balance("outside").await, "-10.000000");

    // Its results and logs are the tenant's, and the token opens nothing any more.
    let job = scene.job;
    assert_eq!(tenant.get(&format!("/v1/jobs/{job}/output")).await.body, b"a tar");
    assert_eq!(tenant.get(&format!("/v1/blobs/{output}")).await.body, b"a tar");
    let first = tenant.get(&format!("/v1/jobs/{job}/logs?stream=stdout&from=1")).await;
    assert_eq!(first.body, b"2\n");
    assert_eq!(first.headers[LOG_NEXT_HEADER].as_bytes(), b"3");
    let last = tenant
        .get(&format!("/v1/jobs/{job}/logs?stream=stdout&from=3&wait_ms=20000"))
        .await;
    assert_eq!(last.headers[LOG_COMPLETE_HEADER].as_bytes(), b"true");
    holder
        .get(&format!("/v1/blobs/{}", scene.image))
        .await
        .refused(401, "unknown_key");
    holder
        .send(Method::POST, &log, "42\n")
        .await
        .refused(401, "unknown_key");
}

#[tokio::test]
async fn a_lease_token_opens_exactly_what_the_lease_needs() {
    let scene = Scene::accepted().await;
    let holder = scene.holder();
    let other = scene.tenant.put_blob(b"another image of the same tenant").await;
    holder
        .get(&format!("/v1/blobs/{other}"))
        .await
        .refused(404, "unknown_blob");
    holder.get("/v1/account").await.refused(401, "unknown_key");
    holder.get("/v1/jobs").await.refused(401, "unknown_key");
    let put = format!("/v1/blobs/{}", BlobId::of(b"x"));
    holder.send(Method::PUT, &put, "x").await.refused(401, "unknown_key");
    let job = scene.job.to_string();
    let lease = job.replace("job_", "lease_");
    let elsewhere = holder
        .send(
            Method::POST,
            &format!("/v1/leases/{lease}/logs?stream=stdout&offset=0"),
            "x",
        )
        .await;
    elsewhere.refused(403, "other_lease");
    // A tenant's own key stores nothing under a lease.
    let log = scene.lease_path("logs?stream=stdout&offset=0");
    scene
        .tenant
        .send(Method::POST, &log, "x")
        .await
        .refused(401, "unknown_key");
    // Larger than output_limit and what an archive adds to it.
    let large = vec![0_u8; (1 << 20) * 9 / 4 + 1];
    let path = scene.lease_path(&format!("blobs/{}", BlobId::of(&large)));
    holder.send(Method::PUT, &path, large).await.refused(413, "too_large");
    let wrong = scene.lease_path(&format!("blobs/{}", BlobId::of(b"y")));
    holder.send(Method::PUT, &wrong, "x").await.refused(422, "wrong_hash");
    assert_eq!(
        super::files_under(&scene.lab.folder.path().join("blobs")),
        2,
        "only what the tenant put"
    );
}

#[tokio::test]
async fn logs_are_appended_once_without_gaps_and_up_to_a_limit() {
    let scene = Scene::accepted().await;
    let holder = scene.holder();
    let append = |offset: usize, bytes: Vec<u8>| {
        let path = scene.lease_path(&format!("logs?stream=stderr&offset={offset}"));
        let holder = holder.clone();
        async move { holder.send(Method::POST, &path, bytes).await }
    };
    assert_eq!(append(0, b"abc".to_vec()).await.json::<LogPosition>().next, 3);
    assert_eq!(append(0, b"abc".to_vec()).await.json::<LogPosition>().next, 3);
    let gap = append(7, b"x".to_vec()).await;
    gap.refused(409, "gap");
    assert!(gap.problem().1.contains("send from 3 on"));
    append(3, vec![b'x'; 1_000]).await.refused(413, "too_large");
    let badly = scene.lease_path("logs?stream=stdin&offset=0");
    holder.send(Method::POST, &badly, "x").await.refused(400, "bad_query");

    // Who follows is answered as soon as there is more.
    let (tenant, job) = (scene.tenant.clone(), scene.job);
    let tail = tokio::spawn(async move {
        tenant
            .get(&format!("/v1/jobs/{job}/logs?stream=stderr&from=3&wait_ms=20000"))
            .await
    });
    append(3, b"def".to_vec()).await;
    let tail = tail.await.expect("answered");
    assert_eq!(tail.body, b"def");
    assert_eq!(tail.headers[LOG_COMPLETE_HEADER].as_bytes(), b"false");
}

#[tokio::test]
async fn a_reclaimed_job_goes_on_from_its_checkpoint_and_its_logs_read_as_one() {
    let mut scene = Scene::accepted().await;
    let first = scene.award.clone();
    let holder = scene.holder();
    let checkpoint = BlobId::of(b"a checkpoint");
    let path = scene.lease_path(&format!("blobs/{checkpoint}"));
    holder.send(Method::PUT, &path, "a checkpoint").await;
    let log = scene.lease_path("logs?stream=stdout&offset=0");
    holder.send(Method::POST, &log, "one ").await;
    scene
        .node
        .say(NodeMessage::Checkpoint {
            lease: first.lease,
            fencing: first.fencing,
            blob: checkpoint,
            thawed_ms: Millis(5_000),
        })
        .await;
    // The owner is back: the card is not offered for a while.
    scene.node.say_offer("0.100000", false).await;
    scene.node.meter(&first, 6_000, Some(EndCause::OwnerInput)).await;
    scene.node.result(&first, EndCause::OwnerInput, None).await;
    let closed = scene.node.receipt().await;
    assert_eq!(
        closed.billed_ms,
        Millis(6_000),
        "no least billed time where the owner ends it"
    );

    // Another node takes it.
    let mut other = Node::join(scene.lab.address(), &scene.lab.operator, 2).await;
    other.offer("0.100000").await;
    let second = other.award().await;
    assert_eq!((second.job, second.checkpoint), (scene.job, Some(checkpoint)));
    assert!(second.fencing > first.fencing);
    other.accept(&second).await;
    other.settled().await;
    let holder = scene.lab.operator.with_key(&second.token);
    assert_eq!(
        holder.get(&format!("/v1/blobs/{checkpoint}")).await.body,
        b"a checkpoint"
    );
    let log = format!("/v1/leases/{}/logs?stream=stdout&offset=0", second.lease);
    holder.send(Method::POST, &log, "two").await;
    let job = scene.job;
    let logs = scene.tenant.get(&format!("/v1/jobs/{job}/logs?stream=stdout")).await;
    assert_eq!(logs.body, b"one two");
}

#[tokio::test]
async fn an_exchange_that_is_started_again_has_forgotten_nothing() {
    let mut scene = Scene::accepted().await;
    scene.node.meter(&scene.award, 20_000, None).await;
    scene.node.settled().await;
    let mut before = scene.view().await;
    let account: TenantAccount = scene.tenant.get("/v1/account").await.json();
    let ledger = scene.lab.ledger().await;
    scene.lab = scene.lab.restart().await;
    scene.tenant = Rest::new(scene.lab.address(), scene.tenant.key());
    let mut after = scene.view().await;
    // How far the lease is on its node is heard anew.
    (before.state, after.state) = (JobState::Unknown, JobState::Unknown);
    assert_eq!(before, after);
    assert_eq!(account, scene.tenant.get("/v1/account").await.json());
    assert_eq!(ledger, scene.lab.ledger().await);

    // The node comes back with the lease and ends it; it is paid once.
    let award = scene.award.clone();
    let mut node = scene.node.come_back(scene.lab.address()).await;
    node.offer("0.100000").await;
    let beat = LeaseBeat {
        lease: award.lease,
        fencing: award.fencing,
        phase: LeasePhase::Running,
        thawed_ms: Millis(21_000),
    };
    node.say(NodeMessage::Heartbeat {
        beat: 1,
        leases: vec![beat],
    })
    .await;
    let ends = node
        .hear_until(|message| match message {
            ExchangeMessage::Renew { end, .. } => Some(end),
            ExchangeMessage::Award(_)
            | ExchangeMessage::Cancel { .. }
            | ExchangeMessage::Receipt(_)
            | ExchangeMessage::Refused { .. }
            | ExchangeMessage::Time { .. }
            | ExchangeMessage::Unknown => None,
        })
        .await;
    assert_eq!(ends, [], "the lease lives on");
    node.meter(&award, 22_000, Some(EndCause::OwnerCommand)).await;
    node.result(&award, EndCause::OwnerCommand, None).await;
    let receipt = loop {
        let receipt = node.receipt().await;
        if receipt.closed.is_some() {
            break receipt;
        }
    };
    assert_eq!(receipt.billed_ms, Millis(22_000));
    let held = scene.lab.balance(&format!("owner/{}/held", receipt.owner)).await;
    assert_eq!(held, receipt.net.to_string());
}
