//! Matrix products with one definition of every dot product.
//!
//! `c[m][n] = sum over k of a[m][k] * w[n][k]`: a chain of fused multiply-adds in ascending `k` that
//! starts from zero every [`BLOCK`] elements; the blocks' sums are added in ascending order. Vectors
//! run across `n`, never across `k`, so neither the tile shapes nor the row count can show.

use std::cell::RefCell;
use std::ops::Range;

use prefetch_index::prefetch_index;

use super::lanes::{Kernel, LANES, Lanes, Machine};
use super::matrix::{Column, Matrix};
use crate::crew::Hands;

/// Elements of a dot product that one chain sums.
pub(super) const BLOCK: usize = 256;
/// Vectors across `n` that lie side by side in a panel.
pub(super) const PANEL: usize = 2;
/// Columns of a panel.
pub(super) const WIDTH: usize = PANEL * LANES;

/// The first `n` columns of every row of a row-major matrix.
pub(crate) fn rows(data: &[f32], stride: usize, n: usize) -> Vec<&[f32]> {
    data.chunks(stride).map(|row| &row[..n]).collect()
}

/// The first `n` columns of every row of a row-major matrix, to be written.
pub(crate) fn rows_mut(data: &mut [f32], stride: usize, n: usize) -> Vec<&mut [f32]> {
    data.chunks_mut(stride).map(|row| &mut row[..n]).collect()
}

/// `c[i][j] = a[i] . w[j]` for every row of `c`, which has `w`'s outputs.
pub(crate) struct Product<'a> {
    pub(crate) a: Vec<&'a [f32]>,
    pub(crate) w: &'a Matrix,
    pub(crate) c: Vec<&'a mut [f32]>,
}

/// Some panels of a product.
struct Piece<'a> {
    a: &'a [&'a [f32]],
    w: &'a Matrix,
    panels: Range<usize>,
    /// The panels' columns of each row.
    c: Vec<&'a mut [f32]>,
}

/// Least that a hand takes of products, in rows of a panel: with less, sharing costs more than it
/// saves.
const SHARE_MIN: usize = 2 * BLOCK;

/// Computes products. Hands share their weights, so that each weight is fetched by one of them.
pub(crate) fn products(machine: Machine, hands: Hands, mut products: Vec<Product<'_>>) {
    debug_assert!(products.iter().all(|product| product.a.len() == product.c.len()));
    let total = products.iter().map(|product| product.w.panels() * product.w.inputs()).sum();
    let hands = Hands::new(hands.count().min(total / SHARE_MIN));
    hands.each(cut(&mut products, hands.count(), total).into_iter(), |pieces| {
        NUMBERS.with_borrow_mut(|scratch| {
            let mut pieces = pieces.into_iter().peekable();
            while let Some(Piece { a, w, panels, mut c }) = pieces.next() {
                let after = pieces.peek().map(|next| (next.w, next.panels.clone()));
                // Numbers of a panel that were codes stay in the nearest cache until they are
                // multiplied; those of a group do not.
                let group = if w.is_plain() || left(a.len()) > 0 { GROUP } else { 1 };
                machine.run(Gemm { a, w, panels, c: &mut c, scratch, after, group });
            }
        });
    });
}

/// Cuts products between panels, into as many parts of about equally many weights.
fn cut<'a>(products: &'a mut [Product<'_>], parts: usize, total: usize) -> Vec<Vec<Piece<'a>>> {
    let mut cut: Vec<Vec<Piece<'a>>> = (0..parts).map(|_| Vec::new()).collect();
    let mut before = 0;
    for Product { a, w, c } in products {
        let mut c: Vec<&mut [f32]> = c.iter_mut().map(|row| &mut **row).collect();
        let (k, panels) = (w.inputs(), w.panels());
        let mut first = 0;
        for (part, pieces) in cut.iter_mut().enumerate() {
            let end = (total * (part + 1) / parts).saturating_sub(before);
            let end = ((end + k / 2) / k).min(panels);
            if end <= first {
                continue;
            }
            let columns = (end * WIDTH).min(w.outputs()) - first * WIDTH;
            let rows = c.iter_mut().map(|row| row.split_off_mut(..columns));
            let c = rows.map(|row| row.expect("a row has the product's columns")).collect();
            pieces.push(Piece { a, w, panels: first..end, c });
            first = end;
        }
        before += panels * k;
    }
    cut
}

thread_local! {
    /// A group's blocks, where they are not stored as numbers.
    static NUMBERS: RefCell<Vec<Column>> =
        RefCell::new(vec![[[0.0; LANES]; PANEL]; GROUP * BLOCK]);
}

struct Gemm<'a, 'c> {
    a: &'a [&'a [f32]],
    w: &'a Matrix,
    panels: Range<usize>,
    c: &'c mut [&'a mut [f32]],
    scratch: &'c mut [Column],
    /// What is multiplied next.
    after: Option<(&'a Matrix, Range<usize>)>,
    /// Panels that are worked on together.
    group: usize,
}

