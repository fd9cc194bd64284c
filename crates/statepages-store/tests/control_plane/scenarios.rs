//! Faults that others have met, as far as a control plane can have them: families A, C, E, F, G, J, K.

use statepages_page::{Boundary, ContentKey, RequestId};
use statepages_store::{
    Admit, AdmitRequest, Ahead, Chunk, ControlPlaneConfig, Filed, KeepReason, LossReason, Progress,
    PromptKeys, Refusal, Residency,
};

use crate::support::{BLOCK, Rig, at, config, keys, keys_in, prompt, tokens};

/// Admits, prefills by the placement rule and keeps what it says; answers the tokens resumed.
fn serve(rig: &mut Rig, text: &[u32]) -> u32 {
    let keys = keys(text);
    let (mut residency, report) = rig.admit(&keys);
    let placement = rig.plane.placement();
    let prompt = keys.len();
    let mut last_kept = report.hit.resumable;
    while rig.plane.scheduled(&residency) < prompt {
        let start = rig.plane.scheduled(&residency);
        let chunk = Chunk { start, end: prompt, prompt, demand: report.demand };
        let end = placement.chunk_end(&chunk);
        rig.run(&mut residency, &keys, end.get());
        let progress =
            Progress { at: end, prompt, demand: report.demand, last_kept, ahead: Ahead::Forward };
        if let Some(reason) = placement.keep(&progress) {
            last_kept = Boundary::from_raw(end.get());
            let key = keys.key_at(last_kept).unwrap();
            rig.plane.file(&residency, last_kept, key, reason);
        }
    }
    rig.tick();
    rig.release(residency);
    report.hit.resumable.get()
}

#[test]
fn a1_a2_a13_an_identical_prompt_resumes_at_every_length() {
    for n in 1..40 {
        let mut rig = Rig::new(60, 2);
        let text = prompt(1, n);
        assert_eq!(serve(&mut rig, &text), 0);
        assert_eq!(serve(&mut rig, &text), (n - 1) / 4 * 4, "{n} tokens");
    }
}

#[test]
fn a2_a_continued_prompt_resumes_at_the_end_of_what_it_continues() {
    for n in 4..40 {
        let mut rig = Rig::new(60, 2);
        let text = prompt(1, n);
        serve(&mut rig, &text);
        let mut longer = text.clone();
        longer.extend(prompt(2, 9));
        assert_eq!(serve(&mut rig, &longer), n / 4 * 4, "{n} tokens");
    }
}

/// A15: a shared prefix with another tail each time: nothing, nothing, then the whole of it.
#[test]
fn a15_demand_converges_in_three_sights() {
    for shared in [5, 20, 21, 23, 24] {
        let mut rig = Rig::new(200, 2);
        let sight = |seed: u32| {
            let mut text = prompt(1, shared);
            text.extend(prompt(seed, 9));
            text
        };
        let hits: Vec<u32> = (2..6).map(|seed| serve(&mut rig, &sight(seed))).collect();
        let floor = shared / 4 * 4;
        assert_eq!(hits, [0, 0, floor, floor], "{shared} shared tokens");
    }
}

/// C1: the writer is aborted before its forward has run; an equal request must not hit it.
#[test]
fn c1_an_aborted_writers_boundary_is_never_found() {
    let mut rig = Rig::new(30, 2);
    let text = keys(&prompt(1, 9));
    let (writer, _) = rig.admit(&text);
    let receipt = rig.begin(&writer, 8);
    rig.file(&writer, &text, 8);
    rig.release(writer);
    rig.done(receipt);
    rig.tick();
    assert!(rig.ops.stores.is_empty());
    assert_eq!((rig.kv(&text), rig.resumable(&text)), (0, 0));
    assert_eq!(rig.plane.counters().forgotten, 1);
}

