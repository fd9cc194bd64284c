//! Named faults of others (ids as in the project's list of scenarios), each against the loop.

mod support;

use statepages_engine::{
    Effect, Engine, Event, Failure, FinishReason, Latency, Output, Progress, RecurrentRunner,
    RunnerFaults, Stop,
};
use statepages_page::{Boundary, Pages, RequestId, Tokens};
use statepages_store::{BackendOrder, LossReason, PromptKeys};
use support::{BLOCK, Heard, MODEL, Setup, VOCAB, request, shared_domain, text};

/// An identical prompt that ends on a boundary must not resume there: its last token would be
/// applied twice.
#[test]
fn a1_an_identical_prompt_on_a_boundary_resumes_one_block_before_its_end() {
    let mut harness = Setup::ROOMY.harness();
    let prompt = text(1, 20);
    assert_eq!(harness.run(request(1, &prompt, 6)).resumed(), [0]);
    assert_eq!(harness.run(request(2, &prompt, 6)).resumed(), [16]);
    harness.verify();
}

#[test]
fn a2_every_length_around_a_boundary_resumes_where_it_may() {
    for (in_flight, latency, budget) in [(1, 0, 64), (2, 3, 64), (2, 3, 7), (2, 2, 5)] {
        for interval in [None, Some(2)] {
            for len in 5..=21 {
                let setup = Setup { interval, budget, in_flight, latency, ..Setup::ROOMY };
                let mut harness = setup.harness();
                let prompt = text(2, len);
                harness.run(request(1, &prompt, 3));
                let again = harness.run(request(2, &prompt, 3)).resumed();
                assert_eq!(again, [(len as u32 - 1) / BLOCK * BLOCK], "{len} tokens, {setup:?}");
                harness.verify();
            }
        }
    }
}

/// A prompt that goes on where the first one ended resumes at the first one's end.
#[test]
fn a2_a_continued_prompt_resumes_at_the_prompt_end() {
    let mut harness = Setup::ROOMY.harness();
    let prompt = text(3, 20);
    harness.run(request(1, &prompt, 6));
    let mut longer = prompt;
    longer.extend(text(4, 9));
    assert_eq!(harness.run(request(2, &longer, 6)).resumed(), [20]);
    harness.verify();
}

/// The only checkpoint lies in what is the request's own: the second request asks for one where the
/// two part, the third resumes there.
#[test]
fn a15_a_shared_prefix_is_hit_by_the_third_request() {
    let mut harness = Setup::ROOMY.harness();
    let shared = text(5, 15);
    for (id, resumed) in [(1, 0), (2, 0), (3, 12), (4, 12)] {
        let mut prompt = shared.clone();
        prompt.extend(text(10 + id as u32, 7));
        let heard = harness.run(request(id, &prompt, 4));
        assert_eq!(heard.resumed(), [resumed], "request {id}");
        let report = heard.admissions[0];
        assert_eq!(report.hit.kv.get(), if id == 1 { 0 } else { 12 });
        assert_eq!(report.losses.total() + report.hit.resumable.tokens(), report.hit.full);
        if id == 2 {
            assert_eq!(report.losses.get(LossReason::NeverStored), Tokens::new(12));
        }
    }
    harness.verify();
}

/// The hash of a chunk must not be found before the chunk has run, and an abort before it runs must
/// leave nothing to be found.
#[test]
fn c1_an_abort_before_its_chunk_runs_leaves_nothing_to_hit() {
    for in_flight in [1, 2] {
        let mut harness = Setup { in_flight, latency: 3, ..Setup::ROOMY }.harness();
        let prompt = text(6, 30);
        harness.submit(request(1, &prompt, 4));
        harness.step();
        harness.abort(1);
        let heard = harness.run(request(2, &prompt, 4));
        assert_eq!(heard.resumed(), [0]);
        harness.verify();
    }
}

#[test]
fn c2_two_of_one_prefix_in_one_schedule_see_nothing_of_each_other() {
    let mut harness = Setup { budget: 200, ..Setup::ROOMY }.harness();
    let shared = text(7, 24);
    for id in [1, 2, 3] {
        let mut prompt = shared.clone();
        prompt.extend(text(20 + id as u32, 6));
        harness.submit(request(id, &prompt, 4));
    }
    let Progress::Submitted { rows: 3, .. } = harness.step() else { panic!("one batch of three") };
    harness.finish();
    for id in [1, 2, 3] {
        assert_eq!(harness.heard[&RequestId::new(id)].resumed(), [0]);
    }
    harness.verify();
}

