//! Corner cases of the contract's invariants, each by its number.

use statepages_page::{Boundary, CheckpointId, PageId, Pages, RequestId};
use statepages_store::{
    Admit, AdmitRequest, Append, BackendOrder, Caching, CheckpointInterval, ControlPlaneConfig,
    Filed, KeepPlan, KeepReason, KvEvent, LossReason, Notice, PlanRequest, PolicyReport, Purpose,
    Released, Relocate, Retire, Victim, VictimPolicy, VictimView,
};

use crate::support::{
    BLOCK, RecordsFirst, Rig, at, config, keys, keys_in, prompt, runtime, tokens,
};

#[test]
fn i1_copying_is_found_by_nobody_and_ready_comes_by_the_receipt_alone() {
    let mut rig = Rig::new(20, 3);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 8);
    rig.file(&writer, &text, 8);
    let receipt = rig.begin(&writer, 9);
    assert_eq!(rig.ops.stores.len(), 1);
    assert_eq!(rig.resumable(&text), 0);
    let (reader, report) = rig.admit(&text);
    assert_eq!(report.losses.get(LossReason::Copying), tokens(8));
    rig.done(receipt);
    assert_eq!(rig.resumable(&text), 8);
    rig.release(writer);
    rig.release(reader);
}

#[test]
fn i1_a_failed_store_is_never_visible_and_the_loss_says_so() {
    let mut rig = Rig::new(20, 3);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 8);
    rig.file(&writer, &text, 8);
    let receipt = rig.begin(&writer, 9);
    rig.failed(receipt);
    assert_eq!(rig.resumable(&text), 0);
    assert_eq!(rig.plane.counters().failed, 1);
    assert_eq!(rig.plane.gauges().pages_raw, 0);
    rig.release(writer);
    let (reader, report) = rig.admit(&text);
    assert_eq!(report.losses.get(LossReason::Failed), tokens(8));
    rig.release(reader);
}

#[test]
fn i2_pages_of_a_record_stay_its_own_while_a_reader_restores_into_a_slot_of_its_own() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    rig.publish(&text, 8);
    let (reader, _) = rig.admit(&text);
    let receipt = rig.begin(&reader, 9);
    let units = rig.ops.units(rig.ops.restores[0].units).to_vec();
    assert_eq!(units.len(), 3);
    assert!(units.iter().all(|unit| !reader.pages().contains(unit)), "units are never adopted");
    rig.done(receipt);
    rig.release(reader);
    assert_eq!(rig.resumable(&text), 8);
}

#[test]
fn i3_several_readers_of_one_record_each_hold_it() {
    let mut rig = Rig::new(40, 4);
    let text = keys(&prompt(1, 9));
    rig.publish(&text, 8);
    let (one, _) = rig.admit(&text);
    let first = rig.begin(&one, 9);
    let (two, _) = rig.admit(&text);
    let second = rig.begin(&two, 9);
    let pinned = rig.plane.available();
    rig.done(second);
    assert_eq!(rig.plane.available(), pinned, "the first batch still reads it");
    rig.done(first);
    assert_eq!(rig.plane.available().get(), pinned.get() + 3);
    rig.release(one);
    rig.release(two);
}

#[test]
fn i4_unordered_slot_and_pages_wait_for_their_receipt() {
    let mut rig = Rig::with(ControlPlaneConfig { order: BackendOrder::Unordered, ..config(6, 2) });
    let text = keys(&prompt(1, 9));
    let (residency, _) = rig.admit(&text);
    let receipt = rig.begin(&residency, 9);
    assert_eq!(rig.plane.release(residency), Released::Fenced);
    rig.plane.check();
    let gauges = rig.plane.gauges();
    assert_eq!((gauges.slots_free, gauges.slots_fenced, gauges.pages_live), (1, 1, 3));
    rig.done(receipt);
    let gauges = rig.plane.gauges();
    assert_eq!((gauges.slots_free, gauges.slots_fenced, gauges.pages_live), (2, 0, 0));
}

#[test]
fn i4_unordered_a_parked_slot_whose_restore_flies_waits_too() {
    let mut rig = Rig::with(ControlPlaneConfig { order: BackendOrder::Unordered, ..config(30, 3) });
    let text = keys(&prompt(1, 9));
    rig.publish(&text, 8);
    let (parked, _) = rig.admit(&text);
    let receipt = rig.plane.begin_batch(&mut rig.ops);
    assert_eq!(rig.plane.release(parked), Released::Fenced);
    rig.done(receipt);
    assert_eq!(rig.plane.gauges().slots_free, 3);
}

