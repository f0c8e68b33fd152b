//! What the exchange's operator does, by the exchange's own command line: takes in a tenant with funds, invites an owner, checks the ledger.

use std::path::{Path, PathBuf};
use std::process::Command;

use sela_protocol::money::Micros;
use sela_protocol::tenant::{LedgerCheck, OwnerInvited, TenantAccount, TenantCreated};
use serde::de::DeserializeOwned;

use crate::run::typed;

/// The operator of the exchange that keeps its things in one folder of this machine.
#[derive(Debug)]
pub(crate) struct Operator {
    program: PathBuf,
    folder: PathBuf,
}

impl Operator {
    pub(crate) fn new(program: &Path, folder: &Path) -> Self {
        Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
        }
    }

    /// A new tenant with `funds` from outside.
    pub(crate) fn tenant(&self, name: &str, funds: Micros) -> anyhow::Result<TenantCreated> {
        let created: TenantCreated = self.ask(&["tenant", "create", name])?;
        let tenant = created.tenant.to_string();
        let _: TenantAccount = self.ask(&["tenant", "fund", &tenant, &funds.to_string()])?;
        Ok(created)
    }

    /// An invitation for one node of a new owner.
    pub(crate) fn owner(&self, name: &str) -> anyhow::Result<OwnerInvited> {
        self.ask(&["owner", "invite", name])
    }

    /// The sum of everything that was ever posted, and what it is made of.
    ///
    /// # Errors
    /// Also if the ledger is not right: then with what the exchange says about it.
    pub(crate) fn check_ledger(&self) -> anyhow::Result<LedgerCheck> {
        self.ask(&["ledger", "check"])
    }

    fn ask<T: DeserializeOwned>(&self, arguments: &[&str]) -> anyhow::Result<T> {
        let mut command = Command::new(&self.program);
        command
            .args(["admin", "--json", "--data"])
            .arg(&self.folder)
            .args(arguments);
        typed::ask(&mut command)
    }
}
