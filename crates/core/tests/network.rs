//! What the owner lends of the network is offered, held to, and what a job uses of it is shown.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks for one kind of effect among all"
)]

mod world;

use sela_core::{Effect, Input, LeaseEvent, Policy};
use sela_protocol::network::{HostRule, JobNetwork, NetworkShare, NetworkUse};
use sela_protocol::node::NodeMessage;
use sela_protocol::units::Bytes;
use world::World;

fn rules(texts: &[&str]) -> Vec<HostRule> {
    texts.iter().map(|text| text.parse().expect(text)).collect()
}

fn lend(world: &mut World, hosts: &[&str]) {
    world.input(Input::Policy(Policy {
        job_memory: Bytes::from_gib(8),
        network: NetworkShare {
            hosts: rules(hosts),
            ..NetworkShare::default()
        },
        ..Policy::default()
    }));
}

fn award_of(world: &mut World, hosts: &[&str]) -> Vec<String> {
    world.drain();
    let mut spec = world::spec();
    spec.network = Some(JobNetwork {
        hosts: rules(hosts),
        down_per_s: None,
        up_per_s: None,
        bytes: None,
    });
    world.award_of(500_000, spec);
    world.drain()
}

#[test]
fn a_job_whose_hosts_the_owner_does_not_allow_is_refused_in_words() {
    let mut world = World::new();
    assert_eq!(
        award_of(&mut world, &["example.org"]),
        ["say reject: the job asks for example.org; this machine's owner lends no network"]
    );
    lend(&mut world, &["*.example.org"]);
    assert_eq!(
        award_of(&mut world, &["www.example.org", "example.net:8443"]),
        ["say reject: the job asks for example.net:8443, which this machine's owner does not allow"]
    );
    assert!(award_of(&mut world, &["www.example.org"]).contains(&"say accept".to_owned()));
}

#[test]
fn what_is_lent_of_the_network_is_offered_anew_when_the_owner_changes_it() {
    let mut world = World::new();
    world.effects.clear();
    lend(&mut world, &["*.example.org"]);
    let offered = world.effects.iter().find_map(|effect| match effect {
        Effect::Send(NodeMessage::Offer(offer)) => Some(offer.network.clone()),
        _ => None,
    });
    assert_eq!(offered, Some(rules(&["*.example.org"])));
}

#[test]
fn the_owner_sees_what_a_job_uses_of_the_network() {
    let mut world = World::new();
    let lease = world.running();
    let shown = |world: &mut World| {
        world.state.snapshot(world.now).cards[0]
            .lease
            .clone()
            .expect("a lease")
            .network
    };
    assert_eq!(shown(&mut world), None, "a job without network");
    let used = NetworkUse {
        hosts: vec!["example.org".into()],
        down: Bytes(10),
        up: Bytes(1),
        refused: 1,
        last_refusal: Some("10.0.0.1:443 is not on the list".into()),
    };
    world.event(lease, LeaseEvent::Network(used.clone()));
    assert_eq!(shown(&mut world), Some(used));
}
