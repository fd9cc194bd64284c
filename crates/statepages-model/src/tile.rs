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
//! A thread computes a tile alone, or, where a batch is so small that it is one tile, all threads
//! compute it together: each some tokens of a step, each some weights of a product.
//!
//! Which tokens share a tile shows in no bit: rows of a product do not depend on each other.

mod attention;

pub(crate) use attention::Cached;
use attention::StepScores;

use crate::aligned::Aligned;
use crate::batch::{Plan, Token};
use crate::choice::ChoiceAt;
use crate::crew::{Hands, PerThread};
use crate::kernel::gemm::{Product, products, rows, rows_mut};
use crate::kernel::hyper::{
    Gather, Mix, MixRule, Scatter, gather, mixes, residual_factors, scatter,
};
use crate::kernel::matrix::Matrix;
use crate::kernel::norm::{NormWeight, rms_norm};
use crate::moe::{Experts, MoeWork, Route, Routing, choose_experts};
use crate::pass::{Core, Dims, Pass};
use crate::rope::{Angle, Turn, turn};
use crate::row::PARTS_MAX;
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
    /// By token: entries that it chose.
    chosen: Vec<Vec<u32>>,
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

/// Scratch of one thread, for the tile that it computes.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) x: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) moe: MoeWork,
    /// Queries, then what attention makes of them.
    q: Aligned,
    grouped: Vec<f32>,
    step_scores: StepScores,
}

/// Scratch of one thread, for some tokens of a tile.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    z: Vec<f32>,
    factors: Vec<f32>,
    scores: Vec<f32>,
    ranks: Vec<u64>,
    products: Vec<[f32; 4]>,
    rows: Vec<u32>,
    /// Indexer rows of decode steps.
    keys: Aligned,
    /// Compressed and window rows of a decode step.
    own: Aligned,
    routing: Routing,
}

/// Who computes a tile: the thread that took it, or all together where there is but one.
#[derive(Clone, Copy)]
pub(crate) struct Inside<'a> {
    pub(crate) hands: Hands,
    pub(crate) spares: &'a PerThread<Spare>,
}

impl Inside<'_> {
    /// Calls `f` once for each item, with the scratch of the thread that takes it.
    pub(crate) fn each<I>(self, items: I, f: impl Fn(&mut Spare, I::Item) + Sync)
    where
        I: Iterator<Item: Send> + Send,
    {
        self.hands.each(items, |item| self.spares.with(|spare| f(spare, item)));
    }
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

/// `to = from . w`, with rows packed tightly.
pub(crate) fn product<'a>(
    count: usize,
    from: &'a [f32],
    w: &'a Matrix,
    to: &'a mut Vec<f32>,
) -> Product<'a> {
    let (n, k) = (w.outputs(), w.inputs());
    let c = rows_mut(fit(to, count * n), n, n);
    Product { a: rows(&from[..count * k], k, k), w, c }
}

