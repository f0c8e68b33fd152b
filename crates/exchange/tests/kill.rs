//! The real binary, killed while a job runs: what was acknowledged is there after the next start, nothing is there twice,
//! and nothing of what was half received is left.

#[path = "../src/tests/client.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the tests inside the crate, which use all of it"
)]
mod client;

use client::{Node, Rest, job_spec};
use reqwest::Method;
use sela_protocol::blob::BlobId;
use sela_protocol::lease::EndCause;
use sela_protocol::tenant::{LedgerCheck, Submitted, TenantAccount};
use sela_protocol::units::Millis;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Exchange {
    process: Child,
    address: SocketAddr,
}

impl Exchange {
    #[expect(clippy::disallowed_methods, reason = "this test is about killing the real process")]
    fn start(data: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_sela-exchange"))
            .args([
                "serve",
                "--lab",
                "--free-floor",
                "0",
                "--listen",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(data)
            .env("SELA_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().expect("piped"))
            .read_line(&mut line)
            .expect("reads");
        let address = line
            .strip_prefix("sela-exchange listening on http://")
            .and_then(|rest| rest.trim_end().strip_suffix(" (LAB: money has no worth)"))
            .unwrap_or_else(|| panic!("it said {line:?}"));
        let address: SocketAddr = address.parse().expect("an address");
        let written = std::fs::read_to_string(data.join("address")).expect("written");
        assert_eq!(written.trim(), address.to_string());
        Self { process, address }
    }

    fn kill(mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }

    fn operator(&self, data: &Path) -> Rest {
        let key = std::fs::read_to_string(data.join("operator.key")).expect("a key");
        Rest::new(self.address, key.trim())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn checked_ledger(operator: &Rest) -> LedgerCheck {
    let check: LedgerCheck = operator.get("/v1/admin/ledger/check").await.json();
    assert_eq!(check.postings_sum.0, 0);
    assert!(check.unbalanced.is_empty() && check.overdrawn.is_empty(), "{check:?}");
    check
}

#[tokio::test]
async fn a_killed_exchange_loses_and_doubles_no_posting() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let exchange = Exchange::start(data);
    let operator = exchange.operator(data);
    let (tenant, _) = operator.new_tenant(10).await;
    let image = tenant.put_blob(b"an image").await;
    let mut node = Node::join(exchange.address, &operator, 1).await;
    node.offer("0.100000").await;
    let Submitted { job } = tenant.post("/v1/jobs", &job_spec(image)).await.json();
    let award = node.award().await;
    node.accept(&award).await;
    node.meter(&award, 20_000, None).await;
    node.settled().await;
    let account: TenantAccount = tenant.get("/v1/account").await.json();
    let ledger = checked_ledger(&operator).await;

    // Half an upload is under way when it is killed.
    let (half, body) = tokio::io::duplex(64);
    let upload = {
        let stream = futures_util::stream::unfold(body, |mut body| async move {
            let mut chunk = vec![0; 64];
            let count = tokio::io::AsyncReadExt::read(&mut body, &mut chunk).await.ok()?;
            chunk.truncate(count);
            Some((Ok::<_, std::io::Error>(chunk), body))
        });
        let path = format!("/v1/blobs/{}", BlobId::of(b"never comes"));
        let request = tenant
            .request(Method::PUT, &path)
            .body(reqwest::Body::wrap_stream(stream));
        tokio::spawn(request.send())
    };
    let mut half = half;
    tokio::io::AsyncWriteExt::write_all(&mut half, b"half")
        .await
        .expect("sent");
    let incoming = data.join("blobs/incoming");
    while std::fs::read_dir(&incoming).expect("reads").count() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    exchange.kill();
    assert!(upload.await.expect("ended").is_err());

    let exchange = Exchange::start(data);
    assert_eq!(std::fs::read_dir(&incoming).expect("reads").count(), 0, "swept");
    let operator = exchange.operator(data);
    let tenant = Rest::new(exchange.address, tenant.key());
    assert_eq!(account, tenant.get("/v1/account").await.json());
    assert_eq!(ledger, checked_ledger(&operator).await);

    // The node resends its last note, and ends the lease: paid once.
    let before = node.resume.session;
    let mut node = node.come_back(exchange.address).await;
    assert_ne!(node.resume.session, before, "sessions are kept in memory only");
    node.meter(&award, 20_000, None).await;
    node.meter(&award, 30_000, Some(EndCause::OwnerInput)).await;
    node.result(&award, EndCause::OwnerInput, None).await;
    let receipt = loop {
        let receipt = node.receipt().await;
        if receipt.closed.is_some() {
            break receipt;
        }
    };
    assert_eq!((receipt.job, receipt.billed_ms), (job, Millis(30_000)));
    assert_eq!(receipt.gross, award.price.due(Millis(30_000)));
    let check = checked_ledger(&operator).await;
    let held = format!("owner/{}/held", receipt.owner);
    let held = check.balances.iter().find(|balance| balance.account == held);
    assert_eq!(held.map(|balance| balance.balance), Some(receipt.net));
    let account: TenantAccount = tenant.get("/v1/account").await.json();
    assert_eq!(account.available.0, 10_000_000 - receipt.gross.0);
    assert_eq!(account.escrow.0, 0);
    exchange.kill();
}
