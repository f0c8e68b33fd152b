//! The ground that attacks take place on: a small image, an owner with secrets and services, a house with a network, another tenant,
//! one who was here before, and two simulated cards. All of it lies in one folder that is gone with it.

use crate::backend::{Here, layout};
use crate::control::{self, Plain, private};
use crate::images::make_image;
use crate::job::Job;
use crate::proxied::Served;
use crate::tally::Tally;
use sela_attacks::arena::{ARENA_VARIABLE, Arena, OwnerSockets, Side};
use sela_attacks::catalogue::{self, Attack, Probe};
use sela_attacks::decoys::Ready;
use sela_attacks::runner::PLAIN_USER;
use sela_attacks::verdict::Said;
use sela_nvml_sim::{Allocation, CardPlan, Lab};
use sela_protocol::confidential::{Confidential, SealingKey};
use sela_protocol::id::{GpuUuid, IdSource};
use sela_protocol::units::{Bytes, Millis, UtcMs};
use sela_sandbox::card::{CardAccess, CardWipe, Placed};
use sela_sandbox::ids::{IdRange, ROOTFUL_RANGE};
use sela_sandbox::keeper::wire::{CgroupPlace, Egress, JobPlan, Limits, Program};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const IDS: IdRange = ROOTFUL_RANGE;
/// Memory of the simulated cards, MiB.
const CARD_MIB: u64 = 64;
/// Where a job finds its card.
const CARD_INSIDE: &str = "/dev/sela-sim0";
/// Everything that a job may write.
pub(crate) const WRITABLE: [&str; 4] = ["/tmp", "/out", "/checkpoint", "/dev/shm"];

pub(crate) struct Ground {
    pub(crate) here: Here,
    whole: tempfile::TempDir,
    pub(crate) image: PathBuf,
    /// A word that is nowhere else on this machine.
    pub(crate) word: String,
    pub(crate) secret_file: PathBuf,
    pub(crate) owner_folder: PathBuf,
    owner: Plain,
    pub(crate) owner_port: u16,
    sockets: OwnerSockets,
    house: Plain,
    spare: Plain,
    cards: Lab,
    other: Option<Other>,
}

/// Another tenant, whose job runs all the while.
struct Other {
    job: Job,
    init: u32,
    kept: PathBuf,
}

impl Ground {
    pub(crate) async fn new(here: Here) -> Self {
        let whole = tempfile::Builder::new().prefix("sela-attack-").tempdir().unwrap();
        let word = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let word = format!("sela{}", word.trim().replace('-', ""));
        let at = |name: &str| whole.path().join(name);
        let image = at("image");
        make_image(&image);
        let owner_folder = at("owner");
        let secret_file = owner_folder.join("secret");
        private(&secret_file, &format!("secret of {word}\n"));
        fs::set_permissions(&owner_folder, fs::Permissions::from_mode(0o700)).unwrap();
        let sockets = OwnerSockets {
            agent: owner_folder.join("agent.sock"),
            bus: owner_folder.join("bus"),
            wayland: owner_folder.join("wayland-0"),
            display: format!("/tmp/.X11-unix/X-{word}"),
            abstract_bus: format!("/tmp/dbus-{word}"),
        };
        let mut owner = Plain::start(
            Command::new(crate::job::program("sela-probe"))
                .args(["owner", &word])
                .env("OWNER_SOCKETS", serde_json::to_string(&sockets).unwrap())
                .env("OWNER_TOKEN", format!("secret of {word}")),
        );
        let ready: Ready = serde_json::from_str(&owner.line()).unwrap();
        let mut house = Plain::probe(&["house"]);
        house.line();
        let card = || CardPlan {
            vram_mib: CARD_MIB,
            driver_reserved_mib: 0,
            ..CardPlan::rtx_3090()
        };
        let cards = Lab::create(&at("cards"), &[card(), card()]).unwrap();
        let mut ground = Self {
            here,
            image,
            word,
            secret_file,
            owner_folder,
            owner,
            owner_port: ready.port,
            sockets,
            house,
            spare: Plain::probe(&["spare"]),
            cards,
            other: None,
            whole,
        };
        ground.let_others_in().await;
        ground
    }

    /// A tenant that was here before and left what it could, one that is here, and what both left in the card's memory.
    async fn let_others_in(&mut self) {
        let key = self.left_key().to_string();
        let words = ["/bin/sela-probe", "do", "leave", &self.left_word(), &key];
        let plan = self.plan(&[&words, WRITABLE.as_slice()].concat());
        let outcome = self.start(&plan).finish().await;
        assert!(outcome.out.contains("left"), "{outcome:?}");
        fs::remove_dir_all(&plan.scratch).unwrap();

        let plan = self.script("echo theirs > /tmp/theirs; echo up; sleep 600");
        let mut job = self.start(&plan);
        let (init, _) = job.until_started().await;
        job.until_says("up").await;
        let kept = plan.scratch.join("kept");
        private(&kept, "another tenant's results\n");
        self.other = Some(Other { job, init, kept });
    }

