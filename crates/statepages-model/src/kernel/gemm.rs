//! Matrix products with one definition of every dot product.
//!
//! `c[m][n] = sum over k of a[m][k] * w[n][k]`: a chain of fused multiply-adds in ascending `k` that
//! starts from zero every [`BLOCK`] elements; the blocks' sums are added in ascending order. Vectors
//! run across `n`, never across `k`, so neither the tile shapes nor the row count can show.

use super::lanes::{Kernel, LANES, Lanes, Machine};

/// Elements of a dot product that one chain sums.
const BLOCK: usize = 256;
/// Vectors across `n` that lie side by side in a panel.
const PANEL: usize = 2;
/// Columns of a panel.
const WIDTH: usize = PANEL * LANES;

/// A weight matrix of `n` outputs by `k` inputs, packed for [`gemm`].
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    n: usize,
    k: usize,
    /// `[ceil(n / WIDTH)][k][PANEL][LANES]`, zero behind column `n`.
    panels: Vec<[[f32; LANES]; PANEL]>,
}

impl Matrix {
    /// Packs row-major `[n][k]` weights.
    pub(crate) fn pack(n: usize, k: usize, weights: &[f32]) -> Self {
        assert_eq!(weights.len(), n * k, "a matrix has n * k weights");
        let mut panels = vec![[[0.0; LANES]; PANEL]; n.div_ceil(WIDTH) * k];
        for (row, weights) in weights.chunks_exact(k).enumerate() {
            let panel = &mut panels[row / WIDTH * k..][..k];
            let column = row % WIDTH;
            for (to, &w) in panel.iter_mut().zip(weights) {
                to[column / LANES][column % LANES] = w;
            }
        }
        Self { n, k, panels }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.n
    }

    pub(crate) fn inputs(&self) -> usize {
        self.k
    }
}

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

impl Kernel for Gemm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let (k, panels) = (self.w.k, self.w.n.div_ceil(WIDTH));
        for panel in 0..panels {
            for k0 in (0..k).step_by(BLOCK) {
                let b = &self.w.panels[panel * k + k0..][..BLOCK.min(k - k0)];
                let mut row = 0;
                while row < self.rows {
                    row += match self.rows - row {
                        12.. if L::WIDE => self.wide::<L, 12>(l, row, panel, k0, b),
                        6.. if L::WIDE => self.wide::<L, 6>(l, row, panel, k0, b),
                        6.. => self.narrow::<L, 6>(l, row, panel, k0, b),
                        3.. => self.wide_or_narrow::<L, 3>(l, row, panel, k0, b),
                        2 => self.wide_or_narrow::<L, 2>(l, row, panel, k0, b),
                        _ => self.wide_or_narrow::<L, 1>(l, row, panel, k0, b),
                    };
                }
            }
        }
    }
}

impl Gemm<'_> {
    #[inline(always)]
    fn wide_or_narrow<L: Lanes, const R: usize>(
        &mut self,
        l: L,
        row: usize,
        panel: usize,
        k0: usize,
        b: &[[[f32; LANES]; PANEL]],
    ) -> usize {
        if L::WIDE {
            self.wide::<L, R>(l, row, panel, k0, b)
        } else {
            self.narrow::<L, R>(l, row, panel, k0, b)
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
        b: &[[[f32; LANES]; PANEL]],
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
        b: &[[[f32; LANES]; PANEL]],
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
        if column >= self.w.n {
            return;
        }
        let to = &mut self.c.data[row * self.c.stride..][..self.w.n][column..];
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
    fn every_machine_and_shape_follows_the_definition() {
        let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 503.0 - 1.0;
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
            let Ok(machine) = Machine::new(isa) else { continue };
            for (rows, n, k) in [(1, 1, 1), (2, 33, 300), (29, 40, 256), (13, 96, 700), (7, 17, 5)]
            {
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
