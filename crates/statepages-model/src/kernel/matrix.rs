//! Weight matrices in the formats they are published in, packed for [`super::gemm`].
//!
//! A product is that of the numbers that the codes stand for: a panel's codes become f32, exactly,
//! when a block of them is at hand. So formats differ in memory and speed, never in a bit.

use super::gemm::{BLOCK, PANEL, WIDTH};
use super::lanes::{LANES, Lanes, e4m3_times};
use crate::minifloat::{e2m1_to_f32, e4m3_to_f32, e8m0_to_f32};

/// Rows and columns of a block of fp8 weights that share a scale.
const FP8_BLOCK: usize = 128;
/// Columns of an fp4 weight row that share a scale.
const FP4_GROUP: usize = 32;

/// Row-major `[n][k]` weights as they are stored. Scales are e8m0.
#[derive(Clone, PartialEq, Debug)]
pub enum MatrixData {
    /// Plain numbers.
    F32(Vec<f32>),
    /// Upper halves of f32.
    Bf16(Vec<u16>),
    /// e4m3 codes, and `[ceil(n / 128)][ceil(k / 128)]` scales.
    Fp8 {
        /// `[n][k]`.
        codes: Vec<u8>,
        /// One per block of 128 by 128.
        scales: Vec<u8>,
    },
    /// e2m1 codes, two a byte with the even column in the low bits, and `[n][k / 32]` scales.
    Fp4 {
        /// `[n][k / 2]`.
        codes: Vec<u8>,
        /// One per 32 columns of a row.
        scales: Vec<u8>,
    },
}

/// `[WIDTH]` columns at one `k`, split for vectors.
pub(crate) type Column = [[f32; LANES]; PANEL];

#[derive(Clone, Debug)]
enum Panels {
    /// `[panel][k]`, zero behind column `n`.
    F32(Vec<Column>),
    Bf16(Vec<[[u16; LANES]; PANEL]>),
    Fp8 {
        codes: Vec<[u8; WIDTH]>,
        /// `[panel][ceil(k / 128)]`.
        scales: Vec<f32>,
    },
    /// Byte `j` holds columns `j` and `j + 16` of the panel, the former in the low bits.
    Fp4 {
        codes: Vec<[u8; LANES]>,
        /// `[panel][k / 32]`.
        scales: Vec<[u8; WIDTH]>,
    },
}

/// A weight matrix of `n` outputs by `k` inputs.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    n: usize,
    k: usize,
    panels: Panels,
}

impl MatrixData {
    /// The numbers, row-major.
    pub fn expand(&self, n: usize, k: usize) -> Vec<f32> {
        let row_block = |i: usize| (i / k, i % k);
        let out: Vec<f32> = match self {
            Self::F32(values) => values.clone(),
            Self::Bf16(halves) => halves.iter().map(|&half| widen(half)).collect(),
            Self::Fp8 { codes, scales } => {
                let across = k.div_ceil(FP8_BLOCK);
                let one = |(i, &code): (usize, &u8)| {
                    let (row, column) = row_block(i);
                    let scale = scales[row / FP8_BLOCK * across + column / FP8_BLOCK];
                    e4m3_to_f32(code) * e8m0_to_f32(scale)
                };
                codes.iter().enumerate().map(one).collect()
            }
            Self::Fp4 { codes, scales } => {
                let pair = |(i, &byte): (usize, &u8)| {
                    let scale = e8m0_to_f32(scales[2 * i / FP4_GROUP]);
                    [e2m1_to_f32(byte & 15) * scale, e2m1_to_f32(byte >> 4) * scale]
                };
                codes.iter().enumerate().flat_map(pair).collect()
            }
        };
        assert_eq!(out.len(), n * k, "a matrix has n * k weights");
        out
    }

    /// Rows `[first, first + n)` of a matrix of `k` columns. Where scales do not allow a cut there,
    /// the rows are expanded.
    pub(crate) fn rows(&self, total: usize, k: usize, first: usize, n: usize) -> Self {
        let cut = |xs: &[u8], row: usize| xs[first * row..(first + n) * row].to_vec();
        match self {
            Self::F32(values) => Self::F32(values[first * k..][..n * k].to_vec()),
            Self::Bf16(halves) => Self::Bf16(halves[first * k..][..n * k].to_vec()),
            Self::Fp8 { codes, scales } if first.is_multiple_of(FP8_BLOCK) => {
                let across = k.div_ceil(FP8_BLOCK);
                let rows = first / FP8_BLOCK..(first + n).div_ceil(FP8_BLOCK);
                let scales = scales[rows.start * across..rows.end * across].to_vec();
                Self::Fp8 { codes: cut(codes, k), scales }
            }
            Self::Fp8 { .. } => Self::F32(self.expand(total, k)[first * k..][..n * k].to_vec()),
            Self::Fp4 { codes, scales } => {
                Self::Fp4 { codes: cut(codes, k / 2), scales: cut(scales, k / FP4_GROUP) }
            }
        }
    }
}