#[test]
fn i4_ordered_reuse_is_immediate_and_old_receipts_do_not_touch_the_new_tenant() {
    let mut rig = Rig::new(20, 1);
    let text = keys(&prompt(1, 9));
    let (old, _) = rig.admit(&text);
    let receipt = rig.begin(&old, 9);
    assert_eq!(rig.plane.release(old), Released::Free);
    let other = keys(&prompt(2, 9));
    let (mut new, _) = rig.admit(&other);
    rig.failed(receipt);
    rig.run(&mut new, &other, 9);
    rig.release(new);
}

#[test]
fn i4_a_move_into_a_slot_whose_tenant_goes_is_cancelled() {
    let mut rig = Rig::new(20, 4);
    let text = keys(&prompt(1, 5));
    let (mut mover, _) = rig.admit(&text);
    rig.run(&mut mover, &text, 4);
    assert!(matches!(rig.plane.relocate(&mut mover), Relocate::Queued { .. }));
    assert!(matches!(rig.plane.relocate(&mut mover), Relocate::Queued { .. }));
    assert_eq!(rig.plane.gauges().slots_fenced, 2);
    rig.release(mover);
    assert_eq!(rig.plane.gauges().slots_free, 4);
    rig.tick();
    assert!(rig.ops.relocations.is_empty());
}

#[test]
fn i4_a_move_takes_pending_store_and_queued_restore_along() {
    let mut rig = Rig::new(40, 4);
    let (a, b) = (keys(&prompt(1, 9)), keys(&prompt(2, 9)));
    rig.publish(&b, 8);
    let (mut writer, _) = rig.admit(&a);
    rig.run(&mut writer, &a, 8);
    rig.file(&writer, &a, 8);
    let (mut reader, _) = rig.admit(&b);
    let old = (writer.slot(), reader.slot());
    assert!(matches!(rig.plane.relocate(&mut writer), Relocate::Queued { .. }));
    assert!(matches!(rig.plane.relocate(&mut reader), Relocate::Queued { .. }));
    let receipt = rig.plane.begin_batch(&mut rig.ops);
    assert_eq!(rig.ops.relocations.len(), 2);
    assert_eq!(rig.ops.stores[0].slot, writer.slot());
    assert_eq!(rig.ops.restores[0].slot, reader.slot());
    assert_ne!((writer.slot(), reader.slot()), old);
    assert_eq!(rig.plane.gauges().slots_fenced, 2, "what they left waits for the receipt");
    rig.done(receipt);
    assert_eq!(rig.plane.gauges().slots_fenced, 0);
    rig.release(writer);
    rig.release(reader);
}

/// Loses the KV under a COPYING record's key: fills the pool with other requests' blocks.
fn squeeze(rig: &mut Rig, seed: u32) {
    let n = rig.plane.available().get();
    let (big, _) = rig.admit(&keys(&prompt(seed, n * BLOCK)));
    rig.release(big);
}

#[test]
fn i5_an_unindexed_copying_records_key_is_stored_anew_and_the_old_end_touches_nothing() {
    for order in [[0, 1], [1, 0]] {
        let mut rig = Rig::new(20, 3);
        let text = keys(&prompt(1, 9));
        let mut receipts = Vec::new();
        for _ in 0..2 {
            let (mut writer, _) = rig.admit(&text);
            rig.run(&mut writer, &text, 8);
            assert_eq!(rig.file(&writer, &text, 8), Filed::Pending);
            let receipt = rig.plane.begin_batch(&mut rig.ops);
            assert_eq!(rig.ops.stores.len(), 1, "the key may be stored anew");
            receipts.push(Some(receipt));
            rig.release(writer);
            if receipts.len() == 1 {
                squeeze(&mut rig, 2);
                assert_eq!(rig.plane.gauges().evicting, 1);
                assert_eq!(rig.kv(&text), 0);
            }
        }
        for which in order {
            rig.done(receipts[which].take().unwrap());
        }
        assert_eq!(rig.resumable(&text), 8, "settled in the order {order:?}");
        let counters = rig.plane.counters();
        assert_eq!((counters.kept, counters.orphaned_records, counters.orphaned_keys), (2, 1, 1));
    }
}