/// Abort at every step of a request's life, beside another that goes on.
#[test]
fn e1_an_abort_at_any_step_leaks_nothing() {
    for (in_flight, latency, order) in [
        (1, 0, BackendOrder::Ordered),
        (1, 1, BackendOrder::Unordered),
        (2, 3, BackendOrder::Ordered),
        (2, 3, BackendOrder::Unordered),
    ] {
        for steps in 0..14 {
            let setup = Setup { in_flight, latency, order, budget: 8, ..Setup::ROOMY };
            let mut harness = setup.harness();
            let prompt = text(8, 22);
            harness.run(request(1, &prompt, 2));
            harness.submit(request(2, &prompt, 9));
            harness.submit(request(3, &text(9, 25), 9));
            for _ in 0..steps {
                harness.step();
            }
            harness.abort(2);
            harness.engine.check();
            harness.finish();
            harness.verify();
        }
    }
}

/// The probe itself: an engine told that its runner keeps an order, which it does not, reuses slots
/// and pages too early, and the model sees it.
#[test]
fn d1_reuse_before_the_receipt_shows() {
    let setup = Setup { pages: 24, in_flight: 2, budget: 12, ..Setup::ROOMY };
    let latency = Latency { polls: 3, effect: Effect::YoungestFirst };
    let runner =
        RecurrentRunner::new(MODEL, Pages::new(setup.pages), setup.slots, latency, None).unwrap();
    let mut engine = Engine::new(setup.parts(), runner).unwrap();
    for id in 0..12 {
        engine.submit(request(id, &text(id as u32 % 4, 22), 6)).unwrap();
    }
    while engine.step() != Progress::Idle {}
    assert!(!engine.runner().violations().is_empty());
}

/// A request that cannot be admitted holds nothing while it waits, and costs those before it
/// nothing.
#[test]
fn e2_a_refused_admission_takes_nothing() {
    // Ten pages: the first holds eight of them to its end.
    let mut harness = Setup { pages: 10, interval: Some(0), ..Setup::ROOMY }.harness();
    harness.submit(request(1, &text(1, 30), 3));
    harness.submit(request(2, &text(2, 30), 3));
    for _ in 0..2 {
        harness.step();
        let snapshot = harness.engine.snapshot();
        assert_eq!((snapshot.running, snapshot.waiting), (1, 1));
        assert_eq!(snapshot.gauges.pages_live, 8);
    }
    harness.finish();
    harness.verify();
}

/// Sixty-four requests cross every boundary in the same step. Each decodes in every step, exactly
/// as with checkpoints off.
#[test]
fn g4_simultaneous_crossings_cost_no_live_request_a_step() {
    let steps = |interval, pages, in_flight| {
        let setup = Setup {
            pages,
            slots: 64,
            interval,
            budget: 64 * 16,
            in_flight,
            latency: if in_flight == 2 { 3 } else { 0 },
            ..Setup::ROOMY
        };
        let mut harness = setup.harness();
        for id in 0..64 {
            // One block of prompt: no prefill is cut, so every step is one of decoding.
            harness.submit(request(id, &text(id as u32, 4), 48));
        }
        harness.finish();
        harness.verify();
        let preempted: u32 = harness.heard.values().map(|heard| heard.preempted).sum();
        assert_eq!(preempted, 0);
        let kept = harness.engine.snapshot().counters.kept;
        (harness.steps, kept)
    };
    for in_flight in [1, 2] {
        // 64 x 13 pages are live at the end; the tighter pool has no page to spare at all.
        for pages in [64 * 13, 64 * 13 + 64, 64 * 30] {
            let (without, none) = steps(Some(0), pages, in_flight);
            let (with, kept) = steps(Some(2), pages, in_flight);
            assert_eq!(none, 0);
            assert!(kept > 0);
            assert_eq!(with, without, "{pages} pages, {in_flight} in flight");
        }
    }
}

/// A preempted request gives its slot up, and starts again from a checkpoint of its own or from
/// nothing; never from where its old slot stood.
#[test]
fn j1_a_preempted_request_resumes_exactly() {
    for order in [BackendOrder::Ordered, BackendOrder::Unordered] {
        for interval in [None, Some(1), Some(2), Some(0)] {
            for in_flight in [1, 2] {
                let setup = Setup {
                    pages: 20,
                    slots: 3,
                    interval,
                    in_flight,
                    latency: 3,
                    order,
                    budget: 16,
                    ..Setup::ROOMY
                };
                let mut harness = setup.harness();
                for id in 0..3 {
                    harness.submit(request(id, &text(30 + id as u32, 17), 24));
                }
                harness.finish();
                harness.verify();
                let preempted: u32 = harness.heard.values().map(|heard| heard.preempted).sum();
                assert!(preempted > 0, "the pool holds two of the three to their end");
            }
        }
    }
}

