//! Nodes that say what no agent of ours would: forged, replayed, stale. They are refused in words, and no money moves for them.

use anyhow::{bail, ensure};
use sela_protocol::envelope::Envelope;
use sela_protocol::id::JobId;
use sela_protocol::lease::{EndCause, FencingToken, LeasePhase, Receipt};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::node::{Award, ExchangeMessage, LeaseBeat, NodeMessage, RefusalCode};
use sela_protocol::tenant::JobState;
use sela_protocol::units::Millis;
use sela_tests::{Caller, Node, Plan, World, in_a_world, key_from};

fn without_an_agent() -> Plan {
    Plan {
        agent: false,
        ..Plan::default()
    }
}

#[test]
fn a_hello_that_is_forged_changed_or_replayed_is_refused() {
    in_a_world(&without_an_agent(), |world| {
        let (address, invitation) = (world.exchange.address().to_owned(), world.invitation.clone());
        let (own, other) = (key_from(1), key_from(2));
        let refused = |caller: Caller, text: String, expected: RefusalCode| match caller.say(text, &own)? {
            Ok(_) => bail!("was let in instead of {expected:?}"),
            Err((code, message)) => {
                ensure!(code == expected, "{code:?} instead of {expected:?}: {message}");
                ensure!(!message.is_empty(), "{code:?} without a word");
                Ok(())
            }
        };
        // Signed by another key than it names.
        let caller = Caller::connect(&address)?;
        let hello = caller.hello(&own, Some(&invitation), None);
        let forged = serde_json::to_string(&Envelope::seal(&hello, &other)?)?;
        refused(caller, forged, RefusalCode::BadSignature)?;
        // Signed for another connection.
        let earlier = Caller::connect(&address)?;
        let hello = earlier.hello(&own, Some(&invitation), None);
        let recorded = serde_json::to_string(&Envelope::seal(&hello, &own)?)?;
        drop(earlier);
        refused(Caller::connect(&address)?, recorded, RefusalCode::BadSignature)?;
        // Without an invitation, and with a wrong one.
        for wrong in [None, Some("inv_wrong")] {
            let caller = Caller::connect(&address)?;
            let hello = caller.hello(&own, wrong, None);
            let text = serde_json::to_string(&Envelope::seal(&hello, &own)?)?;
            refused(caller, text, RefusalCode::NotInvited)?;
        }
        // The invitation admits one node: the next key finds it used.
        let _node = Node::join(&address, &own, &invitation)?;
        let caller = Caller::connect(&address)?;
        let hello = caller.hello(&other, Some(&invitation), None);
        let text = serde_json::to_string(&Envelope::seal(&hello, &other)?)?;
        refused(caller, text, RefusalCode::NotInvited)
    });
}

/// A node of its own, with an accepted lease of a job.
fn node_with_a_lease(world: &mut World, seed: u8) -> anyhow::Result<(Node, Award, JobId)> {
    let address = world.exchange.address().to_owned();
    let mut node = Node::join(&address, &key_from(seed), &world.invitation)?;
    let job = world.submit(&["--steps", "1"])?;
    let award = node.offer_and_wait(HourlyPrice(Micros(100_000)))?;
    ensure!(award.job == job, "another job was awarded");
    node.send(NodeMessage::Accept {
        lease: award.lease,
        fencing: award.fencing,
    })?;
    beat(&mut node, &award, 1)?;
    Ok((node, award, job))
}

/// A heartbeat, acknowledged: everything that was sent before has been acted on.
fn beat(node: &mut Node, award: &Award, beat: u64) -> anyhow::Result<()> {
    node.send(NodeMessage::Heartbeat {
        beat,
        leases: vec![LeaseBeat {
            lease: award.lease,
            fencing: award.fencing,
            phase: LeasePhase::Running,
            thawed_ms: Millis(0),
        }],
    })?;
    node.hear("the heartbeat's acknowledgement", |message| match message {
        ExchangeMessage::Renew { beat: acknowledged, .. } => (*acknowledged == beat).then_some(()),
        ExchangeMessage::Award(_)
        | ExchangeMessage::Cancel { .. }
        | ExchangeMessage::Receipt(_)
        | ExchangeMessage::Refused { .. }
        | ExchangeMessage::Time { .. }
        | ExchangeMessage::Unknown => None,
    })
}

fn closing_receipt(node: &mut Node) -> anyhow::Result<Envelope<Receipt>> {
    node.hear("a receipt", |message| match message {
        ExchangeMessage::Receipt(receipt) => Some(receipt.clone()),
        ExchangeMessage::Award(_)
        | ExchangeMessage::Renew { .. }
        | ExchangeMessage::Cancel { .. }
        | ExchangeMessage::Refused { .. }
        | ExchangeMessage::Time { .. }
        | ExchangeMessage::Unknown => None,
    })
}