#[test]
fn i5_a_reset_leaves_queued_and_flying_operations_valid() {
    let mut rig = Rig::new(40, 4);
    let (a, b) = (keys(&prompt(1, 9)), keys(&prompt(2, 9)));
    rig.publish(&a, 8);
    let (flying_reader, _) = rig.admit(&a);
    let (mut writer, _) = rig.admit(&b);
    rig.run(&mut writer, &b, 8);
    let (queued_reader, _) = rig.admit(&a);
    rig.file(&writer, &b, 8);
    let before = rig.plane.counters().fates();
    rig.plane.reset();
    rig.plane.check();
    assert_eq!(rig.plane.gauges().pending, 0);
    let receipt = rig.begin(&queued_reader, 9);
    assert_eq!(rig.ops.restores.len(), 1, "the queued restore still rides");
    rig.done(receipt);
    assert_eq!(rig.plane.counters().fates(), before, "a reset moves none of the four fates");
    assert_eq!(rig.plane.gauges().pages_raw, 0);
    for residency in [flying_reader, writer, queued_reader] {
        rig.release(residency);
    }
    assert_eq!(rig.plane.gauges().pages_vacant, 40);
}

#[test]
fn i5_a_reset_during_a_store_makes_it_invisible_and_counts_it_as_reset() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 8);
    rig.file(&writer, &text, 8);
    let receipt = rig.plane.begin_batch(&mut rig.ops);
    rig.plane.reset();
    rig.plane.check();
    rig.done(receipt);
    assert_eq!(rig.resumable(&text), 0);
    assert_eq!(rig.plane.counters().reset, 1);
    rig.release(writer);
}

/// A reset may follow new weights: what residents of the time before it compute is not kept (J6).
#[test]
fn j6_what_was_resident_at_a_reset_neither_publishes_nor_files() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 4);
    rig.plane.reset();
    rig.run(&mut writer, &text, 8);
    assert_eq!(rig.file(&writer, &text, 8), Filed::Stale);
    assert_eq!(rig.kv(&text), 0);
    rig.release(writer);
    rig.fill(&text);
    assert_eq!(rig.kv(&text), 8);
}

#[test]
fn i6_admission_protects_the_record_it_will_read_and_is_exact() {
    // The pool holds 2 cached blocks, one record of 3 units, and 5 vacant pages.
    for (tail, fits) in [(5 * BLOCK, true), (5 * BLOCK + 1, false)] {
        let mut rig = Rig::new(10, 2);
        let text = keys(&prompt(1, 9));
        let id = rig.publish(&text, 8);
        assert_eq!(rig.plane.gauges().pages_cached, 2);
        let mut longer = keys(&prompt(1, 8));
        longer.extend(&prompt(7, tail));
        let answer = rig.try_admit(&longer);
        assert_eq!(answer.is_ok(), fits);
        let Ok((residency, report)) = answer else {
            assert_eq!(rig.resumable(&text), 8, "nothing was given up");
            continue;
        };
        assert_eq!(report.hit.resumable, at(8));
        assert_eq!(rig.plane.available().get(), 0);
        let receipt = rig.begin(&residency, 9);
        assert_eq!(rig.ops.restores[0].checkpoint, id);
        rig.done(receipt);
        rig.release(residency);
    }
}

#[test]
fn i7_evicting_a_block_orphans_its_record_and_evicting_a_record_leaves_the_block() {
    let mut rig = Rig::new(8, 2);
    let text = keys(&prompt(1, 9));
    rig.publish(&text, 8);
    // 2 cached, 3 raw, 3 vacant: four pages cost the tail block, and with it the record.
    let (taker, _) = rig.admit(&keys(&prompt(2, 4 * BLOCK)));
    assert_eq!((rig.kv(&text), rig.resumable(&text)), (4, 0));
    assert_eq!(rig.plane.counters().fates().orphaned, 1);
    assert_eq!(rig.plane.counters().fates().evicted, 0);
    rig.release(taker);

    let mut rig = Rig::policy(config(8, 2), Box::new(RecordsFirst));
    rig.publish(&text, 8);
    let (taker, _) = rig.admit(&keys(&prompt(2, 4 * BLOCK)));
    assert_eq!((rig.kv(&text), rig.resumable(&text)), (8, 0));
    assert_eq!(rig.plane.counters().fates().evicted, 1);
    assert_eq!(rig.plane.counters().fates().orphaned, 0);
    rig.release(taker);
}

