//! The DeepSeek-V4 forward under the loop: what is resumed equals what is computed from nothing, bit
//! for bit, whatever the chunks, the batch mix, the pool, and the bytes that memory held before.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use statepages_copy::{CopyBackend, Fault, FaultyBackend, HostArena, HostBackend};
use statepages_engine::{
    CpuRunner, Engine, EngineParts, FinishReason, LogitsReport, Output, Progress, RawLimits,
    Request, Runner, Sampling, Stop,
};
use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, DraftLayers, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_model::{Isa, Model, ModelConfig, RunOptions, Weights};
use statepages_page::{ImageRule, PageId, Pages, RequestId, SlotId, StateLayout};
use statepages_store::{
    BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane, ControlPlaneConfig,
    ReferenceOrder, Schedulers, Speculation, StateRuntime, StateTransfer,
};

const BLOCK: usize = BLOCK_TOKENS.get() as usize;
const VOCAB: u32 = 40;

/// Small dimensions with every kind of layer.
fn config() -> ModelConfig {
    let mut config = ModelConfig::demo();
    config.cache = CacheConfig {
        num_hidden_layers: 4,
        num_nextn_predict_layers: 1,
        draft_layers: DraftLayers::Mtp,
        compress_ratios: vec![0, 4, 128, 4, 0],
        head_dim: 32,
        qk_rope_head_dim: 8,
        index_head_dim: 16,
        sliding_window: 128,
    };
    config.hidden_size = 32;
    config.num_attention_heads = 4;
    config.q_lora_rank = 24;
    config.o_lora_rank = 12;
    config.index_n_heads = 2;
    config.index_topk = 7;
    config.n_routed_experts = 5;
    config.moe_intermediate_size = 12;
    config.vocab_size = VOCAB;
    config
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    image: ImageRule,
    bf16: bool,
    pages: u32,
    slots: u32,
    budget: u64,
    /// In blocks; `None` is anchors only, zero is off.
    interval: Option<u32>,
    threads: usize,
    /// What memory holds at the start, four bytes repeated.
    poison: [u8; 4],
}

const PLAIN: Setup = Setup {
    image: ImageRule::Live,
    bf16: false,
    pages: 64,
    slots: 3,
    budget: 4096,
    interval: None,
    threads: 1,
    poison: [0; 4],
};

impl Setup {
    fn geometry(&self) -> Dsv4Geometry {
        let (kv, indexer) = if self.bf16 {
            (KvFormat::Bf16, IndexerFormat::Bf16)
        } else {
            (KvFormat::F32, IndexerFormat::F32)
        };
        let options = CacheOptions {
            kv,
            indexer,
            draft_tokens: 0,
            block: BLOCK_TOKENS,
            dcp_world_size: 1,
            image: self.image,
        };
        Dsv4Geometry::new(&config().cache, &options).unwrap()
    }

    fn control(&self, layout: &StateLayout) -> ControlPlane {
        let spec = CheckpointSpec::of(layout).unwrap();
        let transfer = StateTransfer::Copy { layout: layout.id.clone() };
        let config = ControlPlaneConfig {
            pages: Pages::new(self.pages),
            pages_max: Pages::new(self.pages),
            slots: self.slots,
            block: BLOCK_TOKENS,
            runtime: StateRuntime::new(transfer, Some(spec)).unwrap(),
            caching: Caching::On,
            interval: match self.interval {
                None => CheckpointInterval::AnchorsOnly,
                Some(0) => CheckpointInterval::Off,
                Some(blocks) => CheckpointInterval::Grid(Pages::new(blocks)),
            },
            copying_max: None,
            order: BackendOrder::Ordered,
            speculation: Speculation::Off,
            pipeline_stages: 1,
            schedulers: Schedulers::Unified,
            events_max: 0,
        };
        ControlPlane::new(config, Box::new(ReferenceOrder)).unwrap()
    }

