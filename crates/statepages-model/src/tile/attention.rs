//! What a layer's attention computes of a tile's tokens: which entries each attends to, and what
//! it makes of their rows.

use statepages_copy::HostArena;

use super::{Rows32, Spare, Tile, Work, choice_at, fit, product};
use crate::batch::Token;
use crate::choice::top_k;
use crate::kernel::attend::{Attend, IndexScores, RowList, attend, index_scores};
use crate::kernel::gemm::{Product, products, rows, rows_mut};
use crate::kernel::norm::{NormWeight, rms_norm};
use crate::pass::Pass;
use crate::rope::{Turn, turn};
use crate::state::{read_entries, read_keys, read_window};

/// Indexer rows of a decode step that are scored at a time: few enough that they and their bytes stay
/// in a core's nearest cache.
const KEYS_AT_ONCE: usize = 32;

/// The rows that a layer's tokens attend to.
pub(crate) struct Cached<'a> {
    /// Of decode steps, as pages and slots hold them.
    pub(crate) arena: &'a HostArena,
    /// Of chunks, by sequence: compressed rows, and window rows.
    pub(crate) entries: &'a Rows32,
    pub(crate) window: &'a Rows32,
}

impl Tile {
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
        let visible = |token: &Token| ((token.position + 1) / pass.ratio) as usize;
        let count = self.tokens.len();
        if self.tokens.iter().any(|token| visible(token) > top) {
            let (a, n) = (rows(&self.query_rank, dims.q_rank, dims.q_rank), heads * width);
            let w = &indexer.wq_b;
            let c = rows_mut(work.q.fit(count * n), n, w.outputs());
            products(core.machine, pass.inside.hands, vec![Product { a, w, c }]);
        } else {
            work.q.fit(count * heads * width);
        }
        let mut lists = std::mem::take(&mut self.chosen);
        lists.resize_with(count, Vec::new);
        let items = lists.iter_mut().zip(work.q.chunks_exact_mut(heads * width)).enumerate();
        pass.inside.each(items, |spare, (i, (chosen, q))| {
            let token = &self.tokens[i];
            let visible = visible(token);
            chosen.clear();
            if visible <= top {
                chosen.extend(0..visible as u32);
                return;
            }
            // Padding heads may hold what an earlier use of the scratch left.
            q[dims.index_heads * width..].fill(0.0);
            for head in q[..dims.index_heads * width].chunks_exact_mut(width) {
                turn(head, self.angles(pass, i), Turn::Forward);
            }
            let span = &pass.plan.spans[token.sequence as usize];
            fit(&mut spare.scores, visible);
            // The keys of a step go from their pages through a core's nearest cache.
            let step = if span.is_step() { KEYS_AT_ONCE } else { visible };
            for (first, out) in (0..).step_by(step).zip(spare.scores.chunks_mut(step)) {
                let keys = if span.is_step() {
                    let rows = spare.keys.fit(out.len() * width);
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
                    products: &mut spare.products,
                    out,
                };
                index_scores(core.machine, scores);
            }
            top_k(&spare.scores, top, &mut spare.ranks, chosen);
            pass.choices.entries(choice_at(pass, token), &spare.scores, chosen);
        });
        self.chosen = lists;
    }

    /// Third phase: attention.
    pub(crate) fn attend(&mut self, pass: &Pass<'_>, work: &mut Work, cached: &Cached<'_>) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let (attn, hands) = (&pass.weights.attn, pass.inside.hands);
        let (count, stride) = (self.tokens.len(), dims.heads_padded * dims.width);
        let a = rows(&self.query_rank, dims.q_rank, dims.q_rank);
        let c = rows_mut(work.q.fit(count * stride), stride, attn.wq_b.outputs());
        products(core.machine, hands, vec![Product { a, w: &attn.wq_b, c }]);
        let queries = work.q.chunks_exact_mut(stride).enumerate();
        pass.inside.each(queries, |spare, (i, heads)| {
            self.attend_one(pass, i, heads, spare, cached);
        });
        let (rank, inputs) = (dims.o_rank, dims.heads * dims.width / dims.groups);
        let grouped = dims.groups * rank;
        let outputs = fit(&mut work.grouped, count * grouped);
        let mut columns: Vec<_> = attn.wo_a.iter().map(|_| Vec::with_capacity(count)).collect();
        for row in outputs.chunks_exact_mut(grouped) {
            columns.iter_mut().zip(row.chunks_exact_mut(rank)).for_each(|(c, row)| c.push(row));
        }
        let list = attn.wo_a.iter().zip(columns).enumerate().map(|(group, (w, c))| Product {
            a: rows(&work.q[group * inputs..], stride, inputs),
            w,
            c,
        });
        products(core.machine, hands, list.collect());
        let list = vec![product(count, &work.grouped, &attn.wo_b, &mut work.y)];
        products(core.machine, hands, list);
        self.leave(pass, &work.y);
    }

    /// Attention of one token, in place of its queries.
    fn attend_one(
        &self,
        pass: &Pass<'_>,
        i: usize,
        heads: &mut [f32],
        spare: &mut Spare,
        cached: &Cached<'_>,
    ) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let width = dims.width;
        let (queries, padding) = heads.split_at_mut(dims.heads * width);
        padding.fill(0.0);
        rms_norm(core.machine, queries, width, NormWeight::One, core.config.rms_norm_eps);
        for head in queries.chunks_exact_mut(width) {
            turn(head, self.angles(pass, i), Turn::Forward);
        }
        let token = &self.tokens[i];
        let sequence = token.sequence as usize;
        let first = pass.plan.spans[sequence].window_start(dims.window);
        spare.rows.clear();
        match pass.ratio {
            0 => {}
            _ if pass.indexed() => spare.rows.extend_from_slice(self.chosen_of(i)),
            ratio => spare.rows.extend(0..(token.position + 1) / ratio),
        }
        let compressed = spare.rows.len();
        let low = token.position.saturating_sub(dims.window - 1);
        spare.rows.extend(low - first..=token.position - first);
        let (mut entries, mut window) = if pass.ratio == 0 {
            (&[][..], cached.window.of(sequence, width))
        } else {
            (cached.entries.of(sequence, width), cached.window.of(sequence, width))
        };
        let span = &pass.plan.spans[sequence];
        if span.is_step() {
            let rows = spare.own.fit(spare.rows.len() * width);
            let (of_entries, of_window) = rows.split_at_mut(compressed * width);
            read_entries(pass, cached.arena, span, &spare.rows[..compressed], of_entries);
            read_window(pass, cached.arena, span, low, of_window);
            (entries, window) = (of_entries, of_window);
            spare.rows.clear();
            let recent = token.position + 1 - low;
            spare.rows.extend((0..compressed as u32).chain(0..recent));
        }
        let (compressed, recent) = spare.rows.split_at(compressed);
        let query = Attend {
            heads,
            width,
            lists: [
                RowList { data: entries, rows: compressed },
                RowList { data: window, rows: recent },
            ],
            sinks: &pass.weights.attn.sinks,
            scale: 1.0 / (width as f32).sqrt(),
            weights: &mut spare.products,
        };
        attend(core.machine, query);
        for head in heads[..dims.heads * width].chunks_exact_mut(width) {
            turn(head, self.angles(pass, i), Turn::Back);
        }
    }
}
