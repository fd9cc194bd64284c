//! A tile: some tokens of a batch, and all that a layer computes of them alone.
//!
//! ```text
//! project  residual -> x -> query rank, KV row, compressor and indexer projections
//!    (all tiles done: entries are pooled, pages and rings written, rows read)
//! select   query rank -> chosen entries                      CSA layers only
//!    (all tiles done: chosen rows read)
//! attend   query rank + rows -> residual
//! route    residual -> x, and the experts of each token
//!    (all tiles done: experts computed, see `moe.rs`)
//! mix      the experts' outputs -> residual
//! ```
//!
//! Which tokens share a tile shows in no bit: rows of a product do not depend on each other.

use statepages_copy::HostArena;

use crate::aligned::Aligned;
use crate::batch::{Plan, Token};
use crate::choice::{ChoiceAt, top_k};
use crate::kernel::attend::{Attend, IndexScores, RowList, attend, index_scores};
use crate::kernel::gemm::{Rows, RowsMut, gemm};
use crate::kernel::hyper::{
    Gather, Mix, MixRule, Scatter, gather, mixes, residual_factors, scatter,
};
use crate::kernel::matrix::Matrix;
use crate::kernel::norm::{NormWeight, rms_norm};
use crate::moe::{Experts, MoeWork, Route};
use crate::pass::{Core, Pass};
use crate::rope::{Angle, Turn, turn};
use crate::state::{read_entries, read_keys, read_window};
use crate::weights::{CompressorWeights, DraftWeights, HyperWeights};

/// Projections that a compressor pools, `[tokens][columns]`; position embedding added to scores.
#[derive(Debug, Default)]
pub(crate) struct Projections {
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
    pub(crate) scores: Vec<f32>,
}

/// Some consecutive tokens of a batch.
#[derive(Debug, Default)]
pub(crate) struct Tile {
    /// The tokens that are computed further: all of the tile's, until [`Tile::prune`].
    pub(crate) tokens: Vec<Token>,
    /// `[tokens][streams][hidden]`.
    pub(crate) residual: Vec<f32>,
    /// KV rows as the cache will hold them, of all tokens: each one's parts, one behind the other.
    pub(crate) kv_bytes: Vec<u8>,
    /// What decoding [`Tile::kv_bytes`] gives, `[tokens][width]`.
    pub(crate) kv: Vec<f32>,
    pub(crate) main: Projections,
    pub(crate) index: Projections,
    /// Chosen entries of all tokens, and where each token's end.
    chosen: Vec<u32>,
    chosen_ends: Vec<usize>,
    /// `[tokens][pairs]`, for window-only layers and for the others.
    angles: [Vec<Angle>; 2],
    pairs: usize,
    mixes: Vec<Mix>,
    query_rank: Vec<f32>,
    index_weights: Vec<f32>,
    /// Inputs of the experts, `[tokens][hidden]`.
    pub(crate) x: Vec<f32>,
    /// `[tokens][experts per token]`, ascending.
    pub(crate) routes: Vec<Route>,
    /// The first token's place among the shared expert's.
    pub(crate) shared_row: usize,
}

/// Indexer rows of a decode step that are scored at a time.
const KEYS_AT_ONCE: usize = 64;

/// Scratch of one thread.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) x: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) moe: MoeWork,
    z: Vec<f32>,
    factors: Vec<f32>,
    /// Queries, then what attention makes of them.
    q: Aligned,
    grouped: Vec<f32>,
    scores: Vec<f32>,
    ranks: Vec<u64>,
    products: Vec<[f32; 4]>,
    rows: Vec<u32>,
    /// Indexer rows of a decode step.
    keys: Aligned,
    /// Compressed and window rows of a decode step.
    own: Aligned,
}

/// Cached rows of the batch's sequences, decoded; see `state.rs`.
#[derive(Debug, Default)]
pub(crate) struct Rows32 {
    pub(crate) data: Aligned,
    /// By sequence: index of its first row.
    pub(crate) first: Vec<usize>,
}

impl Rows32 {
    /// The rows of one sequence and those behind it.
    pub(crate) fn of(&self, sequence: usize, width: usize) -> &[f32] {
        &self.data[self.first[sequence] * width..]
    }
}

