//! Faults that others had, by their ids; those that other files name are not repeated here.

use statepages_page::{Boundary, Pages};
use statepages_store::{Admit, AdmitRequest, KvEvent, LossReason, PromptKeys};

use crate::support::{RecordsFirst, Rig, at, config, keys, keys_in, prompt, tokens};

/// The live state at a later position is never committed under a planned key, whichever way the two
/// differ.
#[test]
fn a4_a_state_is_committed_under_its_own_position_only() {
    for (stands, filed) in [(8, 4), (4, 8), (9, 8), (7, 8)] {
        let mut rig = Rig::new(40, 2);
        let keys = keys(&prompt(1, 13));
        let (mut residency, _) = rig.admit(&keys);
        rig.run(&mut residency, &keys, stands);
        rig.file(&residency, &keys, filed);
        rig.tick();
        let counters = rig.plane.counters();
        assert_eq!((counters.kept, counters.superseded), (0, 1), "{stands} filed as {filed}");
        rig.release(residency);
        assert_eq!(rig.resumable(&keys), 0);
    }
}

/// A key names all tokens before its boundary, however they arrived.
#[test]
fn a6_keys_come_from_the_tokens_whatever_the_chunks() {
    let all = prompt(2, 23);
    let whole = keys(&all);
    for cut in 0..23 {
        let mut parts = keys(&all[..cut]);
        parts.extend(&all[cut..]);
        for boundary in (0..=24).step_by(4) {
            assert_eq!(parts.key_at(at(boundary)), whole.key_at(at(boundary)));
        }
        let shorter = keys(&all[..cut]);
        assert_eq!(shorter.key_at(Boundary::from_raw(cut as u32 / 4 * 4 + 4)), None);
    }
}

/// KV without a state is worth nothing to a stateful request.
#[test]
fn b1_b2_a_kv_hit_without_a_state_resumes_nothing() {
    let mut rig = Rig::new(40, 2);
    let keys = keys(&prompt(3, 17));
    rig.fill(&keys);
    assert_eq!((rig.kv(&keys), rig.resumable(&keys)), (16, 0));
    let (residency, report) = rig.admit(&keys);
    assert_eq!(rig.plane.scheduled(&residency), tokens(0));
    assert_eq!(report.losses.get(LossReason::NeverStored), tokens(16));
    rig.release(residency);
}

/// State gone while its KV stays: the next shorter joint boundary, neither nothing nor a crash.
#[test]
fn b9_a_lost_state_falls_back_to_the_next_shorter_boundary() {
    let mut rig = Rig::policy(config(20, 3), Box::new(RecordsFirst));
    let long = keys(&prompt(4, 13));
    rig.publish(&long, 4);
    rig.publish(&long, 12);
    // A shorter prompt reads the shorter one, so the longer one is used longest ago.
    let short = keys(&prompt(4, 5));
    let (mut reader, _) = rig.admit(&short);
    rig.run(&mut reader, &short, 5);
    rig.release(reader);
    assert_eq!(rig.resumable(&long), 12);
    // Pages for one more than are vacant: the record used longest ago goes, its block stays.
    let vacant = rig.plane.gauges().pages_vacant;
    let filler = keys(&prompt(5, (vacant + 1) * 4));
    let (residency, _) = rig.admit(&filler);
    assert_eq!((rig.kv(&long), rig.resumable(&long)), (12, 4));
    rig.release(residency);
}

/// KV gone while its state is READY: the state goes with it, and what is left resumes.
#[test]
fn b9_a_lost_block_takes_its_state_and_leaves_the_shorter_one() {
    let mut rig = Rig::new(20, 3);
    let long = keys(&prompt(6, 13));
    rig.publish(&long, 4);
    rig.publish(&long, 12);
    // Cached blocks go first, the tail of a chain before its head.
    let vacant = rig.plane.gauges().pages_vacant;
    let filler = keys(&prompt(7, (vacant + 1) * 4));
    let (residency, _) = rig.admit(&filler);
    assert_eq!((rig.kv(&long), rig.resumable(&long)), (8, 4));
    assert_eq!(rig.plane.counters().fates().orphaned, 1);
    rig.release(residency);
}