/// Panels that are worked on together where rows are too few to keep the machine busy on one.
const GROUP: usize = 4;

/// Rows that are left where a wide machine takes twelve, eight and down to four at a time.
fn left(rows: usize) -> usize {
    match rows % 12 {
        7 => 3,
        few @ 0..4 => few,
        some => some.saturating_sub(8),
    }
}

/// Stored weights that are worked on next, to be fetched while others are multiplied: a product of
/// few rows would otherwise wait for memory most of the time.
struct Ahead<'a> {
    bytes: &'a [u8],
    /// Bytes between what is asked for at one step of a chain and at the next.
    stride: usize,
}

impl<'a> Ahead<'a> {
    /// Spreads the fetching of `bytes` over `steps` steps.
    fn new(bytes: &'a [u8], steps: usize) -> Self {
        Self { bytes, stride: bytes.len().div_ceil(steps.max(1)) }
    }

    /// What the next `steps` steps fetch.
    #[inline(always)]
    fn take(&mut self, steps: usize) -> &'a [u8] {
        let (now, later) = self.bytes.split_at((steps * self.stride).min(self.bytes.len()));
        self.bytes = later;
        now
    }
}

impl Kernel for Gemm<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let (k, panels) = (self.w.inputs(), self.panels.clone());
        let (w, scratch) = (self.w, std::mem::take(&mut self.scratch));
        for panel in panels.clone().step_by(self.group) {
            let count = self.group.min(panels.end - panel);
            for k0 in (0..k).step_by(BLOCK) {
                let mut blocks = [&[][..]; GROUP];
                let mut scratch = scratch.chunks_exact_mut(BLOCK);
                for (i, block) in blocks[..count].iter_mut().enumerate() {
                    *block = w.block(l, panel + i, k0, scratch.next().unwrap_or_default());
                }
                self.group(l, panel, k0, &blocks[..count]);
            }
        }
    }
}