#[test]
fn c1_an_abort_after_the_drain_never_shows_what_was_not_reported() {
    let mut rig = Rig::new(30, 2);
    let text = keys(&prompt(1, 9));
    let (writer, _) = rig.admit(&text);
    let forward = rig.begin(&writer, 8);
    rig.file(&writer, &text, 8);
    let store = rig.begin(&writer, 9);
    rig.release(writer);
    rig.done(forward);
    rig.done(store);
    assert_eq!(rig.resumable(&text), 0);
    assert_eq!(rig.plane.gauges().pages_raw, 0);
}

/// C2: two equal requests in one pass: the second finds nothing that is not there, and nobody waits.
#[test]
fn c2_a_boundary_in_the_making_is_invisible_and_blocks_nobody() {
    let mut rig = Rig::new(60, 4);
    let a = keys(&prompt(1, 17));
    let (mut one, _) = rig.admit(&a);
    let (mut two, report) = rig.admit(&a);
    assert_eq!(report.hit.kv, at(0));
    let (other, _) = rig.admit(&keys(&prompt(2, 5)));
    for residency in [&mut one, &mut two] {
        rig.run(residency, &a, 16);
    }
    for residency in [&one, &two] {
        rig.file(residency, &a, 16);
    }
    rig.tick();
    assert_eq!(rig.ops.stores.len(), 1, "the second is a duplicate");
    assert_eq!(rig.plane.counters().duplicate, 1);
    for residency in [one, two, other] {
        rig.release(residency);
    }
    assert_eq!(rig.resumable(&a), 16);
}

/// C10: the store is done, then its writer is preempted in the same step.
#[test]
fn c10_a_preempted_writers_store_is_ready_or_gone_never_half() {
    for settle_first in [true, false] {
        let mut rig = Rig::new(30, 2);
        let text = keys(&prompt(1, 9));
        let (mut writer, _) = rig.admit(&text);
        rig.run(&mut writer, &text, 8);
        rig.file(&writer, &text, 8);
        let receipt = rig.begin(&writer, 9);
        if settle_first {
            rig.done(receipt);
            rig.release(writer);
        } else {
            rig.release(writer);
            rig.done(receipt);
        }
        assert_eq!(rig.resumable(&text), 8);
    }
}

/// E1, E2: every refusal and every early exit gives everything back.
#[test]
fn e1_e2_every_early_exit_unwinds() {
    let mut rig = Rig::new(12, 2);
    let text = keys(&prompt(1, 9));
    rig.publish(&text, 8);
    let before = rig.plane.gauges();
    let (a, _) = rig.admit(&text);
    let (b, _) = rig.admit(&keys(&prompt(2, 2)));
    assert_eq!(rig.try_admit(&text).unwrap_err(), Refusal::NoSlot);
    rig.release(b);
    let mut long = prompt(1, 8);
    long.extend(prompt(3, 100));
    assert_eq!(rig.try_admit(&keys(&long)).unwrap_err(), Refusal::NoRoom);
    rig.release(a);
    let after = rig.plane.gauges();
    assert_eq!((after.slots_free, after.pages_raw), (before.slots_free, before.pages_raw));
    assert_eq!(rig.resumable(&text), 8);
}

/// E7: completions and aborts in every order.
#[test]
fn e7_abort_and_receipt_in_any_order() {
    for abort_at in 0..4 {
        let mut rig = Rig::new(30, 2);
        let text = keys(&prompt(1, 9));
        rig.publish(&text, 8);
        let (reader, _) = rig.admit(&text);
        let mut reader = Some(reader);
        let mut abort = |rig: &mut Rig, stage: u32| {
            if stage == abort_at {
                let residency: Residency = reader.take().unwrap();
                rig.release(residency);
            }
        };
        abort(&mut rig, 0);
        let carried = rig.plane.begin_batch(&mut rig.ops);
        assert_eq!(rig.ops.restores.len(), usize::from(abort_at != 0));
        abort(&mut rig, 1);
        let later = rig.plane.begin_batch(&mut rig.ops);
        rig.done(later);
        abort(&mut rig, 2);
        rig.done(carried);
        abort(&mut rig, 3);
        assert_eq!(rig.plane.gauges().pages_available, 30);
        assert_eq!(rig.resumable(&text), 8);
    }
}

