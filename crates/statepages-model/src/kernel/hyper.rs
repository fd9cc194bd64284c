//! Hyper-connections: how a residual of several streams feeds a sub-layer and takes its output.
//!
//! Formulas of dsv4.md 1.8. Coefficients are computed for sixteen tokens at once, a token a lane.
//! A row of a sum is normalised by one reciprocal and products.

use super::lanes::{Kernel, LANES, Lanes, Machine};
use super::math::{exp, sigmoid};
use super::norm::{NormWeight, rms_factor, scale};

/// Most streams of a residual.
pub(crate) const STREAMS_MAX: usize = 4;

/// Mixing coefficients of one token and sub-layer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mix {
    /// Weight of each stream in the sub-layer's input.
    pub(crate) pre: [f32; STREAMS_MAX],
    /// Weight of the sub-layer's output in each stream.
    pub(crate) post: [f32; STREAMS_MAX],
    /// `[from][to]`: weight of each stream in each stream.
    pub(crate) comb: [[f32; STREAMS_MAX]; STREAMS_MAX],
}

/// What turns projections into coefficients.
#[derive(Clone, Copy)]
pub(crate) struct MixRule<'a> {
    pub(crate) streams: usize,
    /// Sinkhorn iterations: as many column passes, one fewer row passes.
    pub(crate) iterations: usize,
    pub(crate) eps: f32,
    /// Pre, post, comb; only the first for a head.
    pub(crate) scale: &'a [f32],
    /// `[streams]` of pre, then of post, then `[streams][streams]` of comb.
    pub(crate) base: &'a [f32],
}

/// Coefficients of every token. `z` holds, for each token, `stride` projections of its residual;
/// they are first multiplied by the token's `factor`, the reciprocal root mean square.
pub(crate) fn mixes(
    machine: Machine,
    rule: MixRule<'_>,
    z: &[f32],
    stride: usize,
    factors: &[f32],
    out: &mut [Mix],
) {
    machine.run(Mixes { rule, z, stride, factors, out });
}

struct Mixes<'a> {
    rule: MixRule<'a>,
    z: &'a [f32],
    stride: usize,
    factors: &'a [f32],
    out: &'a mut [Mix],
}

impl Kernel for Mixes<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let m = self.rule.streams;
        for (i, out) in self.out.chunks_mut(LANES).enumerate() {
            let first = i * LANES;
            let mut projections = [[0.0; LANES]; STREAMS_MAX * (STREAMS_MAX + 2)];
            for lane in 0..out.len() {
                let row = &self.z[(first + lane) * self.stride..][..self.stride];
                for (to, z) in projections.iter_mut().zip(row) {
                    to[lane] = z * self.factors[first + lane];
                }
            }
            match m {
                1 => Self::lanes::<L, 1>(l, self.rule, &projections, out),
                2 => Self::lanes::<L, 2>(l, self.rule, &projections, out),
                3 => Self::lanes::<L, 3>(l, self.rule, &projections, out),
                _ => Self::lanes::<L, 4>(l, self.rule, &projections, out),
            }
        }
    }
}

/// Coefficient `i` before its activation.
#[inline(always)]
fn affine<L: Lanes>(l: L, rule: MixRule<'_>, z: &[[f32; LANES]], i: usize, scale: usize) -> L::V {
    l.fma(l.load(&z[i]), l.splat(rule.scale[scale]), l.splat(rule.base[i]))
}

/// One coefficient of every token.
#[inline(always)]
fn spread<L: Lanes>(l: L, v: L::V, out: &mut [Mix], of: impl Fn(&mut Mix) -> &mut f32) {
    let mut lanes = [0.0; LANES];
    l.store(&mut lanes, v);
    for (out, x) in out.iter_mut().zip(lanes) {
        *of(out) = x;
    }
}

