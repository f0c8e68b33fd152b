//! Whatever comes in whatever order, from honest and other nodes, with restarts of the exchange anywhere: nothing panics, and
//! every rule of the books holds between the inputs.

use super::*;
use proptest::prelude::*;
use sela_protocol::job::Tier;

/// One thing that happens; the numbers choose among what there is.
#[derive(Debug, Clone, Copy)]
enum Event {
    Machine {
        floor: i64,
        cards: u8,
    },
    Deposit {
        tenant: usize,
        micros: i64,
        key: u8,
    },
    Submit {
        tenant: usize,
        cap: i64,
        budget: i64,
        wall: u64,
        gold: bool,
    },
    Cancel {
        job: usize,
    },
    Pass {
        millis: u64,
    },
    Accept {
        lease: usize,
        foreign: bool,
    },
    Reject {
        lease: usize,
    },
    Progress {
        lease: usize,
        phase: u8,
    },
    Beat {
        machine: usize,
        thawed: u64,
        phase: u8,
    },
    Meter {
        lease: usize,
        thawed: u64,
        closing: Option<u8>,
    },
    Result {
        lease: usize,
        cause: u8,
        output: bool,
        stale: bool,
    },
    Reclaim {
        lease: usize,
    },
    Checkpoint {
        lease: usize,
        stored: bool,
    },
    Offer {
        machine: usize,
        floor: i64,
        available: bool,
    },
    Disconnect {
        machine: usize,
    },
    Reconnect {
        machine: usize,
        resumed: bool,
    },
    Restart {
        seconds: u64,
    },
    RunAndEnd {
        lease: usize,
        seconds: u64,
        cause: u8,
    },
}

fn events() -> impl Strategy<Value = Event> {
    let thawed = prop_oneof![0..200_000_u64, Just(0), Just(u64::MAX)];
    let millis = prop_oneof![250..5_000_u64, 5_000..100_000_u64, Just(7 * 24 * 3_600_000)];
    let few = 0..8_usize;
    prop_oneof![
        1 => (0..800_000_i64, 1..3_u8).prop_map(|(floor, cards)| Event::Machine { floor, cards }),
        1 => (few.clone(), -5..200_000_i64, 0..3_u8).prop_map(|(tenant, micros, key)| Event::Deposit { tenant, micros, key }),
        7 => (few.clone(), 1..900_000_i64, 1..60_000_i64, 1_000..300_000_u64, any::<bool>())
            .prop_map(|(tenant, cap, budget, wall, gold)| Event::Submit { tenant, cap, budget, wall, gold }),
        1 => few.clone().prop_map(|job| Event::Cancel { job }),
        6 => millis.prop_map(|millis| Event::Pass { millis }),
        6 => (few.clone(), prop::bool::weighted(0.1)).prop_map(|(lease, foreign)| Event::Accept { lease, foreign }),
        1 => few.clone().prop_map(|lease| Event::Reject { lease }),
        1 => (few.clone(), any::<u8>()).prop_map(|(lease, phase)| Event::Progress { lease, phase }),
        5 => (few.clone(), thawed.clone(), any::<u8>()).prop_map(|(machine, thawed, phase)| Event::Beat { machine, thawed, phase }),
        5 => (few.clone(), thawed, prop::option::of(any::<u8>())).prop_map(|(lease, thawed, closing)| Event::Meter { lease, thawed, closing }),
        3 => (few.clone(), any::<u8>(), any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(lease, cause, output, stale)| Event::Result { lease, cause, output, stale }),
        1 => few.clone().prop_map(|lease| Event::Reclaim { lease }),
        1 => (few.clone(), any::<bool>()).prop_map(|(lease, stored)| Event::Checkpoint { lease, stored }),
        2 => (few.clone(), -1..800_000_i64, any::<bool>()).prop_map(|(machine, floor, available)| Event::Offer { machine, floor, available }),
        1 => few.clone().prop_map(|machine| Event::Disconnect { machine }),
        2 => (few.clone(), any::<bool>()).prop_map(|(machine, resumed)| Event::Reconnect { machine, resumed }),
        1 => (0..200_u64).prop_map(|seconds| Event::Restart { seconds }),
        9 => (few, 0..150_u64, any::<u8>()).prop_map(|(lease, seconds, cause)| Event::RunAndEnd { lease, seconds, cause }),
    ]
}

fn cause(number: u8) -> EndCause {
    let causes = [
        EndCause::Exited { code: 0 },
        EndCause::Exited { code: 1 },
        EndCause::OutOfMemory,
        EndCause::WallLimit,
        EndCause::TenantCancelled,
        EndCause::BudgetUsed,
        EndCause::Displaced,
        EndCause::OwnerInput,
        EndCause::Hot,
        EndCause::CardLost,
        EndCause::Lost,
        EndCause::AgentRestarted,
        EndCause::NodeFault {
            message: "fault".into(),
        },
        EndCause::JobFault {
            message: "fault".into(),
        },
        EndCause::Unknown,
    ];
    causes[usize::from(number) % causes.len()].clone()
}

