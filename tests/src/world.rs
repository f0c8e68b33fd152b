//! One world of a test: a lab, an exchange, a tenant with funds and an owner with an agent, in one temporary folder. Everything
//! that it starts ends with it; when the story is told, nothing may be left and all books must agree.

use crate::{
    Display, Exchange, Owner, Settings, Tenant, TestImage, Traces, check_the_books, image_of_the_test_job, wait_for,
};
use anyhow::{Context, ensure};
use sela_nvml_sim::{CardPlan, Lab};
use sela_protocol::id::{JobId, LeaseId, OwnerId};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a world is laid out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the owner wrote into `agent.toml`.
    pub settings: Settings,
    /// Whether there is a display with a mouse.
    pub display: bool,
    /// Whether the agent is started, and its card shared, before the story begins.
    pub agent: bool,
    /// Whether the agent uses this machine's own NVIDIA cards in place of the simulated one.
    pub real_card: bool,
    /// Put the agent's data on a disk of its own, of so many MiB.
    pub small_disk_mib: Option<u32>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            display: false,
            agent: true,
            real_card: false,
            small_disk_mib: None,
        }
    }
}

/// A world.
#[derive(Debug)]
pub struct World {
    /// The owner and the agent.
    pub owner: Owner,
    /// The exchange and its operator.
    pub exchange: Exchange,
    /// The tenant.
    pub tenant: Tenant,
    /// Who is paid.
    pub owner_id: OwnerId,
    /// The invitation that `agent.toml` holds.
    pub invitation: String,
    /// The display, where the plan has one.
    pub display: Option<Display>,
    /// The simulated cards.
    pub lab: Lab,
    settings: Settings,
    image: Option<TestImage>,
    own_mount: Option<PathBuf>,
    folder: tempfile::TempDir,
}

impl World {
    /// Lays it out and starts what the plan says.
    ///
    /// # Errors
    /// Where a part does not come up: with its log.
    pub fn begin(plan: &Plan) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("sela-").tempdir()?;
        let path = folder.path().canonicalize()?;
        Self::lay_out(plan, folder).with_context(|| logs_in(&path))
    }

    fn lay_out(plan: &Plan, folder: tempfile::TempDir) -> anyhow::Result<Self> {
        let path = folder.path().canonicalize()?;
        let logs = path.join("logs");
        for part in ["logs", "config", "data", "runtime", "exchange", "tenant", "tmp"] {
            let part = path.join(part);
            std::fs::create_dir(&part)?;
            std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o700))?;
        }
        let own_mount = plan
            .small_disk_mib
            .map(|mib| mount_small_disk(&path.join("data"), mib))
            .transpose()?;
        let lab = Lab::create(&path.join("lab"), &[CardPlan::rtx_3090()])?;
        let display = plan.display.then(|| Display::start(&logs)).transpose()?;
        let exchange = Exchange::start(&path.join("exchange"), &logs)?;
        let created = exchange.new_tenant()?;
        let invited = exchange.invite()?;
        let display_name = display.as_ref().map(|display| display.name().to_owned());
        let mut world = Self {
            owner: Owner::new(&path, &logs, (!plan.real_card).then_some(&lab), display_name),
            tenant: Tenant {
                tenant: created.tenant,
                rest: crate::Rest::new(&exchange.url(), &created.api_key),
            },
            exchange,
            owner_id: invited.owner,
            invitation: invited.invitation,
            display,
            lab,
            settings: plan.settings.clone(),
            image: None,
            own_mount,
            folder,
        };
        world.write_settings()?;
        if plan.agent {
            world.owner.start_agent()?;
            world.owner.wait_until_shared()?;
        }
        Ok(world)
    }

    /// The folder that everything lies in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The text of `agent.toml` as the plan has it.
    pub fn settings_text(&self) -> String {
        self.settings.text(&self.exchange.url(), &self.invitation)
    }

    /// Writes `agent.toml` as the plan has it.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn write_settings(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(self.owner.settings_file(), self.settings_text())?)
    }

    /// The image of the test program, stored at the exchange.
    ///
    /// # Errors
    /// Where it cannot be made or stored.
    pub fn test_image(&mut self) -> anyhow::Result<TestImage> {
        if let Some(image) = &self.image {
            return Ok(image.clone());
        }
        let image = image_of_the_test_job(&self.folder().join("tenant/test-job"))?;
        self.tenant.store(&image)?;
        self.image = Some(image.clone());
        Ok(image)
    }

    /// Submits a job that runs the test program with these words.
    ///
    /// # Errors
    /// Where the exchange refuses.
    pub fn submit(&mut self, words: &[&str]) -> anyhow::Result<JobId> {
        let image = self.test_image()?;
        self.tenant.submit(&crate::test_job(image.blob, words))
    }

    /// `sela` with these words, as the tenant types it.
    ///
    /// # Errors
    /// Where it cannot be run.
    pub fn as_tenant(&self, words: &[&str]) -> anyhow::Result<crate::Ran> {
        self.owner
            .sela_as_tenant(words, &self.exchange.url(), self.tenant.rest.key())
    }

    /// The newest lease of a job.
    ///
    /// # Errors
    /// Where it has none.
    pub fn lease_of(&self, job: JobId) -> anyhow::Result<LeaseId> {
        let view = self.tenant.view(job)?;
        Ok(view.leases.last().context("the job has no lease")?.lease)
    }

    /// The device node of the card.
    pub fn device_node(&self) -> PathBuf {
        self.lab.device_node(0)
    }

    /// What these leases have left on the machine so far.
    pub fn traces(&self, leases: &[LeaseId]) -> Traces {
        let nodes: Vec<PathBuf> = (0..self.lab.cards().len())
            .map(|minor| self.lab.device_node(minor))
            .collect();
        let folder = self
            .folder
            .path()
            .canonicalize()
            .unwrap_or_else(|_| self.folder.path().to_owned());
        Traces::of(leases, &folder, self.own_mount.as_deref(), &nodes)
    }

    /// Waits until nothing of these leases is left on the machine.
    ///
    /// # Errors
    /// What is still there when patience is over.
    pub fn wait_until_nothing_is_left(&self, leases: &[LeaseId]) -> anyhow::Result<()> {
        let mut last = Traces::default();
        wait_for("nothing of the job to be left", || {
            last = self.traces(leases);
            Ok(last.is_nothing().then_some(()))
        })
        .with_context(|| format!("left: {last}"))
    }

    /// All leases that the tenant's jobs have had.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn leases(&self) -> anyhow::Result<Vec<LeaseId>> {
        let jobs = self.tenant.jobs()?;
        Ok(jobs
            .iter()
            .flat_map(|job| job.leases.iter().map(|lease| lease.lease))
            .collect())
    }

    /// Checks the books, ends the agent, then the exchange, and sees that nothing is left.
    ///
    /// # Errors
    /// What does not add up, does not end well, or is left.
    pub fn close(&mut self) -> anyhow::Result<()> {
        if self.owner.agent.is_up()? {
            check_the_books(&self.exchange, &self.tenant, &self.owner)?;
            let status = self.owner.agent.end()?;
            ensure!(status.success(), "the agent ended with {status}");
        }
        self.wait_until_nothing_is_left(&self.leases()?)?;
        self.exchange.check_ledger()?;
        let status = self.exchange.part.end()?;
        ensure!(status.success(), "the exchange ended with {status}");
        Ok(())
    }

    /// The logs of all parts, for a failure.
    pub fn logs(&self) -> String {
        logs_in(self.folder())
    }
}

