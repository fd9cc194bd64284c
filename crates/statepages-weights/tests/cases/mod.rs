//! Models in their published form, for tests and for the oracle's fixtures.
#![allow(dead_code, reason = "each binary uses its share")]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use statepages_copy::HostArena;
use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, DraftLayers, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_model::{
    Choices, Isa, Logits, LogitsWanted, Model, ModelConfig, RunOptions, SeededTensors,
    SequenceChunk, Weights, Yarn,
};
use statepages_page::{ImageRule, PageId, Pages, SlotId};
use statepages_weights::{WeightForm, write_published};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) config: ModelConfig,
    pub(crate) seed: u64,
    pub(crate) tokens: usize,
}

impl Case {
    /// Writes the model in two files.
    pub(crate) fn write(&self, directory: &Path) {
        let mut source = SeededTensors::new(self.seed);
        let shards = NonZeroUsize::new(2).expect("two");
        write_published(directory, &self.config, &mut source, WeightForm::Published, shards)
            .expect("a writable directory");
    }

    /// The prompt.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let mut state = self.seed as u32;
        let step = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % self.config.vocab_size
        };
        (0..self.tokens).map(step).collect()
    }
}

/// Models of every layer kind with hash and score routing. Sizes are at most 128 or a multiple of
/// it: the oracle takes fp8 blocks to be equal parts of a matrix.
pub(crate) fn cases() -> Vec<Case> {
    let base = ModelConfig {
        cache: CacheConfig {
            num_hidden_layers: 5,
            num_nextn_predict_layers: 1,
            draft_layers: DraftLayers::Mtp,
            compress_ratios: vec![0, 128, 4, 128, 4, 0],
            head_dim: 128,
            qk_rope_head_dim: 64,
            index_head_dim: 64,
            sliding_window: 128,
        },
        hidden_size: 128,
        q_lora_rank: 40,
        o_lora_rank: 24,
        index_n_heads: 8,
        index_topk: 16,
        moe_intermediate_size: 64,
        rope_scaling: Some(Yarn {
            factor: 4.0,
            original_max_position_embeddings: 64.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }),
        vocab_size: 40,
        max_position_embeddings: 4096,
        ..ModelConfig::demo()
    };
    let mut clamped = base.clone();
    clamped.cache.compress_ratios = vec![4, 4, 128, 0, 4, 0];
    clamped.cache.head_dim = 192;
    clamped.hidden_size = 64;
    clamped.num_attention_heads = 6;
    clamped.o_groups = 3;
    clamped.o_lora_rank = 16;
    clamped.index_topk = 3;
    clamped.n_routed_experts = 12;
    clamped.num_experts_per_tok = 3;
    clamped.moe_intermediate_size = 32;
    clamped.routed_scaling_factor = 2.5;
    clamped.num_hash_layers = 0;
    clamped.swiglu_limit = 0.4;
    let mut wide = base.clone();
    wide.cache.num_hidden_layers = 3;
    wide.cache.compress_ratios = vec![0, 128, 4, 0];
    wide.cache.head_dim = 512;
    wide.cache.index_head_dim = 128;
    wide.hidden_size = 256;
    wide.o_lora_rank = 128;
    wide.rope_scaling = ModelConfig::demo().rope_scaling;
    vec![
        Case { name: "every_kind", config: base, seed: 31, tokens: 390 },
        Case { name: "no_hash_clamped", config: clamped, seed: 32, tokens: 290 },
        Case { name: "production_rows", config: wide, seed: 33, tokens: 290 },
    ]
}

/// Row formats of a run.
pub(crate) const FORMATS: [(&str, KvFormat, IndexerFormat); 3] = [
    ("f32", KvFormat::F32, IndexerFormat::F32),
    ("fp8", KvFormat::Fp8, IndexerFormat::Fp8),
    ("fp8_fp4", KvFormat::Fp8, IndexerFormat::Fp4),
];

/// A model with memory for one request.
pub(crate) struct Run {
    pub(crate) model: Model,
    pub(crate) arena: HostArena,
    pub(crate) geometry: Dsv4Geometry,
    pub(crate) pages: Vec<PageId>,
}

impl Run {
    pub(crate) fn new(weights: Arc<Weights>, kv: KvFormat, indexer: IndexerFormat) -> Self {
        let options = CacheOptions {
            kv,
            indexer,
            draft_tokens: 0,
            block: BLOCK_TOKENS,
            dcp_world_size: 1,
            image: ImageRule::Live,
        };
        let geometry = Dsv4Geometry::new(&weights.config().cache, &options).expect("caches");
        let run = RunOptions { isa: Isa::Auto, threads: NonZeroUsize::new(2).expect("two") };
        Self {
            model: Model::new(weights, &geometry, run).expect("a model"),
            arena: HostArena::new(geometry.layout(), Pages::new(2), 1).expect("memory"),
            geometry,
            pages: (0..2).map(PageId::new).collect(),
        }
    }

    /// Logits of `ids[start..end]`.
    pub(crate) fn chunk(
        &mut self,
        choices: Option<&dyn Choices>,
        ids: &[u32],
        start: usize,
        end: usize,
    ) -> Vec<f32> {
        let batch = [SequenceChunk {
            slot: SlotId::new(0),
            pages: &self.pages,
            start: start as u32,
            tokens: &ids[start..end],
            before: None,
            logits: LogitsWanted::All,
        }];
        let mut out = Logits::new();
        match choices {
            Some(choices) => self.model.forward_with(choices, &mut self.arena, &batch, &mut out),
            None => self.model.forward(&mut self.arena, &batch, &mut out),
        }
        .expect("a sound batch");
        out.sequence(0).to_vec()
    }
}
