//! The resident images that may be given up, cheapest first.
//!
//! Images of one class, one bargain and one span of ages are worth the same, and share a cell, the one
//! used longest ago ahead. Cells lie on levels, sixteen to a doubling of worth; a set of levels
//! answers the lowest one in a few word reads. Nothing here grows with the pool but the links: when
//! the figures change, cells change levels and images stay where they are.

use crate::id_set::IdSet;
use crate::value::ages::{Ages, SPANS};
use crate::value::directory::EntryIndex;
use crate::value::rings::Rings;
use crate::value::tree::Bundle;

/// Bargains that are told apart, half an octave each.
const BARGAINS: usize = 16;

/// The bargain of an image that saves as many blocks as it holds pages.
const EVEN: usize = 6;

const LEVELS: u32 = 1 << 12;

/// Tokens saved a page held, in half octaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bargain(u8);

/// A place among the resident images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) class: usize,
    pub(crate) span: usize,
    pub(crate) bargain: Bargain,
}

/// What giving up a cell's images would cost, rounded to a sixteenth of an octave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(u32);

/// The images, by cell and level.
#[derive(Debug)]
pub(crate) struct Ranks {
    images: Rings,
    cells: Rings,
    levels: IdSet,
    level_of: Vec<Level>,
}

impl Bargain {
    /// Of a bundle whose image takes `units` pages.
    pub(crate) fn of(bundle: Bundle, units: u32) -> Self {
        let square = |pages: u64| u128::from(pages) * u128::from(pages);
        let saves = square(u64::from(bundle.saves.get()));
        let held = square(u64::from(bundle.alone.get()) + u64::from(units));
        let ratio = (saves << EVEN) / held;
        let half_octaves = ratio.checked_ilog2().unwrap_or(0);
        Self(half_octaves.min(BARGAINS as u32 - 1) as u8)
    }

    fn factor(self) -> f64 {
        let half_octaves = i32::from(self.0) - EVEN as i32;
        let octaves = f64::from(1 << half_octaves.div_euclid(2).unsigned_abs());
        let whole = if half_octaves < 0 { 1.0 / octaves } else { octaves };
        if half_octaves.rem_euclid(2) == 1 { whole * std::f64::consts::SQRT_2 } else { whole }
    }
}

impl Cell {
    fn index(self) -> u32 {
        let Self { class, span, bargain } = self;
        ((class * BARGAINS + usize::from(bargain.0)) * SPANS + span) as u32
    }

    fn from_index(index: usize) -> Self {
        let (rest, span) = (index / SPANS, index % SPANS);
        let (class, bargain) = (rest / BARGAINS, rest % BARGAINS);
        Self { class, span, bargain: Bargain(bargain as u8) }
    }

    /// What an image of the cell is worth.
    pub(crate) fn level(self, ages: &Ages) -> Level {
        let worth = ages.worth(self.class, self.span) * self.bargain.factor().sqrt();
        // The bits of a positive number are in the order of numbers: exponent first, then four bits
        // of what follows it.
        let bits = (worth.to_bits() >> 48) as u32;
        let least = (1023 - 128) << 4;
        Level(bits.saturating_sub(least).min(LEVELS - 1))
    }
}

impl Ranks {
    pub(crate) fn new(images: u32, classes: usize) -> Self {
        let cells = (classes * BARGAINS * SPANS) as u32;
        Self {
            images: Rings::new(images, cells),
            cells: Rings::new(cells, LEVELS),
            levels: IdSet::new(LEVELS),
            level_of: vec![Level(0); cells as usize],
        }
    }

    /// Bytes held, used or not, short of the set of levels.
    pub(crate) const fn bytes(&self) -> u64 {
        self.images.bytes() + self.cells.bytes() + size_of_val(self.level_of.as_slice()) as u64
    }

    /// Adds an image that is in no cell.
    pub(crate) fn enter(&mut self, image: EntryIndex, cell: Cell, ages: &Ages) {
        let index = cell.index();
        if self.images.is_empty(index) {
            self.settle(index, cell.level(ages));
        }
        self.images.push_back(index, image);
    }

    /// Takes an image out of its cell.
    pub(crate) fn leave(&mut self, image: EntryIndex, cell: Cell) {
        self.images.remove(image);
        let index = cell.index();
        if self.images.is_empty(index) {
            self.unsettle(index);
        }
    }

    /// Moves every cell that is in use to the level that it has now.
    pub(crate) fn refresh(&mut self, ages: &Ages) {
        for index in 0..self.level_of.len() {
            let level = Cell::from_index(index).level(ages);
            let cell = index as u32;
            if !self.images.is_empty(cell) && level != self.level_of[index] {
                self.unsettle(cell);
                self.settle(cell, level);
            }
        }
    }

    /// The cheapest image, and how cheap.
    pub(crate) fn cheapest(&self) -> Option<(EntryIndex, Level)> {
        let level = self.levels.first()?;
        let cell = self.cells.first(level).expect("a level that is in use has a cell");
        let image = self.images.first(cell).expect("a cell that is in use has an image");
        Some((image, Level(level)))
    }

    /// Images in cells, counted one by one where [`Self::cheapest`] would come to them.
    pub(crate) fn count(&self) -> u32 {
        let cells = self.levels.iter().flat_map(|level| self.cells.iter(level));
        cells.map(|cell| self.images.iter(cell).count() as u32).sum()
    }

    fn settle(&mut self, cell: u32, level: Level) {
        if self.cells.is_empty(level.0) {
            self.levels.insert(level.0);
        }
        self.cells.push_back(level.0, cell);
        self.level_of[cell as usize] = level;
    }

    fn unsettle(&mut self, cell: u32) {
        self.cells.remove(cell);
        let Level(level) = self.level_of[cell as usize];
        if self.cells.is_empty(level) {
            self.levels.remove(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use statepages_page::Pages;

    use super::*;

    #[test]
    fn a_bargain_is_told_to_half_an_octave() {
        for (saves, alone, units, expected) in [
            (41, 41, 4, 5),
            (4, 0, 4, 6),
            (8, 0, 4, 8),
            (1, 1, 17, 0),
            (480, 0, 4, 15),
            (0, 0, 4, 0),
        ] {
            let bundle = Bundle { saves: Pages::new(saves), alone: Pages::new(alone) };
            let bargain = Bargain::of(bundle, units);
            assert_eq!(usize::from(bargain.0), expected, "{bundle:?} and {units} units");
            let ratio = f64::from(saves) / f64::from(alone + units);
            let inside = bargain.factor() <= ratio * 1.000_001;
            assert!(inside || expected == 0, "{} of {ratio}", bargain.factor());
        }
    }

    #[test]
    fn cells_and_indices_agree() {
        for index in [0, 1, SPANS, 5 * SPANS * BARGAINS - 1] {
            assert_eq!(Cell::from_index(index).index() as usize, index);
        }
    }
}
