//! A model with its arena, for tests.
#![allow(dead_code, reason = "each test binary uses its share")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use statepages_copy::HostArena;
use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, DraftLayers, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_model::{
    Choices, Isa, Logits, LogitsWanted, Model, ModelConfig, Phase, RunOptions, SequenceChunk,
    Weights,
};
use statepages_page::{Boundary, ImageRule, PageId, Pages, Segment, SlotId};

pub(crate) const PAGES: u32 = 24;
pub(crate) const SLOTS: u32 = 6;

/// Number formats of the cached rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rows {
    F32,
    Bf16,
    /// fp8 rows for both.
    Fp8,
    /// fp8 rows, and fp4 for the indexer.
    Fp8Fp4,
}

impl Rows {
    /// What engines serve with.
    pub(crate) const SERVED: [Self; 3] = [Self::Bf16, Self::Fp8, Self::Fp8Fp4];
}

/// Small dimensions that exercise every kind of layer.
pub(crate) fn small_config() -> ModelConfig {
    let mut config = ModelConfig::demo();
    config.cache = CacheConfig {
        num_hidden_layers: 4,
        num_nextn_predict_layers: 1,
        draft_layers: DraftLayers::Mtp,
        compress_ratios: vec![0, 4, 128, 4, 0],
        head_dim: 80,
        qk_rope_head_dim: 16,
        index_head_dim: 32,
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
    config.vocab_size = 40;
    config
}

pub(crate) fn geometry(config: &ModelConfig, rows: Rows, draft_tokens: u32) -> Dsv4Geometry {
    let (kv, indexer) = match rows {
        Rows::F32 => (KvFormat::F32, IndexerFormat::F32),
        Rows::Bf16 => (KvFormat::Bf16, IndexerFormat::Bf16),
        Rows::Fp8 => (KvFormat::Fp8, IndexerFormat::Fp8),
        Rows::Fp8Fp4 => (KvFormat::Fp8, IndexerFormat::Fp4),
    };
    let options = CacheOptions {
        kv,
        indexer,
        draft_tokens,
        block: BLOCK_TOKENS,
        dcp_world_size: 1,
        image: ImageRule::Whole,
    };
    Dsv4Geometry::new(&config.cache, &options).expect("the test's caches are sound")
}

/// One piece of a request in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) slot: u32,
    pub(crate) pages: &'a [PageId],
    pub(crate) start: usize,
    pub(crate) tokens: &'a [u32],
}

pub(crate) struct Rig {
    pub(crate) model: Model,
    pub(crate) arena: HostArena,
    pub(crate) geometry: Dsv4Geometry,
    logits: Logits,
}

impl Rig {
    pub(crate) fn new(weights: &Arc<Weights>, rows: Rows, isa: Isa, threads: usize) -> Self {
        Self::with_drafts(weights, rows, isa, threads, 0)
    }

    pub(crate) fn with_drafts(
        weights: &Arc<Weights>,
        rows: Rows,
        isa: Isa,
        threads: usize,
        drafts: u32,
    ) -> Self {
        let geometry = geometry(weights.config(), rows, drafts);
        let threads = NonZeroUsize::new(threads).expect("a test names its threads");
        let options = RunOptions { isa, threads };
        Self {
            model: Model::new(weights.clone(), &geometry, options).expect("a model"),
            arena: HostArena::new(geometry.layout(), Pages::new(PAGES), SLOTS).expect("memory"),
            geometry,
            logits: Logits::new(),
        }
    }