/// Two requests compute the same block; the one the index names frees it; the other's store takes
/// its units from that very page.
#[test]
fn i7_a_store_whose_own_block_goes_for_its_units_is_given_back_and_counted_orphaned() {
    let mut rig = Rig::new(6, 3);
    let text = keys(&prompt(1, 4));
    let (mut one, _) = rig.admit(&text);
    let (mut two, _) = rig.admit(&text);
    rig.run(&mut one, &text, 4);
    rig.run(&mut two, &text, 4);
    rig.release(two);
    let filler = keys(&prompt(5, 3 * BLOCK));
    rig.fill(&filler);
    // 1 live, 1 + 2 cached (the oldest carries the key), 2 vacant.
    let gauges = rig.plane.gauges();
    assert_eq!((gauges.pages_live, gauges.pages_vacant), (1, 1), "{gauges:?}");
    rig.file(&one, &text, 4);
    let receipt = rig.plane.begin_batch(&mut rig.ops);
    rig.plane.check();
    let counters = rig.plane.counters();
    assert!(rig.ops.stores.is_empty());
    assert_eq!((counters.kept, counters.unfiled, counters.orphaned_keys), (0, 1, 1));
    assert_eq!(rig.plane.gauges().pages_raw, 0, "no unit was kept for it");
    rig.done(receipt);
    rig.release(one);
}

#[test]
fn i8_a_boundary_whose_slot_moved_on_is_dropped() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 4);
    rig.run(&mut writer, &text, 8);
    rig.file(&writer, &text, 4);
    rig.tick();
    assert!(rig.ops.stores.is_empty());
    assert_eq!(rig.plane.counters().superseded, 1);
    rig.release(writer);
    let (next, report) = rig.admit(&text);
    assert_eq!(report.losses.get(LossReason::Dropped), tokens(4));
    assert_eq!(report.losses.get(LossReason::NeverStored), tokens(4));
    rig.release(next);
}

#[test]
fn i8_of_two_boundaries_in_one_drain_the_newer_wins_and_refiling_counts_nothing() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 4);
    assert_eq!(rig.file(&writer, &text, 4), Filed::Pending);
    assert_eq!(rig.file(&writer, &text, 4), Filed::Replaced);
    assert_eq!(rig.plane.counters().filed, 1);
    // The state moves on without a batch, so both boundaries meet in one drain.
    rig.plane.accept_load(&mut writer, &text, at(8));
    assert_eq!(rig.file(&writer, &text, 8), Filed::Pending);
    rig.tick();
    let stored: Vec<_> = rig.ops.stores.iter().map(|op| op.boundary).collect();
    assert_eq!(stored, [at(8)]);
    let counters = rig.plane.counters();
    assert_eq!((counters.filed, counters.superseded, counters.kept), (2, 1, 1));
    rig.release(writer);
}

#[test]
fn i8_a_slot_whose_restore_rides_the_same_batch_is_not_stored_from() {
    let mut rig = Rig::new(30, 2);
    let text = keys(&prompt(1, 9));
    rig.publish(&text, 8);
    let (reader, _) = rig.admit(&text);
    // Filed under another key at the same position, so that it is no duplicate.
    let other = keys_in(b"other", &prompt(1, 9));
    rig.file(&reader, &other, 8);
    rig.tick();
    assert!(rig.ops.stores.is_empty(), "the slot does not hold the state yet");
    assert_eq!(rig.ops.restores.len(), 1);
    assert_eq!(rig.plane.counters().superseded, 1);
    rig.release(reader);
}

#[test]
fn i8_boundaries_with_bytes_of_their_own_survive_together() {
    let mut rig = Rig::new(30, 3);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    let scratch = rig.plane.reserve_scratch(&writer, at(4)).unwrap();
    let mut receipt = rig.begin(&writer, 8);
    rig.plane.join_scratch(&mut receipt, &scratch);
    rig.done(receipt);
    rig.plane.advance(&mut writer, &text, tokens(8));
    let slot = scratch.slot();
    rig.plane.file_scratch(scratch, Rig::key(&text, 4), KeepReason::Grid);
    rig.file(&writer, &text, 8);
    let receipt = rig.plane.begin_batch(&mut rig.ops);
    let sources: Vec<_> = rig.ops.stores.iter().map(|op| (op.slot, op.boundary)).collect();
    assert_eq!(sources, [(slot, at(4)), (writer.slot(), at(8))]);
    assert_eq!(rig.plane.gauges().slots_fenced, 1, "the scratch slot waits for its store");
    rig.done(receipt);
    assert_eq!(rig.plane.gauges().slots_fenced, 0);
    assert_eq!(rig.plane.gauges().ready, 2);
    assert_eq!(rig.plane.counters().superseded, 0);
    rig.release(writer);
}

