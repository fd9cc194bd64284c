//! The two blockers of the review, its hardening, its burst note: each as a named test.

use crate::support::{BLOCK, Rig, at, config, keys, prompt, tokens};
use statepages_page::RequestId;
use statepages_store::{AdmitRequest, Append, BackendOrder, Filed, Outcome, Refusal};

#[test]
fn blocker_1_an_empty_batch_unpins_no_queued_restore() {
    let mut rig = Rig::new(20, 2);
    let old = keys(&prompt(1, 9));
    rig.publish(&old, 8);
    let (parked, report) = rig.admit(&old);
    assert_eq!(report.hit.resumable, at(8));
    // Ticks without a batch: nothing is drained, nothing is settled, and the pages that the
    // restore will read cannot be had by anybody.
    for _ in 0..3 {
        rig.plane.check();
        assert_eq!(rig.plane.gauges().queued_restores, 1);
    }
    let available = rig.plane.available().get();
    assert_eq!(available, 20 - 3 - 3, "three blocks and three pinned units are out of reach");
    let greedy = keys(&prompt(2, available * BLOCK));
    let (greedy_residency, _) = rig.admit(&greedy);
    assert_eq!(rig.plane.gauges().ready, 1, "the pinned record has outlived the pressure");
    // Somebody else's batch carries the restore; its receipt, and nothing else, returns the pin.
    let receipt = rig.begin(&greedy_residency, 1);
    assert_eq!(rig.ops.restores.len(), 1);
    assert_eq!(rig.ops.restores[0].slot, parked.slot());
    assert_eq!(rig.plane.available().get(), 0, "carried, and still pinned");
    rig.done(receipt);
    assert_eq!(rig.plane.available().get(), 3, "settled: the units are eligible again");
    rig.release(parked);
    rig.release(greedy_residency);
}

#[test]
fn blocker_2_release_cancels_the_restore_into_its_slot() {
    let mut rig = Rig::new(20, 1);
    let old = keys(&prompt(1, 9));
    rig.publish(&old, 8);
    let (aborted, _) = rig.admit(&old);
    let slot = aborted.slot();
    rig.release(aborted);
    assert_eq!(rig.plane.gauges().queued_restores, 0);
    assert_eq!(rig.plane.counters().restores_cancelled, 1);
    let fresh = keys(&prompt(2, 5));
    let (next, _) = rig.admit(&fresh);
    assert_eq!(next.slot(), slot, "the slot is recycled");
    let receipt = rig.begin(&next, 5);
    assert!(rig.ops.restores.is_empty(), "no dead request's image is written over it");
    rig.done(receipt);
    rig.release(next);
}

#[test]
fn blocker_2_no_two_restores_aim_at_one_recycled_slot() {
    let mut rig = Rig::new(30, 1);
    let (a, b) = (keys(&prompt(1, 9)), keys(&prompt(2, 9)));
    rig.publish(&a, 8);
    let id_b = rig.publish(&b, 8);
    let (first, _) = rig.admit(&a);
    rig.release(first);
    let (second, _) = rig.admit(&b);
    let receipt = rig.begin(&second, 9);
    assert_eq!(rig.ops.restores.len(), 1);
    assert_eq!(rig.ops.restores[0].checkpoint, id_b);
    rig.done(receipt);
    rig.release(second);
}

#[test]
fn blocker_2_cancelling_the_last_queued_reader_of_an_evicting_record_releases_it() {
    let mut rig = Rig::new(20, 2);
    let old = keys(&prompt(1, 9));
    rig.publish(&old, 8);
    let (one, _) = rig.admit(&old);
    let (two, _) = rig.admit(&old);
    rig.plane.reset();
    rig.plane.check();
    assert_eq!(rig.plane.gauges().evicting, 1);
    rig.release(one);
    assert_eq!(rig.plane.gauges().pages_raw, 3, "the other queued reader holds it");
    rig.release(two);
    assert_eq!(rig.plane.gauges().pages_raw, 0);
    assert_eq!(rig.plane.gauges().pages_vacant, 20);
}

#[test]
fn hardening_a_gated_checkpoint_that_is_gone_fails_that_request_and_gives_everything_back() {
    let mut rig = Rig::new(20, 2);
    let old = keys(&prompt(1, 9));
    rig.publish(&old, 8);
    let gated = rig.plane.probe(&old).resumable;
    // The promise is broken before the admission comes: pressure takes the record.
    let big = keys(&prompt(2, 20 * BLOCK));
    let (pressure, _) = rig.admit(&big);
    rig.release(pressure);
    let before = rig.plane.gauges();
    let request = AdmitRequest { request: RequestId::new(77), keys: &old, gated: Some(gated) };
    let lost = rig.plane.try_admit(&request).unwrap_err();
    assert_eq!((lost.request, lost.gated, lost.resumable), (RequestId::new(77), at(8), at(0)));
    assert_eq!(rig.plane.gauges(), before, "slot, claims and pages are as they were");
    rig.plane.check();
    let (again, report) = rig.admit(&old);
    assert_eq!(report.hit.resumable, at(0), "the process lives, and the request may start over");
    rig.release(again);
}

#[test]
fn a_gated_boundary_is_resumed_exactly_even_where_a_later_one_is_ready_by_now() {
    let mut rig = Rig::new(40, 2);
    let old = keys(&prompt(1, 17));
    rig.publish(&old, 8);
    let gated = rig.plane.probe(&old).resumable;
    rig.publish(&old, 16);
    let request = AdmitRequest { request: RequestId::new(77), keys: &old, gated: Some(gated) };
    let Ok(statepages_store::Admit::Admitted(residency, report)) = rig.plane.try_admit(&request)
    else {
        panic!("admitted");
    };
    assert_eq!(report.hit.resumable, at(8));
    assert_eq!(report.hit.resumable.tokens() + report.losses.total(), report.hit.full);
    rig.release(residency);
}