/// An older request takes the pages of the youngest, which a batch in flight still writes: it waits for
/// them, and takes nobody else's in the meantime.
#[test]
fn j1_a_page_that_is_fenced_is_waited_for() {
    let mut waited = 0;
    for latency in 1..6 {
        let setup = Setup {
            pages: 9,
            slots: 3,
            interval: Some(0),
            in_flight: 2,
            latency,
            order: BackendOrder::Unordered,
            ..Setup::ROOMY
        };
        let mut harness = setup.harness();
        harness.submit(request(1, &text(1, 4), 30));
        harness.step();
        // These take all other pages, in a batch behind that of the first.
        harness.submit(request(2, &text(2, 13), 3));
        harness.submit(request(3, &text(3, 13), 3));
        let mut preempted = 0;
        for _ in 0..40 {
            harness.step();
            let snapshot = harness.engine.snapshot();
            preempted = snapshot.totals.preempted_no_page;
            if preempted > 0 {
                waited += snapshot.gauges.slots_fenced;
                break;
            }
        }
        assert!(preempted <= 1, "latency {latency}: {preempted} gave their pages up");
        harness.finish();
        harness.verify();
    }
    assert!(waited > 0, "a batch was in flight");
}

/// After a failed batch a request starts again from its own checkpoints.
#[test]
fn j1_a_request_of_a_failed_batch_resumes_from_its_own_checkpoints() {
    let faults = Some(RunnerFaults { seed: 1, failing: 20 });
    for in_flight in [1, 2] {
        let setup =
            Setup { interval: Some(2), faults, in_flight, latency: 3, budget: 16, ..Setup::ROOMY };
        let mut harness = setup.harness();
        for id in 0..3 {
            harness.submit(request(id, &text(40 + id as u32, 30), 20));
        }
        harness.finish();
        harness.verify();
        let resumed = harness.heard.values().flat_map(Heard::resumed).filter(|&at| at > 0);
        assert!(resumed.count() > 0);
        assert!(harness.engine.snapshot().totals.preempted_batch_failed > 0);
    }
}

/// The store of a boundary that a failed batch was to reach rides the next batch, which succeeds. The
/// boundary's block is found all the same, because an earlier request computed it: its checkpoint
/// must not become visible.
#[test]
fn c6_a_store_behind_a_failed_forward_is_never_visible() {
    let mut failed = 0;
    for seed in 0..200 {
        let faults = Some(RunnerFaults { seed, failing: 20 });
        let setup = Setup { in_flight: 2, latency: 3, faults, ..Setup::ROOMY };
        let mut harness = setup.harness();
        let whole = text(17, 40);
        harness.run(request(1, &whole, 2));
        for id in 2..5 {
            harness.run(request(id, &whole[..18], 2));
        }
        harness.verify();
        failed += harness.engine.snapshot().totals.batches_failed;
    }
    assert!(failed > 200);
}

/// A request that is in too many failed batches ends, with the last one's account.
#[test]
fn a_request_of_failing_batches_ends_with_an_error() {
    let faults = Some(RunnerFaults { seed: 1, failing: 100 });
    let mut harness = Setup { faults, failures: 3, ..Setup::ROOMY }.harness();
    let heard = harness.run(request(1, &text(1, 10), 4));
    let FinishReason::Failed(Failure::Batches(what)) = heard.reason() else {
        panic!("{:?}", heard.reason());
    };
    assert_eq!(what, "b3 was chosen to fail");
    assert_eq!(heard.preempted, 2);
    harness.verify();
}

/// The oldest request is never the one that gives way.
#[test]
fn j1_the_oldest_is_not_preempted() {
    let mut harness = Setup { pages: 20, slots: 3, ..Setup::ROOMY }.harness();
    for id in 0..3 {
        harness.submit(request(id, &text(id as u32, 17), 24));
    }
    harness.finish();
    assert_eq!(harness.heard[&RequestId::new(0)].preempted, 0);
}

/// Two tenants, an adapter and the shared domain, all with one prompt.
#[test]
fn j3_no_hit_crosses_a_tenant_or_an_adapter() {
    let mut harness = Setup::ROOMY.harness();
    let prompt = text(11, 22);
    let asked: [(Option<&[u8]>, Option<&str>); 4] =
        [(None, None), (Some(b"a"), None), (Some(b"b"), None), (None, Some("a"))];
    for round in 0..2 {
        for (index, (salt, adapter)) in asked.iter().enumerate() {
            let mut request = request(round * 10 + index as u64, &prompt, 3);
            request.tenant_salt = salt.map(<[u8]>::to_vec);
            request.adapter = adapter.map(str::to_owned);
            let resumed = harness.run(request).resumed();
            assert_eq!(resumed, [if round == 0 { 0 } else { 20 }], "{salt:?} {adapter:?}");
        }
    }
    harness.verify();
}

