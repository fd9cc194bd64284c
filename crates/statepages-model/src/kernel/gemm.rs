//! Matrix products with one definition of every dot product.
//!
//! `c[m][n] = sum over k of a[m][k] * w[n][k]`: a chain of fused multiply-adds in ascending `k` that
//! starts from zero every [`BLOCK`] elements; the blocks' sums are added in ascending order. Vectors
//! run across `n`, never across `k`, so neither the tile shapes nor the row count can show.

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
    machine.run(Gemm { rows, a, w, c });
}

struct Gemm<'a> {
    rows: usize,
    a: Rows<'a>,
    w: &'a Matrix,
    c: RowsMut<'a>,
}

/// Panels that are worked on together where rows are too few to keep the machine busy on one.
const GROUP: usize = 4;

impl Kernel for Gemm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let (k, panels) = (self.w.inputs(), self.w.outputs().div_ceil(WIDTH));
        let (w, mut scratch) = (self.w, [const { Vec::new() }; GROUP]);
        for panel in (0..panels).step_by(GROUP) {
            let count = GROUP.min(panels - panel);
            for k0 in (0..k).step_by(BLOCK) {
                let mut blocks = [&[][..]; GROUP];
                for (i, scratch) in scratch[..count].iter_mut().enumerate() {
                    blocks[i] = w.block(panel + i, k0, scratch);
                }
                self.group(l, panel, k0, &blocks[..count]);
            }
        }
    }
}

impl Gemm<'_> {
    /// All rows by some panels.
    #[inline(always)]
    fn group<L: Lanes>(&mut self, l: L, panel: usize, k0: usize, blocks: &[&[Column]]) {
        let mut done = 0;
        for (i, b) in blocks.iter().enumerate() {
            let mut row = 0;
            while self.rows - row > if L::WIDE { 3 } else { 0 } {
                let panel = panel + i;
                row += match self.rows - row {
                    12.. if L::WIDE => self.wide::<L, 12>(l, row, panel, k0, b),
                    8.. if L::WIDE => self.wide::<L, 8>(l, row, panel, k0, b),
                    6 if L::WIDE => self.wide::<L, 6>(l, row, panel, k0, b),
                    5 if L::WIDE => self.wide::<L, 5>(l, row, panel, k0, b),
                    4.. if L::WIDE => self.wide::<L, 4>(l, row, panel, k0, b),
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
    ) -> usize {
        let a = self.inputs::<R>(row, k0, b.len());
        let mut sums = [[l.splat(0.0); PANEL]; R];
        for k in 0..b.len() {
            let w = [l.load(&b[k][0]), l.load(&b[k][1])];
            for r in 0..R {
                let x = l.splat(a[r][k]);
                sums[r][0] = l.fma(x, w[0], sums[r][0]);
                sums[r][1] = l.fma(x, w[1], sums[r][1]);
            }
        }
        for r in 0..R {
            for i in 0..PANEL {
                self.put(l, row + r, panel * WIDTH + i * LANES, k0, sums[r][i]);
            }
        }
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
