//! Blobs over HTTP: who may put and get what, and that a refused one leaves nothing.

use super::client::{Rest, job_spec};
use super::{Lab, files_under};
use crate::collect::{collect, keep_for_tenant};
use crate::store::blob_owners::BlobOwner;
use reqwest::Method;
use sela_protocol::blob::BlobId;
use sela_protocol::tenant::{Stored, Submitted};
use sela_protocol::units::{Bytes, Millis};
use std::task::Poll;
use std::time::Duration;

#[tokio::test]
async fn a_tenant_gets_what_it_put_and_nobody_else_does() {
    let lab = Lab::start().await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let (bob, _) = lab.operator.new_tenant(1).await;
    let blob = BlobId::of(b"an image");
    let path = format!("/v1/blobs/{blob}");
    let stored: Stored = alice.send(Method::PUT, &path, "an image").await.json();
    assert_eq!(stored, Stored { blob, bytes: 8 });
    assert_eq!(alice.get(&path).await.body, b"an image");
    let head = alice.send(Method::HEAD, &path, "").await;
    assert_eq!(
        (head.status.as_u16(), head.headers["content-length"].as_bytes()),
        (200, b"8".as_slice())
    );
    bob.get(&path).await.refused(404, "unknown_blob");
    lab.operator.get(&path).await.refused(401, "unknown_key");
    // Knowing the address is not enough, having the bytes is.
    bob.send(Method::PUT, &path, "another").await.refused(422, "wrong_hash");
    bob.get(&path).await.refused(404, "unknown_blob");
    bob.send(Method::PUT, &path, "an image").await;
    assert_eq!(bob.get(&path).await.body, b"an image");
}

#[tokio::test]
async fn a_blob_can_be_gone_on_with_in_the_middle() {
    let lab = Lab::start().await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let (bob, _) = lab.operator.new_tenant(1).await;
    let path = format!("/v1/blobs/{}", alice.put_blob(b"an image").await);
    for (range, status, body) in [
        ("bytes=3-", 206, &b"image"[..]),
        ("bytes=7-", 206, b"e"),
        ("bytes=0-", 200, b"an image"),
        ("bytes=8-", 200, b"an image"),
        ("bytes=2-3", 200, b"an image"),
        ("bytes=-2", 200, b"an image"),
        ("bytes=99999999999999999999-", 200, b"an image"),
    ] {
        let reply = Rest::reply(alice.request(Method::GET, &path).header("range", range)).await;
        assert_eq!(
            (reply.status.as_u16(), reply.body.as_slice()),
            (status, body),
            "{range}"
        );
        if status == 206 {
            let first = 8 - body.len();
            let said = reply.headers["content-range"].to_str().expect("text");
            assert_eq!(said, format!("bytes {first}-7/8"));
        }
    }
    let refused = Rest::reply(bob.request(Method::GET, &path).header("range", "bytes=3-")).await;
    refused.refused(404, "unknown_blob");
}

#[tokio::test]
async fn a_wrong_hash_or_size_is_refused_and_leaves_nothing() {
    let lab = Lab::start().await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let path = format!("/v1/blobs/{}", BlobId::of(b"an image"));
    let reply = alice.send(Method::PUT, &path, "an imagE").await;
    reply.refused(422, "wrong_hash");
    assert!(reply.problem().1.contains("send it again"));
    let large = vec![0_u8; (1 << 20) + 1];
    let large_path = format!("/v1/blobs/{}", BlobId::of(&large));
    alice
        .send(Method::PUT, &large_path, large)
        .await
        .refused(413, "too_large");
    alice
        .send(Method::PUT, "/v1/blobs/sha256:12", "x")
        .await
        .refused(400, "bad_id");
    assert_eq!(files_under(&lab.folder.path().join("blobs")), 0);
    alice.get(&path).await.refused(404, "unknown_blob");
}

#[tokio::test]
async fn a_full_disk_is_said_and_leaves_nothing() {
    let lab = Lab::start_with(|settings| settings.free_floor = Bytes(u64::MAX)).await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let reply = alice
        .send(Method::PUT, &format!("/v1/blobs/{}", BlobId::of(b"x")), "x")
        .await;
    reply.refused(507, "disk_full");
    assert!(reply.problem().1.contains("nothing of this was kept"));
    assert_eq!(files_under(&lab.folder.path().join("blobs")), 0);
}