impl Tile {
    /// Takes some tokens of the batch and starts their residuals.
    pub(crate) fn start(&mut self, core: &Core, tokens: &[Token], hands: Hands) {
        self.take(tokens);
        self.pairs = core.dense_rope.pairs();
        for (rope, angles) in [&core.dense_rope, &core.compressed_rope].iter().zip(&mut self.angles)
        {
            angles.resize(tokens.len() * self.pairs, Angle::default());
            let share = hands.share(tokens.len());
            let items = angles.chunks_mut(share * self.pairs).zip(tokens.chunks(share));
            hands.each(items, |(angles, tokens)| {
                for (angles, token) in angles.chunks_exact_mut(self.pairs).zip(tokens) {
                    rope.angles(token.position, angles);
                }
            });
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
        hands: Hands,
        work: &mut Work,
    ) {
        let (hidden, eps) = (core.dims.hidden, core.config.rms_norm_eps);
        self.take(tokens);
        fit(&mut work.x, tokens.len() * hidden);
        for (x, token) in work.x.chunks_exact_mut(hidden).zip(tokens) {
            x.copy_from_slice(&core.weights.embed[token.id as usize * hidden..][..hidden]);
        }
        rms_norm(core.machine, &mut work.x, hidden, NormWeight::Each(&draft.enorm), eps);
        let hnorm = NormWeight::Each(&draft.hnorm);
        rms_norm(core.machine, &mut self.residual, hidden, hnorm, eps);
        let rows = tokens.len() * core.dims.streams;
        let list = vec![
            product(tokens.len(), &work.x, &draft.e_proj, &mut work.y),
            product(rows, &self.residual, &draft.h_proj, &mut work.grouped),
        ];
        products(core.machine, hands, list);
        std::mem::swap(&mut self.residual, &mut work.grouped);
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
        &self.chosen[token]
    }

    /// First phase: everything that the tokens' residuals alone decide.
    pub(crate) fn project(&mut self, pass: &Pass<'_>, work: &mut Work) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let count = self.tokens.len();
        let attn = &pass.weights.attn;
        let hands = pass.inside.hands;
        let (share, head) =
            (hands.share(count), (&pass.weights.hc_attn, &pass.weights.attn_norm[..]));
        let shares = entrances(dims, share, &self.residual, &mut self.mixes, &mut work.x);
        pass.inside.each(shares, |spare, to| {
            enter(core, head, to, spare);
        });
        let x = &work.x;
        let mut list = vec![
            product(count, x, &attn.wq_a, &mut self.query_rank),
            product(count, x, &attn.wkv, &mut self.kv),
        ];
        let indexer = attn.compressed.as_ref().and_then(|of| of.indexer.as_ref());
        if let Some(compressed) = &attn.compressed {
            list.extend(self.main.products(count, &compressed.main, x));
        }
        if let Some(indexer) = indexer {
            list.extend(self.index.products(count, &indexer.compressor, x));
            let (w, n) = (&indexer.weights_proj, dims.index_heads_padded);
            self.index_weights.clear();
            let c = rows_mut(fit(&mut self.index_weights, count * n), n, w.outputs());
            list.push(Product { a: rows(x, dims.hidden, dims.hidden), w, c });
        }
        products(core.machine, hands, list);
        hands.each(self.projected(pass, share).into_iter(), |rows| rows.finish(pass));
    }

    /// What was projected of the tokens, in shares of so many.
    fn projected(&mut self, pass: &Pass<'_>, share: usize) -> Vec<Projected<'_>> {
        let (core, dims) = (pass.core, &pass.core.dims);
        let row_bytes: usize = core.kv_parts.iter().sum();
        self.kv_bytes.resize(self.tokens.len() * row_bytes, 0);
        let angles = &self.angles[usize::from(pass.ratio != 0)];
        let mut shares: Vec<Projected<'_>> = self
            .tokens
            .chunks(share)
            .zip(angles.chunks(share * self.pairs))
            .zip(self.query_rank.chunks_mut(share * dims.q_rank))
            .zip(self.kv.chunks_mut(share * dims.width))
            .zip(self.kv_bytes.chunks_mut(share * row_bytes))
            .map(|((((tokens, angles), query_rank), kv), kv_bytes)| Projected {
                tokens,
                angles,
                query_rank,
                kv,
                kv_bytes,
                main_scores: &mut [],
                index_scores: &mut [],
                index_weights: &mut [],
            })
            .collect();
        if pass.ratio != 0 {
            let scores = self.main.scores.chunks_mut(share * self.main.columns);
            shares.iter_mut().zip(scores).for_each(|(share, scores)| share.main_scores = scores);
        }
        if pass.indexed() {
            let scores = self.index.scores.chunks_mut(share * self.index.columns);
            shares.iter_mut().zip(scores).for_each(|(share, scores)| share.index_scores = scores);
            let weights = self.index_weights.chunks_mut(share * dims.index_heads_padded);
            shares.iter_mut().zip(weights).for_each(|(share, of)| share.index_weights = of);
        }
        shares
    }

    /// Fourth phase: which experts each token goes to, and what with.
    pub(crate) fn route(&mut self, pass: &Pass<'_>) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let (count, each) = (self.tokens.len(), dims.experts_per_token);
        let share = pass.inside.hands.share(count);
        let head = (&pass.weights.hc_ffn, &pass.weights.ffn_norm[..]);
        self.routes.resize(count * each, Route::default());
        let routes = self.tokens.chunks(share).zip(self.routes.chunks_mut(share * each));
        let shares = entrances(dims, share, &self.residual, &mut self.mixes, &mut self.x);
        pass.inside.each(shares.zip(routes), |spare, (to, (tokens, routes))| {
            let x = enter(core, head, to, spare);
            choose_experts(pass, tokens, x, routes, &mut spare.routing);
        });
    }

    /// Last phase: what the experts made of the tokens.
    pub(crate) fn mix(&mut self, pass: &Pass<'_>, work: &mut Work, experts: &Experts) {
        let (machine, dims) = (pass.core.machine, &pass.core.dims);
        let (streams, width) = (dims.streams, dims.hidden);
        let share = pass.inside.hands.share(self.tokens.len());
        let y = fit(&mut work.y, self.tokens.len() * width).chunks_mut(share * width);
        let routes = self.routes.chunks(share * dims.experts_per_token);
        let residual = self.residual.chunks_mut(share * streams * width);
        let items = residual.zip(self.mixes.chunks(share)).zip(y.zip(routes)).enumerate();
        pass.inside.hands.each(items, |(i, ((residual, mixes), (y, routes)))| {
            experts.sum(pass, routes, self.shared_row + i * share, y);
            scatter(machine, Scatter { residual, mixes, streams, width, y });
        });
    }

    /// Takes a sub-layer's output, `y`.
    fn leave(&mut self, pass: &Pass<'_>, y: &[f32]) {
        let (machine, dims) = (pass.core.machine, &pass.core.dims);
        let (streams, width) = (dims.streams, dims.hidden);
        let share = pass.inside.hands.share(self.tokens.len());
        let residual = self.residual.chunks_mut(share * streams * width);
        let items = residual.zip(self.mixes.chunks(share)).zip(y.chunks(share * width));
        pass.inside.hands.each(items, |((residual, mixes), y)| {
            scatter(machine, Scatter { residual, mixes, streams, width, y });
        });
    }
}

/// Some residuals at the entrance of a sub-layer or the head.
pub(crate) struct Entrance<'a> {
    residual: &'a [f32],
    mixes: &'a mut [Mix],
    /// What goes in.
    x: &'a mut [f32],
}

/// The entrances of all residuals, by shares of so many tokens. Makes room for what comes of them.
pub(crate) fn entrances<'a>(
    dims: &Dims,
    share: usize,
    residual: &'a [f32],
    mixes: &'a mut Vec<Mix>,
    x: &'a mut Vec<f32>,
) -> impl Iterator<Item = Entrance<'a>> + Send {
    let (row, hidden) = (dims.streams * dims.hidden, dims.hidden);
    let tokens = residual.len() / row;
    mixes.resize(tokens, Mix::default());
    let outputs = mixes.chunks_mut(share).zip(fit(x, tokens * hidden).chunks_mut(share * hidden));
    let shares = residual.chunks(share * row).zip(outputs);
    shares.map(|(residual, (mixes, x))| Entrance { residual, mixes, x })
}

