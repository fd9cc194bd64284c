//! Rotary position embedding of the last columns of a row (dsv4.md 1.2).
//!
//! Pairs are adjacent columns. An angle is the product of an f32 frequency and a position, rounded
//! to f32; its sine and cosine are computed in f64 by `libm`, which is the same on every machine.

use crate::config::{ModelConfig, Yarn};

/// Frequencies of one kind of layer.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    frequencies: Vec<f32>,
}

/// Cosine and sine of one pair's angle.
pub(crate) type Angle = (f32, f32);

/// Which way a rotation turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Into the position.
    Forward,
    /// Out of the position.
    Back,
}

impl Rope {
    /// Frequencies of window-only layers: `rope_theta`, no YaRN.
    pub(crate) fn dense(config: &ModelConfig) -> Self {
        Self::new(config.cache.qk_rope_head_dim, config.rope_theta, None)
    }

    /// Frequencies of everything in a layer with compressed entries.
    pub(crate) fn compressed(config: &ModelConfig) -> Self {
        let yarn = config.rope_scaling.as_ref();
        Self::new(config.cache.qk_rope_head_dim, config.compress_rope_theta, yarn)
    }

    fn new(columns: u32, base: f64, yarn: Option<&Yarn>) -> Self {
        let columns = f64::from(columns);
        let plain = |i: u32| libm::pow(base, -2.0 * f64::from(i) / columns);
        let frequency = |i: u32| match yarn {
            None => plain(i) as f32,
            Some(yarn) => {
                let smooth = 1.0 - yarn.ramp(i, columns, base);
                (plain(i) / yarn.factor * (1.0 - smooth) + plain(i) * smooth) as f32
            }
        };
        Self { frequencies: (0..columns as u32 / 2).map(frequency).collect() }
    }

    /// Pairs of a rotation.
    pub(crate) fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// The angles of one position, one a pair.
    pub(crate) fn angles(&self, position: u32, out: &mut [Angle]) {
        for (out, frequency) in out.iter_mut().zip(&self.frequencies) {
            let angle = f64::from(position as f32 * frequency);
            *out = (libm::cos(angle) as f32, libm::sin(angle) as f32);
        }
    }
}

impl Yarn {
    /// How far pair `i` is interpolated: 0 not at all, 1 wholly.
    fn ramp(&self, i: u32, columns: f64, base: f64) -> f64 {
        let correction = |rotations: f64| {
            let wavelength =
                self.original_max_position_embeddings / (rotations * 2.0 * std::f64::consts::PI);
            columns * libm::log(wavelength) / (2.0 * libm::log(base))
        };
        let low = libm::floor(correction(self.beta_fast)).max(0.0);
        let high = libm::ceil(correction(self.beta_slow)).min(columns - 1.0);
        let span = high - low;
        let span = if span.abs() > 0.0 { span } else { 0.001 };
        ((f64::from(i) - low) / span).clamp(0.0, 1.0)
    }
}

/// Turns the last columns of `row` by the angles of a position.
pub(crate) fn turn(row: &mut [f32], angles: &[Angle], turn: Turn) {
    let first = row.len() - 2 * angles.len();
    let (pairs, _) = row[first..].as_chunks_mut::<2>();
    for ([a, b], &(cos, sin)) in pairs.iter_mut().zip(angles) {
        let sin = if turn == Turn::Forward { sin } else { -sin };
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_of_the_published_models_ramps_over_pairs_15_to_25() {
        let yarn = ModelConfig::demo().rope_scaling.expect("the demo has YaRN");
        let ramp = |i| yarn.ramp(i, 64.0, 160_000.0);
        assert_eq!((ramp(15), ramp(20), ramp(25)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn a_turn_back_undoes_a_turn() {
        let rope = Rope::compressed(&ModelConfig::demo());
        let mut angles = vec![Angle::default(); rope.pairs()];
        rope.angles(4001, &mut angles);
        let row: Vec<f32> = (0..512).map(|i| i as f32).collect();
        let mut turned = row.clone();
        turn(&mut turned, &angles, Turn::Forward);
        assert_eq!(turned[..448], row[..448]);
        assert_ne!(turned[448..], row[448..]);
        turn(&mut turned, &angles, Turn::Back);
        assert!(turned.iter().zip(&row).all(|(a, b)| (a - b).abs() < 1e-3));
    }
}