/// Keeps the rows of `width` elements whose index is `kept`.
fn retain_rows<T: Copy>(rows: &mut Vec<T>, width: usize, kept: impl Fn(usize) -> bool) {
    let mut len = 0;
    for i in (0..rows.len() / width).filter(|&i| kept(i)) {
        rows.copy_within(i * width..(i + 1) * width, len);
        len += width;
    }
    rows.truncate(len);
}

/// Resizes without keeping the old contents.
pub(crate) fn fit(xs: &mut Vec<f32>, len: usize) -> &mut [f32] {
    xs.resize(len, 0.0);
    &mut xs[..len]
}

/// `to = from . w` with rows packed tightly.
pub(crate) fn project(core: &Core, rows: usize, from: &[f32], w: &Matrix, to: &mut Vec<f32>) {
    let (n, k) = (w.outputs(), w.inputs());
    let a = Rows { data: from, stride: k };
    gemm(core.machine, rows, a, w, RowsMut { data: fit(to, rows * n), stride: n });
}

impl Tile {
    /// Takes some tokens of the batch and starts their residuals.
    pub(crate) fn start(&mut self, core: &Core, tokens: &[Token]) {
        self.take(tokens);
        self.pairs = core.dense_rope.pairs();
        for (rope, angles) in [&core.dense_rope, &core.compressed_rope].iter().zip(&mut self.angles)
        {
            angles.clear();
            for token in tokens {
                rope.angles(token.position, angles);
            }
        }
        self.residual.clear();
        for token in tokens {
            let row = &core.weights.embed[token.id as usize * core.dims.hidden..];
            for _ in 0..core.dims.streams {
                self.residual.extend_from_slice(&row[..core.dims.hidden]);
            }
        }
    }

    fn take(&mut self, tokens: &[Token]) {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
    }

    /// Turns the trunk's residuals into the draft layer's, given the id of the token behind each.
    pub(crate) fn start_draft(
        &mut self,
        core: &Core,
        draft: &DraftWeights,
        tokens: &[Token],
        work: &mut Work,
    ) {
        let (hidden, eps) = (core.dims.hidden, core.config.rms_norm_eps);
        self.take(tokens);
        fit(&mut work.x, tokens.len() * hidden);
        for (x, token) in work.x.chunks_exact_mut(hidden).zip(tokens) {
            x.copy_from_slice(&core.weights.embed[token.id as usize * hidden..][..hidden]);
        }
        rms_norm(core.machine, &mut work.x, hidden, NormWeight::Each(&draft.enorm), eps);
        project(core, tokens.len(), &work.x, &draft.e_proj, &mut work.y);
        let hnorm = NormWeight::Each(&draft.hnorm);
        rms_norm(core.machine, &mut self.residual, hidden, hnorm, eps);
        let rows = tokens.len() * core.dims.streams;
        project(core, rows, &self.residual, &draft.h_proj, &mut work.z);
        std::mem::swap(&mut self.residual, &mut work.z);
        let streams = self.residual.chunks_exact_mut(core.dims.streams * hidden);
        for (streams, y) in streams.zip(work.y.chunks_exact(hidden)) {
            for stream in streams.chunks_exact_mut(hidden) {
                stream.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            }
        }
    }

    /// Drops the tokens whose logits nobody wants, with all that the last layer computes further of
    /// them. What others read of them, the KV rows and what compressors pool, stays.
    pub(crate) fn prune(&mut self, core: &Core, plan: &Plan<'_>) {
        if self.tokens.iter().all(|token| plan.wants(token)) {
            return;
        }
        let dims = &core.dims;
        let kept = |i: usize| plan.wants(&self.tokens[i]);
        retain_rows(&mut self.residual, dims.streams * dims.hidden, kept);
        retain_rows(&mut self.mixes, 1, kept);
        retain_rows(&mut self.query_rank, dims.q_rank, kept);
        retain_rows(&mut self.index_weights, dims.index_heads_padded, kept);
        for angles in &mut self.angles {
            retain_rows(angles, self.pairs, kept);
        }
        self.tokens.retain(|token| plan.wants(token));
        // Those of the layer before: a tile without tokens gets none of its own.
        self.routes.clear();
    }

    fn angles(&self, pass: &Pass<'_>, token: usize) -> &[Angle] {
        let angles = &self.angles[usize::from(pass.ratio != 0)];
        &angles[token * self.pairs..][..self.pairs]
    }