#[test]
fn meter_notes_that_are_forged_stale_or_repeated_move_no_money() {
    in_a_world(&without_an_agent(), |world| {
        let (mut node, award, job) = node_with_a_lease(world, 3)?;
        // By another key; with another lease's fencing token.
        let forged = node.note(&award, 1_000_000, None, &key_from(9))?;
        node.send(forged)?;
        ensure!(
            node.hear_refusal()?.contains("signature"),
            "a forged note is named as one"
        );
        let stale = Award {
            fencing: FencingToken(award.fencing.0 + 1),
            ..award.clone()
        };
        let stale = node.note(&stale, 1_000_000, None, &node.key())?;
        node.send(stale)?;
        ensure!(node.hear_refusal()?.contains("fencing"), "a stale note is named as one");
        // A good one, then the same frame again as a recording, then the same message in a new frame.
        let good = node.note(&award, 500, None, &node.key())?;
        let recorded = node.send(good.clone())?;
        node.say(recorded)?;
        node.send(good)?;
        // More than has passed since the lease was accepted.
        let closing = node.note(&award, 700, Some(EndCause::OwnerInput), &node.key())?;
        let closing_frame = node.send(closing)?;
        node.send(NodeMessage::Result {
            lease: award.lease,
            fencing: award.fencing,
            cause: EndCause::OwnerInput,
            output: None,
        })?;
        let receipt = closing_receipt(&mut node)?;
        let late = node.note(&award, 900, None, &node.key())?;
        node.send(late)?;
        ensure!(
            node.hear_refusal()?.contains("closed"),
            "a note after the closing one is named as such"
        );
        node.say(closing_frame)?;
        let view = world.tenant.wait(job, "the job to wait again", |view| {
            matches!(view.state, JobState::Queued { .. })
        })?;
        ensure!(
            view.leases[0].billed_ms == Millis(700),
            "billed {}",
            view.leases[0].billed_ms
        );
        ensure!(view.paid == Micros(700), "paid {}", view.paid);
        let receipt: Receipt = receipt.open(&receipt.claimed_signer().expect("signed"))?;
        ensure!(receipt.gross == Micros(700) && receipt.fee == Micros(70), "{receipt:?}");
        let check = world.exchange.check_ledger()?;
        ensure!(check.postings_sum == Micros::ZERO, "{check:?}");
        world
            .tenant
            .rest
            .post_text(&format!("/v1/jobs/{job}/cancel"), "")?
            .good()?;
        Ok(())
    });
}

#[test]
fn a_node_cannot_bill_more_time_than_its_heartbeats_cover() {
    in_a_world(&without_an_agent(), |world| {
        let (mut node, award, job) = node_with_a_lease(world, 4)?;
        let claimed = node.note(&award, 500_000, Some(EndCause::OwnerInput), &node.key())?;
        node.send(claimed)?;
        node.send(NodeMessage::Result {
            lease: award.lease,
            fencing: award.fencing,
            cause: EndCause::OwnerInput,
            output: None,
        })?;
        closing_receipt(&mut node)?;
        let view = world.tenant.wait(job, "the job to wait again", |view| {
            matches!(view.state, JobState::Queued { .. })
        })?;
        // One heartbeat right after the Accept: its TTL of a minute, and the little that lay between.
        let billed = view.leases[0].billed_ms;
        ensure!(billed >= Millis(60_000) && billed < Millis(120_000), "billed {billed}");
        world
            .tenant
            .rest
            .post_text(&format!("/v1/jobs/{job}/cancel"), "")?
            .good()?;
        Ok(())
    });
}

#[test]
fn a_node_opens_blobs_of_its_lease_only_and_only_while_it_lasts() {
    in_a_world(&without_an_agent(), |world| {
        let (mut node, award, job) = node_with_a_lease(world, 5)?;
        let image = world.test_image()?;
        let holder = sela_tests::Rest::new(&world.exchange.url(), &award.token);
        holder.ask(&format!("/v1/blobs/{}", image.blob))?.good()?;
        let foreign = sela_tests::image_of_a_script("true", &world.folder().join("tenant/foreign"))?;
        world.tenant.store(&foreign)?;
        let reply = holder.ask(&format!("/v1/blobs/{}", foreign.blob))?;
        ensure!(
            reply.status == 404,
            "a blob of no concern to the lease: {}",
            reply.status
        );
        holder.ask("/v1/account")?.refused(401, "unknown_key", &["key"])?;
        world
            .tenant
            .rest
            .post_text(&format!("/v1/jobs/{job}/cancel"), "")?
            .good()?;
        node.send(NodeMessage::Result {
            lease: award.lease,
            fencing: award.fencing,
            cause: EndCause::TenantCancelled,
            output: None,
        })?;
        let view = world.tenant.wait_for_end(job)?;
        ensure!(view.paid == Micros::ZERO, "a lease that never ran cost {}", view.paid);
        let reply = holder.ask(&format!("/v1/blobs/{}", image.blob))?;
        ensure!(
            reply.status == 401,
            "the token of a lease that is over opens it: {}",
            reply.status
        );
        Ok(())
    });
}
