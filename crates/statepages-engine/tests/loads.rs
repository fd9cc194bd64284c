//! Remote loads: slow, failing, overtaking each other, completing twice or never.

mod support;

use proptest::prelude::*;
use statepages_engine::{
    Connector, DelayedConnector, Faults, Load, LoadDone, LoadId, LoadOutcome, LoadQuery,
    RecurrentRemote, RemoteSource, RunnerFaults,
};
use statepages_page::{Boundary, RequestId};
use statepages_store::BackendOrder;
use support::{MODEL, Setup, request, shared_domain, text};

fn remote(prompts: &[Vec<u32>]) -> RecurrentRemote {
    RecurrentRemote { model: MODEL, domain: shared_domain(), prompts: prompts.to_vec() }
}

/// A connector whose loads end when the test says so.
struct Manual {
    source: RecurrentRemote,
    started: Vec<(LoadId, RequestId)>,
    cancelled: Vec<LoadId>,
    bytes: Vec<statepages_engine::RemoteState>,
    done: Vec<LoadDone>,
}

impl Manual {
    fn new(prompts: &[Vec<u32>]) -> Self {
        let (started, cancelled) = (Vec::new(), Vec::new());
        Self { source: remote(prompts), started, cancelled, bytes: Vec::new(), done: Vec::new() }
    }

    fn load(&mut self, index: usize) {
        let outcome = LoadOutcome::Loaded(self.bytes[index].clone());
        self.done.push(LoadDone { id: self.started[index].0, outcome });
    }

    fn fail(&mut self, index: usize) {
        self.done.push(LoadDone { id: self.started[index].0, outcome: LoadOutcome::Failed });
    }
}

impl Connector for Manual {
    fn offer(&mut self, query: &LoadQuery<'_>) -> Option<Boundary> {
        self.source.reach(query.domain, query.tokens, query.limit).filter(|&to| to > query.local)
    }

    fn start(&mut self, load: &Load<'_>) {
        self.started.push((load.id, load.request));
        self.bytes.push(self.source.fetch(load.domain, load.tokens, load.from, load.to));
    }

    fn cancel(&mut self, id: LoadId) {
        self.cancelled.push(id);
    }

    fn poll(&mut self) -> Option<LoadDone> {
        (!self.done.is_empty()).then(|| self.done.remove(0))
    }
}

#[test]
fn a_loaded_request_resumes_at_the_remote_boundary() {
    let prompt = text(1, 30);
    let mut harness = Setup::ROOMY.with_connector(Manual::new(std::slice::from_ref(&prompt)));
    harness.submit(request(1, &prompt, 6));
    for _ in 0..3 {
        harness.step();
        assert_eq!(harness.engine.snapshot().parked, 1);
    }
    harness.engine.connector_mut().load(0);
    harness.finish();
    harness.verify();
    let (_, usage) = harness.heard[&RequestId::new(1)].ended.clone().unwrap();
    assert_eq!(usage.loaded.get(), 28);
    assert_eq!(usage.computed, 2 + 5);
    // What was loaded is kept like what was computed.
    assert_eq!(harness.run(request(2, &prompt, 6)).resumed(), [28]);
}

/// The review's first blocker, in the loop: a request parked with a queued restore, and nothing else
/// to run. The restore is not drained, its pin stays, and no batch is made up for it.
#[test]
fn a_parked_request_with_a_queued_restore_makes_no_batch() {
    let prompt = text(2, 22);
    let mut longer = prompt.clone();
    longer.extend(text(3, 18));
    for ending in ["load", "fail", "abort"] {
        let mut harness = Setup::ROOMY.with_connector(Manual::new(std::slice::from_ref(&longer)));
        // The connector reaches the first prompt, too: its load fails, so it is computed here.
        harness.submit(request(1, &prompt, 3));
        harness.step();
        harness.engine.connector_mut().fail(0);
        harness.finish();
        harness.submit(request(2, &longer, 5));
        for _ in 0..4 {
            harness.step();
            let snapshot = harness.engine.snapshot();
            assert_eq!((snapshot.parked, snapshot.in_flight), (1, 0));
            assert_eq!(snapshot.gauges.queued_restores, 1);
        }
        match ending {
            "load" => harness.engine.connector_mut().load(1),
            "fail" => harness.engine.connector_mut().fail(1),
            _ => {
                harness.abort(2);
                assert_eq!(harness.engine.snapshot().draining, 1);
                harness.engine.connector_mut().load(1);
            }
        }
        harness.finish();
        harness.verify();
    }
}

