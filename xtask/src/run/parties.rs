//! Starts the parties of a run: an exchange with its operator, a tenant with funds, an owner with an agent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use sela_protocol::local::{EarningsLine, Page};
use sela_protocol::money::Micros;

use crate::places::{Places, Profile};
use crate::processes::Processes;
use crate::run::cards::Cards;
use crate::run::folders::Folders;
use crate::run::operator::Operator;
use crate::run::page;
use crate::run::stop::Stop;
use crate::run::story::Story;
use crate::run::tenant::Tenant;
use crate::run::typed;

/// What the tenant begins with.
pub(crate) const FUNDS: Micros = Micros(5_000_000);

/// The parties, all of them up.
#[derive(Debug)]
pub(crate) struct Parties {
    pub(crate) operator: Operator,
    pub(crate) tenant: Tenant,
    pub(crate) owner: Owner,
}

/// The owner of this machine.
#[derive(Debug)]
pub(crate) struct Owner {
    /// The program `sela`.
    pub(crate) sela: PathBuf,
    variables: Vec<(&'static str, PathBuf)>,
    /// Where the agent serves the owner's page, if it does.
    pub(crate) listens: Option<String>,
}

impl Parties {
    /// Starts them one after another. `with_page`: the agent also serves the owner's page on loopback.
    ///
    /// # Errors
    /// If one does not come up, with the end of its log.
    pub(crate) fn start(
        places: &Places,
        folders: &Folders,
        processes: &mut Processes,
        story: &Story,
        stop: &Stop,
        with_page: bool,
    ) -> anyhow::Result<Self> {
        let cards = Cards::find(&folders.lab)?;
        let lab = cards.are_simulated() || !cgroups_are_v2();
        for name in cards.names() {
            story.tell(format!("card: {name}"));
        }
        if cards.are_simulated() {
            story.tell("no NVIDIA card is here, so a SIMULATED one takes its place; jobs compute on the processor");
        }
        let program = places.program(Profile::Dev, "sela-exchange");
        let url = start_exchange(&program, lab, folders, processes, stop)?;
        story.tell(format!(
            "exchange: {url}{}",
            if lab { " (LAB: its money has no worth)" } else { "" }
        ));
        let operator = Operator::new(&program, &folders.exchange);
        let created = operator.tenant("the tenant of this run", FUNDS)?;
        story.tell(format!("tenant: {} with {FUNDS}", created.tenant));
        let sela = places.program(Profile::Dev, "sela");
        let tenant = Tenant::new(&sela, &folders.tenant, &url, &created.api_key)?;
        let invited = operator.owner("the owner of this machine")?;
        std::fs::write(folders.settings(), settings(&url, &invited.invitation)).context("cannot write agent.toml")?;
        let variables = folders.variables().map(|(name, path)| (name, path.to_owned())).to_vec();
        let listens = with_page.then(page::free_address).transpose()?;
        let owner = Owner {
            sela,
            variables,
            listens,
        };
        let mut agent = owner.command(&["agent", "run"]);
        cards.show_to(places, &mut agent);
        if lab {
            agent.arg("--lab");
        }
        if let Some(address) = &owner.listens {
            agent.args(["--listen", address]);
        }
        processes.start("agent", &mut agent)?;
        stop.wait("the agent", Duration::from_secs(30), || {
            processes.all_run()?;
            Ok(folders.socket().exists().then_some(()))
        })?;
        story.tell(format!("owner: {}, whose agent runs", invited.owner));
        Ok(Self {
            operator,
            tenant,
            owner,
        })
    }
}

/// Starts the exchange and gives its address as soon as it listens.
fn start_exchange(
    program: &Path,
    lab: bool,
    folders: &Folders,
    processes: &mut Processes,
    stop: &Stop,
) -> anyhow::Result<String> {
    let mut exchange = Command::new(program);
    exchange.arg("serve").arg("--data").arg(&folders.exchange);
    exchange.args(["--listen", "127.0.0.1:0", "--name", "the exchange of this run"]);
    if lab {
        exchange.arg("--lab");
    }
    processes.start("exchange", &mut exchange)?;
    let file = folders.exchange.join("address");
    let address = stop.wait("the exchange", Duration::from_secs(30), || {
        processes.all_run()?;
        Ok(std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')))
    })?;
    Ok(format!("http://{}", address.trim()))
}

impl Owner {
    /// `sela` as the owner types it.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.sela);
        command
            .args(arguments)
            .envs(self.variables.iter().map(|(name, path)| (name, path)));
        command
    }

    /// The desktop app as the owner starts it. The run's folders are its own, so it is no second start of an app that is installed here.
    pub(crate) fn window(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(self.variables.iter().map(|(name, path)| (name, path)));
        command
    }

    /// What each lease earned.
    pub(crate) fn earnings(&self) -> anyhow::Result<Vec<EarningsLine>> {
        let page: Page<EarningsLine> = typed::ask(&mut self.command(&["earnings", "--json"]))?;
        Ok(page.items)
    }
}

/// The owner's settings for a run: a short quiet time, since whoever types `cargo xtask run` has just used the keyboard.
fn settings(url: &str, invitation: &str) -> String {
    format!(
        "# Written by `cargo xtask run`.\n[market]\nurl = \"{url}\"\ninvitation = \"{invitation}\"\nname = \"this machine\"\n\n\
         [price]\nfloor = \"0.100000\"\n\n[electricity]\nper_kwh = \"0.300000\"\n\n[presence]\nidle_after_s = 3\n\n\
         [disk]\nfree_floor = 1073741824\n"
    )
}

/// Whether this machine has the cgroups that people's machines have. Where it has not, jobs run as `lab-cgroup-v1`, which an exchange
/// takes only with `--lab`.
fn cgroups_are_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}