#[test]
fn i8_slot_gone_a_boundary_from_a_slot_that_a_failed_batch_wrote_is_dropped() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    let (writer, _) = rig.admit(&text);
    let receipt = rig.begin(&writer, 8);
    rig.file(&writer, &text, 8);
    rig.failed(receipt);
    rig.tick();
    assert!(rig.ops.stores.is_empty());
    assert_eq!(rig.plane.counters().slot_gone, 1);
    rig.release(writer);
}

/// The batch that failed has only moved the tenant: what it moved to holds unknown bytes all the same.
#[test]
fn i8_slot_gone_a_boundary_from_a_slot_that_a_failed_move_wrote_is_dropped() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 8);
    assert!(matches!(rig.plane.relocate(&mut writer), Relocate::Queued { .. }));
    let receipt = rig.plane.begin_batch(&mut rig.ops);
    assert_eq!(rig.ops.relocations.len(), 1);
    rig.failed(receipt);
    rig.file(&writer, &text, 8);
    rig.tick();
    assert!(rig.ops.stores.is_empty());
    assert_eq!(rig.plane.counters().slot_gone, 1);
    rig.release(writer);
}

#[test]
fn i8_a_store_filed_before_its_forward_is_reported_needs_the_report() {
    for report in [true, false] {
        let mut rig = Rig::new(30, 2);
        let text = keys(&prompt(1, 9));
        // Another request has published the same blocks, so the key alone would be found.
        rig.fill(&text);
        let (mut writer, _) = rig.admit(&text);
        let forward = rig.begin(&writer, 8);
        rig.file(&writer, &text, 8);
        let store = rig.begin(&writer, 9);
        assert_eq!(rig.ops.stores.len(), 1);
        if report {
            rig.done(forward);
            rig.plane.advance(&mut writer, &text, tokens(8));
            rig.done(store);
            assert_eq!(rig.resumable(&text), 8);
        } else {
            rig.done(store);
            rig.failed(forward);
            assert_eq!(rig.resumable(&text), 0);
            assert_eq!(rig.plane.counters().failed, 1);
        }
        rig.release(writer);
    }
}

/// Offers so many pages for an image, the oldest first, and none at all to the living.
#[derive(Debug)]
struct Miser {
    left: u32,
    /// Offers them together.
    in_runs: bool,
}

impl VictimPolicy for Miser {
    fn notice(&mut self, _: &Notice) {}
    fn next_victim(&mut self, view: &VictimView<'_>, purpose: Purpose) -> Option<Victim> {
        if purpose == Purpose::Live || self.left == 0 {
            return None;
        }
        self.left -= 1;
        view.oldest_page().map(Victim::Page)
    }
    fn next_pages(
        &mut self,
        view: &VictimView<'_>,
        purpose: Purpose,
        most: usize,
        pages: &mut Vec<PageId>,
    ) {
        if self.in_runs && purpose != Purpose::Live {
            let before = pages.len();
            pages.extend(view.pages().take(most.min(self.left as usize)));
            self.left -= (pages.len() - before) as u32;
        }
    }
    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        KeepPlan::reference(&request.hit)
    }
    fn report(&self) -> Option<PolicyReport> {
        None
    }
    fn check(&self) {}
}

#[test]
fn i9_a_declining_policy_costs_a_store_nothing_and_a_live_request_nothing_either() {
    let mut rig = Rig::policy(config(12, 2), Box::new(Miser { left: 2, in_runs: false }));
    rig.fill(&keys(&prompt(1, 10 * BLOCK)));
    let text = keys(&prompt(2, 8));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 8);
    rig.file(&writer, &text, 8);
    let before = rig.plane.gauges();
    assert_eq!(before.pages_vacant, 0);
    rig.tick();
    let after = rig.plane.gauges();
    assert_eq!(after.pages_cached, before.pages_cached, "nothing was given up on the way to no");
    assert_eq!((rig.plane.counters().kept, rig.plane.counters().no_room), (0, 1));
    let before = rig.plane.available().get();
    assert!(
        matches!(rig.plane.append_block(&mut writer), Append::Done(_)),
        "the gate had promised"
    );
    assert_eq!(rig.plane.available().get(), before - 1);
    rig.release(writer);
}