/// E10: many create, restore and erase cycles leak nothing.
#[test]
fn e10_a_hundred_thousand_cycles_leak_nothing() {
    let mut rig = Rig::new(24, 2);
    let prompts: Vec<_> = (0..7).map(|seed| keys(&prompt(seed + 1, 9))).collect();
    let mut realised = 0u64;
    for cycle in 0..100_000usize {
        let text = &prompts[cycle * 5 % 7 * (cycle % 3) % 7];
        let request = RequestId::new(cycle as u64 + 1_000_000);
        let ask = AdmitRequest { request, keys: text, gated: None };
        let Ok(Admit::Admitted(mut residency, report)) = rig.plane.try_admit(&ask) else {
            panic!("one request of three blocks always fits");
        };
        realised += u64::from(report.hit.resumable.get());
        let mut receipt = rig.plane.begin_batch(&mut rig.ops);
        rig.plane.join(&mut receipt, &residency, tokens(8));
        rig.plane.settle(receipt, statepages_store::Outcome::Done);
        rig.plane.advance(&mut residency, text, tokens(8));
        rig.plane.file(&residency, at(8), Rig::key(text, 8), KeepReason::Anchor);
        if cycle % 11 != 0 {
            let receipt = rig.plane.begin_batch(&mut rig.ops);
            rig.plane.settle(receipt, statepages_store::Outcome::Done);
        }
        rig.plane.release(residency);
        if cycle % 10_000 == 0 {
            rig.plane.check();
        }
    }
    assert!(realised > 0);
    rig.plane.reset();
    rig.plane.check();
    assert_eq!(rig.plane.gauges().pages_vacant, 24);
    assert_eq!(rig.plane.gauges().slots_free, 2);
}

/// F1: a hit refreshes the record it consumes and none of those before it.
#[test]
fn f1_a_hit_touches_only_the_consumed_record() {
    let mut rig = Rig::policy(config(40, 2), Box::new(crate::support::RecordsFirst));
    let deep = keys(&prompt(1, 17));
    rig.publish(&deep, 8);
    let cold = keys(&prompt(2, 9));
    rig.publish(&deep, 16);
    rig.publish(&cold, 8);
    // A hit at 16 must not save the record at 8.
    let (reader, report) = rig.admit(&deep);
    assert_eq!(report.hit.resumable, at(16));
    rig.tick();
    rig.release(reader);
    let vacant = rig.plane.gauges().pages_vacant;
    let (taker, _) = rig.admit(&keys(&prompt(3, (vacant + 1) * BLOCK)));
    rig.release(taker);
    assert_eq!(rig.resumable(&cold), 8, "the cold session outlives the shallow ancestor");
    assert_eq!(rig.resumable(&keys(&prompt(1, 9))), 0);
    assert_eq!(rig.resumable(&deep), 16);
}

/// F7: the record a turn resumed from is the youngest when its pin returns, not when it was taken.
#[test]
fn f7_recency_is_refreshed_at_the_pin_and_again_at_its_return() {
    let mut rig = Rig::policy(config(60, 3), Box::new(crate::support::RecordsFirst));
    let (a, b, c) = (keys(&prompt(1, 9)), keys(&prompt(2, 9)), keys(&prompt(3, 9)));
    rig.publish(&a, 8);
    let (reader, _) = rig.admit(&a);
    let receipt = rig.begin(&reader, 9);
    rig.publish(&b, 8);
    rig.publish(&c, 8);
    rig.done(receipt);
    rig.release(reader);
    let vacant = rig.plane.gauges().pages_vacant;
    let (taker, _) = rig.admit(&keys(&prompt(4, (vacant + 1) * BLOCK)));
    rig.release(taker);
    let left = [&a, &b, &c].map(|text| rig.resumable(text));
    assert_eq!(left, [8, 0, 8], "the oldest is b, because a was in use until now");
}