/// Mixing coefficients of some residuals, and the input of the sub-layer or the head.
pub(crate) fn enter<'a>(
    core: &Core,
    (hyper, norm): (&HyperWeights, &[f32]),
    Entrance { residual, mixes: out, x }: Entrance<'a>,
    spare: &mut Spare,
) -> &'a [f32] {
    let (dims, config, machine) = (&core.dims, &core.config, core.machine);
    let (streams, width, eps) = (dims.streams, dims.hidden, config.rms_norm_eps);
    let rule = MixRule {
        streams,
        iterations: config.hc_sinkhorn_iters as usize,
        eps: config.hc_eps,
        scale: &hyper.scale,
        base: &hyper.base,
    };
    let list = vec![product(out.len(), residual, &hyper.project, &mut spare.z)];
    products(machine, Hands::ONE, list);
    residual_factors(machine, residual, streams * width, eps, &mut spare.factors);
    mixes(machine, rule, &spare.z, hyper.project.outputs(), &spare.factors, out);
    gather(machine, Gather { residual, mixes: out, streams, width, weight: norm, eps, out: x });
    x
}

/// What was projected of some tokens.
struct Projected<'a> {
    tokens: &'a [Token],
    angles: &'a [Angle],
    query_rank: &'a mut [f32],
    kv: &'a mut [f32],
    kv_bytes: &'a mut [u8],
    /// Of compressors, where the layer has them.
    main_scores: &'a mut [f32],
    index_scores: &'a mut [f32],
    index_weights: &'a mut [f32],
}

