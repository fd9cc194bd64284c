//! Random workloads against the naive loop: whatever pool, budget, backend order, latency, aborts,
//! resets and failed batches, each request gets the tokens that the model gives without pages, slots
//! and batches; no tenant hits another's blocks; nothing is left behind.

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use statepages_engine::{Connector, Event, Passes, RunnerFaults};
use statepages_page::RequestId;
use statepages_store::BackendOrder;
use support::{BLOCK, Harness, Setup, request, text};

#[derive(Clone, Debug)]
enum Act {
    /// `(family, shared, tail, tokens, tenant)`: `shared` tokens of a family's text, then a tail of
    /// the request's own.
    Submit {
        family: u32,
        shared: usize,
        tail: usize,
        tokens: u32,
        tenant: u8,
    },
    /// The prompt and output of an earlier request, and a new turn.
    Continue {
        which: usize,
        turn: usize,
        tokens: u32,
    },
    Abort(usize),
    Steps(u8),
    Reset,
}

fn act() -> impl Strategy<Value = Act> {
    let block = BLOCK as usize;
    let length = prop_oneof![
        2 => (1..6usize).prop_map(move |k| k * block - 1),
        2 => (1..6usize).prop_map(move |k| k * block),
        2 => (1..6usize).prop_map(move |k| k * block + 1),
        1 => 0..24usize,
    ];
    prop_oneof![
        8 => (0..3u32, length, 0..9usize, 1..16u32, 0..3u8).prop_map(
            |(family, shared, tail, tokens, tenant)| Act::Submit {
                family, shared, tail, tokens, tenant,
            }
        ),
        2 => (any::<usize>(), 1..7usize, 1..9u32)
            .prop_map(|(which, turn, tokens)| Act::Continue { which, turn, tokens }),
        2 => any::<usize>().prop_map(Act::Abort),
        8 => (1..7u8).prop_map(Act::Steps),
        1 => Just(Act::Reset),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let pool = prop_oneof![
        // One request of the longest kind, and hardly more.
        2 => 14..20u32,
        3 => 20..50u32,
        1 => 50..300u32,
    ];
    let interval = prop_oneof![Just(None), Just(Some(0)), (1..5u32).prop_map(Some)];
    let faults = prop_oneof![
        4 => Just(None),
        1 => (any::<u64>(), 1..30u8).prop_map(|(seed, failing)| Some(RunnerFaults { seed, failing })),
    ];
    let order = prop_oneof![Just(BackendOrder::Ordered), Just(BackendOrder::Unordered)];
    let passes = prop_oneof![3 => Just(Passes::Mixed), 1 => Just(Passes::PrefillFirst)];
    (pool, 1..5u32, interval, 4..30u64, 1..3u64, 0..7u32, faults, order, passes).prop_map(
        |(pages, slots, interval, budget, in_flight, latency, faults, order, passes)| Setup {
            pages,
            slots,
            interval,
            budget,
            in_flight,
            latency,
            faults,
            order,
            passes,
            ..Setup::ROOMY
        },
    )
}

/// Longest prompts come to 24 + 9 tokens, their outputs to 16: 13 pages.
const PROMPT_MAX: usize = 34;

fn tenant_salt(tenant: u8) -> Option<Vec<u8>> {
    (tenant > 0).then(|| vec![tenant])
}

fn perform<C: Connector>(harness: &mut Harness<C>, acts: &[Act]) {
    let mut next = 0;
    for act in acts {
        let ids: Vec<RequestId> = harness.prompts.keys().copied().collect();
        match *act {
            Act::Submit { family, shared, tail, tokens, tenant } => {
                let mut prompt = text(family, shared);
                prompt.extend(text(100 + next, tail));
                if prompt.is_empty() {
                    prompt.push(0);
                }
                let mut request = request(u64::from(next), &prompt, tokens);
                request.tenant_salt = tenant_salt(tenant);
                harness.submit(request);
                next += 1;
            }
            Act::Continue { which, turn, tokens } => {
                let Some(&id) = ids.get(which % ids.len().max(1)) else { continue };
                let mut prompt = harness.prompts[&id].prompt.clone();
                prompt.extend(&harness.heard[&id].tokens);
                prompt.extend(text(100 + next, turn));
                prompt.truncate(PROMPT_MAX);
                let mut request = request(u64::from(next), &prompt, tokens);
                request.tenant_salt.clone_from(&harness.prompts[&id].tenant_salt);
                harness.submit(request);
                next += 1;
            }
            Act::Abort(which) => {
                if let Some(&id) = ids.get(which % ids.len().max(1)) {
                    harness.abort(id.raw());
                }
            }
            Act::Steps(steps) => {
                for _ in 0..steps {
                    harness.step();
                }
            }
            Act::Reset => harness.engine.handle(Event::ResetPrefixCache),
        }
        harness.engine.check();
    }
}

/// What a request resumed is no more than it shares with some earlier request of its own tenant.
fn verify_isolation<C: Connector>(harness: &Harness<C>) {
    let mut of_tenant: BTreeMap<Option<Vec<u8>>, Vec<Vec<u32>>> = BTreeMap::new();
    for (id, request) in &harness.prompts {
        let heard = &harness.heard[id];
        let earlier = of_tenant.entry(request.tenant_salt.clone()).or_default();
        let mut all = request.prompt.clone();
        all.extend(&heard.tokens);
        if heard.preempted == 0 {
            let common = |other: &Vec<u32>| {
                other.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count() as u32
            };
            let most = earlier.iter().map(common).max().unwrap_or(0);
            for report in &heard.admissions {
                assert!(report.hit.kv.get() <= most, "{id} of {:?}", request.tenant_salt);
            }
        }
        earlier.push(all);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_the_naive_loop_s_tokens(
        setup in setup(),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let mut harness = setup.harness();
        perform(&mut harness, &acts);
        harness.finish();
        harness.verify();
        verify_isolation(&harness);
    }
}

/// The same events give the same batches and outputs, run after run.
#[test]
fn two_replicas_fed_the_same_events_agree() {
    let setup = Setup {
        pages: 30,
        in_flight: 2,
        latency: 3,
        interval: Some(2),
        faults: Some(RunnerFaults { seed: 3, failing: 10 }),
        ..Setup::ROOMY
    };
    let run = || {
        let mut harness = setup.harness();
        let mut trace = Vec::new();
        for id in 0..40 {
            let mut prompt = text(id as u32 % 3, 5 + (id as usize * 5) % 17);
            prompt.extend(text(50 + id as u32, id as usize % 5));
            harness.submit(request(id, &prompt, 3 + id as u32 % 9));
            trace.push(format!("{:?}", harness.step()));
            if id % 7 == 3 {
                harness.abort(id - 2);
            }
        }
        harness.finish();
        harness.verify();
        (trace, format!("{:?}", harness.engine.snapshot()), harness.steps)
    };
    assert_eq!(run(), run());
}