    /// What both left in the card's memory: the owner had the first 16 MiB, the last tenant the first 8 of these.
    fn leave_in_card(&self) {
        for (mib, mark) in [(16, b'O'), (8, b'T')] {
            Allocation::take(&self.card(0), mib).unwrap().fill(mark).unwrap();
        }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.whole.path().join(name)
    }

    /// A fresh folder, for one attack's control.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let folder = self.at(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn card(&self, number: usize) -> PathBuf {
        self.cards.device_node(number)
    }

    pub(crate) fn left_word(&self) -> String {
        format!("left by {}", self.word)
    }

    fn left_key(&self) -> i32 {
        i32::from_str_radix(&self.word[4..11], 16).unwrap()
    }

    pub(crate) fn secret(&self) -> String {
        format!("secret of {}", self.word)
    }

    /// A job that runs a shell script.
    pub(crate) fn script(&self, script: &str) -> JobPlan {
        self.plan(&["/bin/sh", "-c", script])
    }

    pub(crate) fn plan(&self, arguments: &[&str]) -> JobPlan {
        let mut seed = [0; 32];
        File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut seed))
            .unwrap();
        let mut ids = IdSource::new(UtcMs(1_764_547_200_000), seed);
        let (lease, job) = (ids.draw(), ids.draw());
        let scratch = self.at(&format!("{lease}"));
        fs::create_dir(&scratch).unwrap();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o700)).unwrap();
        JobPlan {
            account: self.at(&format!("{lease}.account")),
            lease,
            job,
            layers: vec![self.image.clone()],
            program: Program {
                arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
                environment: vec![("PATH".to_owned(), "/bin".to_owned())],
                folder: PathBuf::from("/"),
                user: 0,
                group: 0,
            },
            ids: IDS,
            cgroups: self.cgroups(),
            limits: Limits {
                memory: Bytes::from_mib(128),
                pids: 64,
                open_files: 1024,
                shm_size: Bytes::from_mib(16),
                log: Bytes::from_mib(1),
                wall_ms: Millis::from_secs(600),
                output: Bytes::from_mib(4),
                disk: None,
            },
            inputs: None,
            resume_from: None,
            checkpoint_every_ms: None,
            card: None,
            scratch,
            egress: Egress::default(),
            engine: None,
        }
    }

    fn cgroups(&self) -> CgroupPlace {
        CgroupPlace {
            layout: layout(),
            root: PathBuf::from("/sys/fs/cgroup"),
            agent: format!("attack-{}", &self.word[..12]),
        }
    }

    pub(crate) fn start(&self, plan: &JobPlan) -> Job {
        self.start_with(plan, &confidential(), None)
    }

    /// The same with secrets, or with the proxy that its plan asks for.
    pub(crate) fn start_with(&self, plan: &JobPlan, confidential: &Confidential, served: Option<Served>) -> Job {
        Job::start(plan, confidential, self.here.images(), served)
    }

    /// All attacks that a job carries out by itself: in one job as its image's root, in one as a plain user.
    pub(crate) async fn attack_from_inside(&self, tally: &mut Tally) {
        let (mut as_root, mut as_user) = (Vec::new(), Vec::new());
        for probe in catalogue::all() {
            match probe.attack {
                Attack::Inside(_) => as_root.push(probe),
                Attack::InsideAsUser(_) => as_user.push(probe),
                Attack::Outside => {}
            }
        }
        let events = DeviceEvents::start();
        for (probes, user) in [(as_root, 0), (as_user, PLAIN_USER)] {
            let names: Vec<&str> = probes.iter().map(|probe| probe.name).collect();
            self.leave_in_card();
            let behind = self.behind_walls(&names, user).await;
            self.leave_in_card();
            let without = control::attacks(&self.arena(Side::Control), &names);
            for probe in probes {
                let of = |side: &[Said]| seen_by(side, &probe);
                tally.add(probe, of(&without), of(&behind));
            }
        }
        drop(events);
        self.forget_control();
    }

    async fn behind_walls(&self, names: &[&str], user: u32) -> Vec<Said> {
        let mut plan = self.plan(&[&["/bin/sela-probe", "inside"], names].concat());
        plan.program.user = user;
        plan.program.group = user;
        let arena = serde_json::to_string(&self.arena(Side::Job)).unwrap();
        plan.program.environment.push((ARENA_VARIABLE.to_owned(), arena));
        plan.card = Some(CardAccess {
            devices: vec![Placed {
                outside: self.card(0),
                inside: PathBuf::from(CARD_INSIDE),
            }],
            wipe: Some(CardWipe {
                card: GpuUuid(self.cards.cards()[0].uuid.clone()),
                library: sela_nvml_sim::find_library().expect("cargo builds the library with this test"),
                lab: Some(self.cards.folder().to_owned()),
            }),
            ..CardAccess::default()
        });
        let outcome = self.start(&plan).finish().await;
        let said = control::said(&outcome.out);
        assert_eq!(said.len(), names.len(), "the job ended early: {outcome:?}");
        said
    }

    fn arena(&self, side: Side) -> Arena {
        let other = self.other.as_ref().unwrap();
        let (left_in, writable) = match side {
            Side::Job => (WRITABLE.map(PathBuf::from).to_vec(), PathBuf::from("/tmp")),
            Side::Control => (vec![self.leave_for_control()], self.fresh("control")),
        };
        Arena {
            side,
            secret: self.secret(),
            secret_file: self.secret_file.clone(),
            owner_folder: self.owner_folder.clone(),
            owner_word: self.word.clone(),
            owner_pid: self.owner.pid(),
            spare_pid: self.spare.pid(),
            first_pid: if side == Side::Job { 1 } else { self.owner.pid() },
            owner_port: self.owner_port,
            owner_sockets: self.sockets.clone(),
            other_job_pid: other.init,
            other_job_file: PathBuf::from("/tmp/theirs"),
            other_scratch_file: other.kept.clone(),
            left_in,
            left_word: self.left_word(),
            left_key: self.left_key(),
            writable,
            machine_nodes: machine_nodes(),
            other_card: self.card(1),
            own_card: if side == Side::Job {
                PathBuf::from(CARD_INSIDE)
            } else {
                self.card(0)
            },
            image: self.image.clone(),
            network: Some(format!("/proc/{}/ns/net", self.house.pid()).into()),
            module: std::env::var_os("SELA_ATTACK_MODULE").map(PathBuf::from),
            swap_device: std::env::var_os("SELA_ATTACK_SWAP").map(PathBuf::from),
            open_files: 1024,
            shm_size: 16 << 20,
        }
    }

    /// What an earlier tenant leaves where nobody takes care: files, used blocks, shared memory.
    fn leave_for_control(&self) -> PathBuf {
        let folder = self.fresh("control-left");
        let key = self.left_key().to_string();
        let words = ["do", "leave", &self.left_word(), &key, folder.to_str().unwrap()];
        Plain::probe(&words).finish();
        fs::write(folder.join("used-block"), "residue of an earlier tenant\n").unwrap();
        // A mount of the owner's, to be found in a table of mounts: its own, so that none is left on the machine.
        folder
    }

    fn forget_control(&self) {
        remove_shared_memory(self.left_key());
    }

    pub(crate) async fn leave(mut self) {
        let other = self.other.take().unwrap();
        other.job.end();
        other.job.finish().await;
        // What keepers left that were killed here is the agent's to remove at its next start.
        sela_sandbox::sweep::sweep(&self.cgroups(), &self.fresh("swept")).unwrap();
    }
}

