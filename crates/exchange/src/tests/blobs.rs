//! Blobs over HTTP: who may put and get what, and that a refused one leaves nothing.

use super::{Lab, files_under};
use reqwest::Method;
use sela_protocol::blob::BlobId;
use sela_protocol::tenant::Stored;
use sela_protocol::units::Bytes;

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
