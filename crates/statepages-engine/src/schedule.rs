//! The arithmetic of one batch: what is left of its token budget, and where a chunk ends.
//!
//! Pure: it sees numbers and the placement rule. The order in which requests are asked (decodes,
//! then prefills, then admissions; each oldest first) is `build`'s.

use statepages_page::Tokens;
use statepages_store::{Chunk, Placement};

use crate::sequence::Place;

/// Which requests a batch takes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passes {
    /// Decodes first, then prefills and admissions with what they leave of the budget.
    Mixed,
    /// Prefills and admissions alone while there are any, else decodes alone: for comparison with
    /// schedulers that keep the two apart.
    PrefillFirst,
}

/// Tokens a batch may still take, and how its prefill was cut.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Tokens,
    chunks: u64,
    cuts: u64,
}

impl Budget {
    pub(crate) const fn new(tokens: Tokens) -> Self {
        Self { left: tokens, chunks: 0, cuts: 0 }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.left == Tokens::ZERO
    }

    /// Prefill chunks taken.
    pub(crate) const fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Of these, chunks that end on a boundary to be kept, before budget or prefill would end them.
    pub(crate) const fn cuts(&self) -> u64 {
        self.cuts
    }

    pub(crate) const fn left(&self) -> Tokens {
        self.left
    }

    /// Takes the drafts of one decode.
    pub(crate) fn draft(&mut self, drafts: Tokens) {
        self.left -= drafts;
    }

    /// Takes one decode.
    ///
    /// # Panics
    /// Where nothing is left: limits guarantee one token per resident request.
    pub(crate) fn decode(&mut self) {
        self.left -= Tokens::new(1);
    }

    /// Takes the next chunk of a prefill that has come to `start`, and says where it ends: on the
    /// first boundary to be kept, or where budget or prefill end. `None` where nothing is left; else
    /// at least one token.
    pub(crate) fn prefill(
        &mut self,
        placement: &Placement,
        place: &Place,
        start: Tokens,
    ) -> Option<Tokens> {
        assert!(start < place.prefill, "a prefill that is over is not asked");
        if self.is_spent() {
            return None;
        }
        let room = self.left.min(place.prefill - start);
        let end = placement.within(place.scope).chunk_end(&Chunk {
            start,
            end: start + room,
            prompt: place.prefill,
            demand: place.demand,
        });
        assert!(start < end, "a chunk makes progress");
        self.left -= end - start;
        self.chunks += 1;
        self.cuts += u64::from(end < start + room);
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use statepages_page::{BlockSize, Boundary, Pages};
    use statepages_store::{CheckpointInterval, Scope, Speculation, SuccessorRoom};

    use super::*;

    fn placement(interval: CheckpointInterval) -> Placement {
        Placement {
            block: BlockSize::new(4).unwrap(),
            interval,
            scope: Scope::EVERY,
            room: SuccessorRoom::Tokens(0),
            speculation: Speculation::Off,
        }
    }

    fn chunks(interval: CheckpointInterval, budget: u32, prefill: u32) -> Vec<u32> {
        let place = Place {
            prefill: Tokens::new(prefill),
            demand: Some(Boundary::from_raw(8)),
            scope: Scope::EVERY,
            last_kept: Boundary::ZERO,
            unasked: None,
        };
        let (mut start, mut ends) = (Tokens::ZERO, Vec::new());
        while start < place.prefill {
            let mut budget = Budget::new(Tokens::new(budget));
            start = budget.prefill(&placement(interval), &place, start).expect("budget is left");
            ends.push(start.get());
        }
        ends
    }

    #[test]
    fn chunks_end_on_budget_demand_grid_and_anchor() {
        let grid = CheckpointInterval::Grid(Pages::new(3));
        assert_eq!(chunks(grid, 100, 18), [8, 12, 16, 18]);
        assert_eq!(chunks(grid, 5, 18), [5, 8, 12, 16, 18]);
        assert_eq!(chunks(CheckpointInterval::AnchorsOnly, 100, 16), [8, 12, 16]);
        assert_eq!(chunks(CheckpointInterval::Off, 100, 18), [18]);
    }

    #[test]
    fn g5_every_budget_makes_progress_at_every_length() {
        for interval in [CheckpointInterval::Grid(Pages::new(1)), CheckpointInterval::AnchorsOnly] {
            for budget in 1..=9 {
                for prefill in 1..=40 {
                    assert_eq!(chunks(interval, budget, prefill).last(), Some(&prefill));
                }
            }
        }
    }

    #[test]
    fn a_spent_budget_takes_nothing() {
        let mut budget = Budget::new(Tokens::new(1));
        budget.decode();
        let place = Place {
            prefill: Tokens::new(4),
            demand: None,
            scope: Scope::EVERY,
            last_kept: Boundary::ZERO,
            unasked: None,
        };
        let none = budget.prefill(&placement(CheckpointInterval::Off), &place, Tokens::ZERO);
        assert_eq!(none, None);
    }
}
