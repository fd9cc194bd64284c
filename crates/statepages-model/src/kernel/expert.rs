//! The experts' gated activation and the sum of their outputs.

use super::lanes::{Kernel, LANES, Lanes, Machine};
use super::math::{block_at, put_at, silu, softplus};

/// `gate = silu(min(gate, limit)) * clamp(up, -limit, limit)`, in place.
pub(crate) fn swiglu(machine: Machine, gate: &mut [f32], up: &[f32], limit: f32) {
    machine.run(Swiglu { gate, up, limit });
}

struct Swiglu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
    limit: f32,
}

impl Kernel for Swiglu<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (limit, floor) = (l.splat(self.limit), l.splat(-self.limit));
        for at in (0..self.gate.len()).step_by(LANES) {
            let g = silu(l, l.min(l.load(&block_at(self.gate, at)), limit));
            let u = l.max(l.min(l.load(&block_at(self.up, at)), limit), floor);
            put_at(l, self.gate, at, l.mul(g, u));
        }
    }
}

/// `to += weight * from`, each element rounded once.
pub(crate) fn add_scaled(machine: Machine, to: &mut [f32], weight: f32, from: &[f32]) {
    machine.run(AddScaled { to, weight, from });
}

struct AddScaled<'a> {
    to: &'a mut [f32],
    weight: f32,
    from: &'a [f32],
}

impl Kernel for AddScaled<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let weight = l.splat(self.weight);
        for at in (0..self.to.len()).step_by(LANES) {
            let from = l.load(&block_at(self.from, at));
            let sum = l.fma(weight, from, l.load(&block_at(self.to, at)));
            put_at(l, self.to, at, sum);
        }
    }
}

/// `sqrt(softplus(x))`, in place: the router's score.
pub(crate) fn sqrt_softplus(machine: Machine, xs: &mut [f32]) {
    machine.run(SqrtSoftplus { xs });
}

struct SqrtSoftplus<'a> {
    xs: &'a mut [f32],
}

impl Kernel for SqrtSoftplus<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for at in (0..self.xs.len()).step_by(LANES) {
            let y = l.sqrt(softplus(l, l.load(&block_at(self.xs, at))));
            put_at(l, self.xs, at, y);
        }
    }
}