/// A key that opens what the jobs here leave.
pub(crate) fn confidential() -> Confidential {
    Confidential {
        result_key: key(),
        secrets: BTreeMap::new(),
    }
}

pub(crate) const fn key() -> SealingKey {
    SealingKey::from_bytes([7; 32])
}

fn seen_by(side: &[Said], probe: &Probe) -> sela_attacks::verdict::Seen {
    let said = side.iter().find(|said| said.probe == probe.name);
    said.unwrap_or_else(|| panic!("nothing was said of \"{}\"", probe.name))
        .seen
        .clone()
}

/// Removes what only a control leaves on this machine.
pub(crate) fn remove_shared_memory(key: i32) {
    let listed = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    for line in listed.lines().skip(1) {
        let mut fields = line.split_whitespace();
        let (found, segment) = (fields.next(), fields.next());
        if found == Some(key.to_string().as_str())
            && let Some(segment) = segment.and_then(|segment| segment.parse::<i32>().ok())
        {
            // SAFETY: the call takes numbers; the segment is this test's, by its random key.
            unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

/// Device nodes of this machine that no job gets: all but the harmless ones, and terminals, which a look might disturb.
fn machine_nodes() -> Vec<PathBuf> {
    let harmless = ["null", "zero", "full", "random", "urandom"];
    let entries = fs::read_dir("/dev").unwrap().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().unwrap();
            (kind.is_char_device() || kind.is_block_device())
                && !harmless.contains(&name.as_str())
                && !name.starts_with("tty")
                && !name.starts_with("watchdog")
        })
        .map(|entry| entry.path())
        .collect()
}

/// Has the kernel speak of a device now and then, as it does when one is plugged in, until it is dropped.
struct DeviceEvents(Arc<AtomicBool>);

impl DeviceEvents {
    fn start() -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let told = goes_on.clone();
        std::thread::spawn(move || {
            while told.load(Ordering::Relaxed) {
                drop(fs::write(Path::new("/sys/class/mem/null/uevent"), "change"));
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        });
        Self(goes_on)
    }
}

impl Drop for DeviceEvents {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