/// F6, F2: of a chain the tail is given up before what it hangs on.
#[test]
fn f2_f6_pages_without_content_go_first_and_a_chains_tail_before_its_head() {
    let mut rig = Rig::new(12, 2);
    let text = keys(&prompt(1, 16));
    rig.fill(&text);
    let (unpublished, _) = rig.admit(&keys(&prompt(2, 8 * BLOCK)));
    rig.release(unpublished);
    assert_eq!(rig.kv(&keys(&prompt(1, 17))), 16, "cached blocks were not flushed");
    let (taker, _) = rig.admit(&keys(&prompt(3, 9 * BLOCK)));
    assert_eq!(rig.kv(&keys(&prompt(1, 17))), 12);
    rig.release(taker);
}

/// F12: ties are broken by sequence, so equal histories give up equal victims.
#[test]
fn f12_equal_histories_have_equal_victims() {
    let trace = || {
        let mut rig = Rig::new(30, 3);
        let mut ops = Vec::new();
        for seed in 0..20 {
            serve(&mut rig, &prompt(seed % 7 + 1, 9 + seed % 5));
            ops.push(format!("{:?} {:?}", rig.ops, rig.plane.gauges()));
        }
        ops
    };
    assert_eq!(trace(), trace());
}

/// G1: every record is busy: the checkpoint is skipped and counted, and the request goes on.
#[test]
fn g1_where_everything_is_pinned_a_store_is_skipped_and_counted() {
    let mut rig = Rig::new(9, 3);
    let text = keys(&prompt(1, 5));
    rig.publish(&text, 4);
    let (reader, _) = rig.admit(&text);
    let other = keys(&prompt(2, 8));
    let (mut writer, _) = rig.admit(&other);
    rig.run(&mut writer, &other, 8);
    let (pinning, _) = rig.admit(&keys(&prompt(1, 5)));
    rig.file(&writer, &other, 8);
    rig.tick();
    assert_eq!(rig.plane.counters().no_room, 1);
    for residency in [reader, writer, pinning] {
        rig.release(residency);
    }
}

/// J1, J2: a preempted request starts again in a slot that is restored or starts at zero.
#[test]
fn j1_a_preempted_request_resumes_from_a_checkpoint_or_from_zero() {
    let mut rig = Rig::new(30, 1);
    let text = keys(&prompt(1, 9));
    let (mut residency, _) = rig.admit(&text);
    rig.run(&mut residency, &text, 9);
    rig.release(residency);
    let (residency, report) = rig.admit(&text);
    assert_eq!(report.hit.kv, at(8));
    assert_eq!(rig.plane.scheduled(&residency), tokens(0), "no checkpoint, no state");
    rig.release(residency);
}

/// J3, J4: neither another tenant nor an equal key of other tokens is ever found.
#[test]
fn j3_j4_domains_do_not_meet_and_keys_alone_prove_nothing() {
    let mut rig = Rig::new(30, 2);
    rig.publish(&keys_in(b"alice", &prompt(1, 9)), 8);
    assert_eq!(rig.kv(&keys_in(b"bob", &prompt(1, 9))), 0);
    assert_eq!(rig.kv(&keys(&prompt(1, 9))), 0);
    assert_eq!(rig.kv(&keys_in(b"alice", &prompt(1, 9))), 8);
}