impl Mixes<'_> {
    #[inline(always)]
    fn lanes<L: Lanes, const M: usize>(
        l: L,
        rule: MixRule<'_>,
        z: &[[f32; LANES]],
        out: &mut [Mix],
    ) {
        let eps = l.splat(rule.eps);
        for i in 0..M {
            let pre = l.add(sigmoid(l, affine(l, rule, z, i, 0)), eps);
            spread(l, pre, out, |mix| &mut mix.pre[i]);
        }
        if rule.scale.len() == 1 {
            return;
        }
        for i in 0..M {
            let post = sigmoid(l, affine(l, rule, z, M + i, 1));
            spread(l, l.add(post, post), out, |mix| &mut mix.post[i]);
        }
        let mut comb = [[eps; M]; M];
        for a in 0..M {
            for b in 0..M {
                comb[a][b] = affine(l, rule, z, 2 * M + a * M + b, 2);
            }
        }
        let comb = Self::sinkhorn::<L, M>(l, comb, rule.iterations, eps);
        for a in 0..M {
            for b in 0..M {
                spread(l, comb[a][b], out, |mix| &mut mix.comb[a][b]);
            }
        }
    }

    #[inline(always)]
    fn sinkhorn<L: Lanes, const M: usize>(
        l: L,
        mut c: [[L::V; M]; M],
        iterations: usize,
        eps: L::V,
    ) -> [[L::V; M]; M] {
        let one = l.splat(1.0);
        for row in &mut c {
            let mut peak = row[0];
            for &x in &row[1..] {
                peak = l.max(peak, x);
            }
            let mut sum = l.splat(0.0);
            for x in &mut *row {
                *x = exp(l, l.sub(*x, peak));
                sum = l.add(sum, *x);
            }
            let reciprocal = l.div(one, sum);
            for x in row {
                *x = l.fma(*x, reciprocal, eps);
            }
        }
        for iteration in 0..iterations {
            if iteration > 0 {
                for row in &mut c {
                    let mut sum = row[0];
                    for &x in &row[1..] {
                        sum = l.add(sum, x);
                    }
                    let reciprocal = l.div(one, l.add(sum, eps));
                    for x in row {
                        *x = l.mul(*x, reciprocal);
                    }
                }
            }
            for b in 0..M {
                let mut sum = c[0][b];
                for row in &c[1..] {
                    sum = l.add(sum, row[b]);
                }
                let reciprocal = l.div(one, l.add(sum, eps));
                for row in &mut c {
                    row[b] = l.mul(row[b], reciprocal);
                }
            }
        }
        c
    }
}

/// `rsqrt(mean(residual^2) + eps)` of each token.
pub(crate) fn residual_factors(
    machine: Machine,
    residual: &[f32],
    width: usize,
    eps: f32,
    out: &mut Vec<f32>,
) {
    out.clear();
    out.resize(residual.len() / width, 0.0);
    machine.run(Factors { residual, width, eps, out });
}

struct Factors<'a> {
    residual: &'a [f32],
    width: usize,
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Factors<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for (row, out) in self.residual.chunks_exact(self.width).zip(self.out) {
            *out = rms_factor(l, row, self.eps);
        }
    }
}

/// `x = rms_norm(sum of pre[i] * residual[i]) * weight` for each token.
pub(crate) struct Gather<'a> {
    /// `[tokens][streams][width]`; `width` is a multiple of [`LANES`].
    pub(crate) residual: &'a [f32],
    pub(crate) mixes: &'a [Mix],
    pub(crate) streams: usize,
    pub(crate) width: usize,
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    /// `[tokens][width]`.
    pub(crate) out: &'a mut [f32],
}

pub(crate) fn gather(machine: Machine, gather: Gather<'_>) {
    machine.run(gather);
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let residual = self.residual.chunks_exact(self.streams * self.width);
        let rows = self.out.chunks_exact_mut(self.width);
        for ((residual, mix), out) in residual.zip(self.mixes).zip(rows) {
            for (i, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let mut sum = l.splat(0.0);
                for (stream, pre) in residual.chunks_exact(self.width).zip(mix.pre) {
                    let x = l.load(&stream.as_chunks::<LANES>().0[i]);
                    sum = l.fma(l.splat(pre), x, sum);
                }
                l.store(out, sum);
            }
            let factor = rms_factor(l, out, self.eps);
            scale(l, out, factor, NormWeight::Each(self.weight));
        }
    }
}

/// `residual[b] = post[b] * y + sum over a of comb[a][b] * residual[a]` for each token, in place.
pub(crate) struct Scatter<'a> {
    /// `[tokens][streams][width]`; `width` is a multiple of [`LANES`].
    pub(crate) residual: &'a mut [f32],
    pub(crate) mixes: &'a [Mix],
    pub(crate) streams: usize,
    pub(crate) width: usize,
    /// `[tokens][width]`.
    pub(crate) y: &'a [f32],
}

pub(crate) fn scatter(machine: Machine, scatter: Scatter<'_>) {
    machine.run(scatter);
}

impl Kernel for Scatter<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let residual = self.residual.chunks_exact_mut(self.streams * self.width);
        for ((residual, mix), y) in residual.zip(self.mixes).zip(self.y.chunks_exact(self.width)) {
            for (i, y) in y.as_chunks::<LANES>().0.iter().enumerate() {
                let y = l.load(y);
                let mut streams = [l.splat(0.0); STREAMS_MAX];
                let rows = residual.chunks_exact(self.width);
                for (stream, row) in streams.iter_mut().zip(rows) {
                    *stream = l.load(&row.as_chunks::<LANES>().0[i]);
                }
                for (b, row) in residual.chunks_exact_mut(self.width).enumerate() {
                    let mut sum = l.mul(l.splat(mix.post[b]), y);
                    for (a, stream) in streams.iter().enumerate().take(self.streams) {
                        sum = l.fma(l.splat(mix.comb[a][b]), *stream, sum);
                    }
                    l.store(&mut row.as_chunks_mut::<LANES>().0[i], sum);
                }
            }
        }
    }
}
