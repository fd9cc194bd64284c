//! The policy against traffic, on the production loop with a runner that computes nothing.

use std::collections::BTreeMap;

use statepages_engine::{
    Engine, EngineParts, LogitsReport, NullRunner, Output, Progress, RawLimits, Request, Sampling,
    Stop,
};
use statepages_page::{BlockSize, Bytes, LayoutId, Pages, RequestId};
use statepages_store::{
    BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane, ControlPlaneConfig,
    ReferenceOrder, Schedulers, Speculation, Spending, StateRuntime, StateTransfer, Statepages,
    VictimPolicy,
};

/// A pool and its traffic, at a scale of one's own.
#[derive(Clone, Copy, Debug)]
struct Setup {
    pages: u32,
    units: u32,
    block: u32,
    seqs: u32,
    batched: u64,
    outputs: u32,
}

struct Lab {
    engine: Engine<NullRunner>,
    setup: Setup,
    next: u64,
    /// Of the requests so far, by id: full, resumed tokens.
    seen: BTreeMap<u64, (u64, u64)>,
    batches: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    full: u64,
    kv: u64,
    realised: u64,
    images: u64,
    requests: u64,
    evicted: u64,
    orphaned: u64,
}

impl Round {
    fn percent(&self) -> f64 {
        self.realised as f64 * 100.0 / self.full as f64
    }
}

impl Lab {
    fn new(setup: Setup, policy: Box<dyn VictimPolicy>) -> Self {
        let layout = LayoutId::new("policy-test").unwrap();
        let image = Bytes::new(u64::from(setup.units) * 10 - 5);
        let spec = CheckpointSpec::new(Bytes::new(10), image, image, layout.clone()).unwrap();
        let runtime =
            StateRuntime::new(StateTransfer::Copy { layout: layout.clone() }, Some(spec)).unwrap();
        let config = ControlPlaneConfig {
            pages: Pages::new(setup.pages),
            pages_max: Pages::new(setup.pages),
            slots: setup.seqs,
            block: BlockSize::new(setup.block).unwrap(),
            runtime,
            caching: Caching::On,
            interval: CheckpointInterval::Grid(Pages::new(32)),
            copying_max: None,
            order: BackendOrder::Ordered,
            speculation: Speculation::Off,
            pipeline_stages: 1,
            schedulers: Schedulers::Unified,
            events_max: 0,
        };
        let parts = EngineParts {
            control: ControlPlane::new(config, policy).unwrap(),
            limits: RawLimits {
                max_num_batched_tokens: setup.batched,
                max_num_seqs: u64::from(setup.seqs),
                max_in_flight: 1,
                max_model_len: 1_000_000,
                vocab: 1 << 30,
                waiting_max: 100,
                batch_failures_max: 3,
                load_steps_max: 10,
            },
            model_revision: "null".to_owned(),
            layout: Some(layout),
        };
        let engine = Engine::new(parts, NullRunner::new(1, 1 << 30)).unwrap();
        Self { engine, setup, next: 0, seen: BTreeMap::new(), batches: 0 }
    }

    fn statepages(setup: Setup) -> Self {
        let policy = Statepages::new(Pages::new(setup.pages), Pages::new(setup.units));
        Self::new(setup, Box::new(policy))
    }

    /// Runs the prompts in order, as many at once as the engine takes.
    fn round(&mut self, prompts: impl IntoIterator<Item = Vec<u32>>) -> Round {
        let outputs = self.setup.outputs;
        self.round_of(prompts.into_iter().map(|prompt| (prompt, outputs)))
    }

    fn round_of(&mut self, prompts: impl IntoIterator<Item = (Vec<u32>, u32)>) -> Round {
        let before = self.engine.snapshot();
        let mut round = Round::default();
        let mut prompts = prompts.into_iter();
        let mut waiting = 0;
        loop {
            while waiting < self.setup.seqs {
                let Some((prompt, outputs)) = prompts.next() else { break };
                self.next += 1;
                self.engine
                    .submit(Request {
                        id: RequestId::new(self.next),
                        prompt,
                        tenant_salt: None,
                        adapter: None,
                        sampling: Sampling::GREEDY,
                        stop: Stop::after(outputs),
                        logits: LogitsReport::Omit,
                    })
                    .unwrap();
                waiting += 1;
            }
            let progress = self.engine.step();
            while let Some(output) = self.engine.next_output() {
                match output {
                    Output::Admitted { report, .. } => {
                        round.full += u64::from(report.hit.full.get());
                        round.kv += u64::from(report.hit.kv.get());
                        round.realised += u64::from(report.hit.resumable.get());
                        round.requests += 1;
                        self.seen.insert(
                            self.next,
                            (report.hit.full.get().into(), report.hit.resumable.get().into()),
                        );
                    }
                    Output::Finished { .. } => waiting -= 1,
                    _ => {}
                }
            }
            match progress {
                Progress::Idle => break,
                _ => self.batches += 1,
            }
        }
        let after = self.engine.snapshot();
        round.images = after.counters.kept - before.counters.kept;
        round.evicted = after.counters.evicted - before.counters.evicted;
        round.orphaned = after.counters.orphaned_records - before.counters.orphaned_records;
        round
    }
}

fn scramble(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `len` tokens that no other `text` has.
fn text(text: u64, len: u32) -> Vec<u32> {
    (0..len).map(|at| (scramble(text << 32 | u64::from(at)) >> 35) as u32).collect()
}

fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, (scramble(seed << 20 | i as u64) % (i as u64 + 1)) as usize);
    }
    order
}

