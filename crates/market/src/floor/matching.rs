//! Which job gets which card: the queue's order, who is eligible, the award, and the sentence that says why a job waits. The
//! auction's arithmetic is in `crate::auction`.
//!
//! Of the filters of market.md §2 these are in: connected and heard of, isolation and SIMULATED by the lab rule, memory of card and
//! machine, hosts of the network, offered, floor ≤ cap, free, one card per node in a round, not the node that just failed to start
//! the job. The image's architecture is not in the spec, so the node finds it out; model, driver, region, reliability and schedule come later.

use super::live::LiveLease;
use super::{Floor, Turn};
use crate::auction::{AwardRow, AwardTable, RULES_VERSION};
use crate::billing::{self, Shortfall};
use crate::books::Job;
use crate::ledger::{Account, Transfer};
use crate::record::{JobEnd, LeaseTerms, Record};
use crate::secret::{SecretHash, SecretKind};
use sela_protocol::id::{GpuUuid, JobId, NodeId, OwnerId};
use sela_protocol::job::Tier;
use sela_protocol::lease::{EndCause, FencingToken};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::network::{HostRule, first_uncovered};
use sela_protocol::node::{Award, ExchangeMessage, Isolation, LEASE_UNKNOWN, Scratch};
use sela_protocol::units::{BootMs, Bytes, Millis};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A job with less than this left of its wall limit has reached it.
const LEAST_RUN: Millis = Millis(1_000);

/// A card of a node that is there, as it is in one round.
struct Candidate {
    node: NodeId,
    owner: OwnerId,
    gpu: GpuUuid,
    name: String,
    vram: Bytes,
    memory: Bytes,
    scratch: Scratch,
    network: Arc<[HostRule]>,
    floor: HourlyPrice,
    admitted: bool,
    offered: bool,
    /// Not let, and its node not taken earlier in the round.
    free: bool,
}

enum Match {
    Award(Box<Plan>),
    Wait(String),
    End(JobEnd),
}

struct Plan {
    table: AwardTable,
    winner: AwardRow,
    card: String,
    price: HourlyPrice,
    run_limit_ms: Millis,
    escrow: Micros,
}

impl Floor {
    /// One round: gold first, then the longest waiting. Every job that gets nothing is told why.
    pub(super) fn match_jobs(&mut self, turn: &mut Turn) {
        if self.books.queue.is_empty() {
            return;
        }
        let order = |id: &JobId| {
            let job = self.books.jobs.get(id)?;
            Some((job.spec.tier != Tier::Gold, job.queued_since, *id))
        };
        let mut queue: Vec<_> = self.books.queue.iter().filter_map(order).collect();
        queue.sort_unstable();
        let mut cards = self.candidates(turn.now.boot_ms);
        for (_, _, id) in queue {
            match self.match_job(turn, id, &cards) {
                None => {}
                Some(Match::Wait(why)) => self.live.jobs.entry(id).or_default().why = why,
                Some(Match::End(end)) => self.end_job(turn, id, end, None),
                Some(Match::Award(plan)) => {
                    let of_node = cards.iter_mut().filter(|card| card.node == plan.winner.node);
                    of_node.for_each(|card| card.free = false);
                    self.award(turn, id, *plan);
                }
            }
        }
    }

    fn match_job(&self, turn: &mut Turn, id: JobId, cards: &[Candidate]) -> Option<Match> {
        let job = self.books.jobs.get(&id)?;
        let run_limit_ms = self.run_left(job);
        if run_limit_ms < LEAST_RUN && !job.leases.is_empty() {
            return Some(Match::End(failed(job, EndCause::WallLimit)));
        }
        let eligible = match self.eligible(turn.now.boot_ms, id, job, cards) {
            Ok(eligible) => eligible,
            Err(why) => return Some(Match::Wait(why)),
        };
        let duration_ms = job.spec.expected_work().min(run_limit_ms).max(Millis(1));
        let row = |card: &&Candidate| AwardRow {
            owner: card.owner,
            node: card.node,
            gpu: card.gpu.clone(),
            floor: card.floor,
            duration_ms,
            other: Micros::ZERO,
        };
        let table = AwardTable {
            rules: RULES_VERSION,
            award: turn.ids.draw(),
            job: id,
            cap: job.spec.cap,
            rows: eligible.iter().map(row).collect(),
        };
        let outcome = table.decide()?;
        let (winner, price) = (outcome.winner.clone(), outcome.price);
        let of_winner = |card: &&&Candidate| card.node == winner.node && card.gpu == winner.gpu;
        let card = eligible.iter().find(of_winner)?.name.clone();
        let available = self.books.available(job.tenant);
        match billing::escrow(price, run_limit_ms, self.books.budget_left(job), available) {
            Ok(escrow) => Some(Match::Award(Box::new(Plan {
                table,
                winner,
                card,
                price,
                run_limit_ms,
                escrow,
            }))),
            Err(Shortfall::Account { needs, available }) => Some(Match::Wait(format!(
                "needs {} for 60 seconds at {} an hour, and the account has {}: deposit, or wait for another job to end",
                short(needs),
                short(price.0),
                short(available)
            ))),
            Err(Shortfall::Budget { .. }) => Some(Match::End(failed(job, EndCause::BudgetUsed))),
        }
    }

