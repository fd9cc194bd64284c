//! Matrix products with one definition of every dot product.
//!
//! `c[m][n] = sum over k of a[m][k] * w[n][k]`: a chain of fused multiply-adds in ascending `k` that
//! starts from zero every [`BLOCK`] elements; the blocks' sums are added in ascending order. Vectors
//! run across `n`, never across `k`, so neither the tile shapes nor the row count can show.

use std::cell::RefCell;

use prefetch_index::prefetch_index;

use super::lanes::{Kernel, LANES, Lanes, Machine};
use super::matrix::{Column, Matrix};

/// Elements of a dot product that one chain sums.
pub(super) const BLOCK: usize = 256;
/// Vectors across `n` that lie side by side in a panel.
pub(super) const PANEL: usize = 2;
/// Columns of a panel.
pub(super) const WIDTH: usize = PANEL * LANES;

/// Rows of a row-major matrix: row `i` starts at `i * stride`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

/// Rows that are written.
pub(crate) struct RowsMut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) stride: usize,
}

/// `c[i][j] = a[i] . w[j]` for `rows` rows.
pub(crate) fn gemm(machine: Machine, rows: usize, a: Rows<'_>, w: &Matrix, c: RowsMut<'_>) {
    if w.is_plain() {
        return machine.run(Gemm { rows, a, w, c, scratch: &mut [] });
    }
    NUMBERS.with_borrow_mut(|scratch| machine.run(Gemm { rows, a, w, c, scratch }));
}

thread_local! {
    /// A group's blocks, where they are not stored as numbers.
    static NUMBERS: RefCell<Vec<Column>> =
        RefCell::new(vec![[[0.0; LANES]; PANEL]; GROUP * BLOCK]);
}

struct Gemm<'a> {
    rows: usize,
    a: Rows<'a>,
    w: &'a Matrix,
    c: RowsMut<'a>,
    scratch: &'a mut [Column],
}

/// Panels that are worked on together where rows are too few to keep the machine busy on one.
const GROUP: usize = 4;

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

impl Kernel for Gemm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let (k, panels) = (self.w.inputs(), self.w.outputs().div_ceil(WIDTH));
        let (w, scratch) = (self.w, std::mem::take(&mut self.scratch));
        for panel in (0..panels).step_by(GROUP) {
            let count = GROUP.min(panels - panel);
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

impl<'a> Gemm<'a> {
    /// All rows by some panels.
    #[inline(always)]
    fn group<L: Lanes>(&mut self, l: L, panel: usize, k0: usize, blocks: &[&[Column]]) {
        let mut done = 0;
        for (i, b) in blocks.iter().enumerate() {
            let panel = panel + i;
            let mut row = 0;
            let steps = b.len() * self.rows.div_ceil(12);
            let mut ahead = Ahead::new(self.next(panel, k0), steps);
            while self.rows - row > if L::WIDE { 3 } else { 0 } {
                row += match self.rows - row {
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
        match (self.rows - done, blocks) {
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
    /// group's codes become numbers together.
    #[inline(always)]
    fn next(&self, panel: usize, k0: usize) -> &'a [u8] {
        let (k, panels) = (self.w.inputs(), self.w.outputs().div_ceil(WIDTH));
        let last = (panel + 1).is_multiple_of(GROUP) || panel + 1 == panels;
        let at = if self.w.is_plain() && !last {
            Some((panel + 1, k0))
        } else {
            let first = if self.w.is_plain() { panel / GROUP * GROUP } else { panel };
            if k0 + BLOCK < k { Some((first, k0 + BLOCK)) } else { Some((first + GROUP, 0)) }
        };
        at.filter(|at| at.0 < panels).map_or(&[], |(panel, k0)| self.w.stored(panel, k0))
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
            *inputs = &self.a.data[(row + r) * self.a.stride + k0..][..len];
        }
        rows
    }

    /// Adds the sum of the block at `k0` to sixteen outputs of a row.
    #[inline(always)]
    fn put<L: Lanes>(&mut self, l: L, row: usize, column: usize, k0: usize, sum: L::V) {
        if column >= self.w.outputs() {
            return;
        }
        let to = &mut self.c.data[row * self.c.stride..][..self.w.outputs()][column..];
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
    use super::*;
    use crate::Isa;
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
                    let (a, c_rows) = (Rows { data: &a, stride: k }, &mut c[..]);
                    gemm(machine, rows, a, w, RowsMut { data: c_rows, stride: n });
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
                gemm(
                    machine,
                    rows,
                    Rows { data: &a, stride: k + 3 },
                    &matrix,
                    RowsMut { data: &mut c, stride: n + 2 },
                );
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