/// The queued restore of a parked request rides a batch of others, and the load lands before,
/// while, or after it does.
#[test]
fn a_parked_request_s_restore_rides_the_batch_of_others() {
    let prompt = text(4, 22);
    let mut longer = prompt.clone();
    longer.extend(text(5, 18));
    for in_flight in [1, 2] {
        for latency in [0, 1, 3] {
            for steps in 0..8 {
                let setup = Setup { in_flight, latency, ..Setup::ROOMY };
                let mut harness = setup.with_connector(Manual::new(std::slice::from_ref(&longer)));
                harness.submit(request(1, &prompt, 3));
                harness.step();
                harness.engine.connector_mut().fail(0);
                harness.finish();
                harness.submit(request(2, &longer, 5));
                harness.submit(request(3, &text(6, 4), 12));
                harness.step();
                for _ in 0..steps {
                    harness.step();
                }
                harness.engine.connector_mut().load(1);
                harness.finish();
                harness.verify();
                let (_, usage) = harness.heard[&RequestId::new(2)].ended.clone().unwrap();
                assert_eq!(usage.loaded.get(), 36 - 20, "{in_flight} {latency} {steps}");
            }
        }
    }
}

/// The load has arrived, and waits for a batch that was in flight then; meanwhile a younger batch
/// takes the request's restore along. The load lands behind that one, too.
#[test]
fn a_load_lands_behind_its_restore() {
    let prompt = text(4, 22);
    let mut longer = prompt.clone();
    longer.extend(text(5, 18));
    for latency in 2..9 {
        let setup = Setup { in_flight: 2, latency, ..Setup::ROOMY };
        let mut harness = setup.with_connector(Manual::new(std::slice::from_ref(&longer)));
        harness.submit(request(1, &prompt, 3));
        harness.step();
        harness.engine.connector_mut().fail(0);
        harness.finish();
        harness.submit(request(3, &text(6, 4), 12));
        harness.step();
        harness.submit(request(2, &longer, 5));
        harness.step();
        harness.engine.connector_mut().load(1);
        harness.submit(request(4, &text(7, 4), 12));
        harness.finish();
        harness.verify();
    }
}

/// Aborted while its load is under way: the completion may have come already, may come late, twice,
/// or as a failure. The memory is claimed until the first one, and freed once.
#[test]
fn e7_an_abort_during_a_load_frees_once_whatever_completes() {
    let prompt = text(7, 30);
    for completions in [vec!["load"], vec!["fail"], vec!["load", "load"], vec!["fail", "load"]] {
        let mut harness = Setup::ROOMY.with_connector(Manual::new(std::slice::from_ref(&prompt)));
        harness.submit(request(1, &prompt, 6));
        harness.step();
        harness.abort(1);
        for _ in 0..3 {
            harness.step();
            let snapshot = harness.engine.snapshot();
            assert_eq!((snapshot.draining, snapshot.gauges.pages_live), (1, 8));
        }
        assert_eq!(harness.engine.connector_mut().cancelled.len(), 1);
        for completion in completions {
            match completion {
                "load" => harness.engine.connector_mut().load(0),
                _ => harness.engine.connector_mut().fail(0),
            }
            harness.step();
        }
        harness.finish();
        harness.verify();
    }
}

