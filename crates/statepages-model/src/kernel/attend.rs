//! Attention over listed rows, for the heads of one query.
//!
//! A row is key and value at once. The rows come in two lists: compressed entries ascending, then
//! window rows ascending; every sum over rows runs in that order. A score is the dot product of
//! [`dots`]; the softmax subtracts the maximum of scores and sink; the sink enters the denominator
//! only. Rows that are not listed are never read, not even to be multiplied by zero.

use super::lanes::{Kernel, LANES, Lanes, Machine, tree};
use super::math::exp;

/// Heads that are worked on together. A query of fewer heads is padded with zero heads.
pub(crate) const HEADS: usize = 4;

/// Rows of `width` columns, and which of them a query sees.
#[derive(Clone, Copy)]
pub(crate) struct RowList<'a> {
    /// Row `i` is `data[i * width..][..width]`.
    pub(crate) data: &'a [f32],
    /// Ascending.
    pub(crate) rows: &'a [u32],
}

/// One query against its rows.
pub(crate) struct Attend<'a> {
    /// Queries, which the outputs replace; `[heads][width]`, `heads` a multiple of [`HEADS`], `width`
    /// of [`LANES`].
    pub(crate) heads: &'a mut [f32],
    pub(crate) width: usize,
    /// Compressed entries, then window rows.
    pub(crate) lists: [RowList<'a>; 2],
    /// Logit of the sink, by head.
    pub(crate) sinks: &'a [f32],
    /// Factor of every dot product.
    pub(crate) scale: f32,
    /// Scratch.
    pub(crate) weights: &'a mut Vec<[f32; HEADS]>,
}

pub(crate) fn attend(machine: Machine, attend: Attend<'_>) {
    machine.run(attend);
}

/// `out[i * HEADS + h] = relu?(q[h] . row[i])`, see [`dots`].
pub(crate) struct IndexScores<'a> {
    /// `[heads][width]`, `heads` a multiple of [`HEADS`], `width` of [`LANES`].
    pub(crate) q: &'a [f32],
    pub(crate) width: usize,
    /// Keys of the visible entries, one after the other.
    pub(crate) keys: &'a [f32],
    /// Weight of each head, zero for padding.
    pub(crate) head_weights: &'a [f32],
    /// Scratch.
    pub(crate) products: &'a mut Vec<[f32; HEADS]>,
    /// One score a key: the sum over heads, ascending, of weight times the positive part of the
    /// dot product.
    pub(crate) out: &'a mut [f32],
}

pub(crate) fn index_scores(machine: Machine, scores: IndexScores<'_>) {
    machine.run(scores);
}

/// Rows by their place in a list.
trait Listed {
    fn row(&self, i: usize, width: usize) -> &[f32];
}

impl Listed for RowList<'_> {
    #[inline(always)]
    fn row(&self, i: usize, width: usize) -> &[f32] {
        &self.data[self.rows[i] as usize * width..][..width]
    }
}

/// All rows, one after the other.
struct Every<'a>(&'a [f32]);

impl Listed for Every<'_> {
    #[inline(always)]
    fn row(&self, i: usize, width: usize) -> &[f32] {
        &self.0[i * width..][..width]
    }
}

/// Dot products of `Q` queries with `R` rows: lane `l` sums the columns `l mod 16` ascending, then
/// [`tree`] adds the lanes.
#[inline(always)]
fn dots<L: Lanes, const Q: usize, const R: usize>(
    l: L,
    q: [&[[f32; LANES]]; Q],
    rows: [&[[f32; LANES]]; R],
) -> [[f32; Q]; R] {
    let blocks = rows[0].len();
    let (mut q, mut rows) = (q, rows);
    for q in &mut q {
        *q = &q[..blocks];
    }
    for row in &mut rows {
        *row = &row[..blocks];
    }
    let mut sums = [[l.splat(0.0); Q]; R];
    for i in 0..blocks {
        let mut queries = [l.splat(0.0); Q];
        for j in 0..Q {
            queries[j] = l.load(&q[j][i]);
        }
        for r in 0..R {
            let row = l.load(&rows[r][i]);
            for j in 0..Q {
                sums[r][j] = l.fma(queries[j], row, sums[r][j]);
            }
        }
    }
    let mut out = [[0.0; Q]; R];
    if Q == 4 && R == 4 {
        let mut vectors = [l.splat(0.0); LANES];
        for r in 0..R {
            for j in 0..Q {
                vectors[4 * j + r] = sums[r][j];
            }
        }
        for (out, trees) in out.iter_mut().zip(l.trees(&vectors).chunks_exact(4)) {
            out.copy_from_slice(trees);
        }
        return out;
    }
    for r in 0..R {
        for j in 0..Q {
            let mut lanes = [0.0; LANES];
            l.store(&mut lanes, sums[r][j]);
            out[r][j] = tree(&lanes);
        }
    }
    out
}