#[inline(always)]
fn widen(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

impl Matrix {
    /// Packs row-major `[n][k]` f32 weights.
    pub(crate) fn pack(n: usize, k: usize, weights: &[f32]) -> Self {
        assert_eq!(weights.len(), n * k, "a matrix has n * k weights");
        let mut panels = vec![[[0.0; LANES]; PANEL]; n.div_ceil(WIDTH) * k];
        each(n, k, |row, column, panel, lane| {
            panels[panel][lane / LANES][lane % LANES] = weights[row * k + column];
        });
        Self { n, k, panels: Panels::F32(panels) }
    }

    /// Packs stored weights.
    pub(crate) fn new(n: usize, k: usize, data: &MatrixData) -> Self {
        let columns = n.div_ceil(WIDTH) * k;
        let panels = match data {
            MatrixData::F32(weights) => return Self::pack(n, k, weights),
            MatrixData::Bf16(halves) => {
                let mut panels = vec![[[0; LANES]; PANEL]; columns];
                each(n, k, |row, column, panel, lane| {
                    panels[panel][lane / LANES][lane % LANES] = halves[row * k + column];
                });
                Panels::Bf16(panels)
            }
            MatrixData::Fp8 { codes: stored, scales } => {
                let mut codes = vec![[0; WIDTH]; columns];
                each(n, k, |row, column, panel, lane| {
                    codes[panel][lane] = stored[row * k + column];
                });
                let across = k.div_ceil(FP8_BLOCK);
                // A panel lies within one row of blocks.
                let of_panel =
                    |panel: usize| &scales[panel * WIDTH / FP8_BLOCK * across..][..across];
                let scales = (0..n.div_ceil(WIDTH)).flat_map(of_panel);
                Panels::Fp8 { codes, scales: scales.map(|&scale| e8m0_to_f32(scale)).collect() }
            }
            MatrixData::Fp4 { codes: stored, scales: stored_scales } => {
                let mut codes = vec![[0; LANES]; columns];
                let mut scales = vec![[0; WIDTH]; n.div_ceil(WIDTH) * (k / FP4_GROUP)];
                each(n, k, |row, column, panel, lane| {
                    let i = row * k + column;
                    let code = stored[i / 2] >> (4 * (i % 2)) & 15;
                    codes[panel][lane % LANES] |= code << (4 * (lane / LANES));
                    let group = row / WIDTH * (k / FP4_GROUP) + column / FP4_GROUP;
                    scales[group][lane] = stored_scales[i / FP4_GROUP];
                });
                Panels::Fp4 { codes, scales }
            }
        };
        Self { n, k, panels }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.n
    }

    pub(crate) fn inputs(&self) -> usize {
        self.k
    }

    /// How many panels the outputs lie in.
    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(WIDTH)
    }

    /// True where blocks are multiplied as they are stored.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.panels, Panels::F32(_))
    }

    /// What is stored of a block, without its scales.
    #[inline(always)]
    pub(super) fn stored(&self, panel: usize, k0: usize) -> &[u8] {
        let (first, len) = (panel * self.k + k0, BLOCK.min(self.k - k0));
        match &self.panels {
            Panels::F32(panels) => bytemuck::cast_slice(&panels[first..][..len]),
            Panels::Bf16(panels) => bytemuck::cast_slice(&panels[first..][..len]),
            Panels::Fp8 { codes, .. } => bytemuck::cast_slice(&codes[first..][..len]),
            Panels::Fp4 { codes, .. } => bytemuck::cast_slice(&codes[first..][..len]),
        }
    }

    /// Columns `[k0, k0 + len)` of a panel as f32, in `scratch` unless they are stored so.
    #[inline(always)]
    pub(super) fn block<'a, L: Lanes>(
        &'a self,
        l: L,
        panel: usize,
        k0: usize,
        scratch: &'a mut [Column],
    ) -> &'a [Column] {
        let (first, len) = (panel * self.k + k0, BLOCK.min(self.k - k0));
        if let Panels::F32(panels) = &self.panels {
            return &panels[first..][..len];
        }
        let out = &mut scratch[..len];
        match &self.panels {
            Panels::F32(_) => {}
            Panels::Bf16(panels) => from_bf16(l, &panels[first..][..len], out),
            Panels::Fp8 { codes, scales } => {
                let scales = &scales[panel * self.k.div_ceil(FP8_BLOCK) + k0 / FP8_BLOCK..];
                let blocks = codes[first..][..len].chunks(FP8_BLOCK);
                for ((codes, &scale), out) in blocks.zip(scales).zip(out.chunks_mut(FP8_BLOCK)) {
                    e4m3_times(l, codes, scale, out);
                }
            }
            Panels::Fp4 { codes, scales } => {
                let scales = &scales[panel * (self.k / FP4_GROUP) + k0 / FP4_GROUP..];
                let groups = codes[first..][..len].chunks(FP4_GROUP);
                for ((codes, scales), out) in groups.zip(scales).zip(out.chunks_mut(FP4_GROUP)) {
                    from_fp4(l, codes, scales, out);
                }
            }
        }
        out
    }
}

#[inline(always)]
fn from_bf16<L: Lanes>(l: L, halves: &[[[u16; LANES]; PANEL]], out: &mut [Column]) {
    for (out, halves) in out.iter_mut().zip(halves) {
        for p in 0..PANEL {
            l.store(&mut out[p], l.bf16(&halves[p]));
        }
    }
}

#[inline(always)]
fn from_fp4<L: Lanes>(l: L, codes: &[[u8; LANES]], scales: &[u8; WIDTH], out: &mut [Column]) {
    let mut by = [[0.0; LANES]; PANEL];
    for p in 0..PANEL {
        for i in 0..LANES {
            by[p][i] = e8m0_to_f32(scales[p * LANES + i]);
        }
    }
    let by = [l.load(&by[0]), l.load(&by[1])];
    for (out, codes) in out.iter_mut().zip(codes) {
        let numbers = l.e2m1(codes);
        for p in 0..PANEL {
            l.store(&mut out[p], l.mul(numbers[p], by[p]));
        }
    }
}

/// Calls `f(row, column, index of the panel's column, lane)` for every weight.
fn each(n: usize, k: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
    for row in 0..n {
        for column in 0..k {
            f(row, column, row / WIDTH * k + column, row % WIDTH);
        }
    }
}
