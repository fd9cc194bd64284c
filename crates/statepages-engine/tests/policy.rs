//! The policy against traffic, on the production loop with a runner that computes nothing.

use std::collections::BTreeMap;

use statepages_engine::{
    Engine, EngineParts, LogitsReport, NullRunner, Output, Progress, RawLimits, Request, Sampling,
    Stop,
};
use statepages_page::{BlockSize, Bytes, LayoutId, Pages, RequestId};
use statepages_store::{
    BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane, ControlPlaneConfig,
    ReferenceOrder, Schedulers, Speculation, StateRuntime, StateTransfer, Statepages, VictimPolicy,
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
    fn kv_percent(&self) -> f64 {
        self.kv as f64 * 100.0 / self.full as f64
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
            interval: if let Ok(g) = std::env::var("GRID") {
                CheckpointInterval::Grid(Pages::new(g.parse().unwrap()))
            } else {
                CheckpointInterval::AnchorsOnly
            },
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

#[test]
fn moon() {
    let Ok(shares) = std::env::var("MOON") else { return };
    let file = std::fs::read_to_string("/tmp/moon.txt").unwrap();
    let asks: Vec<(Vec<u32>, u32)> = file
        .lines()
        .map(|line| {
            let mut n = line.split(' ').map(|x| x.parse::<u64>().unwrap());
            let (len, out) = (n.next().unwrap(), n.next().unwrap());
            let mut prompt: Vec<u32> = n.flat_map(|id| text(id, 128)).collect();
            prompt.truncate(len as usize);
            (prompt, out as u32)
        })
        .collect();
    for pages in shares.split(',') {
        let pages: u32 = pages.parse().unwrap();
        let setup = Setup { pages, units: 4, block: 64, seqs: 64, batched: 4096, outputs: 25 };
        let mut lab = Lab::statepages(setup);
        let r = lab.round_of(asks.iter().cloned());
        println!("{pages}: {:.2} kv {:.2} {r:?}", r.percent(), r.kv_percent());
        if std::env::var("DBG").is_ok() {
            lab.engine.check();
        }
    }
}

#[test]
fn explore() {
    let Ok(dir) = std::env::var("EXPLORE") else { return };
    let lens: Vec<u32> = dir.split(',').map(|x| x.trim().parse::<u32>().unwrap() / 4).collect();
    for pages in [70_000u32, 50_000, 30_000] {
        for mode in ["file", "shuffled"] {
            for policy in ["statepages"] {
                let setup =
                    Setup { pages, units: 4, block: 64, seqs: 64, batched: 4096, outputs: 25 };
                let mut lab = match policy {
                    "ref" => Lab::new(setup, Box::new(ReferenceOrder)),
                    _ => Lab::statepages(setup),
                };
                print!("{pages} {mode} {policy}:");
                let start = std::time::Instant::now();
                for round in 0..4u64 {
                    let set = if round < 2 {
                        0
                    } else if round < 4 {
                        1
                    } else {
                        2
                    };
                    let order = if mode == "file" {
                        (0..lens.len() as u64).collect()
                    } else {
                        shuffled(lens.len() as u64, round)
                    };
                    let prompts = order.iter().map(|&i| text(set * 100_000 + i, lens[i as usize]));
                    let r = lab.round(prompts);
                    print!(
                        " [{:.1}/{:.1} img {} ev {} or {}]",
                        r.percent(),
                        r.kv_percent(),
                        r.images,
                        r.evicted,
                        r.orphaned
                    );
                    lab.engine.check();
                }
                println!(" {:?} {:?}", start.elapsed(), lab.engine.control().policy_report());
            }
        }
    }
}