    /// Logits of every token of every piece, by piece.
    pub(crate) fn batch(&mut self, pieces: &[Piece<'_>]) -> Vec<Vec<f32>> {
        let batch: Vec<SequenceChunk<'_>> = pieces.iter().map(chunk).collect();
        self.model.forward(&mut self.arena, &batch, &mut self.logits).expect("a sound batch");
        (0..pieces.len()).map(|i| self.logits.sequence(i).to_vec()).collect()
    }

    /// [`Rig::batch`] of one piece under somebody else's choices.
    pub(crate) fn chosen(&mut self, choices: &dyn Choices, piece: &Piece<'_>) -> Vec<f32> {
        self.model
            .forward_with(choices, &mut self.arena, &[chunk(piece)], &mut self.logits)
            .expect("a sound batch");
        self.logits.sequence(0).to_vec()
    }

    /// [`Rig::batch`] of one piece, and the phases that were told.
    pub(crate) fn told(&mut self, piece: &Piece<'_>) -> (Vec<f32>, Vec<Phase>) {
        let mut told = Vec::new();
        let mut ended = |phase| told.push(phase);
        self.model
            .forward_phases(&mut ended, &mut self.arena, &[chunk(piece)], &mut self.logits)
            .expect("a sound batch");
        (self.logits.sequence(0).to_vec(), told)
    }

    /// Logits of all tokens of one request, computed in chunks of the given lengths, the last of
    /// them repeated.
    pub(crate) fn request(
        &mut self,
        slot: u32,
        pages: &[PageId],
        tokens: &[u32],
        chunks: &[usize],
    ) -> Vec<f32> {
        let mut logits = Vec::new();
        let (mut start, mut chunk) = (0, chunks.iter());
        let mut len = 0;
        while start < tokens.len() {
            len = chunk.next().copied().unwrap_or(len);
            let tokens = &tokens[start..tokens.len().min(start + len)];
            let [rows] = &mut self.batch(&[Piece { slot, pages, start, tokens }])[..] else {
                unreachable!("one piece, one answer")
            };
            logits.append(rows);
            start += tokens.len();
        }
        logits
    }

    /// Logits of the tokens behind `start`, computed in chunks, of a request whose slot and pages
    /// hold what came before.
    pub(crate) fn resumed(
        &mut self,
        slot: u32,
        pages: &[PageId],
        tokens: &[u32],
        start: usize,
        chunk: usize,
    ) -> Vec<f32> {
        let mut logits = Vec::new();
        for (i, tokens) in tokens[start..].chunks(chunk).enumerate() {
            let piece = Piece { slot, pages, start: start + i * chunk, tokens };
            logits.append(&mut self.batch(&[piece])[0]);
        }
        logits
    }

    /// Fills every byte of pages and slots with copies of `pattern`.
    pub(crate) fn fill(&mut self, pattern: [u8; 4]) {
        let layout = self.geometry.layout().clone();
        let paint = |bytes: &mut [u8]| {
            bytes.chunks_mut(4).for_each(|b| b.copy_from_slice(&pattern[..b.len()]));
        };
        for region in 0..layout.page.regions().len() {
            (0..PAGES).for_each(|page| paint(self.arena.page_mut(region, PageId::new(page))));
        }
        for plane in 0..layout.slot.planes().len() {
            (0..SLOTS).for_each(|slot| paint(self.arena.slot_mut(plane, SlotId::new(slot))));
        }
    }
}

fn chunk<'a>(piece: &Piece<'a>) -> SequenceChunk<'a> {
    SequenceChunk {
        slot: SlotId::new(piece.slot),
        pages: piece.pages,
        start: piece.start as u32,
        tokens: piece.tokens,
        before: None,
        logits: LogitsWanted::All,
    }
}

/// Plane and bytes of every range of a segment at a boundary.
pub(crate) fn ranges(segment: &Segment, boundary: Boundary) -> Vec<(usize, Range<usize>)> {
    let plane = usize::from(segment.plane());
    let range = |offset: u64, len: u64| (plane, offset as usize..(offset + len) as usize);
    match *segment {
        Segment::Fixed { offset, len, .. } => vec![range(offset, len)],
        Segment::Ring { run, .. } => (0..run.rows)
            .map(|row| range(run.row_offset(row, boundary), u64::from(run.row_bytes)))
            .collect(),
    }
}

/// Page ids `first`, `first + step`, ...
pub(crate) fn pages(first: u32, step: u32, n: u32) -> Vec<PageId> {
    (0..n).map(|i| PageId::new((first + i * step) % PAGES)).collect()
}

/// Tokens without a pattern that a model could hide behind.
pub(crate) fn tokens(seed: u32, n: usize, vocab: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let step = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocab
    };
    (0..n).map(step).collect()
}

/// Where two runs of logits first differ in their bits.
pub(crate) fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    assert_eq!(a.len(), b.len(), "as many logits");
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}