/// A reset while batches, stores and restores are in flight.
#[test]
fn j6_a_reset_leaves_what_is_in_flight_valid_and_nothing_to_hit() {
    for steps in 0..10 {
        let setup = Setup { in_flight: 2, latency: 3, budget: 8, ..Setup::ROOMY };
        let mut harness = setup.harness();
        let prompt = text(12, 26);
        harness.run(request(1, &prompt, 3));
        harness.submit(request(2, &prompt, 9));
        for _ in 0..steps {
            harness.step();
        }
        harness.engine.handle(Event::ResetPrefixCache);
        harness.engine.check();
        let mut keys = PromptKeys::new(shared_domain(), MODEL.block);
        keys.extend(&prompt);
        assert_eq!(harness.engine.control().probe(&keys).kv, Boundary::ZERO);
        harness.run(request(3, &prompt, 3));
        harness.verify();
    }
}

/// Continued conversation: the previous prompt, its own output and a new turn hit the decoded
/// blocks, and resume at the last boundary that decode spacing kept.
#[test]
fn decoded_blocks_are_hit_by_the_next_turn() {
    let mut harness = Setup { interval: Some(2), ..Setup::ROOMY }.harness();
    let prompt = text(14, 21);
    let first = harness.run(request(1, &prompt, 22));
    let mut turn = prompt;
    turn.extend(&first.tokens);
    turn.extend(text(15, 5));
    let heard = harness.run(request(2, &turn, 4));
    let hit = heard.admissions[0].hit;
    // 42 tokens of the first request were computed: its last token was not.
    assert_eq!(hit.kv.get(), 40);
    assert_eq!(heard.resumed(), [36], "20 by the anchor, then every 8 tokens of decoding");
    harness.verify();
}

#[test]
fn a_stop_id_and_a_stop_sequence_end_a_request() {
    let prompt = text(16, 9);
    let wanted = MODEL.generate(&prompt, 20);
    let mut harness = Setup::ROOMY.harness();
    let first_of = |id: u32| wanted.iter().position(|&token| token == id).unwrap();
    let id = wanted[7];
    let mut by_id = request(1, &prompt, 20);
    by_id.stop.token_ids = vec![id];
    let heard = harness.run(by_id);
    assert_eq!(*heard.reason(), FinishReason::StopToken(id));
    assert_eq!(heard.tokens, wanted[..=first_of(id)]);

    let mut by_sequence = request(2, &prompt, 20);
    by_sequence.stop =
        Stop { sequences: vec![vec![VOCAB - 1; 3], wanted[4..7].to_vec()], ..Stop::after(20) };
    let heard = harness.run(by_sequence);
    assert_eq!(*heard.reason(), FinishReason::StopSequence(1));
    assert_eq!(heard.tokens, wanted[..7]);
    harness.verify_idle();
}

#[test]
fn a_duplicate_id_is_refused_while_the_first_is_known() {
    let mut harness = Setup::ROOMY.harness();
    harness.submit(request(1, &text(1, 5), 3));
    let again = harness.engine.submit(request(1, &text(2, 5), 3));
    let refusal = again.unwrap_err();
    assert_eq!(refusal.to_string(), "id: expected one of no known request, got r1");
    harness.finish();
    harness.verify();
    assert_eq!(harness.engine.submit(request(1, &text(2, 5), 3)), Ok(()));
}

#[test]
fn a_request_that_the_whole_pool_cannot_hold_is_refused_at_once() {
    let mut harness = Setup { pages: 6, ..Setup::ROOMY }.harness();
    assert!(harness.engine.submit(request(1, &text(1, 20), 6)).is_err());
    let heard = harness.run(request(2, &text(1, 20), 5));
    assert_eq!(heard.tokens.len(), 5);
    harness.verify();
}

#[test]
fn refusals_are_outputs_too() {
    let mut harness = Setup::ROOMY.harness();
    harness.engine.handle(Event::Submit(request(1, &[], 3)));
    let Some(Output::Refused { request, why }) = harness.engine.next_output() else {
        panic!("a refusal");
    };
    assert_eq!(request, RequestId::new(1));
    assert_eq!(why.to_string(), "prompt: expected at least one token, got none");
}
