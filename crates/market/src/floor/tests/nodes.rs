//! Who is let in, and what a node says of itself.

use super::*;

#[test]
fn an_invitation_admits_one_node_and_a_known_key_needs_none() {
    let mut world = World::new();
    let invitation = world.invitation();
    let (first, second) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
    for (key, invitation) in [(&first, None), (&first, Some("sela_invite_wrong".to_owned()))] {
        let effects = world.hello(key, invitation, false);
        assert_eq!(refused_code(&effects), Some(RefusalCode::NotInvited));
    }
    let effects = world.hello(&first, Some(invitation.clone()), false);
    let Some(Effect::Admit { connection, node, .. }) =
        effects.iter().find(|effect| matches!(effect, Effect::Admit { .. }))
    else {
        panic!("{effects:?}")
    };
    let (connection, node) = (*connection, *node);
    assert_eq!(
        refused_code(&world.hello(&second, Some(invitation.clone()), false)),
        Some(RefusalCode::NotInvited)
    );
    world.step(Input::NodeDisconnected { connection });
    let effects = world.hello(&first, Some(invitation), false);
    assert!(
        matches!(effects[..], [Effect::Admit { node: same, .. }] if same == node),
        "{effects:?}"
    );
    assert_eq!(world.floor.node_by_key(&PublicKey::of(&first)), Some(node));
    assert_eq!(world.floor.node(node).map(|(_, _, name)| name), Some("gaming-pc"));
    world.hold_invariants();
}

#[test]
fn of_two_with_one_key_the_later_is_refused_unless_the_first_is_dead() {
    let mut world = World::new();
    let mut machine = world.machine(300_000);
    let old = machine.connection;
    world.wait(29);
    let key = machine.key.clone();
    assert_eq!(
        refused_code(&world.hello(&key, None, false)),
        Some(RefusalCode::IdentityInUse)
    );
    world.wait(1);
    let effects = world.reconnect(&mut machine, false);
    assert!(effects.contains(&Effect::Close { connection: old }));
    world.present(&machine, 300_000);
    // What still comes on the dead connection is nobody's.
    let ghost = Machine {
        connection: old,
        ..machine.clone()
    };
    world.offer(&ghost, 0, 1, true);
    world.step(Input::NodeDisconnected { connection: old });
    let tenant = world.tenant(10_000_000);
    let job = world.submit(tenant, spec());
    world.tick();
    let row = world.floor.award_view(world.lease(job).lease).expect("an award").row;
    assert_eq!(row.floor, HourlyPrice(Micros(300_000)));
}

#[test]
fn an_agent_that_goes_on_with_its_session_need_not_wait_until_its_old_connection_is_known_to_be_dead() {
    let mut world = World::new();
    let mut machine = world.machine(300_000);
    let tenant = world.tenant(10_000_000);
    let (_, lease) = world.started(&machine, tenant, spec());
    let old = machine.connection;
    let effects = world.reconnect(&mut machine, true);
    assert!(
        matches!(effects[..], [Effect::Close { connection }, Effect::Admit { .. }] if connection == old),
        "{effects:?}"
    );
    let effects = world.step(Input::NodeDisconnected { connection: old });
    assert_eq!(effects, []);
    world.run(&machine, &lease, 0, 90);
    assert!(
        world.floor.books.open_leases.contains(&lease.lease),
        "it is heard on the new one"
    );
}

#[test]
fn a_node_cannot_fill_the_memory_with_offers_of_cards_that_come_and_go() {
    let mut world = World::new();
    let machine = world.silent_machine();
    for number in 0..200 {
        let uuid = GpuUuid(format!("GPU-{number}"));
        let cards = vec![CardDescription {
            uuid: uuid.clone(),
            ..card(0)
        }];
        let capability = NodeMessage::Capability {
            cards,
            isolation: Isolation::LabCgroupV1,
            architecture: "amd64".into(),
            memory: Bytes::from_gib(16),
            scratch: sela_protocol::node::Scratch::Memory,
            agent_version: "0.1.0".into(),
        };
        world.say(&machine, capability);
        let (floor, available) = (HourlyPrice(Micros(1)), true);
        world.say(
            &machine,
            NodeMessage::Offer(Offer {
                gpu: uuid,
                floor,
                available,
                network: Vec::new(),
            }),
        );
    }
    assert_eq!(world.floor.live.nodes[&machine.node].offers.len(), 1);
}

