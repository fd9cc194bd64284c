//! Tensors drawn from a seed: the same on every machine, and easy to draw in another language.
//!
//! Element `i` of a tensor is made from `u = mix(s + (i + 1) * G)`, where `mix` and `G` are the
//! output function and the increment of SplitMix64 and `s = mix(seed + G xor fnv1a64(name))`:
//!
//! - The sum of `u`'s four 16-bit words, less 131,070, is close to normally distributed with standard
//!   deviation [`DEVIATION`]. As an f32 it is exact.
//! - An element is `offset + that * f32(k / DEVIATION)`, each operation rounded to f32; offset and
//!   `k` follow from the name by [`spread`].
//! - A row of ids takes, for slot `j`, the `u mod (below - j)`-th of the ids not yet taken by the
//!   row, ascending.

use crate::weights::{TensorSource, WeightError};

/// Increment of SplitMix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// Standard deviation of a sum of four 16-bit words: sqrt(4 * (2^32 - 1) / 12).
const DEVIATION: f64 = 37_837.227_237_206_48;

/// A [`TensorSource`] that draws whatever it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct SeededTensors {
    seed: u64,
}

impl SeededTensors {
    /// Tensors of a seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn stream(self, name: &str) -> u64 {
        let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        mix(self.seed.wrapping_add(GAMMA) ^ fnv)
    }
}

/// Output function of SplitMix64.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draw `i` of a stream.
pub(crate) fn draw(stream: u64, i: u64) -> u64 {
    mix(stream.wrapping_add(i.wrapping_add(1).wrapping_mul(GAMMA)))
}

/// Offset and standard deviation of a tensor's elements.
///
/// Projections keep the size of their input; those in front of a non-linearity are larger, so that
/// gates, scores and clamps are in play.
fn spread(name: &str, shape: &[usize]) -> (f32, f64) {
    let inputs = 1.0 / (shape[shape.len() - 1] as f64).sqrt();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    if ends(&["norm.weight"]) {
        (1.0, 0.2)
    } else if ends(&["_scale"]) {
        (1.0, 0.3)
    } else if ends(&["embed.weight", "ape", "attn_sink", "_base"]) {
        (0.0, 1.0)
    } else if ends(&["gate.bias"]) {
        (0.0, 0.3)
    } else if ends(&["gate.weight"]) {
        (0.0, 2.0 * inputs)
    } else if ends(&[".w1.weight", ".w3.weight"]) {
        (0.0, 1.5 * inputs)
    } else {
        (0.0, inputs)
    }
}

impl TensorSource for SeededTensors {
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let stream = self.stream(name);
        let (offset, k) = spread(name, shape);
        let factor = (k / DEVIATION) as f32;
        let element = |i: u64| {
            let u = draw(stream, i);
            let words = (0..4).map(|word| (u >> (16 * word)) & 0xffff).sum::<u64>();
            offset + (words as i64 - 131_070) as f32 * factor
        };
        Ok((0..shape.iter().product::<usize>() as u64).map(element).collect())
    }

    fn ids(&mut self, name: &str, shape: &[usize], below: u32) -> Result<Vec<u32>, WeightError> {
        let stream = self.stream(name);
        let row = shape[shape.len() - 1];
        let mut ids = Vec::with_capacity(shape.iter().product());
        for i in 0..shape.iter().product::<usize>() {
            let taken = &ids[i - i % row..];
            let left = u64::from(below) - taken.len() as u64;
            let nth = (draw(stream, i as u64) % left) as usize;
            let free = (0..below).filter(|id| !taken.contains(id)).nth(nth);
            ids.push(free.expect("a row takes fewer ids than there are"));
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_the_formula() {
        let mut source = SeededTensors::new(7);
        let wide = source.floats("layers.0.attn.wkv.weight", &[64, 256]).unwrap();
        let square = wide.iter().map(|x| f64::from(x * x)).sum::<f64>() / wide.len() as f64;
        assert!((square * 256.0 - 1.0).abs() < 0.05, "variance times inputs is {}", square * 256.0);
        let norm = source.floats("norm.weight", &[1000]).unwrap();
        let mean = norm.iter().sum::<f32>() / 1000.0;
        assert!((mean - 1.0).abs() < 0.03);
        let ids = source.ids("layers.0.ffn.gate.tid2eid", &[50, 3], 8).unwrap();
        for row in ids.chunks(3) {
            assert!(row[0] != row[1] && row[1] != row[2] && row[0] != row[2]);
            assert!(row.iter().all(|&id| id < 8));
        }
    }
}