/// `out[i][j] = q[j] . row(i)` for the [`HEADS`] queries at `q`.
#[inline(always)]
fn scores<L: Lanes>(l: L, q: &[f32], width: usize, out: &mut [[f32; HEADS]], list: &impl Listed) {
    let mut queries = [&[][..]; HEADS];
    for (j, query) in queries.iter_mut().enumerate() {
        *query = q[j * width..][..width].as_chunks::<LANES>().0;
    }
    let q = queries;
    let row = |i: usize| list.row(i, width).as_chunks::<LANES>().0;
    let whole = out.len() / 4 * 4;
    for i in (0..whole).step_by(4) {
        if L::WIDE {
            let got = dots::<L, 4, 4>(l, q, [row(i), row(i + 1), row(i + 2), row(i + 3)]);
            out[i..i + 4].copy_from_slice(&got);
        } else {
            for i in [i, i + 2] {
                for j in [0, 2] {
                    let got = dots::<L, 2, 2>(l, [q[j], q[j + 1]], [row(i), row(i + 1)]);
                    for r in 0..2 {
                        out[i + r][j..j + 2].copy_from_slice(&got[r]);
                    }
                }
            }
        }
    }
    for i in whole..out.len() {
        [out[i]] = dots::<L, 4, 1>(l, q, [row(i)]);
    }
}

impl<'a> Attend<'a> {
    /// Softmax weights of one head group in place of its scores, and the reciprocal denominators.
    ///
    /// The weights are summed in four interleaved chains (row index mod 4), added ascending; then
    /// the sink.
    #[inline(always)]
    fn softmax<L: Lanes>(
        l: L,
        scale: f32,
        sinks: &[f32; HEADS],
        w: &mut [[f32; HEADS]],
    ) -> [f32; HEADS] {
        const ROWS: usize = LANES / HEADS;
        let whole = w.len() / ROWS * ROWS;
        let (body, rest) = w.as_flattened_mut().split_at_mut(whole * HEADS);
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let (body, _) = body.as_chunks_mut::<LANES>();

        let factor = l.splat(scale);
        let mut peak = l.splat(f32::NEG_INFINITY);
        for block in body.iter_mut().chain([&mut last]) {
            let scaled = l.mul(l.load(block), factor);
            peak = l.max(peak, scaled);
            l.store(block, scaled);
        }
        let mut peaks = [0.0; LANES];
        l.store(&mut peaks, peak);
        let mut top = *sinks;
        for (i, peak) in peaks.into_iter().enumerate() {
            let top = &mut top[i % HEADS];
            *top = if *top < peak { peak } else { *top };
        }
        let (mut shifts, mut sink) = ([0.0; LANES], [0.0; LANES]);
        for i in 0..LANES {
            shifts[i] = top[i % HEADS];
            sink[i] = sinks[i % HEADS] - top[i % HEADS];
        }
        let shift = l.load(&shifts);
        let mut sum = l.splat(0.0);
        for block in body.iter_mut().chain([&mut last]) {
            let e = exp(l, l.sub(l.load(block), shift));
            sum = l.add(sum, e);
            l.store(block, e);
        }
        let n = rest.len();
        rest.copy_from_slice(&last[..n]);
        let mut sums = [0.0; LANES];
        l.store(&mut sums, sum);
        let sink_weight = exp(l, l.load(&sink));
        l.store(&mut sink, sink_weight);
        let mut reciprocals = [0.0; HEADS];
        for h in 0..HEADS {
            let rows = (sums[h] + sums[h + HEADS]) + (sums[h + 2 * HEADS] + sums[h + 3 * HEADS]);
            reciprocals[h] = 1.0 / (rows + sink[h]);
        }
        reciprocals
    }