#[test]
fn a_connection_says_hello_once_and_strangers_are_not_heard() {
    let mut world = World::new();
    let machine = world.machine(300_000);
    let effects = world.step(Input::NodeHello {
        connection: machine.connection,
        key: PublicKey::of(&machine.key),
        invitation: None,
        name: String::new(),
        resumed: false,
    });
    assert_eq!(refused_code(&effects), Some(RefusalCode::ProtocolBroken));
    let stranger = Machine {
        connection: ConnectionId(u64::MAX),
        ..machine
    };
    assert_eq!(
        world.say(
            &stranger,
            NodeMessage::Heartbeat {
                beat: 1,
                leases: vec![]
            }
        ),
        []
    );
    assert_eq!(
        world.step(Input::NodeDisconnected {
            connection: ConnectionId(u64::MAX)
        }),
        []
    );
}

#[test]
fn a_new_session_forgets_what_was_offered_and_a_resumed_one_does_not() {
    for (resumed, says) in [(false, "no card is connected"), (true, "leased")] {
        let mut world = World::new();
        let tenant = world.tenant(10_000_000);
        let mut machine = world.machine(300_000);
        world.disconnect(&machine);
        world.reconnect(&mut machine, resumed);
        let job = world.submit(tenant, spec());
        world.tick();
        let state = format!("{:?}", world.state(job));
        assert!(state.to_lowercase().contains(says), "{state}");
    }
}

#[test]
fn a_silent_node_gets_no_award() {
    let mut world = World::new();
    let tenant = world.tenant(10_000_000);
    let machine = world.machine(300_000);
    world.wait(30);
    let job = world.submit(tenant, spec());
    world.tick();
    assert!(world.why(job).contains("no card is connected"));
    world.beats(&machine, vec![]);
    world.tick();
    assert_eq!(world.lease(job).node, machine.node);
}

#[test]
fn a_new_session_brings_again_what_the_old_one_may_have_lost() {
    let mut world = World::new();
    let tenant = world.tenant(10_000_000);
    let mut machine = world.machine(300_000);
    let (job, lease) = world.started(&machine, tenant, spec());
    world.run(&machine, &lease, 0, 60);
    world.meter(&machine, &lease, 60_000, None);
    world.tick();
    world.cancel(tenant, job).expect("cancels");
    world.restart(5);
    let posted = world.receipts.last().expect("a receipt").clone();
    let effects = world.reconnect(&mut machine, false);
    assert!(effects.contains(&Effect::SendReceipt {
        node: machine.node,
        receipt: posted
    }));
    let sent = world.take_sent(&machine);
    assert!(
        matches!(
            sent[..],
            [ExchangeMessage::Cancel {
                cause: EndCause::TenantCancelled,
                ..
            }]
        ),
        "{sent:?}"
    );
    world.disconnect(&machine);
    let effects = world.reconnect(&mut machine, true);
    assert_eq!(effects.len(), 1, "a resumed session has it all: {effects:?}");
}

#[test]
fn an_exchange_that_is_no_lab_tells_nodes_what_it_does_not_let() {
    let mut world = World::new();
    world.floor.config.lab = false;
    let machine = world.machine(300_000);
    let told = world.refusals(&machine);
    assert!(told.iter().any(|told| told.contains("SIMULATED")), "{told:?}");
    assert!(
        told.iter().any(|told| told.contains("natively on cgroup v2")),
        "{told:?}"
    );
}

#[test]
fn an_offer_must_be_of_a_card_that_the_node_has_and_not_below_zero() {
    let mut world = World::new();
    let machine = world.machine(300_000);
    world.offer(&machine, 7, 300_000, true);
    world.offer(&machine, 0, -1, true);
    let told = world.refusals(&machine);
    assert!(
        told[0].contains("send Capability first") && told[1].contains("below zero"),
        "{told:?}"
    );
    let many = Machine {
        cards: 65,
        ..world.silent_machine()
    };
    world.present(&many, 1);
    assert!(world.refusals(&many)[0].contains("65 cards are more than the 64"));
}