/// Does `$body` for every row below `$n`, at most 12, written out one by one: sums that are only
/// ever named by constants stay in registers, where those of a loop may be kept in memory.
macro_rules! each_row {
    ($row:ident < $n:ident, $body:block) => {
        each_row!($row, $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    ($row:ident, $n:ident, $body:block, $($i:literal)*) => {
        $(if $i < $n {
            let $row: usize = $i;
            $body
        })*
    };
}

impl<'a> Gemm<'a, '_> {
    /// All rows by some panels.
    #[inline(always)]
    fn group<L: Lanes>(&mut self, l: L, panel: usize, k0: usize, blocks: &[&[Column]]) {
        let mut done = 0;
        for (i, b) in blocks.iter().enumerate() {
            let panel = panel + i;
            let mut row = 0;
            let steps = b.len() * self.c.len().div_ceil(12);
            let mut ahead = Ahead::new(self.next(panel, k0), steps);
            while self.c.len() - row > if L::WIDE { 3 } else { 0 } {
                row += match self.c.len() - row {
                    12.. if L::WIDE => self.wide::<L, 12>(l, row, panel, k0, b, &mut ahead),
                    8.. if L::WIDE => self.wide::<L, 8>(l, row, panel, k0, b, &mut ahead),
                    6 if L::WIDE => self.wide::<L, 6>(l, row, panel, k0, b, &mut ahead),
                    5 if L::WIDE => self.wide::<L, 5>(l, row, panel, k0, b, &mut ahead),
                    4.. if L::WIDE => self.wide::<L, 4>(l, row, panel, k0, b, &mut ahead),
                    6.. => self.narrow::<L, 6>(l, row, panel, k0, b),
                    3.. => self.narrow::<L, 3>(l, row, panel, k0, b),
                    2 => self.narrow::<L, 2>(l, row, panel, k0, b),
                    _ => self.narrow::<L, 1>(l, row, panel, k0, b),
                };
            }
            done = row;
        }
        // Few rows have few chains of sums: several panels at once hide the latency of each.
        match (self.c.len() - done, blocks) {
            (1, [a, b, c, d]) => self.few::<L, 1, 4>(l, done, panel, k0, [a, b, c, d]),
            (1, [first @ .., last]) => {
                for (i, &b) in first.iter().enumerate() {
                    self.few::<L, 1, 1>(l, done, panel + i, k0, [b]);
                }
                self.few::<L, 1, 1>(l, done, panel + first.len(), k0, [last]);
            }
            (2, _) => self.pairs::<L, 2>(l, done, panel, k0, blocks),
            (3, _) => self.pairs::<L, 3>(l, done, panel, k0, blocks),
            _ => {}
        }
    }

    /// What is stored of the weights that are needed next after a block: the next block where
    /// blocks are multiplied as they are stored, else the same block of the next group, for a
    /// group's codes become numbers together; behind the last, what is multiplied next.
    #[inline(always)]
    fn next(&self, panel: usize, k0: usize) -> &'a [u8] {
        let place = (panel - self.panels.start) % self.group;
        let first = panel - place;
        let last = place + 1 == self.group || panel + 1 == self.panels.end;
        let (panel, k0) = match (self.w.is_plain(), k0 + BLOCK < self.w.inputs()) {
            (true, _) if !last => (panel + 1, k0),
            (true, true) => (first, k0 + BLOCK),
            (false, true) => (panel, k0 + BLOCK),
            (true, false) => (first + self.group, 0),
            (false, false) => (panel + self.group, 0),
        };
        if panel < self.panels.end {
            return self.w.stored(panel, k0);
        }
        let Some((w, panels)) = &self.after else { return &[] };
        let panel = panels.start + if w.is_plain() { 0 } else { place };
        if panel < panels.end { w.stored(panel, 0) } else { &[] }
    }

    /// `R` rows by pairs of panels.
    #[inline(always)]
    fn pairs<L: Lanes, const R: usize>(
        &mut self,
        l: L,
        row: usize,
        panel: usize,
        k0: usize,
        blocks: &[&[Column]],
    ) {
        for (i, pair) in blocks.chunks(2).enumerate() {
            let panel = panel + 2 * i;
            match pair {
                [a, b] => self.few::<L, R, 2>(l, row, panel, k0, [a, b]),
                rest => self.few::<L, R, 1>(l, row, panel, k0, [rest[0]]),
            }
        }
    }

    /// `R` rows by `P` panels.
    #[inline(always)]
    fn few<L: Lanes, const R: usize, const P: usize>(
        &mut self,
        l: L,
        row: usize,
        panel: usize,
        k0: usize,
        blocks: [&[Column]; P],
    ) {
        let len = blocks[0].len();
        let a = self.inputs::<R>(row, k0, len);
        let mut b = blocks;
        for block in &mut b {
            *block = &block[..len];
        }
        let mut sums = [[[l.splat(0.0); PANEL]; P]; R];
        for k in 0..len {
            for r in 0..R {
                let x = l.splat(a[r][k]);
                for p in 0..P {
                    for i in 0..PANEL {
                        sums[r][p][i] = l.fma(x, l.load(&b[p][k][i]), sums[r][p][i]);
                    }
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                for i in 0..PANEL {
                    let column = (panel + p) * WIDTH + i * LANES;
                    self.put(l, row + r, column, k0, sums[r][p][i]);
                }
            }
        }
    }

    /// `R` rows by one panel.
    #[inline(always)]
    fn wide<L: Lanes, const R: usize>(
        &mut self,
        l: L,
        row: usize,
        panel: usize,
        k0: usize,
        b: &[Column],
        ahead: &mut Ahead<'_>,
    ) -> usize {
        let a = self.inputs::<R>(row, k0, b.len());
        let mut sums = [[l.splat(0.0); PANEL]; R];
        let (bytes, stride) = (ahead.take(b.len()), ahead.stride);
        for k in 0..b.len() {
            prefetch_index(bytes, k * stride);
            let w = [l.load(&b[k][0]), l.load(&b[k][1])];
            each_row!(r < R, {
                let x = l.splat(a[r][k]);
                sums[r][0] = l.fma(x, w[0], sums[r][0]);
                sums[r][1] = l.fma(x, w[1], sums[r][1]);
            });
        }
        each_row!(r < R, {
            self.put(l, row + r, panel * WIDTH, k0, sums[r][0]);
            self.put(l, row + r, panel * WIDTH + LANES, k0, sums[r][1]);
        });
        R
    }

    /// `R` rows by one panel, a vector at a time: for machines of few registers.
    #[inline(always)]
    fn narrow<L: Lanes, const R: usize>(
        &mut self,
        l: L,
        row: usize,
        panel: usize,
        k0: usize,
        b: &[Column],
    ) -> usize {
        for i in 0..PANEL {
            let a = self.inputs::<R>(row, k0, b.len());
            let mut sums = [l.splat(0.0); R];
            for k in 0..b.len() {
                let w = l.load(&b[k][i]);
                for r in 0..R {
                    sums[r] = l.fma(l.splat(a[r][k]), w, sums[r]);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                self.put(l, row + r, panel * WIDTH + i * LANES, k0, sum);
            }
        }
        R
    }

    #[inline(always)]
    fn inputs<const R: usize>(&self, row: usize, k0: usize, len: usize) -> [&[f32]; R] {
        let mut rows = [&[][..]; R];
        for (r, inputs) in rows.iter_mut().enumerate() {
            *inputs = &self.a[row + r][k0..][..len];
        }
        rows
    }

    /// Adds the sum of the block at `k0` to sixteen outputs of a row.
    #[inline(always)]
    fn put<L: Lanes>(&mut self, l: L, row: usize, column: usize, k0: usize, sum: L::V) {
        let Some(to) = self.c[row].get_mut(column - self.panels.start * WIDTH..) else { return };
        if let Some(to) = to.first_chunk_mut::<LANES>() {
            let sum = if k0 == 0 { sum } else { l.add(l.load(to), sum) };
            l.store(to, sum);
            return;
        }
        let mut sums = [0.0; LANES];
        l.store(&mut sums, sum);
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = if k0 == 0 { sum } else { *to + sum };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::Isa;
    use crate::crew::Crew;
    use crate::kernel::matrix::MatrixData;

    /// The definition, word by word.
    fn naive(a: &[f32], w: &[f32]) -> f32 {
        let mut total = 0.0;
        for (block, (a, w)) in a.chunks(BLOCK).zip(w.chunks(BLOCK)).enumerate() {
            let sum = a.iter().zip(w).fold(0.0f32, |sum, (a, w)| a.mul_add(*w, sum));
            total = if block == 0 { sum } else { total + sum };
        }
        total
    }

    #[test]
    fn formats_differ_in_no_bit() {
        let (n, k, rows) = (200, 320, 5);
        let a: Vec<f32> = (0..rows * k).map(|i| ((i * 31) % 97) as f32 / 48.0 - 1.0).collect();
        let bytes = |n: usize, step: usize, below: usize| -> Vec<u8> {
            (0..n).map(|i| ((i * step) % below) as u8).collect()
        };
        let exponents = |n| bytes(n, 7, 9).into_iter().map(|e| 120 + e).collect::<Vec<u8>>();
        let halves = |i| ((i * 97) % 251 + 0x3e80) as u16;
        for data in [
            MatrixData::Bf16((0..n * k).map(halves).collect()),
            MatrixData::Fp8 { codes: bytes(n * k, 11, 0x7f), scales: exponents(2 * 3) },
            MatrixData::Fp4 { codes: bytes(n * k / 2, 53, 256), scales: exponents(n * k / 32) },
        ] {
            let plain = data.expand(n, k);
            for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
                let Ok(machine) = Machine::new(isa) else { continue };
                let product = |w: &Matrix| {
                    let mut c = vec![f32::NAN; rows * n];
                    let (a, c_rows) = (super::rows(&a, k, k), rows_mut(&mut c, n, n));
                    products(machine, Hands::ONE, vec![Product { a, w, c: c_rows }]);
                    c
                };
                let want = product(&Matrix::pack(n, k, &plain));
                assert_eq!(product(&Matrix::new(n, k, &data)), want, "{isa:?}");
                let half = data.rows(n, k, 128, 72);
                assert_eq!(half.expand(72, k), plain[128 * k..]);
                assert_eq!(data.rows(n, k, 40, 60).expand(60, k), plain[40 * k..100 * k]);
            }
        }
    }

    #[test]
    fn hands_that_share_products_show_in_no_bit() {
        let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 503.0 - 1.0;
        let shapes = [(200, 320, 5), (24, 1024, 16), (33, 256, 1), (512, 257, 3), (16, 96, 2)];
        let matrices: Vec<Matrix> = (shapes.iter().enumerate())
            .map(|(i, &(n, k, _))| {
                let codes = (0..n * k / 2).map(|i| (i * 53) as u8).collect();
                let scales = vec![125; n * k / 32];
                match i % 2 {
                    0 => Matrix::new(n, k, &MatrixData::Fp4 { codes, scales }),
                    _ => Matrix::pack(n, k, &(0..n * k).map(value).collect::<Vec<f32>>()),
                }
            })
            .collect();
        let inputs: Vec<Vec<f32>> =
            shapes.iter().map(|&(_, k, count)| (0..count * k).map(value).collect()).collect();
        let run = |machine: Machine, threads: usize| {
            let empty = |&(n, _, count): &(usize, usize, usize)| vec![f32::NAN; n * count];
            let mut outputs: Vec<Vec<f32>> = shapes.iter().map(empty).collect();
            Crew::new(NonZeroUsize::new(threads).unwrap()).unwrap().run(threads, || {
                let of = inputs.iter().zip(&matrices).zip(&mut outputs);
                let list = of.map(|((a, w), c)| {
                    let (a, n) = (super::rows(a, w.inputs(), w.inputs()), w.outputs());
                    Product { a, w, c: rows_mut(c, n, n) }
                });
                products(machine, Hands::new(threads), list.collect());
            });
            outputs
        };
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
            let Ok(machine) = Machine::new(isa) else { continue };
            let alone = run(machine, 1);
            assert!(alone.iter().flatten().all(|x| x.is_finite()));
            for threads in 2..7 {
                assert_eq!(run(machine, threads), alone, "{isa:?} on {threads} threads");
            }
        }
    }

    #[test]
    fn every_machine_and_shape_follows_the_definition() {
        let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 503.0 - 1.0;
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
            let Ok(machine) = Machine::new(isa) else { continue };
            for (rows, n, k) in [
                (1, 1, 1),
                (2, 33, 300),
                (29, 40, 256),
                (13, 96, 700),
                (7, 17, 5),
                (15, 140, 64),
                (14, 160, 300),
                (11, 33, 9),
                (10, 70, 257),
            ] {
                let a: Vec<f32> = (0..rows * (k + 3)).map(value).collect();
                let w: Vec<f32> = (0..n * k).map(|i| value(i + 5)).collect();
                let mut c = vec![f32::NAN; rows * (n + 2)];
                let matrix = Matrix::pack(n, k, &w);
                let (a_rows, c_rows) = (super::rows(&a, k + 3, k), rows_mut(&mut c, n + 2, n));
                products(machine, Hands::ONE, vec![Product { a: a_rows, w: &matrix, c: c_rows }]);
                for row in 0..rows {
                    for column in 0..n {
                        let want = naive(&a[row * (k + 3)..][..k], &w[column * k..][..k]);
                        assert_eq!(c[row * (n + 2) + column].to_bits(), want.to_bits());
                    }
                    assert!(c[row * (n + 2) + n].is_nan(), "wrote beyond the row");
                }
            }
        }
    }
}