/// The completion has arrived, and the request is aborted before it lands.
#[test]
fn e7_an_abort_after_the_completion_frees_at_once() {
    let prompt = text(8, 30);
    let mut harness = Setup { latency: 6, ..Setup::ROOMY }
        .with_connector(Manual::new(std::slice::from_ref(&prompt)));
    harness.submit(request(2, &text(9, 9), 4));
    harness.step();
    harness.submit(request(1, &prompt, 6));
    for _ in 0..8 {
        harness.step();
    }
    assert_eq!(harness.engine.snapshot().parked, 1);
    harness.engine.connector_mut().load(0);
    harness.step();
    harness.abort(1);
    assert_eq!(harness.engine.snapshot().draining, 0);
    harness.finish();
    harness.verify();
}

/// A load that takes too long is called off; the request computes locally, and what completes later
/// frees the memory and turns nothing back.
#[test]
fn d12_a_late_completion_does_not_turn_a_failure_into_a_success() {
    let prompt = text(10, 30);
    let mut harness = Setup { load_steps: 2, ..Setup::ROOMY }
        .with_connector(Manual::new(std::slice::from_ref(&prompt)));
    harness.submit(request(1, &prompt, 6));
    for _ in 0..6 {
        harness.step();
    }
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.parked, snapshot.running, snapshot.draining), (0, 1, 1));
    harness.engine.connector_mut().load(0);
    harness.finish();
    harness.verify();
    let (_, usage) = harness.heard[&RequestId::new(1)].ended.clone().unwrap();
    assert_eq!(usage.loaded.get(), 0);
    assert_eq!(usage.computed, 30 + 5);
}

/// The other side is lost: its memory stays claimed, everything else goes on.
#[test]
fn a_lost_load_costs_its_memory_and_nothing_else() {
    let prompt = text(11, 30);
    let mut harness = Setup { load_steps: 1, ..Setup::ROOMY }
        .with_connector(Manual::new(std::slice::from_ref(&prompt)));
    harness.submit(request(1, &prompt, 6));
    for _ in 0..30 {
        harness.step();
    }
    assert!(harness.heard[&RequestId::new(1)].ended.is_some());
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.draining, snapshot.gauges.pages_live), (1, 8));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn faulty_loads_change_no_token_and_leak_nothing(
        seed in any::<u64>(),
        (steps_max, failing, doubled, stuck) in (0..9u32, 0..40u8, 0..40u8, 0..20u8),
        (pages, slots) in (24..80u32, 1..5u32),
        (in_flight, latency) in (1..3u64, 0..7u32),
        unordered in any::<bool>(),
        failing_batches in prop_oneof![3 => Just(0u8), 1 => 1..20u8],
        load_steps in 1..20u64,
        requests in prop::collection::vec(
            (0..3u32, 4..32usize, 0..6usize, 1..9u32, 0..5u8, any::<bool>()), 1..16
        ),
    ) {
        let prompts: Vec<_> = (0..3).map(|family| text(family, 28)).collect();
        let faults = Faults { seed, steps_max, failing, doubled, stuck, lost: 0 };
        let setup = Setup {
            pages,
            slots,
            in_flight,
            latency,
            load_steps,
            interval: Some(2),
            budget: 16,
            order: if unordered { BackendOrder::Unordered } else { BackendOrder::Ordered },
            faults: (failing_batches > 0)
                .then_some(RunnerFaults { seed, failing: failing_batches }),
            ..Setup::ROOMY
        };
        let mut harness = setup.with_connector(DelayedConnector::new(remote(&prompts), faults));
        for (id, (family, shared, tail, tokens, steps, abort)) in requests.into_iter().enumerate() {
            let mut prompt = text(family, shared);
            prompt.extend(text(60 + id as u32, tail));
            harness.submit(request(id as u64, &prompt, tokens));
            for _ in 0..steps {
                harness.step();
            }
            if abort {
                harness.abort(id as u64 / 2);
                harness.engine.check();
            }
        }
        harness.finish();
        harness.verify();
    }
}
