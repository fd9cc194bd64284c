//! Blocks seen of late, whether or not their KV is there: how far a prompt is known, and whether
//! others went on from there to something else.
//!
//! Bounded and allocated at start: it knows the blocks seen last, three for each page of the pool, so
//! with all that the pool may hold it reaches two pools back.

use statepages_page::{ContentKey, Pages};

use crate::key_table::KeyTable;
use crate::order::Order;

/// Blocks known for each page of the pool: its own, and two pools before.
const BLOCKS_PER_PAGE: u32 = 3;

/// The directory of blocks.
#[derive(Debug)]
pub(crate) struct Sights {
    keys: KeyTable,
    /// The block seen longest ago ahead.
    seen: Order,
    onward: Vec<Onward>,
}

/// What is known to follow a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onward {
    /// Nothing.
    Nothing,
    /// At least one block.
    Something,
}

impl Sights {
    pub(crate) fn new(pages_max: Pages) -> Self {
        let blocks = pages_max.get().saturating_mul(BLOCKS_PER_PAGE);
        Self {
            keys: KeyTable::new(blocks),
            seen: Order::new(blocks),
            onward: vec![Onward::Nothing; blocks as usize],
        }
    }

    /// Bytes held, used or not.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.bytes() + self.seen.bytes() + size_of_val(&*self.onward) as u64
    }

    /// What follows a block, where the block is known.
    pub(crate) fn onward(&self, key: ContentKey) -> Option<Onward> {
        self.keys.get(key.raw()).map(|block| self.onward[block as usize])
    }

    /// Sees a block that follows `parent`.
    pub(crate) fn see(&mut self, key: ContentKey, parent: Option<ContentKey>) {
        if let Some(block) = self.keys.get(key.raw()) {
            self.seen.remove(block);
            self.seen.push_back(block);
            return;
        }
        if let Some(parent) = parent.and_then(|parent| self.keys.get(parent.raw())) {
            self.onward[parent as usize] = Onward::Something;
        }
        let known = self.seen.len();
        let block = if (known as usize) < self.onward.len() {
            known
        } else {
            let Some(oldest) = self.seen.first() else { return };
            self.seen.remove(oldest);
            self.keys.remove(oldest);
            oldest
        };
        self.keys.insert(key.raw(), block);
        self.seen.push_back(block);
        self.onward[block as usize] = Onward::Nothing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> ContentKey {
        ContentKey::from_raw(u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    fn onward(sights: &Sights, n: u32) -> Option<Onward> {
        sights.onward(key(n))
    }

    #[test]
    fn three_blocks_a_page_are_known_and_what_follows_them() {
        let mut sights = Sights::new(Pages::new(100));
        for n in 1..=1000 {
            sights.see(key(n), (n > 1).then(|| key(n - 1)));
            sights.see(key(1), None);
        }
        for n in 702..1000 {
            assert_eq!(onward(&sights, n), Some(Onward::Something), "{n}");
        }
        assert_eq!(onward(&sights, 1000), Some(Onward::Nothing));
        assert_eq!(onward(&sights, 700), None);
        assert_eq!(onward(&sights, 1), Some(Onward::Something), "it is seen again and again");
    }
}