/// Operations name slots and units by value: what becomes of the request later changes none.
#[test]
fn c7_d4_an_operation_keeps_its_ids_when_its_request_moves_on() {
    let mut rig = Rig::new(40, 3);
    let keys = keys(&prompt(8, 13));
    let (mut residency, _) = rig.admit(&keys);
    rig.run(&mut residency, &keys, 12);
    rig.file(&residency, &keys, 12);
    let receipt = rig.begin(&residency, 13);
    let (store, units) = (rig.ops.stores[0], rig.ops.units(rig.ops.stores[0].units).to_vec());
    let slot = residency.slot();
    rig.release(residency);
    let other = keys_in(b"other", &prompt(9, 9));
    let (other, _) = rig.admit(&other);
    assert_eq!((store.slot, rig.ops.units(store.units)), (slot, &*units));
    assert!(other.pages().iter().all(|page| !units.contains(page)));
    rig.done(receipt);
    rig.release(other);
    assert_eq!(rig.resumable(&keys), 12);
}

/// An admission that evicts never takes the chain it is going to read.
#[test]
fn d10_eviction_for_an_admission_spares_its_own_chain() {
    let mut rig = Rig::new(16, 2);
    let long = keys(&prompt(10, 13));
    rig.publish(&long, 12);
    let (residency, report) = rig.admit(&keys(&[prompt(10, 13), prompt(11, 27)].concat()));
    assert_eq!(report.hit.resumable, at(12));
    assert_eq!(rig.plane.gauges().pages_vacant, 3);
    rig.release(residency);
}

/// A residency ends once: the value that stands for it is consumed.
#[test]
fn e3_e5_each_release_gives_back_exactly_what_was_taken() {
    let mut rig = Rig::new(30, 4);
    let shared = keys(&prompt(12, 13));
    rig.publish(&shared, 12);
    let free = rig.plane.available();
    for _ in 0..200 {
        let first = rig.admit(&shared).0;
        let second = rig.admit(&shared).0;
        let receipt = rig.begin(&first, 13);
        rig.release(second);
        rig.release(first);
        rig.done(receipt);
        assert_eq!(rig.plane.available(), free);
    }
}

/// A record that is still being written stands in no order of victims and pushes nothing out of it.
#[test]
fn f5_what_is_not_ready_evicts_and_is_evicted_by_nobody() {
    let mut rig = Rig::new(40, 3);
    let kept = keys(&prompt(13, 9));
    rig.publish(&kept, 8);
    let writer = keys(&prompt(14, 9));
    let (mut residency, _) = rig.admit(&writer);
    rig.run(&mut residency, &writer, 8);
    rig.file(&residency, &writer, 8);
    let available = rig.plane.available();
    let receipt = rig.begin(&residency, 9);
    // Its three units are no longer to be had, and nothing was given up for them.
    assert_eq!(rig.plane.available(), available - Pages::new(3));
    assert_eq!(rig.plane.counters().evicted, 0);
    rig.done(receipt);
    assert_eq!(rig.plane.available(), available);
    rig.release(residency);
    assert_eq!(rig.resumable(&kept), 8);
}

/// Slot and pages are had together or not at all.
#[test]
fn g2_g3_an_admission_is_all_or_nothing() {
    let mut rig = Rig::new(12, 1);
    let (holder, _) = rig.admit(&keys(&prompt(15, 20)));
    let before = rig.plane.gauges();
    rig.try_admit(&keys(&prompt(16, 4))).unwrap_err();
    assert_eq!(rig.plane.gauges(), before, "no slot");
    rig.release(holder);
    let before = rig.plane.gauges();
    rig.try_admit(&keys(&prompt(17, 49))).unwrap_err();
    assert_eq!(rig.plane.gauges(), before, "no pages");
}

/// A slot starts at zero or with a restore; there is no third way to begin in one.
#[test]
fn j2_a_new_tenant_reads_nothing_of_the_old_one() {
    let mut rig = Rig::new(30, 1);
    let old = keys_in(b"a", &prompt(18, 13));
    rig.publish(&old, 12);
    let (residency, report) = rig.admit(&keys_in(b"b", &prompt(18, 13)));
    assert_eq!((report.hit.kv, rig.plane.scheduled(&residency)), (at(0), tokens(0)));
    assert_eq!(rig.plane.gauges().queued_restores, 0);
    rig.release(residency);
}

