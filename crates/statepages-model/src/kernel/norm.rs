//! Root-mean-square norms.
//!
//! The squares are summed in sixteen interleaved chains (element index mod 16), added by
//! [`tree`].

use super::lanes::{Kernel, LANES, Lanes, Machine, tree};
use super::math::{block_at, put_at};

/// Weight of a norm.
#[derive(Clone, Copy)]
pub(crate) enum NormWeight<'a> {
    /// One factor an element.
    Each(&'a [f32]),
    /// None.
    One,
}

/// `row * rsqrt(mean(row^2) + eps) * weight`, in place, for each row of `width` elements.
pub(crate) fn rms_norm(
    machine: Machine,
    rows: &mut [f32],
    width: usize,
    w: NormWeight<'_>,
    eps: f32,
) {
    machine.run(RmsNorm { rows, width, w, eps });
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    width: usize,
    w: NormWeight<'a>,
    eps: f32,
}

/// `rsqrt(mean(xs^2) + eps)`.
#[inline(always)]
pub(crate) fn rms_factor<L: Lanes>(l: L, xs: &[f32], eps: f32) -> f32 {
    let mut sum = l.splat(0.0);
    let (blocks, rest) = xs.as_chunks::<LANES>();
    for block in blocks {
        let x = l.load(block);
        sum = l.fma(x, x, sum);
    }
    if !rest.is_empty() {
        let x = l.load(&block_at(rest, 0));
        sum = l.fma(x, x, sum);
    }
    let mut lanes = [0.0; LANES];
    l.store(&mut lanes, sum);
    1.0 / (tree(&lanes) / xs.len() as f32 + eps).sqrt()
}

/// `xs * factor * w`, in place.
#[inline(always)]
pub(crate) fn scale<L: Lanes>(l: L, xs: &mut [f32], factor: f32, w: NormWeight<'_>) {
    let factor = l.splat(factor);
    for at in (0..xs.len()).step_by(LANES) {
        let mut x = l.mul(l.load(&block_at(xs, at)), factor);
        if let NormWeight::Each(w) = w {
            x = l.mul(x, l.load(&block_at(w, at)));
        }
        put_at(l, xs, at, x);
    }
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for row in self.rows.chunks_exact_mut(self.width) {
            let factor = rms_factor(l, row, self.eps);
            scale(l, row, factor, self.w);
        }
    }
}