fn phase(number: u8) -> LeasePhase {
    let phases = [
        LeasePhase::Fetching,
        LeasePhase::Starting,
        LeasePhase::Running,
        LeasePhase::Frozen,
        LeasePhase::Saving,
        LeasePhase::Ending,
        LeasePhase::Uploading,
        LeasePhase::Unknown,
    ];
    phases[usize::from(number) % phases.len()]
}

struct Market {
    world: World,
    /// Whether nodes take what they are awarded and send heartbeats without being told to by an event.
    attentive: bool,
    tenants: Vec<TenantId>,
    machines: Vec<Machine>,
}

impl Market {
    fn new(attentive: bool) -> Self {
        let mut world = World::new();
        world.twice = true;
        let tenants = vec![world.tenant(500_000), world.tenant(20_000), world.tenant(0)];
        let machines = vec![world.machine(300_000), world.machine(100_000)];
        Self {
            world,
            attentive,
            tenants,
            machines,
        }
    }

    /// A lease that goes on, mostly, or any of the newest, and its machine.
    fn lease(&self, number: usize) -> Option<(Machine, LeaseTerms)> {
        let books = &self.world.floor.books;
        let open = books.open_leases.iter().map(|id| books.leases[id].terms.clone());
        let any = self.world.records.iter().rev().filter_map(|record| match record {
            Record::LeaseAwarded { terms, .. } => Some(terms.as_ref().clone()),
            _ => None,
        });
        let awarded: Vec<_> = if number < 6 {
            open.collect()
        } else {
            any.take(8).collect()
        };
        let terms = awarded.get(number % awarded.len().max(1))?.clone();
        let machine = self.machines.iter().find(|machine| machine.node == terms.node)?;
        Some((machine.clone(), terms))
    }

    fn machine(&self, number: usize) -> Machine {
        self.machines[number % self.machines.len()].clone()
    }

    fn tenant(&self, number: usize) -> TenantId {
        self.tenants[number % self.tenants.len()]
    }