/// J4: an embedding engine's short keys collide; the block and the record under the key are replaced
/// together, and neither request ever reads the other's.
#[test]
fn j4_an_equal_key_of_other_tokens_replaces_block_and_record_together() {
    let mut rig = Rig::new(30, 2);
    let forged = |seed: u32| {
        let domain = keys(&[]).domain();
        let all = [1, 2].map(ContentKey::from_raw).to_vec();
        PromptKeys::with_keys(domain, crate::support::block(), prompt(seed, 9), all).unwrap()
    };
    let (a, b) = (forged(1), forged(2));
    rig.publish(&a, 8);
    assert_eq!((rig.kv(&b), rig.resumable(&b)), (0, 0), "an equal key proves nothing");
    rig.fill(&b);
    assert_eq!((rig.kv(&a), rig.kv(&b)), (0, 8));
    assert_eq!(rig.resumable(&b), 0, "the record of other tokens went with their block");
    assert_eq!(rig.plane.counters().fates().orphaned, 1);
    rig.publish(&b, 8);
    assert_eq!((rig.resumable(&a), rig.resumable(&b)), (0, 8));
}

/// J4: a state is not filed under a key that has come to lead to another block since its own was
/// reported. (Met first by the simulator: a landed load files one turn after it is reported.)
#[test]
fn j4_a_state_is_not_filed_under_another_blocks_key() {
    let mut rig = Rig::new(30, 2);
    let forged = |seed: u32| {
        let domain = keys(&[]).domain();
        let all = [1, 2].map(ContentKey::from_raw).to_vec();
        PromptKeys::with_keys(domain, crate::support::block(), prompt(seed, 9), all).unwrap()
    };
    let (a, b) = (forged(1), forged(2));
    let (mut one, _) = rig.admit(&a);
    let (mut other, _) = rig.admit(&b);
    rig.run(&mut one, &a, 8);
    rig.run(&mut other, &b, 8);
    assert_eq!(rig.file(&one, &a, 8), Filed::Lost);
    assert_eq!(rig.file(&other, &b, 8), Filed::Pending);
    rig.tick();
    rig.release(one);
    rig.release(other);
    assert_eq!((rig.resumable(&a), rig.resumable(&b)), (0, 8));
    let counters = rig.plane.counters();
    assert_eq!((counters.filed, counters.kept, counters.unfiled), (2, 1, 1));
    assert!(counters.blocks_collided > 0);
}

/// J4: equal tokens under an equal key are still another block where another block is before them, or
/// where they are another tenant's.
#[test]
fn j4_a_state_is_not_filed_under_an_equal_block_of_another_chain_or_tenant() {
    let forged = |salt: &[u8], first: u32| {
        let domain = keys_in(salt, &[]).domain();
        let all = [u128::from(first), 9].map(ContentKey::from_raw).to_vec();
        let text = [prompt(first, 4), prompt(7, 5)].concat();
        PromptKeys::with_keys(domain, crate::support::block(), text, all).unwrap()
    };
    let chains = (forged(b"a", 1), forged(b"a", 2), 8);
    let tenants = (forged(b"a", 1), forged(b"b", 1), 4);
    for (a, b, to) in [chains, tenants] {
        let mut rig = Rig::new(30, 2);
        let (mut one, _) = rig.admit(&a);
        let (mut other, _) = rig.admit(&b);
        rig.run(&mut one, &a, to);
        rig.run(&mut other, &b, to);
        assert_eq!(rig.plane.counters().blocks_collided, 1);
        assert_eq!(rig.file(&one, &a, to), Filed::Lost);
        assert_eq!(rig.file(&other, &b, to), Filed::Pending);
        rig.release(one);
        rig.release(other);
    }
}

/// J4: a block found behind one parent is not hit behind another.
#[test]
fn j4_an_equal_block_of_another_chain_is_not_hit() {
    let mut rig = Rig::new(30, 2);
    let forged = |first: u32, len: usize, blocks: usize| {
        let domain = keys(&[]).domain();
        let all = [u128::from(first), 9].map(ContentKey::from_raw)[..blocks].to_vec();
        let text = [prompt(first, 4), prompt(7, 5)].concat()[..len].to_vec();
        PromptKeys::with_keys(domain, crate::support::block(), text, all).unwrap()
    };
    rig.publish(&forged(1, 9, 2), 8);
    rig.fill(&forged(2, 5, 1));
    assert_eq!(rig.kv(&forged(1, 9, 2)), 8);
    assert_eq!(rig.kv(&forged(2, 9, 2)), 4, "its second block lies behind another first one");
}