    /// Entries that the token of this index chose.
    pub(crate) fn chosen_of(&self, token: usize) -> &[u32] {
        let start = if token == 0 { 0 } else { self.chosen_ends[token - 1] };
        &self.chosen[start..self.chosen_ends[token]]
    }

    /// First phase: everything that the tokens' residuals alone decide.
    pub(crate) fn project(&mut self, pass: &Pass<'_>, work: &mut Work) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let eps = core.config.rms_norm_eps;
        let attn = &pass.weights.attn;
        self.enter(core, &pass.weights.hc_attn, &pass.weights.attn_norm, work);
        project(core, self.tokens.len(), &work.x, &attn.wq_a, &mut self.query_rank);
        let norm = NormWeight::Each(&attn.q_norm);
        rms_norm(core.machine, &mut self.query_rank, dims.q_rank, norm, eps);
        project(core, self.tokens.len(), &work.x, &attn.wkv, &mut self.kv);
        let norm = NormWeight::Each(&attn.kv_norm);
        rms_norm(core.machine, &mut self.kv, dims.width, norm, eps);
        let (mut kv, mut bytes) =
            (std::mem::take(&mut self.kv), std::mem::take(&mut self.kv_bytes));
        let row_bytes = core.kv_parts.iter().sum();
        bytes.resize(self.tokens.len() * row_bytes, 0);
        let rows = kv.chunks_exact_mut(dims.width).zip(bytes.chunks_exact_mut(row_bytes));
        for (i, (row, mut bytes)) in rows.enumerate() {
            turn(row, self.angles(pass, i), Turn::Forward);
            for (part, &len) in core.kv_parts.iter().enumerate() {
                let (part_bytes, rest) = bytes.split_at_mut(len);
                core.kv.encode(core.machine, part, row, part_bytes);
                core.kv.decode(core.machine, part, part_bytes, dims.width, row);
                bytes = rest;
            }
        }
        (self.kv, self.kv_bytes) = (kv, bytes);
        let Some(compressed) = &attn.compressed else { return };
        self.main.fill(core, &self.tokens, &compressed.main, pass.ratio, &work.x);
        let Some(indexer) = &compressed.indexer else { return };
        self.index.fill(core, &self.tokens, &indexer.compressor, pass.ratio, &work.x);
        let n = dims.index_heads_padded;
        self.index_weights.clear();
        gemm(
            core.machine,
            self.tokens.len(),
            Rows { data: &work.x, stride: dims.hidden },
            &indexer.weights_proj,
            RowsMut { data: fit(&mut self.index_weights, self.tokens.len() * n), stride: n },
        );
        let scale = 1.0 / ((dims.index_width * dims.index_heads) as f32).sqrt();
        self.index_weights.iter_mut().for_each(|w| *w *= scale);
    }