    /// `out[h] = sum over rows of weight * row`, a chain per column, times the reciprocal
    /// denominator. `C` vectors of columns at a time.
    #[inline(always)]
    fn values<L: Lanes, const C: usize>(
        l: L,
        lists: &[(RowList<'a>, &[[f32; HEADS]]); 2],
        (width, column): (usize, usize),
        reciprocal: [f32; HEADS],
        out: &mut [f32],
    ) {
        let mut sums = [[l.splat(0.0); C]; HEADS];
        for (list, weights) in lists {
            for (&row, weights) in list.rows.iter().zip(*weights) {
                let row = &list.data[row as usize * width + column..][..C * LANES];
                let row = row.as_chunks::<LANES>().0;
                for c in 0..C {
                    let value = l.load(&row[c]);
                    for h in 0..HEADS {
                        sums[h][c] = l.fma(l.splat(weights[h]), value, sums[h][c]);
                    }
                }
            }
        }
        for h in 0..HEADS {
            let (to, _) = out[h * width + column..][..C * LANES].as_chunks_mut::<LANES>();
            for c in 0..C {
                l.store(&mut to[c], l.mul(sums[h][c], l.splat(reciprocal[h])));
            }
        }
    }
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let width = self.width;
        let [entries, window] = self.lists;
        self.weights.clear();
        self.weights.resize(entries.rows.len() + window.rows.len(), [0.0; HEADS]);
        let groups = self.heads.chunks_exact_mut(HEADS * width);
        for (heads, sinks) in groups.zip(self.sinks.as_chunks::<HEADS>().0) {
            let (first, second) = self.weights.split_at_mut(entries.rows.len());
            for (list, out) in [(entries, first), (window, second)] {
                scores(l, heads, width, out, &list);
            }
            let reciprocal = Self::softmax(l, self.scale, sinks, self.weights);
            let (first, second) = self.weights.split_at(entries.rows.len());
            let lists = [(entries, first), (window, second)];
            let mut column = 0;
            while width - column >= 4 * LANES {
                if L::WIDE {
                    Self::values::<L, 4>(l, &lists, (width, column), reciprocal, heads);
                } else {
                    for c in 0..4 {
                        let at = (width, column + c * LANES);
                        Self::values::<L, 1>(l, &lists, at, reciprocal, heads);
                    }
                }
                column += 4 * LANES;
            }
            while column < width {
                Self::values::<L, 1>(l, &lists, (width, column), reciprocal, heads);
                column += LANES;
            }
        }
    }
}

impl Kernel for IndexScores<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let width = self.width;
        self.out.fill(0.0);
        self.products.clear();
        self.products.resize(self.out.len(), [0.0; HEADS]);
        let groups = self.q.chunks_exact(HEADS * width);
        for (q, weights) in groups.zip(self.head_weights.as_chunks::<HEADS>().0) {
            scores(l, q, width, self.products, &Every(self.keys));
            for (out, products) in self.out.iter_mut().zip(self.products.iter()) {
                for (&product, weight) in products.iter().zip(weights) {
                    // A dead head adds nothing, so that rows of dead heads tie exactly. Adding a
                    // chosen zero, unlike a branch, is vector code.
                    *out += if product > 0.0 { product * weight } else { 0.0 };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn value(i: usize) -> f32 {
        ((i * 7919 + 13) % 1009) as f32 / 503.0 - 1.0
    }

    fn outputs(machine: Machine, width: usize, entries: &[u32], window: &[u32]) -> Vec<f32> {
        let q: Vec<f32> = (0..2 * HEADS * width).map(value).collect();
        // Rows that no list names hold NaN: a kernel that multiplies them by zero shows it.
        let rows = |seed: usize, listed: &[u32]| -> Vec<f32> {
            (0..40 * width)
                .map(|i| {
                    let seen = listed.contains(&((i / width) as u32));
                    if seen { value(i + seed) } else { f32::NAN }
                })
                .collect()
        };
        let (compressed, recent) = (rows(3, entries), rows(17, window));
        let sinks: Vec<f32> = (0..2 * HEADS).map(value).collect();
        let mut out = q.clone();
        attend(
            machine,
            Attend {
                heads: &mut out,
                width,
                lists: [
                    RowList { data: &compressed, rows: entries },
                    RowList { data: &recent, rows: window },
                ],
                sinks: &sinks,
                scale: 0.3,
                weights: &mut Vec::new(),
            },
        );
        let keys: Vec<&[f32]> = entries
            .iter()
            .map(|&e| &compressed[e as usize * width..][..width])
            .chain(window.iter().map(|&w| &recent[w as usize * width..][..width]))
            .collect();
        for h in 0..2 * HEADS {
            let scores: Vec<f64> = keys
                .iter()
                .map(|key| {
                    let dot = |(a, b): (&f32, &f32)| f64::from(*a) * f64::from(*b);
                    q[h * width..][..width].iter().zip(*key).map(dot).sum::<f64>() * 0.3
                })
                .collect();
            let sum: f64 = scores.iter().map(|s| s.exp()).sum::<f64>() + f64::from(sinks[h]).exp();
            for c in 0..width {
                let want: f64 = scores
                    .iter()
                    .zip(&keys)
                    .map(|(s, key)| s.exp() / sum * f64::from(key[c]))
                    .sum();
                let got = f64::from(out[h * width + c]);
                assert!((got - want).abs() < 1e-5, "head {h} column {c}: {got} against {want}");
            }
        }
        out
    }

    #[test]
    fn machines_agree_and_are_close_to_exact() {
        for width in [16, 64, 80] {
            for (entries, window) in [
                (vec![], vec![0]),
                (vec![1, 5, 6, 31], vec![2, 3, 4]),
                ((0..13).collect(), (7..40).collect::<Vec<u32>>()),
            ] {
                let scalar = outputs(Machine::new(Isa::Scalar).unwrap(), width, &entries, &window);
                for isa in [Isa::Avx2, Isa::Avx512] {
                    let Ok(machine) = Machine::new(isa) else { continue };
                    let other = outputs(machine, width, &entries, &window);
                    assert!(scalar.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()));
                }
            }
        }
    }
}