    fn engine<B: CopyBackend<Memory = HostArena>>(
        &self,
        backend: impl FnOnce(StateLayout) -> B,
    ) -> Harness<CpuRunner<B>> {
        let geometry = self.geometry();
        let layout = geometry.layout();
        let weights = Arc::new(Weights::seeded(&config(), 11).unwrap());
        let threads = NonZeroUsize::new(self.threads).unwrap();
        let options = RunOptions { isa: Isa::Auto, threads };
        let model = Model::new(weights, &geometry, options).unwrap();
        let mut arena = HostArena::new(layout, Pages::new(self.pages), self.slots).unwrap();
        fill(&mut arena, layout, self.poison);
        let runner = CpuRunner::with_backend(model, arena, backend(layout.clone()));
        let parts = EngineParts {
            control: self.control(layout),
            limits: RawLimits {
                max_num_batched_tokens: self.budget,
                max_num_seqs: u64::from(self.slots),
                max_in_flight: 1,
                max_model_len: 8192,
                vocab: u64::from(VOCAB),
                waiting_max: 100,
                batch_failures_max: 3,
                load_steps_max: 0,
            },
            model_revision: "seeded 11".to_owned(),
            layout: Some(layout.id.clone()),
        };
        Harness { engine: Engine::new(parts, runner).unwrap(), heard: BTreeMap::new() }
    }

    fn host(&self) -> Harness<CpuRunner> {
        self.engine(HostBackend::new)
    }
}