    /// Second phase of a CSA layer: which entries each token attends to. `keys` are all entries'
    /// indexer rows.
    pub(crate) fn select(
        &mut self,
        pass: &Pass<'_>,
        work: &mut Work,
        arena: &HostArena,
        keys: &Rows32,
    ) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let compressed = pass.weights.attn.compressed.as_ref();
        let indexer = compressed.and_then(|c| c.indexer.as_ref());
        let indexer = indexer.expect("a CSA layer has an indexer");
        let (width, heads) = (dims.index_width, dims.index_heads_padded);
        let top = core.config.index_topk as usize;
        self.chosen.clear();
        self.chosen_ends.clear();
        let visible = |token: &Token| ((token.position + 1) / pass.ratio) as usize;
        if self.tokens.iter().any(|token| visible(token) > top) {
            gemm(
                core.machine,
                self.tokens.len(),
                Rows { data: &self.query_rank, stride: dims.q_rank },
                &indexer.wq_b,
                RowsMut {
                    data: work.q.fit(self.tokens.len() * heads * width),
                    stride: heads * width,
                },
            );
        }
        for (i, token) in self.tokens.iter().enumerate() {
            let visible = visible(token);
            if visible <= top {
                self.chosen.extend(0..visible as u32);
                self.chosen_ends.push(self.chosen.len());
                continue;
            }
            let q = &mut work.q[i * heads * width..][..heads * width];
            // Padding heads may hold what an earlier use of the scratch left.
            q[dims.index_heads * width..].fill(0.0);
            for head in q[..dims.index_heads * width].chunks_exact_mut(width) {
                turn(head, self.angles(pass, i), Turn::Forward);
            }
            let span = &pass.plan.spans[token.sequence as usize];
            fit(&mut work.scores, visible);
            // The keys of a step go from their pages through a core's nearest cache.
            let step = if span.is_step() { KEYS_AT_ONCE } else { visible };
            for (first, out) in (0..).step_by(step).zip(work.scores.chunks_mut(step)) {
                let keys = if span.is_step() {
                    let rows = work.keys.fit(out.len() * width);
                    read_keys(pass, arena, span, first, rows);
                    rows
                } else {
                    keys.of(token.sequence as usize, width)
                };
                let scores = IndexScores {
                    q,
                    width,
                    keys,
                    head_weights: &self.index_weights[i * heads..][..heads],
                    products: &mut work.products,
                    out,
                };
                index_scores(core.machine, scores);
            }
            work.rows.clear();
            top_k(&work.scores, top, &mut work.ranks, &mut work.rows);
            let at = choice_at(pass, token);
            pass.choices.entries(at, &work.scores, &mut work.rows);
            self.chosen.extend_from_slice(&work.rows);
            self.chosen_ends.push(self.chosen.len());
        }
    }

    /// Third phase: attention.
    pub(crate) fn attend(
        &mut self,
        pass: &Pass<'_>,
        work: &mut Work,
        arena: &HostArena,
        entries: &Rows32,
        window: &Rows32,
    ) {
        let core = pass.core;
        self.queries(pass, work);
        self.outputs(pass, work, arena, entries, window);
        self.leave(core, work);
    }

    /// Fourth phase: which experts each token goes to, and what with.
    pub(crate) fn route(&mut self, pass: &Pass<'_>, work: &mut Work) {
        self.enter(pass.core, &pass.weights.hc_ffn, &pass.weights.ffn_norm, work);
        std::mem::swap(&mut self.x, &mut work.x);
        self.choose_experts(pass, &mut work.moe);
    }

    /// Last phase: what the experts made of the tokens.
    pub(crate) fn mix(&mut self, pass: &Pass<'_>, work: &mut Work, experts: &Experts) {
        self.sum_experts(pass, experts, &mut work.y);
        self.leave(pass.core, work);
    }

    /// Queries of all heads, normalised and turned.
    fn queries(&self, pass: &Pass<'_>, work: &mut Work) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let (width, stride) = (dims.width, dims.heads_padded * dims.width);
        gemm(
            core.machine,
            self.tokens.len(),
            Rows { data: &self.query_rank, stride: dims.q_rank },
            &pass.weights.attn.wq_b,
            RowsMut { data: work.q.fit(self.tokens.len() * stride), stride },
        );
        for (i, q) in work.q.chunks_exact_mut(stride).enumerate() {
            let (heads, padding) = q.split_at_mut(dims.heads * width);
            padding.fill(0.0);
            rms_norm(core.machine, heads, width, NormWeight::One, core.config.rms_norm_eps);
            for head in heads.chunks_exact_mut(width) {
                turn(head, self.angles(pass, i), Turn::Forward);
            }
        }
    }

    /// Attention of every token in place of its queries, and both output projections into `work.y`.
    fn outputs(
        &self,
        pass: &Pass<'_>,
        work: &mut Work,
        arena: &HostArena,
        entries: &Rows32,
        window: &Rows32,
    ) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let (width, stride) = (dims.width, dims.heads_padded * dims.width);
        for (i, token) in self.tokens.iter().enumerate() {
            let sequence = token.sequence as usize;
            let first = pass.plan.spans[sequence].window_start(dims.window);
            work.rows.clear();
            match pass.ratio {
                0 => {}
                _ if pass.indexed() => work.rows.extend_from_slice(self.chosen_of(i)),
                ratio => work.rows.extend(0..(token.position + 1) / ratio),
            }
            let compressed = work.rows.len();
            let low = token.position.saturating_sub(dims.window - 1);
            work.rows.extend(low - first..=token.position - first);
            let (mut entries, mut window) = if pass.ratio == 0 {
                (&[][..], window.of(sequence, width))
            } else {
                (entries.of(sequence, width), window.of(sequence, width))
            };
            let span = &pass.plan.spans[sequence];
            if span.is_step() {
                let rows = work.own.fit(work.rows.len() * width);
                let (of_entries, of_window) = rows.split_at_mut(compressed * width);
                read_entries(pass, arena, span, &work.rows[..compressed], of_entries);
                read_window(pass, arena, span, low, of_window);
                (entries, window) = (of_entries, of_window);
                work.rows.clear();
                let recent = token.position + 1 - low;
                work.rows.extend((0..compressed as u32).chain(0..recent));
            }
            let (compressed, recent) = work.rows.split_at(compressed);
            let heads = &mut work.q[i * stride..][..stride];
            let query = Attend {
                heads,
                width,
                lists: [
                    RowList { data: entries, rows: compressed },
                    RowList { data: window, rows: recent },
                ],
                sinks: &pass.weights.attn.sinks,
                scale: 1.0 / (width as f32).sqrt(),
                weights: &mut work.products,
            };
            attend(core.machine, query);
            for head in heads[..dims.heads * width].chunks_exact_mut(width) {
                turn(head, self.angles(pass, i), Turn::Back);
            }
        }
        let (rank, inputs) = (dims.o_rank, dims.heads * width / dims.groups);
        let grouped = dims.groups * rank;
        fit(&mut work.grouped, self.tokens.len() * grouped);
        for (group, w) in pass.weights.attn.wo_a.iter().enumerate() {
            gemm(
                core.machine,
                self.tokens.len(),
                Rows { data: &work.q[group * inputs..], stride },
                w,
                RowsMut { data: &mut work.grouped[group * rank..], stride: grouped },
            );
        }
        project(core, self.tokens.len(), &work.grouped, &pass.weights.attn.wo_b, &mut work.y);
    }

    /// Mixing coefficients of a sub-layer, and its input into `work.x`.
    fn enter(&mut self, core: &Core, hyper: &HyperWeights, norm: &[f32], work: &mut Work) {
        let Self { residual, mixes, .. } = self;
        enter(core, residual, mixes, hyper, norm, work);
    }

    /// Takes a sub-layer's output from `work.y`.
    fn leave(&mut self, core: &Core, work: &Work) {
        let dims = &core.dims;
        scatter(
            core.machine,
            Scatter {
                residual: &mut self.residual,
                mixes: &self.mixes,
                streams: dims.streams,
                width: dims.hidden,
                y: &work.y,
            },
        );
    }
}

