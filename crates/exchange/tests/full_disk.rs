//! The real binary on a disk that is really full: a small tmpfs in a mount namespace of its own, which ends with the
//! process and leaves no mount behind. Needs a kernel that lets this user make such namespaces (root always may).

#[path = "../src/tests/client.rs"]
#[allow(dead_code, reason = "shared with the tests inside the crate, which use all of it")]
mod client;

use client::{Rest, job_spec};
use reqwest::Method;
use sela_protocol::blob::BlobId;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{Deposit, LedgerCheck, TenantAccount};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Runs the exchange; when it has ended by itself, frees the disk and runs it once more.
const SCRIPT: &str = r#"
mount -t tmpfs -o size=4m none "$1" || exit 90
"$0" serve --lab --free-floor 0 --listen 127.0.0.1:0 --data "$1" && exit 91
rm "$1/filler"
exec "$0" serve --lab --free-floor 0 --listen 127.0.0.1:0 --data "$1"
"#;

struct SmallDisk {
    process: Child,
    stdout: BufReader<ChildStdout>,
    /// The data folder as seen from outside of the namespace.
    data: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    #[expect(
        clippy::disallowed_methods,
        reason = "this test is about the real process on a full disk"
    )]
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT])
            .arg(env!("CARGO_BIN_EXE_sela-exchange"))
            .arg(folder.path())
            .env("SELA_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("unshare of util-linux is installed");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let outside = format!("/proc/{}/root{}", process.id(), folder.path().display());
        Self {
            process,
            stdout,
            data: PathBuf::from(outside),
            _folder: folder,
        }
    }

    fn operator(&mut self) -> Rest {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("reads");
        let address = line
            .strip_prefix("sela-exchange listening on http://")
            .and_then(|rest| rest.split_whitespace().next())
            .unwrap_or_else(|| panic!("it said {line:?}: {}", self.complaint()));
        let address: SocketAddr = address.parse().expect("an address");
        let key = std::fs::read_to_string(self.data.join("operator.key")).expect("a key");
        Rest::new(address, key.trim())
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        let _ = self.process.kill();
        if let Some(mut stderr) = self.process.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    }

    fn fill(&self) {
        let mut filler = std::fs::File::create(self.data.join("filler")).expect("made");
        for chunk in [4096, 1] {
            while filler.write_all(&vec![0; chunk]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_full_disk_loses_no_money_and_keeps_no_half_a_blob() {
    let mut disk = SmallDisk::start();
    let operator = disk.operator();
    let (tenant, created) = operator.new_tenant(10).await;
    let image = tenant.put_blob(b"an image").await;

    // A blob that does not fit is refused and leaves nothing; the exchange goes on.
    let large = vec![7_u8; 8 << 20];
    let path = format!("/v1/blobs/{}", BlobId::of(&large));
    let reply = tenant.send(Method::PUT, &path, large).await;
    reply.refused(507, "disk_full");
    let incoming = disk.data.join("blobs/incoming");
    assert_eq!(std::fs::read_dir(&incoming).expect("reads").count(), 0);
    assert!(tenant.post("/v1/jobs", &job_spec(image)).await.status.is_success());

    // Where not even a record fits, nothing is acknowledged and the exchange ends and says why.
    disk.fill();
    let path = format!("/v1/admin/tenants/{}/deposits", created.tenant);
    let mut booked = 0;
    let refused = loop {
        let deposit = Deposit {
            amount: Micros::from_units(1),
            idempotency_key: format!("deposit {booked}"),
        };
        let Ok(response) = operator.request(Method::POST, &path).json(&deposit).send().await else {
            break deposit;
        };
        if !response.status().is_success() {
            break deposit;
        }
        booked += 1;
        assert!(booked < 10_000, "the disk never fills");
    };

    // Once there is room, what was acknowledged is there, and what was not can be asked again with the same key.
    let operator = disk.operator();
    let check: LedgerCheck = operator.get("/v1/admin/ledger/check").await.json();
    assert_eq!(check.postings_sum, Micros::ZERO);
    assert!(check.unbalanced.is_empty() && check.overdrawn.is_empty(), "{check:?}");
    let account: TenantAccount = operator.post(&path, &refused).await.json();
    assert_eq!(account.available, Micros::from_units(10 + booked + 1));
    let complaint = disk.complaint();
    assert!(
        complaint.contains("disk with the data folder is full: free space there"),
        "{complaint}"
    );
}
