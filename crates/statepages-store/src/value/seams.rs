//! Where prompts are taken up again, counted back from the last boundary of the prompt before.
//!
//! An identical prompt needs the state at its last boundary. One that goes on from it may leave its
//! path a little earlier: a template closes a turn with words that the next turn does not have, or two
//! texts are cut into other tokens where they meet. An image behind that seam serves nobody, one before
//! it serves both, for a block or two computed again.

use statepages_page::Pages;

/// Blocks before the last boundary that count as its surroundings. Further back, a path does not
/// take a prompt up again, it has a prefix in common with it.
pub(crate) const SEAM_MAX: usize = 4;

/// Sights that are remembered; older ones are halved away.
const SIGHTS_MAX: f64 = 256.0;

/// Sights of prompts taken up at their last boundary that are believed before any.
const BELIEVED: f64 = 8.0;

/// How often prompts were taken up again so many blocks before their last boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seams {
    counts: [f64; SEAM_MAX + 1],
}

impl Seams {
    pub(crate) const fn new() -> Self {
        let mut counts = [0.0; SEAM_MAX + 1];
        counts[0] = BELIEVED;
        Self { counts }
    }

    /// A prompt was taken up again `back` blocks before its last boundary.
    pub(crate) fn see(&mut self, back: usize) {
        self.counts[back] += 1.0;
        if self.counts.iter().sum::<f64>() > SIGHTS_MAX {
            for count in &mut self.counts {
                *count /= 2.0;
            }
        }
    }

    /// How many blocks before its last boundary, the `last`-th, a prompt's state is best kept: where
    /// the most blocks are saved on average. Never so many that no block is left.
    pub(crate) fn back(&self, last: usize) -> Pages {
        let mut best = (0, 0.0);
        let mut served = 0.0;
        for (back, count) in self.counts.iter().enumerate().take(last) {
            served += count;
            let saved = served * (last - back) as f64;
            if saved > best.1 {
                best = (back, saved);
            }
        }
        Pages::new(best.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_kept_before_the_seam_where_that_saves_more() {
        let mut seams = Seams::new();
        assert_eq!(seams.back(40), Pages::new(0));
        for _ in 0..30 {
            seams.see(0);
            seams.see(1);
        }
        assert_eq!(seams.back(40), Pages::new(1), "half of them would be lost at the end");
        assert_eq!(seams.back(2), Pages::new(0), "half of two blocks is no more than one");
        assert_eq!(seams.back(1), Pages::new(0), "one block is the least that is kept");
        for _ in 0..1000 {
            seams.see(0);
        }
        assert_eq!(seams.back(40), Pages::new(0), "it follows its traffic");
    }
}
