//! Attacks that are seen from outside only: each is a job of its own, watched, and a control of its own. This is the list that joins
//! their names with what is done; the rest is in `bombs`, `results`, `ending`, `images` and `remains`.

use crate::control::{Plain, soon, with_word};
use crate::ground::{Ground, IDS};
use crate::tally::Tally;
use crate::{bombs, ending, images, proxied, remains, results};
use sela_attacks::arena::GREETING;
use sela_attacks::catalogue::{self, Attack};
use sela_attacks::verdict::{Held, Outcome, Seen};
use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// How it went without walls, and behind them.
pub(crate) struct Pair {
    pub(crate) control: Seen,
    pub(crate) job: Seen,
}

impl Pair {
    pub(crate) fn new(control: Outcome, job: Outcome) -> Self {
        Self {
            control: control.into(),
            job: job.into(),
        }
    }
}

/// These two wait for what others do not do any more, and use nothing meanwhile: they take no turn.
const PATIENT: [&str; 2] = [
    "a job runs on when nobody grants it any more time",
    "a frozen job stays when all that guard it are killed",
];

/// This one measures who gets the processor. While a container is started or taken down the groups of all jobs are lifted for a moment, so
/// nothing else goes on beside it.
const ALONE: [&str; 1] = ["a job takes the processor from a program of the owner's"];

/// How many attacks go on at once: most of the time each waits for walls to be built and taken down.
const AT_ONCE: usize = 3;

pub(crate) async fn attack(ground: &Arc<Ground>, tally: &mut Tally) {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut going_on = Vec::new();
    for probe in catalogue::all() {
        if !matches!(probe.attack, Attack::Outside) || ALONE.contains(&probe.name) {
            continue;
        }
        let (on, turns) = (ground.clone(), turns.clone());
        let carried_out = tokio::spawn(async move {
            let _turn = match PATIENT.contains(&probe.name) {
                true => None,
                false => Some(turns.acquire().await.unwrap()),
            };
            carry_out(&on, probe.name).await
        });
        going_on.push((probe, carried_out));
    }
    for (probe, carried_out) in going_on {
        // One that breaks must not hide the others.
        let pair = carried_out.await.unwrap_or_else(|error| {
            let broke = || Err(Held::nothing(format!("the attack broke: {error}")));
            Pair::new(broke(), broke())
        });
        tally.add(probe, pair.control, pair.job);
    }
    for probe in catalogue::all() {
        if ALONE.contains(&probe.name) {
            let pair = carry_out(ground, probe.name).await;
            tally.add(probe, pair.control, pair.job);
        }
    }
}