fn logs_in(folder: &Path) -> String {
    let logs = std::fs::read_dir(folder.join("logs")).into_iter().flatten().flatten();
    logs.map(|log| {
        let text = std::fs::read(log.path()).unwrap_or_default();
        format!(
            "\n──── {}\n{}",
            log.file_name().display(),
            String::from_utf8_lossy(&text)
        )
    })
    .collect()
}

impl Drop for World {
    fn drop(&mut self) {
        // The parts first: a disk is busy as long as somebody has it open.
        drop(self.owner.agent.kill());
        drop(self.exchange.part.kill());
        if let Some(mount) = &self.own_mount {
            let gone = || rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
            // There is nobody left to tell, and the folder's removal below will say that it is busy.
            let _ = gone();
        }
    }
}

fn mount_small_disk(folder: &Path, mib: u32) -> anyhow::Result<PathBuf> {
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=700"), "tmpfs"])
        .arg(folder);
    crate::run(&mut mount)?.good()?;
    Ok(folder.to_owned())
}

/// Tells a story in a world of its own and closes it. Needs root: without it the test says that it is skipped, and fails where
/// a machine runs it that must not skip anything (`CI=true`).
///
/// # Panics
/// Where the story fails: with the logs of all parts.
pub fn in_a_world(plan: &Plan, story: impl FnOnce(&mut World) -> anyhow::Result<()>) {
    if !rustix::process::geteuid().is_root() {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        eprintln!("skipped: needs root: {name}");
        assert!(
            std::env::var_os("CI").is_none(),
            "{name} was skipped where nothing may be"
        );
        return;
    }
    let mut world = World::begin(plan).unwrap_or_else(|error| panic!("the world does not begin: {error:#}"));
    let told = catch_unwind(AssertUnwindSafe(|| story(&mut world).and_then(|()| world.close())));
    match told {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{error:#}\n{}", world.logs()),
        Err(panic) => {
            eprintln!("{}", world.logs());
            std::panic::resume_unwind(panic);
        }
    }
}