    /// Thawed time that the wall limit leaves.
    fn run_left(&self, job: &Job) -> Millis {
        let used: u64 = self
            .books
            .leases_of(job)
            .map(|lease| self.ran(lease).0)
            .fold(0, u64::saturating_add);
        Millis(job.spec.wall_limit_ms.0.saturating_sub(used))
    }

    /// The cards that may win, or why there is none.
    fn eligible<'a>(
        &self,
        now: BootMs,
        id: JobId,
        job: &Job,
        cards: &'a [Candidate],
    ) -> Result<Vec<&'a Candidate>, String> {
        if cards.is_empty() {
            return Err("no card is connected".to_owned());
        }
        let spec = &job.spec;
        let cards = narrow(
            cards,
            |card| card.admitted,
            |cards| {
                let connected = count(cards.len(), "card is");
                format!("{connected} connected, but simulated or weakly isolated, and this exchange is no lab")
            },
        )?;
        let cards = narrow(
            cards,
            |card| card.vram >= spec.vram,
            |cards| {
                let largest = cards.iter().map(|card| card.vram).max().unwrap_or_default();
                format!(
                    "no card has {}: the largest has {}",
                    gigabytes(spec.vram),
                    gigabytes(largest)
                )
            },
        )?;
        let cards = narrow(
            cards,
            |card| card.memory >= spec.memory,
            |cards| {
                let most = cards.iter().map(|card| card.memory).max().unwrap_or_default();
                let asked = gigabytes(spec.memory);
                format!(
                    "no machine with a card that fits has {asked} of main memory for jobs: the most is {}",
                    gigabytes(most)
                )
            },
        )?;
        let hosts = spec.network.as_ref().map_or(&[][..], |network| &network.hosts);
        let cards = narrow(
            cards,
            |card| first_uncovered(&card.network, hosts).is_none(),
            |cards| no_such_hosts(cards, hosts),
        )?;
        let cards = narrow(
            cards,
            |card| spec.scratch.is_none_or(|asked| card.scratch.holds(asked, spec.memory)),
            |_| {
                "no machine with a card that fits has a disk for scratch: ask for no more of it than of memory, in which it then lies"
                    .to_owned()
            },
        )?;
        let cards = narrow(cards, |card| card.offered, let_or_held)?;
        let cards = narrow(
            cards,
            |card| card.floor <= spec.cap,
            |cards| {
                let lowest = cards.iter().map(|card| card.floor).min().unwrap_or_default();
                format!(
                    "{} offered, none at or below your cap {}: the lowest floor is {}",
                    count(cards.len(), "card is"),
                    short(spec.cap.0),
                    short(lowest.0)
                )
            },
        )?;
        let mut cards = narrow(cards, |card| card.free, let_or_held)?;
        let failed = self.failed_nodes(job);
        let waits_alone = self
            .live
            .jobs
            .get(&id)
            .is_some_and(|waiting| now < waiting.alone_not_before);
        if cards.iter().any(|card| !failed.contains(&card.node)) {
            cards.retain(|card| !failed.contains(&card.node));
        } else if waits_alone {
            return Err(
                "the only node that fits could not start it just now: it is tried again in a few seconds".to_owned(),
            );
        }
        Ok(cards)
    }

    fn candidates(&self, now: BootMs) -> Vec<Candidate> {
        let open = self
            .books
            .open_leases
            .iter()
            .filter_map(|lease| self.books.leases.get(lease));
        let let_out: BTreeSet<(NodeId, &GpuUuid)> = open.map(|lease| (lease.terms.node, &lease.terms.gpu)).collect();
        let mut candidates = Vec::new();
        for (node, live) in &self.live.nodes {
            let there = live.connection.is_some() && now.since(live.heard_at) < LEASE_UNKNOWN;
            let known = self.books.nodes.get(node).zip(live.capability.as_ref());
            let Some((entry, capability)) = known.filter(|_| there) else {
                continue;
            };
            for card in &capability.cards {
                let offer = live.offers.get(&card.uuid);
                candidates.push(Candidate {
                    node: *node,
                    owner: entry.owner,
                    gpu: card.uuid.clone(),
                    name: card.name.clone(),
                    vram: card.vram_total,
                    memory: capability.memory,
                    scratch: capability.scratch,
                    network: offer.map(|offer| Arc::clone(&offer.network)).unwrap_or_default(),
                    floor: offer.map(|offer| offer.floor).unwrap_or_default(),
                    admitted: self.config.lab || (!card.simulated && capability.isolation == Isolation::Native),
                    offered: live.not_before <= now
                        && offer.is_some_and(|offer| offer.available && offer.not_before <= now),
                    free: !let_out.contains(&(*node, &card.uuid)),
                });
            }
        }
        candidates
    }

    /// The nodes that could not start the job in a row, up to now.
    fn failed_nodes(&self, job: &Job) -> BTreeSet<NodeId> {
        let newest = job.leases.iter().rev().filter_map(|lease| self.books.leases.get(lease));
        let accepted = newest.filter(|lease| lease.accepted.is_some());
        accepted
            .take(job.node_faults as usize)
            .map(|lease| lease.terms.node)
            .collect()
    }

    fn award(&mut self, turn: &mut Turn, id: JobId, plan: Plan) {
        let Some(job) = self.books.jobs.get(&id) else {
            return;
        };
        let token = turn.secret(SecretKind::LeaseToken);
        let newest = self.books.newest_fencing(job).unwrap_or_default();
        let terms = LeaseTerms {
            lease: turn.ids.draw(),
            award: plan.table.award,
            job: id,
            tenant: job.tenant,
            node: plan.winner.node,
            owner: plan.winner.owner,
            gpu: plan.winner.gpu,
            card: plan.card,
            price: plan.price,
            fencing: FencingToken(newest.0 + 1),
            run_limit_ms: plan.run_limit_ms,
            limit_ms: billing::limit(plan.price, plan.run_limit_ms, plan.escrow),
            token: SecretHash::of(&token),
            fee_basis_points: self.config.fee_basis_points.min(10_000),
            awarded_utc_ms: turn.now.utc_ms,
        };
        let (from, to) = (Account::TenantAvailable(job.tenant), Account::Escrow(terms.lease));
        let award = Award {
            award: terms.award,
            lease: terms.lease,
            fencing: terms.fencing,
            gpu: terms.gpu.clone(),
            job: id,
            spec: job.spec.clone(),
            price: terms.price,
            run_limit_ms: terms.run_limit_ms,
            checkpoint: job.checkpoint,
            token,
            confidential: None,
        };
        let (node, lease) = (terms.node, terms.lease);
        let record = Record::LeaseAwarded {
            terms: Box::new(terms),
            table: plan.table,
            transfer: Transfer::between(turn.ids.draw(), turn.now.utc_ms, from, to, plan.escrow),
        };
        if self.record(turn, record) {
            self.live.leases.insert(lease, LiveLease::reserved(turn.now.boot_ms));
            self.live.jobs.remove(&id);
            turn.send(node, ExchangeMessage::Award(Box::new(award)));
        }
    }
}