async fn carry_out(ground: &Ground, name: &str) -> Pair {
    match name {
        "a job runs under the owner's own user id" => under_the_owners_id(ground).await,
        "a job forks without end" => bombs::forks(ground).await,
        "a job takes memory without end" => bombs::memory(ground).await,
        "a job fills its scratch without end" => bombs::scratch(ground).await,
        "a job makes files without end" => bombs::inodes(ground).await,
        "a job writes to its log without end" => bombs::log(ground).await,
        "a job leaves its memory as a core dump" => bombs::core_dump(ground).await,
        "a job takes the processor from a program of the owner's" => bombs::processor(ground).await,
        "a job leaves a sparse file of a terabyte" => results::sparse(ground).await,
        "a job leaves folders within folders without end" => results::deep(ground).await,
        "a job leaves more bytes than it may" => results::huge(ground).await,
        "a job leaves pipes and sockets that hold whoever opens them" => results::pipes(ground).await,
        "a job leaves a link to a file of the owner's among its results" => results::link(ground).await,
        "a job swaps a file for a link to the owner's while its checkpoint is taken" => results::swap(ground).await,
        "a job's results can be read on the owner's disk" => results::on_disk(ground).await,
        "a job's secrets lie on the owner's disk" => remains::secrets(ground).await,
        "a job ignores that it is told to end" => ending::ignored(ground).await,
        "a job leaves a child in a session of its own behind" => ending::left_behind(ground).await,
        "a job outruns its freeze by a child in a session of its own" => ending::outrun(ground).await,
        "a job closes its standard streams and runs on unseen" => ending::unseen(ground).await,
        "a job runs on when its keeper is killed" => ending::without_keeper(ground).await,
        "a job runs on when nobody grants it any more time" => ending::ungranted_job(ground).await,
        "a frozen job stays when all that guard it are killed" => ending::frozen_alone(ground).await,
        "a job is billed for the time in which it stood still" => ending::billed(ground).await,
        "a job changes what the next job of the same image gets" => images::poisoned(ground).await,
        "an image starts in a folder behind a descriptor of the keeper's" => images::leaked_descriptor(ground).await,
        "an image's links lead the card's files to a folder of the owner's" => images::linked_target(ground).await,
        "an image's variables reach a program outside of the job" => images::hooked(ground).await,
        "a job reaches the owner's own machine through its proxy" => proxied::loopback(ground).await,
        "a job reaches the owner's machine through its proxy by a name that is bound anew" => {
            proxied::rebound(ground).await
        }
        "a job sends what it knows out in names that its proxy is to resolve" => proxied::names(ground).await,
        "a job's scratch can be read on the owner's disk" => remains::scratch(ground).await,
        "a job that asks for an encrypted disk is left without one" => remains::disk(ground).await,
        "a job is reached from the machine's own network" => reached(ground).await,
        "a job leaves a marker anywhere on the machine" => remains::marker(ground).await,
        name => panic!("nobody here knows how to try \"{name}\""),
    }
}

fn uid_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

async fn under_the_owners_id(ground: &Ground) -> Pair {
    let own = rustix::process::geteuid().as_raw();
    let judged = |uid: u32| {
        if uid == own {
            Ok(format!("its id is {uid}, the owner's"))
        } else if IDS.holds(uid) {
            Err(Held::nothing(format!("its id is {uid}, which is nobody's but jobs'")))
        } else {
            Ok(format!("its id is {uid}, which may be somebody's"))
        }
    };
    let plan = ground.script("echo up; sleep 60");
    let mut job = ground.start(&plan);
    let (init, cgroup) = job.until_started().await;
    job.until_says("up").await;
    let mut uids = crate::job::processes_in(&cgroup)
        .into_iter()
        .map(uid_of)
        .collect::<Vec<_>>();
    uids.push(uid_of(init));
    job.end();
    job.finish().await;
    let worst = uids
        .into_iter()
        .map(judged)
        .reduce(|worst, next| if worst.is_ok() { worst } else { next });
    let plain = Plain::shell("sleep 60");
    Pair::new(judged(uid_of(plain.pid())), worst.unwrap())
}

/// A port that nobody listens on; where somebody takes it meanwhile, what is heard is not the greeting.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn greeted(port: u16) -> Outcome {
    let mut heard = String::new();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(2)))?;
    stream.read_to_string(&mut heard)?;
    if heard.contains(GREETING) {
        Ok(format!("it answers on port {port}"))
    } else {
        Err(Held::nothing("somebody else answers"))
    }
}

async fn reached(ground: &Ground) -> Pair {
    let port = free_port();
    let plan = ground.plan(&["/bin/sela-probe", "do", "listen", &port.to_string()]);
    let mut job = ground.start(&plan);
    job.until_says("listening").await;
    let behind = greeted(port);
    job.end();
    job.finish().await;
    let mut without = Err(Held::nothing("no port was free"));
    for _ in 0..5 {
        let port = free_port();
        let mut plain = Plain::probe(&["do", "listen", &port.to_string()]);
        if plain.line().contains("listening") {
            without = greeted(port);
            break;
        }
    }
    Pair::new(without, behind)
}

/// Waits until nobody has a word in their command line.
pub(crate) async fn all_gone(word: &str) -> bool {
    soon(|| with_word(word).is_empty()).await
}