/// J4: where another request has computed the very same block, its page stands for both.
#[test]
fn j4_a_state_is_filed_under_the_key_of_the_same_block() {
    let mut rig = Rig::new(30, 2);
    let same = keys(&prompt(1, 9));
    let (mut one, _) = rig.admit(&same);
    let (mut other, _) = rig.admit(&same);
    rig.run(&mut one, &same, 8);
    rig.run(&mut other, &same, 8);
    assert_eq!(rig.plane.counters().blocks_duplicate, 2);
    assert_eq!(rig.file(&one, &same, 8), Filed::Pending);
    rig.tick();
    rig.release(one);
    rig.release(other);
    assert_eq!(rig.resumable(&same), 8);
}

/// K3: a miss for want of a checkpoint does not look like a miss of the prefix.
#[test]
fn k3_a_missing_checkpoint_is_told_from_a_missing_prefix() {
    let mut rig = Rig::new(30, 2);
    rig.fill(&keys(&prompt(1, 9)));
    let (known, report) = rig.admit(&keys(&prompt(1, 9)));
    assert_eq!(report.losses.get(LossReason::NeverStored), tokens(8));
    assert_eq!(report.losses.get(LossReason::NoKv), tokens(0));
    let (unknown, report) = rig.admit(&keys(&prompt(2, 9)));
    assert_eq!(report.losses.get(LossReason::NeverStored), tokens(0));
    assert_eq!(report.losses.get(LossReason::NoKv), tokens(8));
    rig.release(known);
    rig.release(unknown);
}

#[test]
fn k_configurations_that_cannot_run_are_refused_by_name() {
    use statepages_page::Pages;
    use statepages_store::{ConfigError, ControlPlane, ReferenceOrder, Schedulers};
    use statepages_store::{StateRuntime, StateTransfer};
    let refuse = |config: ControlPlaneConfig| {
        let error = ControlPlane::new(config, Box::new(ReferenceOrder)).unwrap_err();
        (error.to_string(), error)
    };
    let (text, error) = refuse(ControlPlaneConfig { pipeline_stages: 2, ..config(20, 2) });
    assert_eq!(error, ConfigError::CopyAcrossStages { stages: 2 });
    assert!(text.contains("expected 1 pipeline stage, got 2"), "{text}");
    let schedulers = Schedulers::SeparatePrefillDecode;
    let (_, error) = refuse(ControlPlaneConfig { schedulers, ..config(20, 2) });
    assert_eq!(error, ConfigError::CopyAcrossSchedulers);
    let (_, error) = refuse(ControlPlaneConfig { pages_max: Pages::new(3), ..config(20, 2) });
    assert!(matches!(error, ConfigError::Pages { .. }));
    let (_, error) = refuse(config(20, 0));
    assert_eq!(error, ConfigError::NoSlots);
    let (_, error) = refuse(config(2, 1));
    assert!(matches!(error, ConfigError::ImageExceedsPool { .. }));
    let fork = StateRuntime::new(StateTransfer::Fork { tokens: 1 }, None).unwrap();
    let (_, error) = refuse(ControlPlaneConfig { runtime: fork, ..config(20, 2) });
    assert_eq!(error, ConfigError::Fork);
    let none = StateRuntime::new(StateTransfer::None, None).unwrap();
    let mut rig =
        Rig::with(ControlPlaneConfig { runtime: none, pipeline_stages: 4, ..config(20, 2) });
    rig.fill(&keys(&prompt(1, 9)));
    assert_eq!(rig.resumable(&keys(&prompt(1, 9))), 0, "no transfer, no resume");
}
