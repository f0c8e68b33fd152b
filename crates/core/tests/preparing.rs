//! What the owner sees of a lease before its job runs: how far its image is, and that the card's memory was wiped.

mod world;

use sela_core::LeaseEvent;
use sela_protocol::local::{CardWiped, ImageTransfer, LeaseState};
use sela_protocol::units::{Bytes, Millis};
use world::World;

fn shown(world: &mut World) -> LeaseState {
    let card = &world.state.snapshot(world.now).cards[0];
    card.lease.clone().expect("a lease")
}

fn so_far(done: u64) -> ImageTransfer {
    ImageTransfer {
        done: Bytes(done),
        total: Some(Bytes(10)),
        layers_done: 1,
        layers: Some(3),
    }
}

#[test]
fn how_far_an_image_is_is_shown_until_everything_is_here() {
    let mut world = World::new();
    let lease = world.award(500_000);
    assert_eq!(shown(&mut world).transfer, None);
    for done in [4, 7] {
        world.event(lease, LeaseEvent::Transfer(so_far(done)));
        assert_eq!(shown(&mut world).transfer, Some(so_far(done)));
    }
    world.event(lease, LeaseEvent::Fetched);
    assert_eq!(shown(&mut world).transfer, None);
    // One that was on its way when the fetch was done.
    world.event(lease, LeaseEvent::Transfer(so_far(9)));
    assert_eq!(shown(&mut world).transfer, None);
}

#[test]
fn that_the_cards_memory_was_wiped_is_shown_while_the_lease_lasts() {
    let mut world = World::new();
    let lease = world.award(500_000);
    world.event(lease, LeaseEvent::Fetched);
    let wiped = CardWiped {
        wiped: Bytes::from_gib(24),
        took_ms: Millis(640),
    };
    world.event(lease, LeaseEvent::CardWiped(wiped));
    assert_eq!(shown(&mut world).wiped, Some(wiped));
    world.event(lease, LeaseEvent::Started);
    assert_eq!(shown(&mut world).wiped, Some(wiped));
}