/// The policy declines when many pages have been set aside for a large image: they come back in the order
/// that they were in.
#[test]
fn i9_a_declined_plan_leaves_the_order_of_pages_as_it_was() {
    [false, true].into_iter().for_each(declined_plan_leaves_the_order);
}

fn declined_plan_leaves_the_order(in_runs: bool) {
    let blocks = 40;
    let config = ControlPlaneConfig { runtime: runtime(blocks - 4), ..config(blocks + 2, 2) };
    let mut rig = Rig::policy(config, Box::new(Miser { left: blocks - 5, in_runs }));
    let cached: Vec<_> = (0..blocks).map(|seed| keys(&prompt(10 + seed, BLOCK + 1))).collect();
    for text in &cached {
        let (mut one, _) = rig.admit(text);
        rig.run(&mut one, text, BLOCK + 1);
        rig.release(one);
    }
    let text = keys(&prompt(2, 8));
    let (mut writer, _) = rig.admit(&text);
    rig.run(&mut writer, &text, 8);
    rig.file(&writer, &text, 8);
    rig.tick();
    assert_eq!((rig.plane.counters().kept, rig.plane.counters().no_room), (0, 1));
    // Each further page of a live request costs the block that was freed longest ago.
    let mut kept = cached.iter().filter(|text| rig.kv(text) > 0).count();
    assert!(kept as u32 >= blocks - 2);
    while kept > 0 {
        let Append::Done(_) = rig.plane.append_block(&mut writer) else { panic!("pages are left") };
        rig.plane.check();
        let left: Vec<_> = cached.iter().map(|text| rig.kv(text) > 0).collect();
        kept = left.iter().filter(|&&left| left).count();
        assert!(left.is_sorted(), "the oldest go first: {left:?}");
    }
    rig.release(writer);
}

#[test]
fn i11_losses_add_up_and_name_the_deepest_lost_boundary() {
    let mut rig = Rig::policy(config(60, 2), Box::new(RecordsFirst));
    let text = keys(&prompt(1, 22));
    rig.publish(&text, 8);
    let (mut writer, _) = rig.admit(&text);
    rig.tick();
    rig.run(&mut writer, &text, 16);
    rig.file(&writer, &text, 16);
    rig.tick();
    rig.run(&mut writer, &text, 21);
    rig.release(writer);
    // Give up the older of the two records: what is left is the one at 16.
    let vacant = rig.plane.gauges().pages_vacant;
    let (taker, _) = rig.admit(&keys(&prompt(2, (vacant + 1) * BLOCK)));
    rig.release(taker);
    let (reader, report) = rig.admit(&text);
    assert_eq!((report.hit.kv, report.hit.resumable), (at(20), at(16)));
    assert_eq!(report.losses.get(LossReason::NeverStored), tokens(4));
    assert_eq!(report.losses.get(LossReason::Tail), tokens(2));
    assert_eq!(report.losses.total() + report.hit.resumable.tokens(), tokens(22));
    rig.release(reader);
    let vacant = rig.plane.gauges().pages_vacant;
    let (taker, _) = rig.admit(&keys(&prompt(3, (vacant + 1) * BLOCK)));
    rig.release(taker);
    let (reader, report) = rig.admit(&text);
    assert_eq!(report.hit.resumable, at(0));
    assert_eq!(report.losses.get(LossReason::Evicted), tokens(16));
    assert_eq!(report.losses.get(LossReason::NeverStored), tokens(4));
    rig.release(reader);
}

#[test]
fn i11_an_admission_without_room_for_an_image_declines_its_demand_once() {
    let mut rig = Rig::new(9, 2);
    let text = keys(&prompt(1, 8));
    rig.fill(&text);
    let same = keys(&prompt(1, 9));
    let (residency, report) = rig.admit(&same);
    assert_eq!(report.demand, Some(at(8)));
    assert_eq!(rig.plane.counters().demands_recorded, 1);
    rig.release(residency);
    let (blocker, _) = rig.admit(&keys(&prompt(2, 2 * BLOCK)));
    let (residency, report) = rig.admit(&same);
    assert_eq!(report.demand, None);
    assert_eq!(rig.plane.counters().demands_declined, 1);
    rig.release(residency);
    rig.release(blocker);
}

