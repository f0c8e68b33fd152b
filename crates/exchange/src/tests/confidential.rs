//! What only a job may read: who gets it, who does not, and that none of it lies at the exchange in the clear.

use super::Lab;
use super::client::{Node, job_spec};
use sela_protocol::confidential::SealingKey;
use sela_protocol::lease::EndCause;
use sela_protocol::tenant::{JobKey, JobState, JobView, Submitted};
use std::path::Path;

const SECRET: &str = "a-secret-that-must-not-be-found-7c1e";
const KEY: &str = "5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f";

/// The files in which one of these stands, as text or as bytes.
fn files_with(folder: &Path, needles: &[Vec<u8>]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("reads") {
        let path = entry.expect("reads").path();
        if path.is_dir() {
            found.extend(files_with(&path, needles));
            continue;
        }
        let bytes = std::fs::read(&path).expect("reads");
        let holds = |needle: &Vec<u8>| bytes.windows(needle.len()).any(|part| part == needle);
        if needles.iter().any(holds) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn what_is_confidential_goes_to_tenant_and_node_only_and_lies_nowhere_in_the_clear() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(10).await;
    let (other, _) = lab.operator.new_tenant(10).await;
    let image = tenant.put_blob(b"an image").await;
    let mut spec = job_spec(image);
    spec["secrets"] = serde_json::json!({"TOKEN": SECRET});
    spec["result_key"] = KEY.into();
    let Submitted { job } = tenant.post("/v1/jobs", &spec).await.json();
    // Its key to its tenant alone; its secrets to nobody who asks.
    let path = format!("/v1/jobs/{job}/key");
    let key: JobKey = tenant.get(&path).await.json();
    assert_eq!(key.result_key.reveal().as_str(), KEY);
    other.get(&path).await.refused(404, "unknown_job");
    lab.operator
        .with_key("nobody")
        .get(&path)
        .await
        .refused(401, "unknown_key");
    let view = tenant.get(&format!("/v1/jobs/{job}")).await;
    let view = String::from_utf8(view.body).expect("text");
    assert!(!view.contains(SECRET) && !view.contains(KEY), "{view}");

    // It waits for a card through a restart, and all of it is still there for the node.
    let needles = [SECRET.into(), KEY.into(), hex::decode(KEY).expect("hex")];
    assert_eq!(files_with(lab.folder.path(), &needles), [""; 0]);
    let lab = lab.restart().await;
    let tenant = super::client::Rest::new(lab.address(), tenant.key());
    let mut node = Node::join(lab.address(), &lab.operator, 1).await;
    node.offer("0.100000").await;
    let award = node.award().await;
    let confidential = award.confidential.clone().expect("given with the lease");
    assert_eq!(confidential.secrets["TOKEN"].reveal(), SECRET);
    assert_eq!(confidential.result_key, KEY.parse().expect("a key"));
    let shown = format!("{award:?}");
    assert!(!shown.contains(SECRET) && !shown.contains("5e1f"), "{shown}");

    // It ends: its secrets are forgotten, its key opens what it made.
    node.accept(&award).await;
    node.meter(&award, 1_000, Some(EndCause::Exited { code: 0 })).await;
    node.result(&award, EndCause::Exited { code: 0 }, None).await;
    node.settled().await;
    let ended: JobView = tenant.get(&format!("/v1/jobs/{job}")).await.json();
    assert_eq!(ended.state, JobState::Done);
    let kept = lab.running_store_row(job).await;
    let vault_key = crate::keys::vault_key(lab.folder.path()).expect("a key");
    let left = vault_key.open(job, &kept).expect("opens");
    assert!(left.secrets.is_empty());
    let key: JobKey = tenant.get(&path).await.json();
    assert_eq!(key.result_key.reveal().as_str(), KEY);
    assert_eq!(files_with(lab.folder.path(), &needles), [""; 0]);
}

#[tokio::test]
async fn a_job_without_a_key_gets_one() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(10).await;
    let image = tenant.put_blob(b"an image").await;
    let mut keys: Vec<SealingKey> = Vec::new();
    for _ in 0..2 {
        let Submitted { job } = tenant.post("/v1/jobs", &job_spec(image)).await.json();
        let key: JobKey = tenant.get(&format!("/v1/jobs/{job}/key")).await.json();
        keys.push(key.result_key);
    }
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test]
async fn an_exchange_whose_vault_key_is_gone_does_not_start() {
    let lab = Lab::start().await;
    let (tenant, _) = lab.operator.new_tenant(10).await;
    let image = tenant.put_blob(b"an image").await;
    tenant.post("/v1/jobs", &job_spec(image)).await;
    lab.running.stop().await.expect("stops");
    std::fs::remove_file(lab.folder.path().join(crate::keys::VAULT_KEY_FILE)).expect("removed");
    let Err(error) = crate::serve::start(super::settings(lab.folder.path())).await else {
        panic!("it started without the key of what it keeps");
    };
    let error = format!("{error:#}");
    assert!(error.contains("vault.key") && error.contains("backup"), "{error}");
}