/// B9: the record is READY and the chain below it is broken, because another request's page carried
/// the key of the first block and was given up.
#[test]
fn a_gated_boundary_behind_a_broken_chain_is_lost_and_a_plain_admission_starts_shorter() {
    let mut rig = Rig::new(12, 3);
    let text = keys(&prompt(1, 9));
    let (mut holder, _) = rig.admit(&text);
    rig.run(&mut holder, &text, 8);
    rig.file(&holder, &text, 8);
    rig.tick();
    let gated = rig.plane.probe(&text).resumable;
    assert_eq!(gated, at(8));
    rig.fill(&keys(&prompt(1, 5)));
    let vacant = rig.plane.gauges().pages_vacant;
    let (taker, _) = rig.admit(&keys(&prompt(2, (vacant + 1) * BLOCK)));
    assert_eq!(rig.plane.gauges().ready, 1, "the record's own key is still found");
    assert_eq!((rig.kv(&text), rig.resumable(&text)), (0, 0));
    let request = AdmitRequest { request: RequestId::new(77), keys: &text, gated: Some(gated) };
    assert_eq!(rig.plane.try_admit(&request).unwrap_err().resumable, at(0));
    rig.release(taker);
    let (again, report) = rig.admit(&text);
    assert_eq!(report.hit.resumable, at(0));
    rig.release(again);
    rig.release(holder);
}

/// 64 requests cross a rung together. Stores take what they need and no more, never so much that a
/// live request could not have its next page before a receipt comes.
#[test]
fn g4_a_burst_of_stores_costs_no_live_request_a_step() {
    for spare in [0, 3, 64, 70, 64 * 3 + 64, 1000] {
        for order in [BackendOrder::Ordered, BackendOrder::Unordered] {
            burst(spare, order);
        }
    }
}

fn burst(spare: u32, order: BackendOrder) {
    let pages = 64 * 2 + spare;
    let mut rig = Rig::with(statepages_store::ControlPlaneConfig {
        order,
        copying_max: None,
        ..config(pages, 64)
    });
    let prompts: Vec<_> = (0..64).map(|seed| keys(&prompt(seed + 1, 8))).collect();
    let mut residents: Vec<_> = prompts.iter().map(|keys| rig.admit(keys).0).collect();
    let mut receipt = rig.plane.begin_batch(&mut rig.ops);
    for residency in &residents {
        rig.plane.join(&mut receipt, residency, tokens(8));
    }
    rig.done(receipt);
    for (residency, keys) in residents.iter_mut().zip(&prompts) {
        rig.plane.advance(residency, keys, tokens(8));
        assert_eq!(rig.file(residency, keys, 8), Filed::Pending);
    }
    // Every request crosses into its third block on this step, in one batch with the stores; the
    // batch after it is built before this one's receipt.
    let could = rig.plane.available().get().min(64);
    let flying = rig.plane.begin_batch(&mut rig.ops);
    rig.plane.check();
    let limit = (pages / 8).max(3);
    assert!(rig.plane.gauges().pages_raw <= limit, "COPYING is bounded by {limit}");
    let got = residents
        .iter_mut()
        .filter_map(|residency| match rig.plane.append_block(residency) {
            Append::Done(_) => Some(()),
            Append::NoRoom => None,
        })
        .count();
    assert_eq!(got as u32, could, "spare {spare}: no request waits for a copy");
    let counters = rig.plane.counters();
    assert_eq!(counters.kept + counters.no_room, 64);
    if spare >= 64 + 3 {
        assert!(counters.kept > 0, "spare {spare}: there was room for some");
    }
    rig.plane.settle(flying, Outcome::Done);
    for residency in residents {
        rig.release(residency);
    }
}

#[test]
fn the_copying_bound_is_an_eighth_of_the_pool_and_never_below_one_image() {
    for (pages, limit) in [(16, 3), (48, 6), (96, 12)] {
        let mut rig = Rig::with(statepages_store::ControlPlaneConfig {
            copying_max: None,
            ..config(pages, 16)
        });
        let prompts: Vec<_> = (0..8).map(|seed| keys(&prompt(seed + 1, 4))).collect();
        let mut residents = Vec::new();
        for keys in &prompts {
            let (mut residency, _) = rig.admit(keys);
            rig.run(&mut residency, keys, 4);
            rig.file(&residency, keys, 4);
            residents.push((residency, keys));
            rig.plane.check();
        }
        let receipt = rig.plane.begin_batch(&mut rig.ops);
        assert!(rig.plane.gauges().pages_raw <= rig.plane.gauges().pages_total);
        let in_writing = u32::try_from(rig.ops.stores.len()).unwrap() * 3;
        assert!(in_writing <= limit, "{pages} pages: {in_writing} units in writing");
        rig.done(receipt);
        for (residency, _) in residents {
            rig.release(residency);
        }
    }
}

#[test]
fn refused_for_want_of_a_slot_or_of_pages_nothing_moves() {
    let mut rig = Rig::new(8, 1);
    let cached = keys(&prompt(1, 9));
    rig.publish(&cached, 8);
    let before = (rig.plane.gauges(), rig.plane.counters());
    let huge = keys(&prompt(2, 9 * BLOCK));
    assert_eq!(rig.try_admit(&huge).unwrap_err(), Refusal::NoRoom);
    assert_eq!((rig.plane.gauges(), rig.plane.counters()), before);
    let (only, _) = rig.admit(&keys(&prompt(3, 1)));
    assert_eq!(rig.try_admit(&cached).unwrap_err(), Refusal::NoSlot);
    rig.release(only);
}
