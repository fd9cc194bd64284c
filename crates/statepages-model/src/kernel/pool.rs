//! The compressor's pool: a softmax over positions, channel by channel.

use super::lanes::{Kernel, LANES, Lanes, Machine};
use super::math::exp;

/// Projection and score of one pooled position, each one column a channel; `d` columns, a multiple
/// of [`LANES`].
#[derive(Clone, Copy)]
pub(crate) struct Pooled<'a> {
    pub(crate) value: &'a [f32],
    pub(crate) score: &'a [f32],
}

/// `out[c] = sum of w * value[c]` with `w = softmax(score[c])` over the positions, ascending.
pub(crate) fn pool(machine: Machine, positions: &[Pooled<'_>], out: &mut [f32]) {
    machine.run(Pool { positions, out });
}

struct Pool<'a> {
    positions: &'a [Pooled<'a>],
    out: &'a mut [f32],
}

#[inline(always)]
fn column<L: Lanes>(l: L, row: &[f32], i: usize) -> L::V {
    l.load(row[i * LANES..].first_chunk().expect("channels come in sixteens"))
}

impl Kernel for Pool<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (blocks, rest) = self.out.as_chunks_mut::<LANES>();
        assert!(rest.is_empty(), "channels come in sixteens");
        for (i, out) in blocks.iter_mut().enumerate() {
            let mut peak = l.splat(f32::NEG_INFINITY);
            for position in self.positions {
                peak = l.max(peak, column(l, position.score, i));
            }
            let (mut sum, mut weighted) = (l.splat(0.0), l.splat(0.0));
            for position in self.positions {
                let e = exp(l, l.sub(column(l, position.score, i), peak));
                sum = l.add(sum, e);
                weighted = l.fma(e, column(l, position.value, i), weighted);
            }
            l.store(out, l.div(weighted, sum));
        }
    }
}