#[test]
fn checkpoints_off_a_stateful_request_hits_nothing_not_the_bare_kv() {
    for config in [
        ControlPlaneConfig { interval: CheckpointInterval::Off, ..config(20, 2) },
        ControlPlaneConfig { caching: Caching::Off, ..config(20, 2) },
    ] {
        let caching = config.caching;
        let mut rig = Rig::with(config);
        let text = keys(&prompt(1, 9));
        rig.fill(&text);
        let (residency, report) = rig.admit(&text);
        assert_eq!((report.hit.resumable, report.hit.wanted), (at(0), at(0)));
        let kv = if caching == Caching::On { at(8) } else { at(0) };
        assert_eq!(report.hit.kv, kv);
        assert_eq!(report.losses.get(LossReason::Off), kv.tokens());
        assert_eq!(rig.file(&residency, &text, 8), Filed::Off);
        assert_eq!(rig.plane.counters().filed, 0);
        rig.release(residency);
    }
}

#[test]
fn two_slots_hold_hundreds_of_checkpoints_each_of_which_resumes() {
    let mut rig = Rig::new(300 * 5 + 8, 2);
    let prompts: Vec<_> = (0..300).map(|seed| keys(&prompt(seed + 1, 9))).collect();
    let ids: Vec<CheckpointId> = prompts.iter().map(|keys| rig.publish(keys, 8)).collect();
    assert_eq!(rig.plane.gauges().ready, 300);
    for (text, &id) in prompts.iter().zip(&ids) {
        let (mut reader, report) = rig.admit(text);
        assert_eq!(report.hit.resumable, at(8));
        let receipt = rig.begin(&reader, 9);
        assert_eq!(rig.ops.restores[0].checkpoint, id);
        rig.done(receipt);
        rig.plane.advance(&mut reader, text, tokens(9));
        rig.release(reader);
    }
    assert_eq!(rig.plane.gauges().ready, 300);
}

#[test]
fn extend_and_retire_never_touch_a_raw_unit_and_report_where_a_page_went() {
    let mut rig = Rig::with(ControlPlaneConfig { pages_max: Pages::new(12), ..config(6, 2) });
    let text = keys(&prompt(1, 9));
    let (mut holder, _) = rig.admit(&text);
    rig.run(&mut holder, &text, 9);
    assert_eq!(rig.plane.extend(Pages::new(3)).get(), 3);
    assert_eq!(rig.plane.extend(Pages::new(30)).get(), 3, "never beyond pages_max");
    let other = keys(&prompt(2, 4));
    // Six vacant pages: the image takes the lowest three, so retiring stops above them.
    let (mut writer, _) = rig.admit(&other);
    rig.run(&mut writer, &other, 4);
    rig.file(&writer, &other, 4);
    rig.tick();
    rig.release(writer);
    let mut residents = [&mut holder];
    let mut retired = 0;
    loop {
        match rig.plane.retire_top(&mut residents) {
            Retire::Retired(_) => retired += 1,
            Retire::Busy(page) => {
                assert_eq!(page.raw(), 6, "the top is a raw unit");
                break;
            }
            other => panic!("{other:?}"),
        }
        rig.plane.check();
    }
    assert_eq!(retired, 5);
    assert_eq!(rig.resumable(&keys(&prompt(2, 5))), 4);
    // Without the record, the pages under it go, and then a live page has to move.
    rig.plane.reset();
    rig.plane.check();
    let (mut high, _) = rig.admit(&keys(&prompt(5, 4 * BLOCK)));
    rig.release(holder);
    let top = *high.pages().last().unwrap();
    assert_eq!(top.raw(), 6);
    let moved = keys(&prompt(5, 4 * BLOCK));
    rig.run(&mut high, &moved, 4 * BLOCK);
    let mut longer = moved.clone();
    longer.extend(&prompt(6, 1));
    assert_eq!(rig.kv(&longer), 4 * BLOCK);
    let mut residents = [&mut high];
    let Retire::Moved { from, to } = rig.plane.retire_top(&mut residents) else {
        panic!("a live page moves");
    };
    assert_eq!((from, *high.pages().last().unwrap()), (top, to));
    rig.plane.check();
    assert_eq!(rig.kv(&longer), 4 * BLOCK, "the page is found where it has moved to");
    rig.release(high);
}