    /// Every connected node accepts what waits for it and sends a heartbeat with all that it has.
    fn attend(&mut self) {
        for machine in self.machines.clone() {
            let leases = self
                .world
                .floor
                .books
                .open_leases
                .iter()
                .map(|id| &self.world.floor.books.leases[id]);
            let own: Vec<_> = leases
                .filter(|lease| lease.terms.node == machine.node)
                .map(|lease| (lease.terms.clone(), lease.noted(), lease.accepted.is_some()))
                .collect();
            for (terms, noted, accepted) in own {
                if accepted {
                    self.world.beat(&machine, &terms, LeasePhase::Running, noted.0);
                } else {
                    self.world.accept(&machine, &terms);
                }
            }
            if machine.cards > 0 {
                self.world.beats(&machine, vec![]);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        self.take_in(event);
        if self.attentive {
            self.attend();
        }
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Machine { floor, cards } => {
                let mut machine = self.world.machine(floor);
                machine.cards = cards;
                self.world.present(&machine, floor);
                self.machines.push(machine);
            }
            Event::Deposit { tenant, micros, key } => {
                let tenant = self.tenant(tenant);
                drop(self.world.deposit(tenant, micros, &key.to_string()));
            }
            Event::Submit {
                tenant,
                cap,
                budget,
                wall,
                gold,
            } => {
                let cap = HourlyPrice(Micros(cap));
                let tier = if gold { Tier::Gold } else { Tier::Bronze };
                // At least what `JobSpec::parse` lets through.
                let budget = Micros(budget).max(cap.due(Millis(60_000)));
                let wall_limit_ms = Millis(wall);
                let spec = JobSpec {
                    cap,
                    budget,
                    wall_limit_ms,
                    tier,
                    ..spec()
                };
                let tenant = self.tenant(tenant);
                self.world.submit(tenant, spec);
            }
            Event::Cancel { job } => {
                let jobs: Vec<_> = self
                    .world
                    .floor
                    .books
                    .jobs
                    .iter()
                    .map(|(id, job)| (*id, job.tenant))
                    .collect();
                if let Some((job, tenant)) = jobs.get(job % jobs.len().max(1)) {
                    drop(self.world.cancel(*tenant, *job));
                }
            }
            Event::Pass { millis } => {
                self.world.pass(millis);
                self.world.tick();
            }
            Event::Disconnect { machine } => {
                let machine = self.machine(machine);
                self.world.disconnect(&machine);
            }
            Event::Reconnect { machine, resumed } => {
                let place = machine % self.machines.len();
                let mut machine = self.machines[place].clone();
                let admitted = refused_code(&self.world.reconnect(&mut machine, resumed)).is_none();
                if admitted {
                    self.world.present(&machine, 200_000);
                    self.machines[place] = machine;
                }
            }
            Event::Restart { seconds } => {
                self.world.restart(seconds);
                for place in 0..self.machines.len() {
                    let mut machine = self.machines[place].clone();
                    self.world.reconnect(&mut machine, false);
                    self.world.present(&machine, 200_000);
                    self.machines[place] = machine;
                }
            }
            Event::Beat {
                machine,
                thawed,
                phase: number,
            } => {
                let machine = self.machine(machine);
                let leases = self
                    .world
                    .floor
                    .books
                    .leases
                    .values()
                    .filter(|lease| lease.terms.node == machine.node);
                let beats = leases.map(|lease| LeaseBeat {
                    lease: lease.terms.lease,
                    fencing: lease.terms.fencing,
                    phase: phase(number),
                    thawed_ms: Millis(thawed),
                });
                let beats = beats.collect();
                self.world.beats(&machine, beats);
            }
            Event::Offer {
                machine,
                floor,
                available,
            } => {
                let machine = self.machine(machine);
                self.world.offer(&machine, 0, floor, available);
            }
            Event::Accept { .. }
            | Event::Reject { .. }
            | Event::Progress { .. }
            | Event::Meter { .. }
            | Event::Result { .. }
            | Event::Reclaim { .. }
            | Event::Checkpoint { .. }
            | Event::RunAndEnd { .. } => self.happen_to_lease(event),
        }
    }

    fn happen_to_lease(&mut self, event: Event) {
        let (Event::Accept { lease, .. }
        | Event::Reject { lease }
        | Event::Progress { lease, .. }
        | Event::Meter { lease, .. }
        | Event::Result { lease, .. }
        | Event::Reclaim { lease }
        | Event::Checkpoint { lease, .. }
        | Event::RunAndEnd { lease, .. }) = event
        else {
            return;
        };
        let Some((machine, lease)) = self.lease(lease) else {
            return;
        };
        let (id, fencing) = (lease.lease, lease.fencing);
        let world = &mut self.world;
        match event {
            Event::Accept { foreign: true, .. } => {
                let other = self.machines[0].clone();
                world.accept(&other, &lease);
            }
            Event::Accept { .. } => world.accept(&machine, &lease),
            Event::Reject { .. } => drop(world.say(
                &machine,
                NodeMessage::Reject {
                    lease: id,
                    fencing,
                    message: "no".into(),
                },
            )),
            Event::Progress { phase: number, .. } => {
                world.say(
                    &machine,
                    NodeMessage::Progress {
                        lease: id,
                        fencing,
                        phase: phase(number),
                    },
                );
            }
            Event::Meter { thawed, closing, .. } => world.meter(&machine, &lease, thawed, closing.map(cause)),
            Event::Result {
                cause: number,
                output,
                stale,
                ..
            } => {
                let output = output.then(|| world.keep_blob(id, "output").ok()).flatten();
                let fencing = FencingToken(fencing.0 - u64::from(stale));
                let lease = LeaseTerms { fencing, ..lease };
                world.result(&machine, &lease, cause(number), output);
            }
            Event::Reclaim { .. } => {
                world.say(
                    &machine,
                    NodeMessage::Reclaim {
                        lease: id,
                        fencing,
                        cause: EndCause::OwnerInput,
                    },
                );
            }
            Event::Checkpoint { stored, .. } => {
                let blob = if stored {
                    world.keep_blob(id, "state").ok()
                } else {
                    None
                };
                let blob = blob.unwrap_or(BlobId::of(b"nothing"));
                world.say(
                    &machine,
                    NodeMessage::Checkpoint {
                        lease: id,
                        fencing,
                        blob,
                        thawed_ms: Millis(1),
                    },
                );
            }
            // An honest run from Accept to Result, said twice at its end.
            Event::RunAndEnd {
                seconds, cause: number, ..
            } => {
                world.accept(&machine, &lease);
                for second in (0..seconds).step_by(10) {
                    world.pass(10_000);
                    world.beat(&machine, &lease, LeasePhase::Running, second * 1_000);
                    world.meter(&machine, &lease, second * 1_000, None);
                    world.tick();
                }
                for _ in 0..2 {
                    world.ended(&machine, &lease, seconds * 1_000, cause(number));
                }
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_the_books_are_right(attentive in prop::bool::weighted(0.8), events in prop::collection::vec(events(), 10..100)) {
        let mut market = Market::new(attentive);
        for (place, event) in events.into_iter().enumerate() {
            market.happen(event);
            if place % 4 == 3 {
                market.world.hold_invariants();
            }
        }
        // In the end everything comes to rest: no money stays where nothing happens any more.
        for machine in market.machines.clone() {
            market.world.disconnect(&machine);
        }
        market.world.pass(80_000);
        market.world.tick();
        market.world.pass(7 * 24 * 3_600_000 + 1);
        market.world.tick();
        market.world.hold_invariants();
        for lease in market.world.floor.books.leases.values() {
            prop_assert!(lease.settled, "{:?}", lease);
        }
        for tenant in &market.tenants {
            prop_assert_eq!(market.world.floor.tenant_account(*tenant).expect("an account").escrow, Micros::ZERO);
        }
    }
}
