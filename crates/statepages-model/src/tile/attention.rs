//! What a layer's attention computes of a tile's tokens: which entries each attends to, and what
//! it makes of their rows.

use statepages_copy::HostArena;

use super::{Rows32, Spare, Tile, Work, choice_at, fit, product};
use crate::batch::{Span, Token};
use crate::choice::top_k;
use crate::kernel::attend::{Attend, HEADS, IndexScores, RowList, attend, index_scores};
use crate::kernel::gemm::{Product, products, rows, rows_mut};
use crate::kernel::norm::{NormWeight, rms_norm};
use crate::pass::Pass;
use crate::rope::{Turn, turn};
use crate::state::{read_entries, read_keys, read_window};

/// Indexer rows of a decode step that are scored at a time: few enough that they and their bytes stay
/// in a core's nearest cache.
const KEYS_AT_ONCE: usize = 32;

/// Index scores of a tile's decode steps, one step's behind the other's.
#[derive(Debug, Default)]
pub(crate) struct StepScores {
    scores: Vec<f32>,
    /// Where each token's begin, and at last where all end. Only steps that choose have any.
    first: Vec<usize>,
}

impl StepScores {
    /// Makes room for so many scores of each token.
    fn make_room(&mut self, counts: impl Iterator<Item = usize>) {
        let mut total = 0;
        self.first.clear();
        self.first.push(0);
        self.first.extend(counts.map(|count| {
            total += count;
            total
        }));
        fit(&mut self.scores, total);
    }

    fn of(&self, token: usize) -> &[f32] {
        &self.scores[self.first[token]..self.first[token + 1]]
    }

    /// The scores of each token that has any.
    fn split(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        let mut rest = &mut self.scores[..];
        let counts = self.first.windows(2).map(|pair| pair[1] - pair[0]);
        let split = counts.enumerate().map(move |(token, count)| {
            let (scores, others) = std::mem::take(&mut rest).split_at_mut(count);
            rest = others;
            (token, scores)
        });
        split.filter(|(_, scores)| !scores.is_empty())
    }
}

/// Keys of one page, and the scores that steps make of them.
struct Reading<'a> {
    /// One of those whose page it is.
    span: &'a Span<'a>,
    /// The first key's entry.
    first: usize,
    /// By token.
    of: Vec<(usize, &'a mut [f32])>,
}

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
        let chooses = |token: &Token| visible(token) > top;
        let count = self.tokens.len();
        let Work { q, step_scores, .. } = work;
        let q = q.fit(count * heads * width);
        if self.tokens.iter().any(chooses) {
            let (a, n) = (rows(&self.query_rank, dims.q_rank, dims.q_rank), heads * width);
            let w = &indexer.wq_b;
            let c = rows_mut(q, n, w.outputs());
            products(core.machine, pass.inside.hands, vec![Product { a, w, c }]);
            let queries = self.tokens.iter().zip(q.chunks_exact_mut(n)).enumerate();
            let queries = queries.filter(|(_, (token, _))| chooses(token));
            pass.inside.each(queries, |_, (i, (_, q))| {
                // Padding heads may hold what an earlier use of the scratch left.
                q[dims.index_heads * width..].fill(0.0);
                for head in q[..dims.index_heads * width].chunks_exact_mut(width) {
                    turn(head, self.angles(pass, i), Turn::Forward);
                }
            });
        }
        let q = &*q;
        step_scores.make_room(self.tokens.iter().map(|token| {
            let step = chooses(token) && pass.plan.span(token).is_step();
            if step { visible(token) } else { 0 }
        }));
        self.score_steps(pass, q, arena, step_scores);
        let mut lists = std::mem::take(&mut self.chosen);
        lists.resize_with(count, Vec::new);
        let items = self.tokens.iter().zip(&mut lists).enumerate();
        pass.inside.each(items, |spare, (i, (token, chosen))| {
            chosen.clear();
            if !chooses(token) {
                chosen.extend(0..visible(token) as u32);
                return;
            }
            let Spare { scores, products, ranks, .. } = spare;
            let scores = if pass.plan.span(token).is_step() {
                step_scores.of(i)
            } else {
                let keys = keys.of(token.sequence as usize, width);
                self.score(pass, i, (q, keys), products, fit(scores, visible(token)));
                scores
            };
            top_k(scores, top, ranks, chosen);
            pass.choices.entries(choice_at(pass, token), scores, chosen);
        });
        self.chosen = lists;
    }

    /// Scores the first of `keys` against the queries of token `i`.
    fn score(
        &self,
        pass: &Pass<'_>,
        i: usize,
        (q, keys): (&[f32], &[f32]),
        products: &mut Vec<[f32; HEADS]>,
        out: &mut [f32],
    ) {
        let (width, heads) = (pass.core.dims.index_width, pass.core.dims.index_heads_padded);
        let q = &q[i * heads * width..][..heads * width];
        let head_weights = &self.index_weights[i * heads..][..heads];
        let scores = IndexScores { q, width, keys, head_weights, products, out };
        index_scores(pass.core.machine, scores);
    }

    /// Scores the keys of decode steps. Keys go from their pages through a core's nearest cache, once
    /// for all the requests that share a page.
    fn score_steps(
        &self,
        pass: &Pass<'_>,
        q: &[f32],
        arena: &HostArena,
        step_scores: &mut StepScores,
    ) {
        let (core, width) = (pass.core, pass.core.dims.index_width);
        let each = core.geometry.entries_per_block(pass.cache) as usize;
        let at_once = if each.is_multiple_of(KEYS_AT_ONCE) { KEYS_AT_ONCE } else { each };
        let mut steps: Vec<_> =
            step_scores.split().map(|(i, scores)| (i, scores.chunks_mut(at_once))).collect();
        let mut readings: Vec<Reading<'_>> = Vec::new();
        for first in (0..).step_by(at_once) {
            let before = readings.len();
            for (i, scores) in &mut steps {
                let Some(out) = scores.next() else { continue };
                let span = pass.plan.span(&self.tokens[*i]);
                let same = |other: &&mut Reading<'_>| {
                    other.span.pages[first / each] == span.pages[first / each]
                };
                match readings[before..].iter_mut().find(same) {
                    Some(reading) => reading.of.push((*i, out)),
                    None => readings.push(Reading { span, first, of: vec![(*i, out)] }),
                }
            }
            if readings.len() == before {
                break;
            }
        }
        pass.inside.each(readings.into_iter(), |spare, Reading { span, first, of }| {
            let Spare { keys, products, .. } = spare;
            let count = of.iter().map(|(_, out)| out.len()).max().unwrap_or(0);
            let keys = keys.fit(count * width);
            read_keys(pass, arena, span, first as u32, keys);
            for (i, out) in of {
                self.score(pass, i, (q, keys), products, out);
            }
        });
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
        let (sequence, span) = (token.sequence as usize, pass.plan.span(token));
        let first = span.window_start(dims.window);
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