#[tokio::test]
async fn a_blob_that_a_killed_exchange_left_without_an_owner_is_swept_at_the_start() {
    let lab = Lab::start().await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let kept = alice.put_blob(b"kept").await;
    let orphan = BlobId::of(b"orphan").hex();
    let folder = lab.folder.path().join("blobs").join(&orphan[..2]);
    std::fs::create_dir_all(&folder).expect("made");
    std::fs::write(folder.join(orphan), b"orphan").expect("written");
    let lab = lab.restart().await;
    assert_eq!(files_under(&lab.folder.path().join("blobs")), 1);
    let alice = crate::tests::client::Rest::new(lab.address(), alice.key());
    assert_eq!(alice.get(&format!("/v1/blobs/{kept}")).await.body, b"kept");
}

#[tokio::test]
async fn a_tenant_that_has_used_its_quota_puts_nothing_more_and_takes_no_room_from_others() {
    let lab = Lab::start_with(|settings| settings.room.quota = Bytes(20)).await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let (bob, _) = lab.operator.new_tenant(1).await;
    let put = async |tenant: &super::client::Rest, bytes: &'static str| {
        let path = format!("/v1/blobs/{}", BlobId::of(bytes.as_bytes()));
        tenant.send(Method::PUT, &path, bytes).await
    };
    alice.put_blob(b"twelve bytes").await;
    let reply = put(&alice, "nine more").await;
    reply.refused(413, "quota_used");
    assert!(
        reply.problem().1.contains("12 bytes are stored"),
        "{}",
        reply.problem().1
    );
    assert_eq!(
        files_under(&lab.folder.path().join("blobs")),
        1,
        "nothing is left of it"
    );
    alice.put_blob(b"twelve bytes").await;
    alice.put_blob(b"8 bytes.").await;
    put(&alice, "1").await.refused(413, "quota_used");
    bob.put_blob(b"nine more").await;
}

#[tokio::test]
async fn what_no_job_needs_any_more_is_forgotten_in_time_and_what_one_needs_is_not() {
    let lab = Lab::start().await;
    let (alice, _) = lab.operator.new_tenant(1).await;
    let image = alice.put_blob(b"an image").await;
    let unused = alice.put_blob(b"unused").await;
    let submitted: Submitted = alice.post("/v1/jobs", &job_spec(image)).await.json();
    let keep = lab.running.exchange().room.keep;
    let long_after = sela_clock::now().utc_ms.plus(keep).plus(Millis(60_000));
    let collected = collect(lab.running.exchange(), long_after).await.expect("looked");
    assert_eq!(collected, 1);
    alice
        .get(&format!("/v1/blobs/{unused}"))
        .await
        .refused(404, "unknown_blob");
    assert_eq!(alice.get(&format!("/v1/blobs/{image}")).await.body, b"an image");
    assert_eq!(files_under(&lab.folder.path().join("blobs")), 1);
    let reply = alice.post("/v1/jobs", &job_spec(unused)).await;
    reply.refused(422, "blob_not_stored");

    let path = format!("/v1/jobs/{}/cancel", submitted.job);
    assert_eq!(alice.send(Method::POST, &path, "").await.status, 200);
    let soon = sela_clock::now().utc_ms;
    assert_eq!(
        collect(lab.running.exchange(), soon).await.expect("looked"),
        0,
        "not yet"
    );
    assert_eq!(collect(lab.running.exchange(), long_after).await.expect("looked"), 1);
    assert_eq!(files_under(&lab.folder.path().join("blobs")), 0);
}

#[tokio::test]
async fn a_sender_that_hangs_up_in_the_middle_leaves_no_file_that_is_nobodys() {
    let lab = Lab::start().await;
    let (alice, created) = lab.operator.new_tenant(1).await;
    let exchange = lab.running.exchange();
    let blob = BlobId::of(b"all of it");
    let mut body = futures_util::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"all of it"))]);
    let received = exchange.blobs.receive(blob, Bytes(9), &mut body).await.expect("came");
    let owner = BlobOwner {
        blob,
        tenant: created.tenant,
        size: received.size(),
    };
    let mut keeping = Box::pin(keep_for_tenant(exchange, received, owner));
    let begun = std::future::poll_fn(|context| Poll::Ready(keeping.as_mut().poll(context).is_pending()));
    assert!(begun.await);
    drop(keeping);
    let is_kept = async || alice.get(&format!("/v1/blobs/{blob}")).await.status == 200;
    while !is_kept().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(files_under(&lab.folder.path().join("blobs")), 1);
}
