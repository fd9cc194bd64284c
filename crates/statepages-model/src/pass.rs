//! What every phase of a forward reads and none writes.

use std::sync::Arc;

use statepages_geometry::{Dsv4Geometry, LayerCache, LayerClass};

use crate::batch::{Plan, Span};
use crate::choice::Choices;
use crate::config::ModelConfig;
use crate::crew::Hands;
use crate::kernel::attend::HEADS;
use crate::kernel::lanes::Machine;
use crate::rope::Rope;
use crate::row::RowFormat;
use crate::tile::Inside;
use crate::weights::{LayerWeights, Weights};

/// Sizes as slice lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    pub(crate) hidden: usize,
    pub(crate) streams: usize,
    pub(crate) heads: usize,
    /// Heads rounded up to whole groups of the attention kernel.
    pub(crate) heads_padded: usize,
    /// Columns of a KV row.
    pub(crate) width: usize,
    pub(crate) q_rank: usize,
    pub(crate) groups: usize,
    pub(crate) o_rank: usize,
    pub(crate) index_heads: usize,
    pub(crate) index_heads_padded: usize,
    /// Columns of an indexer row.
    pub(crate) index_width: usize,
    pub(crate) experts: usize,
    pub(crate) experts_per_token: usize,
    pub(crate) window: u32,
}

impl Dims {
    fn new(config: &ModelConfig) -> Self {
        let size = |n: u32| n as usize;
        Self {
            hidden: size(config.hidden_size),
            streams: size(config.hc_mult),
            heads: size(config.num_attention_heads),
            heads_padded: size(config.num_attention_heads).next_multiple_of(HEADS),
            width: size(config.cache.head_dim),
            q_rank: size(config.q_lora_rank),
            groups: size(config.o_groups),
            o_rank: size(config.o_lora_rank),
            index_heads: size(config.index_n_heads),
            index_heads_padded: size(config.index_n_heads).next_multiple_of(HEADS),
            index_width: size(config.cache.index_head_dim),
            experts: size(config.n_routed_experts),
            experts_per_token: size(config.num_experts_per_tok),
            window: config.cache.sliding_window,
        }
    }
}

/// The model and how it is run.
pub(crate) struct Core {
    pub(crate) config: ModelConfig,
    pub(crate) dims: Dims,
    pub(crate) geometry: Dsv4Geometry,
    pub(crate) weights: Arc<Weights>,
    pub(crate) machine: Machine,
    pub(crate) kv: RowFormat,
    /// Bytes of each part of a KV row.
    pub(crate) kv_parts: Vec<usize>,
    pub(crate) index: RowFormat,
    pub(crate) dense_rope: Rope,
    pub(crate) compressed_rope: Rope,
}

impl Core {
    pub(crate) fn new(weights: Arc<Weights>, geometry: Dsv4Geometry, machine: Machine) -> Self {
        let config = weights.config().clone();
        let dims = Dims::new(&config);
        let rope = config.cache.qk_rope_head_dim as usize;
        Self {
            kv: RowFormat::of_kv(geometry.options().kv, dims.width, rope),
            kv_parts: (0..geometry.planes()).map(|plane| geometry.row_bytes(plane)).collect(),
            index: RowFormat::of_indexer(geometry.options().indexer),
            dims,
            dense_rope: Rope::dense(&config),
            compressed_rope: Rope::compressed(&config),
            config,
            geometry,
            weights,
            machine,
        }
    }
}

/// One layer of one forward.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) core: &'a Core,
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) choices: &'a dyn Choices,
    pub(crate) layer: usize,
    pub(crate) weights: &'a LayerWeights,
    pub(crate) cache: LayerCache,
    /// Tokens per compressed entry; 0 for none.
    pub(crate) ratio: u32,
    /// Who shares what the whole batch needs.
    pub(crate) all: Hands,
    /// Who shares the work inside of a tile.
    pub(crate) inside: Inside<'a>,
    /// True where what the layer gives is read for logits alone, so that tokens whose logits nobody
    /// wants are computed no further than others read them.
    pub(crate) last: bool,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        core: &'a Core,
        plan: &'a Plan<'a>,
        choices: &'a dyn Choices,
        (all, inside): (Hands, Inside<'a>),
        (layer, last): (usize, bool),
    ) -> Self {
        let draft = core.weights.draft.as_ref().map(|draft| &draft.layer);
        let weights = core.weights.layers.get(layer).or(draft);
        Self {
            core,
            plan,
            choices,
            layer,
            weights: weights.expect("the layer exists"),
            cache: core.geometry.layers()[layer],
            ratio: core.config.cache.compress_ratios[layer],
            all,
            inside,
            last,
        }
    }

    /// The rotation of everything in the layer.
    pub(crate) fn rope(&self) -> &'a Rope {
        if self.ratio == 0 { &self.core.dense_rope } else { &self.core.compressed_rope }
    }

    /// True for a layer that chooses entries by its indexer.
    pub(crate) fn indexed(&self) -> bool {
        self.cache.class == LayerClass::Csa
    }

    /// True where some token of the span attends to rows.
    pub(crate) fn attends(&self, span: &Span<'_>) -> bool {
        !self.last || span.wanted < span.end
    }

    /// Positions that a pool reads: the block, and the one before it where pools overlap.
    pub(crate) fn pool_len(&self) -> u32 {
        if self.indexed() { 2 * self.ratio } else { self.ratio }
    }
}