/// Those that pass, or why none does, told from those that came so far.
fn narrow<'a>(
    cards: impl IntoIterator<Item = &'a Candidate>,
    passes: impl Fn(&Candidate) -> bool,
    why: impl Fn(&[&Candidate]) -> String,
) -> Result<Vec<&'a Candidate>, String> {
    let (passed, failed): (Vec<_>, Vec<_>) = cards.into_iter().partition(|card| passes(card));
    if passed.is_empty() {
        Err(why(&failed))
    } else {
        Ok(passed)
    }
}

fn failed(job: &Job, cause: EndCause) -> JobEnd {
    JobEnd::Failed {
        message: super::job::advice(job, &cause),
        cause,
    }
}

/// Cards that fit, but whose owners do not let jobs reach all of these hosts.
fn no_such_hosts(cards: &[&Candidate], asked: &[HostRule]) -> String {
    let list: Vec<String> = asked.iter().map(ToString::to_string).collect();
    let list = list.join(", ");
    if cards.iter().all(|card| card.network.is_empty()) {
        return format!("no owner of a card that fits lends any network, and this job asks for {list}");
    }
    format!("no owner of a card that fits lets jobs reach all of {list}")
}

/// Cards that fit, but are let, taken in this round, or not offered.
fn let_or_held(cards: &[&Candidate]) -> String {
    let held = cards.iter().filter(|card| card.free).count();
    let let_out = cards.len() - held;
    match (let_out, held) {
        (0, held) => format!(
            "no card is offered: {} connected, and owners use or hold all of them",
            count(held, "card that fits is")
        ),
        (let_out, 0) => format!(
            "{} let at present: it gets the next that is free",
            count(let_out, "card that fits is")
        ),
        (let_out, held) => format!(
            "{} let at present, and owners use or hold {held} more: it gets the next that is free",
            count(let_out, "card that fits is")
        ),
    }
}

/// "1 card is", "2 cards are"; `one` is the singular and its verb.
fn count(number: usize, one: &str) -> String {
    if number == 1 {
        return format!("1 {one}");
    }
    let many = one.replacen("card", "cards", 1).replace("fits", "fit");
    let many = many
        .strip_suffix(" is")
        .map_or(many.clone(), |start| format!("{start} are"));
    format!("{number} {many}")
}

/// An amount without the zeros at its end, two places at least.
fn short(amount: Micros) -> String {
    let text = amount.to_string();
    let whole = text.find('.').map_or(text.len(), |point| point + 3);
    let end = text.trim_end_matches('0').len().max(whole);
    text.get(..end).unwrap_or(&text).to_owned()
}

fn gigabytes(bytes: Bytes) -> String {
    let tenths = bytes.0.saturating_mul(10) >> 30;
    format!("{}.{} GB", tenths / 10, tenths % 10)
}