#[test]
fn a_remote_load_moves_position_and_cancels_the_older_restore() {
    let mut rig = Rig::new(30, 2);
    let text = keys(&prompt(1, 17));
    rig.publish(&text, 8);
    let (mut parked, _) = rig.admit(&text);
    rig.plane.accept_load(&mut parked, &text, at(16));
    rig.plane.check();
    assert_eq!(rig.plane.gauges().queued_restores, 0);
    assert_eq!(rig.plane.computed(&parked), tokens(16));
    assert_eq!(rig.kv(&text), 16, "loaded blocks are found");
    rig.run(&mut parked, &text, 17);
    rig.release(parked);
}

#[test]
fn only_accepted_tokens_are_ever_stored() {
    let mut rig = Rig::new(30, 2);
    let text = keys(&prompt(1, 12));
    let (mut residency, _) = rig.admit(&text);
    rig.run(&mut residency, &text, 4);
    // A verification of four drafts reaches past the boundary at 8; one of them is accepted.
    let receipt = rig.begin(&residency, 9);
    rig.file(&residency, &text, 8);
    rig.done(receipt);
    rig.plane.rewind(&residency, tokens(6));
    rig.plane.advance(&mut residency, &text, tokens(6));
    rig.tick();
    assert!(rig.ops.stores.is_empty(), "the slot does not stand at 8");
    assert_eq!(rig.kv(&text), 4);
    rig.release(residency);
}

#[test]
fn events_tell_what_is_found_block_by_block() {
    let mut rig = Rig::new(6, 2);
    let text = keys(&prompt(1, 9));
    rig.fill(&text);
    let mut events = rig.plane.events();
    let mut seen = Vec::new();
    while let Some(event) = events.next_event() {
        let KvEvent::Stored { key, parent, tokens, domain } = event else { panic!("{event:?}") };
        assert_eq!(domain, text.domain());
        seen.push((key, parent, tokens.to_vec()));
    }
    assert_eq!(events.lost(), 0);
    drop(events);
    let (k4, k8) = (Rig::key(&text, 4), Rig::key(&text, 8));
    let all = prompt(1, 9);
    assert_eq!(seen, [(k4, None, all[..4].to_vec()), (k8, Some(k4), all[4..8].to_vec())]);
    rig.fill(&keys(&prompt(2, 5 * BLOCK)));
    rig.plane.reset();
    let mut events = rig.plane.events();
    assert_eq!(events.next_event(), Some(KvEvent::Removed { key: k8 }), "the tail goes first");
    let mut last = None;
    while let Some(event) = events.next_event() {
        last = Some(matches!(event, KvEvent::Cleared));
    }
    assert_eq!(last, Some(true));
}

#[test]
fn a_full_event_log_counts_what_it_loses_and_the_view_can_be_rebuilt() {
    let mut rig = Rig::with(ControlPlaneConfig { events_max: 2, ..config(20, 2) });
    rig.fill(&keys(&prompt(1, 4 * BLOCK)));
    let mut events = rig.plane.events();
    let mut kept = 0;
    while events.next_event().is_some() {
        kept += 1;
    }
    assert_eq!((kept, events.lost()), (2, 2));
    drop(events);
    assert_eq!(rig.plane.indexed().count(), 4);
    assert_eq!(rig.plane.events().lost(), 0);
}

#[test]
fn a_dropped_ticket_panics() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut rig = Rig::new(20, 2);
    let (residency, _) = rig.admit(&keys(&prompt(1, 4)));
    let receipt = rig.begin(&residency, 4);
    assert!(catch_unwind(AssertUnwindSafe(move || drop(receipt))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(move || drop(residency))).is_err());
    let (residency, _) = rig.admit(&keys(&prompt(1, 4)));
    let scratch = rig.plane.reserve_scratch(&residency, Boundary::ZERO);
    assert!(scratch.is_none(), "the first slot is lost with its ticket: capacity, not correctness");
    rig.release(residency);
}

#[test]
fn refusals_of_a_gated_request_name_what_was_promised() {
    let mut rig = Rig::new(20, 2);
    let text = keys(&prompt(1, 9));
    let ask = AdmitRequest { request: RequestId::new(5), keys: &text, gated: Some(at(8)) };
    let lost = rig.plane.try_admit(&ask).unwrap_err();
    assert_eq!(lost.to_string(), "r5: expected a checkpoint at @8, got @0");
    let ask = AdmitRequest { gated: Some(Boundary::ZERO), ..ask };
    let Ok(Admit::Admitted(residency, _)) = rig.plane.try_admit(&ask) else {
        panic!("zero is always there");
    };
    rig.release(residency);
}