/// Mixing coefficients of some residuals for a sub-layer or the head, and its input into `work.x`.
pub(crate) fn enter(
    core: &Core,
    residual: &[f32],
    out: &mut Vec<Mix>,
    hyper: &HyperWeights,
    norm: &[f32],
    work: &mut Work,
) {
    let (dims, config, machine) = (&core.dims, &core.config, core.machine);
    let tokens = residual.len() / (dims.streams * dims.hidden);
    let eps = config.rms_norm_eps;
    project(core, tokens, residual, &hyper.project, &mut work.z);
    residual_factors(machine, residual, dims.streams * dims.hidden, eps, &mut work.factors);
    let rule = MixRule {
        streams: dims.streams,
        iterations: config.hc_sinkhorn_iters as usize,
        eps: config.hc_eps,
        scale: &hyper.scale,
        base: &hyper.base,
    };
    out.resize(tokens, Mix::default());
    mixes(machine, rule, &work.z, hyper.project.outputs(), &work.factors, out);
    gather(
        machine,
        Gather {
            residual,
            mixes: out,
            streams: dims.streams,
            width: dims.hidden,
            weight: norm,
            eps,
            out: fit(&mut work.x, tokens * dims.hidden),
        },
    );
}

/// Names a token's choice.
pub(crate) fn choice_at(pass: &Pass<'_>, token: &Token) -> ChoiceAt {
    ChoiceAt { layer: pass.layer, sequence: token.sequence as usize, position: token.position }
}

impl Projections {
    fn fill(
        &mut self,
        core: &Core,
        tokens: &[Token],
        w: &CompressorWeights,
        ratio: u32,
        x: &[f32],
    ) {
        self.columns = w.wkv.outputs();
        project(core, tokens.len(), x, &w.wkv, &mut self.values);
        project(core, tokens.len(), x, &w.wgate, &mut self.scores);
        for (scores, token) in self.scores.chunks_exact_mut(self.columns).zip(tokens) {
            let phase = (token.position % ratio) as usize;
            let ape = &w.ape[phase * self.columns..][..self.columns];
            scores.iter_mut().zip(ape).for_each(|(score, ape)| *score += ape);
        }
    }
}
