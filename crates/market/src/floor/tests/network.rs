//! Jobs that ask for hosts of the network go only where an owner allows all of them.

use super::*;
use sela_protocol::network::{HostRule, JobNetwork};

const START: i64 = 10_000_000;

fn rules(texts: &[&str]) -> Vec<HostRule> {
    texts.iter().map(|text| text.parse().expect(text)).collect()
}

fn asking_for(hosts: &[&str]) -> JobSpec {
    JobSpec {
        network: Some(JobNetwork {
            hosts: rules(hosts),
            down_per_s: None,
            up_per_s: None,
            bytes: None,
        }),
        ..spec()
    }
}

fn lend(world: &mut World, machine: &Machine, floor: i64, hosts: &[&str]) {
    let offer = Offer {
        gpu: card(0).uuid,
        floor: HourlyPrice(Micros(floor)),
        available: true,
        network: rules(hosts),
    };
    world.say(machine, NodeMessage::Offer(offer));
}

#[test]
fn a_job_that_asks_for_hosts_waits_until_an_owner_allows_all_of_them() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let machine = world.machine(300_000);
    let job = world.submit(tenant, asking_for(&["www.example.org", "*.example.net"]));
    world.tick();
    assert_eq!(
        world.why(job),
        "no owner of a card that fits lends any network, and this job asks for www.example.org, *.example.net"
    );
    lend(&mut world, &machine, 300_000, &["*.example.org"]);
    world.tick();
    assert_eq!(
        world.why(job),
        "no owner of a card that fits lets jobs reach all of www.example.org, *.example.net"
    );
    lend(&mut world, &machine, 300_000, &["*.example.org", "*.example.net"]);
    world.tick();
    assert_eq!(world.lease(job).node, machine.node);
    world.hold_invariants();
}

#[test]
fn a_job_without_network_goes_to_any_card_and_one_with_hosts_past_the_cheaper_one() {
    let mut world = World::new();
    let tenant = world.tenant(START);
    let cheap = world.machine(200_000);
    let connected = world.machine(400_000);
    lend(&mut world, &connected, 400_000, &["*"]);
    let asks = world.submit(tenant, asking_for(&["example.org"]));
    let plain = world.submit(tenant, spec());
    world.tick();
    assert_eq!(world.lease(asks).node, connected.node);
    assert_eq!(world.lease(plain).node, cheap.node);
}