fn fill(arena: &mut HostArena, layout: &StateLayout, pattern: [u8; 4]) {
    let paint = |bytes: &mut [u8]| {
        for part in bytes.chunks_exact_mut(4) {
            part.copy_from_slice(&pattern);
        }
    };
    for region in 0..layout.page.regions().len() {
        for page in 0..arena.pages().get() {
            paint(arena.page_mut(region, PageId::new(page)));
        }
    }
    for plane in 0..layout.slot.planes().len() {
        for slot in 0..arena.slots() {
            paint(arena.slot_mut(plane, SlotId::new(slot)));
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Heard {
    /// Each token with the bits of the logits it was chosen from.
    tokens: Vec<(u32, Vec<u32>)>,
    resumed: Vec<u32>,
    preempted: u32,
    ended: Option<FinishReason>,
}

struct Harness<R: Runner> {
    engine: Engine<R>,
    heard: BTreeMap<RequestId, Heard>,
}

impl<R: Runner> Harness<R> {
    fn submit(&mut self, id: u64, prompt: &[u32], tokens: u32) {
        self.submit_as(id, None, prompt, tokens);
    }

    fn submit_as(&mut self, id: u64, tenant: Option<&[u8]>, prompt: &[u32], tokens: u32) {
        let request = Request {
            id: RequestId::new(id),
            prompt: prompt.to_vec(),
            tenant_salt: tenant.map(<[u8]>::to_vec),
            adapter: None,
            sampling: Sampling::GREEDY,
            stop: Stop::after(tokens),
            logits: LogitsReport::Attach,
        };
        self.engine.submit(request).unwrap();
        self.heard.insert(RequestId::new(id), Heard::default());
    }

    fn step(&mut self) -> Progress {
        let progress = self.engine.step();
        self.engine.check();
        while let Some(output) = self.engine.next_output() {
            match output {
                Output::Admitted { request, report } => {
                    let heard = self.heard.get_mut(&request).unwrap();
                    heard.resumed.push(report.hit.resumable.get());
                }
                Output::Token { request, token, logits, .. } => {
                    let bits = logits.unwrap().iter().map(|logit| logit.to_bits()).collect();
                    self.heard.get_mut(&request).unwrap().tokens.push((token, bits));
                }
                Output::Preempted { request, .. } => {
                    self.heard.get_mut(&request).unwrap().preempted += 1;
                }
                Output::Finished { request, reason, .. } => {
                    self.heard.get_mut(&request).unwrap().ended = Some(reason);
                }
                other => panic!("{other:?}"),
            }
        }
        progress
    }

    fn finish(&mut self) {
        while self.step() != Progress::Idle {}
    }

    fn run(&mut self, id: u64, prompt: &[u32], tokens: u32) -> Heard {
        self.submit(id, prompt, tokens);
        self.finish();
        self.heard[&RequestId::new(id)].clone()
    }
}

/// Tokens without a pattern that a model could hide behind.
fn text(seed: u32, len: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let step = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % VOCAB
    };
    (0..len).map(step).collect()
}

/// The prompt alone in an engine that keeps and resumes nothing, in one chunk.
fn cold(setup: Setup, prompt: &[u32], tokens: u32) -> Vec<(u32, Vec<u32>)> {
    let setup = Setup { interval: Some(0), budget: 8192, poison: [0; 4], pages: 64, ..setup };
    setup.host().run(0, prompt, tokens).tokens
}

const NAN: [u8; 4] = [0xff, 0xff, 0xff, 0x7f];
/// Large and finite as f32 and as bf16.
const HUGE: [u8; 4] = [0x70, 0x7e, 0x70, 0x7e];

#[test]
fn resumed_equals_cold_at_every_kind_of_length() {
    let rules = [ImageRule::Whole, ImageRule::Carried, ImageRule::Live];
    for (index, len) in
        [2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 2 * BLOCK + 130].into_iter().enumerate()
    {
        let prompt = text(len as u32, len);
        let mut longer = prompt.clone();
        longer.extend(text(1, BLOCK + 9));
        let (want, want_longer) = (cold(PLAIN, &prompt, 5), cold(PLAIN, &longer, 5));
        for (at, &image) in rules.iter().enumerate() {
            let setup = Setup {
                image,
                budget: [100, BLOCK as u64 + 1, 4096][(at + index) % 3],
                poison: [NAN, HUGE][(at + index) % 2],
                threads: 1 + (at + index) % 2,
                ..PLAIN
            };
            let mut harness = setup.host();
            assert_eq!(harness.run(1, &prompt, 5).tokens, want, "{len} {setup:?}");
            let again = harness.run(2, &prompt, 5);
            assert_eq!(again.resumed, [((len - 1) / BLOCK * BLOCK) as u32]);
            assert_eq!(again.tokens, want, "{len} {setup:?}");
            let third = harness.run(3, &longer, 5);
            assert!(third.resumed[0] > 0);
            assert_eq!(third.tokens, want_longer, "{len} {setup:?}");
        }
    }
}

#[test]
fn resumed_equals_cold_in_bf16_rows() {
    let setup = Setup { bf16: true, budget: 300, poison: NAN, ..PLAIN };
    let prompt = text(2, 3 * BLOCK + 17);
    let want = cold(setup, &prompt, 6);
    let mut harness = setup.host();
    assert_eq!(harness.run(1, &prompt, 6).tokens, want);
    let again = harness.run(2, &prompt, 6);
    assert_eq!((again.resumed, again.tokens), (vec![3 * BLOCK as u32], want));
}

/// Every length around a block's end with every budget around one, all of one text in one batch mix,
/// so that each prompt is a prefix of others; memory full of another tenant's valid states.
#[test]
fn resumed_equals_cold_in_mixes_at_every_chunk_size_near_a_boundary() {
    let lens = [1, 2, 3].into_iter().flat_map(|k| [k * BLOCK - 1, k * BLOCK, k * BLOCK + 1]);
    let whole = text(6, 3 * BLOCK + 1);
    let prompts: Vec<&[u32]> = lens.map(|len| &whole[..len]).collect();
    let wants: Vec<_> = prompts.iter().map(|prompt| cold(PLAIN, prompt, 3)).collect();
    for (at, budget) in [127, 255, 256, 257, 511, 512, 513].into_iter().enumerate() {
        let image = [ImageRule::Live, ImageRule::Whole, ImageRule::Carried][at % 3];
        let interval = [None, Some(1), Some(2)][at / 3 % 3];
        let setup = Setup { budget, image, interval, poison: NAN, pages: 48, ..PLAIN };
        let mut harness = setup.host();
        for id in 0..3 {
            harness.submit_as(1000 + id, Some(b"other"), &text(70 + id as u32, 3 * BLOCK + 77), 3);
        }
        harness.finish();
        for round in 0..3 {
            for (i, prompt) in prompts.iter().enumerate() {
                harness.submit(round * 100 + i as u64, prompt, 3);
            }
            harness.finish();
            for (i, want) in wants.iter().enumerate() {
                let heard = &harness.heard[&RequestId::new(round * 100 + i as u64)];
                assert_eq!(&heard.tokens, want, "round {round}, prompt {i}, {setup:?}");
            }
        }
        let resumed = harness.heard.values().flat_map(|heard| &heard.resumed);
        assert!(resumed.filter(|at| **at > 0).count() >= 9, "{setup:?}");
    }
}

/// Preempted after decoding, among others, in a pool that lacks one page for the three; memory full of
/// noise, then of the others' valid states.
#[test]
fn preempted_and_mixed_equals_cold() {
    let prompts: Vec<_> = (0..3).map(|i| text(10 + i, 2 * BLOCK - 12 + i as usize)).collect();
    let wants: Vec<_> = prompts.iter().map(|prompt| cold(PLAIN, prompt, 24)).collect();
    for (poison, interval) in [(NAN, Some(0)), (HUGE, Some(1)), (NAN, None)] {
        let setup = Setup { pages: 8, budget: 200, poison, interval, ..PLAIN };
        let mut harness = setup.host();
        for round in 0..2 {
            for (i, prompt) in prompts.iter().enumerate() {
                harness.submit_as(round * 3 + i as u64, Some(b"t"), prompt, 24);
            }
            harness.finish();
            for (i, want) in wants.iter().enumerate() {
                let heard = &harness.heard[&RequestId::new(round * 3 + i as u64)];
                assert_eq!(heard.ended, Some(FinishReason::MaxTokens));
                assert_eq!(&heard.tokens, want, "round {round}, prompt {i}, {setup:?}");
            }
        }
        let preempted: u32 = harness.heard.values().map(|heard| heard.preempted).sum();
        assert!(preempted > 0, "{setup:?}");
    }
}

/// A slot whose restore is lost stands as its previous owner left it: the probe must see it.
#[test]
fn a_lost_restore_shows() {
    let prompt = text(3, 2 * BLOCK + 40);
    let want = cold(PLAIN, &prompt, 4);
    let mut harness = PLAIN.engine(|layout| {
        let mut backend = FaultyBackend::new(layout);
        // The one batch with copies of the first request stores; the second request's restores.
        backend.script(Fault::Delay { polls: 0 });
        backend.script(Fault::SkipRestores);
        backend
    });
    assert_eq!(harness.run(1, &prompt, 4).tokens, want);
    harness.run(9, &text(4, BLOCK - 1), 4);
    let again = harness.run(2, &prompt, 4);
    assert_eq!(again.resumed, [2 * BLOCK as u32]);
    assert_ne!(again.tokens, want);
}

/// Copies that are slow change nothing; a copy that fails fails its batch, latches, and after a
/// reset the same request computes what it would have.
#[test]
fn a_failed_copy_fails_its_batch_until_reset() {
    let prompt = text(5, 2 * BLOCK + 40);
    let want = cold(PLAIN, &prompt, 4);
    let mut harness = PLAIN.engine(|layout| {
        let mut backend = FaultyBackend::new(layout);
        backend.script(Fault::Delay { polls: 3 });
        backend.script(Fault::Tear { polls: 2, moves: 1 });
        backend
    });
    assert_eq!(harness.run(1, &prompt, 4).tokens, want);
    harness.submit(2, &prompt, 4);
    harness.step();
    assert_eq!(harness.heard[&RequestId::new(2)].preempted, 1);
    harness.engine.runner_mut().reset();
    harness.finish();
    let heard = &harness.heard[&RequestId::new(2)];
    assert_eq!(heard.ended, Some(FinishReason::MaxTokens));
    assert_eq!(heard.tokens, want);
    // Without a reset, every batch with copies fails, and the request with them.
    harness.engine.runner_mut().copies_mut().script(Fault::FailSubmit);
    let lost = harness.run(3, &prompt, 4);
    assert!(matches!(lost.ended, Some(FinishReason::Failed(_))), "{:?}", lost.ended);
    harness.engine.runner_mut().reset();
    assert_eq!(harness.run(4, &prompt, 4).tokens, want);
}