impl Projected<'_> {
    /// Norms and rotations; rows as the cache holds them; scores and weights as pools and the
    /// indexer take them.
    fn finish(self, pass: &Pass<'_>) {
        let (core, dims, attn) = (pass.core, &pass.core.dims, &pass.weights.attn);
        let (machine, eps) = (core.machine, core.config.rms_norm_eps);
        rms_norm(machine, self.query_rank, dims.q_rank, NormWeight::Each(&attn.q_norm), eps);
        rms_norm(machine, self.kv, dims.width, NormWeight::Each(&attn.kv_norm), eps);
        let row_bytes = core.kv_parts.iter().sum();
        let rows = self.kv.chunks_exact_mut(dims.width);
        let bytes = self.kv_bytes.chunks_exact_mut(row_bytes);
        let angles = self.angles.chunks_exact(self.angles.len() / self.tokens.len());
        for ((row, mut bytes), angles) in rows.zip(bytes).zip(angles) {
            turn(row, angles, Turn::Forward);
            let mut parts = [&[][..]; PARTS_MAX];
            for (part, (&len, of_row)) in core.kv_parts.iter().zip(&mut parts).enumerate() {
                let (now, rest) = bytes.split_at_mut(len);
                core.kv.encode(machine, part, row, now);
                (*of_row, bytes) = (now, rest);
            }
            core.kv.decode(machine, parts, dims.width, row);
        }
        let Some(compressed) = &attn.compressed else { return };
        place(self.tokens, self.main_scores, &compressed.main, pass.ratio);
        let Some(indexer) = &compressed.indexer else { return };
        place(self.tokens, self.index_scores, &indexer.compressor, pass.ratio);
        let scale = 1.0 / ((dims.index_width * dims.index_heads) as f32).sqrt();
        self.index_weights.iter_mut().for_each(|w| *w *= scale);
    }
}

/// Adds the position embedding to what a compressor pools with.
fn place(tokens: &[Token], scores: &mut [f32], w: &CompressorWeights, ratio: u32) {
    let columns = w.wgate.outputs();
    for (scores, token) in scores.chunks_exact_mut(columns).zip(tokens) {
        let phase = (token.position % ratio) as usize;
        let ape = &w.ape[phase * columns..][..columns];
        scores.iter_mut().zip(ape).for_each(|(score, ape)| *score += ape);
    }
}

/// Names a token's choice.
pub(crate) fn choice_at(pass: &Pass<'_>, token: &Token) -> ChoiceAt {
    ChoiceAt { layer: pass.layer, sequence: token.sequence as usize, position: token.position }
}

impl Projections {
    /// What fills the projections of `count` tokens.
    fn products<'a>(
        &'a mut self,
        count: usize,
        w: &'a CompressorWeights,
        x: &'a [f32],
    ) -> [Product<'a>; 2] {
        self.columns = w.wkv.outputs();
        let values = product(count, x, &w.wkv, &mut self.values);
        [values, product(count, x, &w.wgate, &mut self.scores)]
    }
}