/// Each event has one block's key and that block's tokens.
#[test]
fn k1_an_event_s_tokens_are_its_own_block_s() {
    let mut rig = Rig::new(30, 2);
    let all = prompt(19, 14);
    let keys = keys(&all);
    rig.fill(&keys);
    let mut found = 0;
    let mut events = rig.plane.events();
    while let Some(event) = events.next_event() {
        let KvEvent::Stored { key, tokens, .. } = event else { panic!("{event:?}") };
        assert_eq!(tokens, &all[found * 4..][..4]);
        found += 1;
        assert_eq!(Some(key), keys.key_at(at(found as u32 * 4)));
    }
    assert_eq!(found, 3);
}

/// A promise holds for its own request alone, and fails it alone.
#[test]
fn c9_a_name_of_what_is_gone_finds_nothing() {
    let mut rig = Rig::policy(config(16, 2), Box::new(RecordsFirst));
    let long: PromptKeys = keys(&prompt(20, 13));
    let id = rig.publish(&long, 12);
    let filler = keys(&prompt(21, 52));
    let (residency, _) = rig.admit(&filler);
    rig.release(residency);
    assert!(rig.plane.records().all(|record| record.id != id));
    let request = statepages_page::RequestId::new(99);
    let ask = AdmitRequest { request, keys: &long, gated: Some(at(12)) };
    let lost = rig.plane.try_admit(&ask).map(|answer| matches!(answer, Admit::Refused(_)));
    assert_eq!(lost.unwrap_err().gated, at(12));
    assert_eq!(rig.plane.gauges().pages_live, 0);
    // Its successor under the key is another record.
    let next = rig.publish(&long, 12);
    assert_ne!(next, id);
}

/// A store needs its own tenant's word: that of the slot's next tenant, which stands further by the
/// time of the receipt, proves nothing about what the store has read.
#[test]
fn c6_the_next_tenant_s_report_proves_no_store() {
    let mut rig = Rig::new(40, 1);
    let keys = keys(&prompt(22, 13));
    let (writer, _) = rig.admit(&keys);
    let forward = rig.begin(&writer, 8);
    rig.file(&writer, &keys, 8);
    let store = rig.begin(&writer, 9);
    assert_eq!(rig.ops.stores.len(), 1);
    let slot = writer.slot();
    rig.release(writer);
    let (mut next, _) = rig.admit(&keys);
    assert_eq!(next.slot(), slot);
    rig.run(&mut next, &keys, 12);
    rig.failed(forward);
    rig.done(store);
    assert_eq!((rig.resumable(&keys), rig.plane.counters().failed), (0, 1));
    rig.release(next);
}

/// A slot that a failed batch wrote proves nothing any more, even of what it held before.
#[test]
fn c6_a_spoilt_slot_proves_no_store() {
    let mut rig = Rig::new(40, 1);
    let keys = keys(&prompt(23, 13));
    let (mut writer, _) = rig.admit(&keys);
    let forward = rig.begin(&writer, 8);
    rig.file(&writer, &keys, 8);
    let store = rig.begin(&writer, 9);
    let later = rig.begin(&writer, 10);
    rig.done(forward);
    rig.plane.advance(&mut writer, &keys, tokens(8));
    rig.failed(later);
    rig.done(store);
    assert_eq!((rig.resumable(&keys), rig.plane.counters().failed), (0, 1));
    rig.release(writer);
}

/// A restore that rode a failed batch leaves a slot that nothing may be stored from, also where its
/// request had no row in that batch.
#[test]
fn c5_a_failed_restore_leaves_its_slot_unknown() {
    let mut rig = Rig::new(60, 2);
    let keys = keys(&prompt(24, 13));
    rig.publish(&keys, 12);
    let (parked, report) = rig.admit(&keys);
    assert_eq!(report.hit.resumable, at(12));
    let receipt = rig.plane.begin_batch(&mut rig.ops);
    assert_eq!(rig.ops.restores.len(), 1);
    rig.failed(receipt);
    rig.file(&parked, &keys, 12);
    rig.tick();
    assert_eq!(rig.plane.counters().slot_gone, 1);
    rig.release(parked);
    assert_eq!(rig.resumable(&keys), 12);
}
