//! Elementary functions as fixed sequences of exact lane operations.

use super::lanes::{Kernel, LANES, Lanes, Machine};

/// 1.5 * 2^23: adding it rounds to an integer, ties to even, in the low bits of the significand.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has trailing zero bits, so its multiples are exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below this e^x is taken as zero: it leaves the normal f32 range.
const EXP_MIN: f32 = -87.0;
/// Above this e^x is held: it leaves the f32 range.
const EXP_MAX: f32 = 88.0;

/// e^x: zero below [`EXP_MIN`], held above [`EXP_MAX`]; within 2 units in the last place between.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    let low = l.splat(EXP_MIN);
    let held = l.min(l.max(x, low), l.splat(EXP_MAX));
    let rounded = l.fma(held, l.splat(std::f32::consts::LOG2_E), l.splat(ROUND));
    let n = l.sub(rounded, l.splat(ROUND));
    let r = l.fma(n, l.splat(-LN2_HIGH), held);
    let r = l.fma(n, l.splat(-LN2_LOW), r);
    let mut p = l.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = l.fma(p, r, l.splat(c));
    }
    let y = l.mul(p, l.power_of_two(rounded));
    l.select_less(x, low, l.splat(0.0), y)
}

/// [`exp`] of every element, in place.
pub(crate) fn exp_all(machine: Machine, xs: &mut [f32]) {
    machine.run(ExpAll(xs));
}

struct ExpAll<'a>(&'a mut [f32]);

impl Kernel for ExpAll<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for at in (0..self.0.len()).step_by(LANES) {
            let e = exp(l, l.load(&block_at(self.0, at)));
            put_at(l, self.0, at, e);
        }
    }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(l: L, x: L::V) -> L::V {
    let one = l.splat(1.0);
    let e = exp(l, l.sub(l.splat(0.0), x));
    l.div(one, l.add(one, e))
}

/// x / (1 + e^-x).
#[inline(always)]
pub(crate) fn silu<L: Lanes>(l: L, x: L::V) -> L::V {
    let e = exp(l, l.sub(l.splat(0.0), x));
    l.div(x, l.add(l.splat(1.0), e))
}

/// ln(1 + e^x) = max(x, 0) + log1p(u), u = e^-|x|; log1p(u) = 2 atanh(z), z = u / (2 + u) <= 1/3,
/// by its series to z^17.
#[inline(always)]
pub(crate) fn softplus<L: Lanes>(l: L, x: L::V) -> L::V {
    let zero = l.splat(0.0);
    let negated = l.sub(zero, x);
    let u = exp(l, l.min(x, negated));
    let z = l.div(u, l.add(l.splat(2.0), u));
    let z2 = l.mul(z, z);
    let mut p = l.splat(2.0 / 17.0);
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = l.fma(p, z2, l.splat(2.0 / odd));
    }
    l.add(l.max(x, zero), l.mul(p, z))
}

/// Sixteen elements from `at`, zeros behind the end.
#[inline(always)]
pub(crate) fn block_at(xs: &[f32], at: usize) -> [f32; LANES] {
    let xs = &xs[at..];
    if let Some(block) = xs.first_chunk::<LANES>() {
        return *block;
    }
    let mut last = [0.0; LANES];
    last[..xs.len()].copy_from_slice(xs);
    last
}

/// Stores sixteen elements from `at`, as far as there is room.
#[inline(always)]
pub(crate) fn put_at<L: Lanes>(l: L, xs: &mut [f32], at: usize, v: L::V) {
    let xs = &mut xs[at..];
    if let Some(block) = xs.first_chunk_mut::<LANES>() {
        l.store(block, v);
        return;
    }
    let mut last = [0.0; LANES];
    l.store(&mut last, v);
    let n = xs.len();
    xs.copy_from_slice(&last[..n]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::ScalarLanes;

    fn exp_one(x: f32) -> f32 {
        exp(ScalarLanes, [x; LANES])[0]
    }

    fn check(f: impl Fn([f32; LANES]) -> [f32; LANES], exact: impl Fn(f64) -> f64, tolerance: f64) {
        for i in -8600..8700 {
            let x = i as f32 * 0.01;
            let got = f64::from(f([x; LANES])[0]);
            let want = exact(f64::from(x));
            assert!(
                (got - want).abs() <= tolerance * want.abs().max(1e-37),
                "f({x}) = {got}, expected {want}"
            );
        }
    }

    #[test]
    fn functions_are_close_to_exact() {
        check(|x| exp(ScalarLanes, x), f64::exp, 2e-7);
        check(|x| sigmoid(ScalarLanes, x), |x| 1.0 / (1.0 + (-x).exp()), 4e-7);
        check(|x| softplus(ScalarLanes, x), |x| x.exp().ln_1p(), 4e-7);
        check(|x| silu(ScalarLanes, x), |x| x / (1.0 + (-x).exp()), 4e-7);
    }

    #[test]
    fn exp_at_the_ends() {
        assert_eq!(exp_one(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp_one(-1e30).to_bits(), 0);
        assert_eq!(exp_one(0.0).to_bits(), 1.0f32.to_bits());
        assert!(exp_one(1e30).is_finite());
    }
}