/// Half of GSM8K with 64 examples: prompts that share nothing, sent in rounds; pools of the same
/// share of what they fill, and a server of the same share of the pool.
const LOOP: Setup = Setup { pages: 0, units: 4, block: 4, seqs: 32, batched: 1280, outputs: 3 };
const PROMPTS: u64 = 660;

fn prompt(set: u64, index: u64) -> Vec<u32> {
    let blocks = 36 + scramble(index) % 11;
    text(set << 20 | index, (4 * blocks + 1 + index % 4) as u32)
}

/// Two rounds of some prompts and two of others: what the second of each realises, in percent.
fn rounds(lab: &mut Lab, order: impl Fn(u64) -> Vec<u64>) -> [f64; 2] {
    [0, 1].map(|set| {
        lab.round(order(2 * set).into_iter().map(|index| prompt(set, index)));
        let second = lab.round(order(2 * set + 1).into_iter().map(|index| prompt(set, index)));
        lab.engine.check();
        second.percent()
    })
}

#[test]
fn a_loop_longer_than_the_pool_keeps_what_fits_and_gives_way_to_the_next() {
    for (pages, least) in [(35_000, 97.0), (25_000, 70.0), (15_000, 38.0)] {
        for seed in 0..3 {
            let order = |round| match seed {
                0 => (0..PROMPTS).collect(),
                _ => shuffled(PROMPTS, seed * 10 + round),
            };
            let mut lab = Lab::statepages(Setup { pages, ..LOOP });
            let realised = rounds(&mut lab, order);
            assert!(
                realised.iter().all(|&percent| percent >= least),
                "{pages} pages, order {seed}: {realised:?} of {least}"
            );
        }
    }
}

#[test]
fn the_reference_keeps_nothing_of_such_a_loop() {
    let mut lab = Lab::new(Setup { pages: 25_000, ..LOOP }, Box::new(ReferenceOrder));
    assert_eq!(rounds(&mut lab, |_| (0..PROMPTS).collect()), [0.0, 0.0]);
}

#[test]
fn a_loop_that_fits_survives_what_comes_only_once() {
    let realised = |policy: Box<dyn VictimPolicy>| {
        let mut lab = Lab::new(Setup { pages: 3_500, ..LOOP }, policy);
        let mut once = 0;
        let mut percent = 0.0;
        // Thirty prompts again and again, and between any two of them two that never return.
        for _ in 0..6 {
            let mixed = (0..30).flat_map(|index| {
                once += 2;
                [prompt(0, index), prompt(7, once), prompt(7, once + 1)]
            });
            percent = lab.round(mixed.collect::<Vec<_>>()).percent();
        }
        percent
    };
    let own = realised(Box::new(Statepages::new(Pages::new(3_500), Pages::new(4))));
    let reference = realised(Box::new(ReferenceOrder));
    assert!(own > 30.0, "a third is asked again: {own}");
    assert!(reference < 1.0, "{reference}");
}

#[test]
fn cold_traffic_stops_paying_and_pays_again_once_something_is_read() {
    let setup = Setup { pages: 3_000, ..LOOP };
    let mut lab = Lab::statepages(setup);
    let spending = |lab: &Lab| lab.engine.control().policy_report().expect("it reports").ahead;
    lab.round((0..200).map(|index| prompt(1, index)));
    let Spending::Thrifty { since } = spending(&lab) else { panic!("two pools went unread") };
    assert!((120..160).contains(&since), "two pools of bundles, not {since} requests");
    let cold = lab.round((200..1_000).map(|index| prompt(1, index)));
    assert!(cold.images * 50 <= cold.requests, "{cold:?}");

    // A prompt that comes again would have read the image that was not kept for it.
    lab.round([prompt(9, 0)]);
    assert!(matches!(spending(&lab), Spending::Thrifty { .. }));
    lab.round([prompt(9, 0)]);
    assert_eq!(spending(&lab), Spending::Paying);
    let third = lab.round([prompt(9, 0)]);
    assert!(third.percent() > 90.0, "{third:?}");
}

#[test]
fn after_cold_traffic_shared_prefixes_are_served_within_two_hundred_requests() {
    let mut lab = Lab::statepages(Setup { pages: 3_000, ..LOOP });
    lab.round((0..1_000).map(|index| prompt(1, index)));
    // Eight prefixes in turn, each with a tail of its own.
    let shared = |at: u64| {
        let mut tokens = text(5 << 20 | at % 8, 32 * 4);
        tokens.extend(text(6 << 20 | at, 8));
        tokens
    };
    lab.round((0..180).map(shared));
    let early = lab.round((180..200).map(shared));
    let steady = lab.round((200..400).map(shared));
    assert!(early.percent() >= 0.95 * steady.percent(), "{early:?} {steady:?}");
    assert!(steady.percent() > 90.0, "32 blocks of 34: {steady:?}");
}

#[test]
fn equal_traffic_gives_equal_answers_and_its_memory_does_not_grow() {
    let run = || {
        let mut lab = Lab::statepages(Setup { pages: 15_000, ..LOOP });
        let bytes = |lab: &Lab| lab.engine.control().policy_report().expect("it reports").bytes;
        let before = bytes(&lab);
        let order = |round| shuffled(PROMPTS, 77 + round);
        let realised = rounds(&mut lab, order);
        assert_eq!(bytes(&lab), before);
        (realised, lab.engine.snapshot())
    };
    assert_eq!(run(), run());
}
