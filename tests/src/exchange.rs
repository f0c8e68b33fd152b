//! The exchange under test and its operator: the real `sela-exchange`, on a port of its own, spoken to by its own command line.

use crate::{Part, Ran, Rest, program, run, wait_for};
use anyhow::Context;
use sela_protocol::id::TenantId;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{LedgerCheck, OwnerInvited, PostingView, TenantAccount, TenantCreated};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What every tenant here begins with.
pub const FUNDS: Micros = Micros(50_000_000);

/// An exchange.
#[derive(Debug)]
pub struct Exchange {
    /// The process.
    pub part: Part,
    data: PathBuf,
    /// Where it listens; the same after every restart.
    address: String,
    fee_basis_points: u32,
}

impl Exchange {
    /// Starts an exchange on `data`.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn start(data: &Path, logs: &Path) -> anyhow::Result<Self> {
        let mut exchange = Self {
            part: Part::new("exchange", logs.join("exchange.log")),
            data: data.to_owned(),
            address: "127.0.0.1:0".to_owned(),
            fee_basis_points: 1_000,
        };
        exchange.start_again()?;
        Ok(exchange)
    }

    /// Starts it again on the same data and address.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        let address_file = self.data.join("address");
        // Left behind by one that was killed: what is read below must be the new one's.
        if address_file.exists() {
            std::fs::remove_file(&address_file)?;
        }
        let mut command = Command::new(program("sela-exchange")?);
        command.args([
            "serve",
            "--lab",
            "--name",
            "the exchange under test",
            "--free-floor",
            "0",
        ]);
        command.arg("--data").arg(&self.data).args(["--listen", &self.address]);
        command.args(["--fee-bp", &self.fee_basis_points.to_string()]);
        self.part.start(&mut command)?;
        self.address = wait_for("the exchange to listen", || {
            self.part.is_up()?;
            let text = std::fs::read_to_string(&address_file).unwrap_or_default();
            Ok(text.ends_with('\n').then(|| text.trim().to_owned()))
        })?;
        let ready = Rest::new(&self.url(), "");
        wait_for("the exchange to be ready", || {
            Ok(ready.ask("/readyz").ok().filter(|reply| reply.status == 200))
        })?;
        Ok(())
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens, without a scheme.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its share, in hundredths of a percent.
    pub const fn fee_basis_points(&self) -> u32 {
        self.fee_basis_points
    }

    /// `sela-exchange admin …`.
    ///
    /// # Errors
    /// Where it cannot be run.
    pub fn admin(&self, arguments: &[&str]) -> anyhow::Result<Ran> {
        let mut command = Command::new(program("sela-exchange")?);
        command
            .args(["admin", "--json", "--data"])
            .arg(&self.data)
            .args(arguments);
        run(&mut command)
    }

    fn admin_json<T: DeserializeOwned>(&self, arguments: &[&str]) -> anyhow::Result<T> {
        self.admin(arguments)?.json()
    }

    /// A new tenant with [`FUNDS`].
    ///
    /// # Errors
    /// Where the exchange refuses.
    pub fn new_tenant(&self) -> anyhow::Result<TenantCreated> {
        let created: TenantCreated = self.admin_json(&["tenant", "create", "a tenant under test"])?;
        self.fund(created.tenant, FUNDS)?;
        Ok(created)
    }

    /// Books money for a tenant.
    ///
    /// # Errors
    /// Where the exchange refuses.
    pub fn fund(&self, tenant: TenantId, amount: Micros) -> anyhow::Result<TenantAccount> {
        self.admin_json(&["tenant", "fund", &tenant.to_string(), &amount.to_string()])
    }

    /// A new owner's invitation.
    ///
    /// # Errors
    /// Where the exchange refuses.
    pub fn invite(&self) -> anyhow::Result<OwnerInvited> {
        self.admin_json(&["owner", "invite", "an owner under test"])
    }

    /// The ledger, summed anew. An exchange whose ledger is wrong ends the command with 1, which is an error here.
    ///
    /// # Errors
    /// Where it is wrong or the exchange does not answer.
    pub fn check_ledger(&self) -> anyhow::Result<LedgerCheck> {
        self.admin_json(&["ledger", "check"])
    }

    /// Every posting, oldest first.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn postings(&self) -> anyhow::Result<Vec<PostingView>> {
        let key = std::fs::read_to_string(self.data.join("operator.key")).context("cannot read the operator's key")?;
        let operator = Rest::new(&self.url(), key.trim());
        let mut postings: Vec<PostingView> = Vec::new();
        loop {
            let after = postings.last().map_or(0, |posting| posting.posting);
            let page: Vec<PostingView> = operator.get(&format!("/v1/admin/ledger?after={after}"))?;
            if page.is_empty() {
                return Ok(postings);
            }
            postings.extend(page);
        }
    }
}
