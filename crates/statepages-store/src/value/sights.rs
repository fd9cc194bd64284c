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
    notes: Vec<Sight>,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) onward: Onward,
    /// Blocks from here to the last boundary of the prompt that ended near here most lately.
    pub(crate) before_end: Option<u8>,
}

const BLANK: Sight = Sight { onward: Onward::Nothing, before_end: None };

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
            notes: vec![BLANK; blocks as usize],
        }
    }

    /// Bytes held, used or not.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.bytes() + self.seen.bytes() + size_of_val(&*self.notes) as u64
    }

    /// What is known of a block.
    pub(crate) fn get(&self, key: ContentKey) -> Option<Sight> {
        self.keys.get(key.raw()).map(|block| self.notes[block as usize])
    }

    /// Notes that a prompt's last boundary lies so many blocks after a block.
    pub(crate) fn note_end(&mut self, key: ContentKey, blocks: u8) {
        if let Some(block) = self.keys.get(key.raw()) {
            self.notes[block as usize].before_end = Some(blocks);
        }
    }

    /// Sees a block that follows `parent`.
    pub(crate) fn see(&mut self, key: ContentKey, parent: Option<ContentKey>) {
        if let Some(block) = self.keys.get(key.raw()) {
            self.seen.remove(block);
            self.seen.push_back(block);
            return;
        }
        if let Some(parent) = parent.and_then(|parent| self.keys.get(parent.raw())) {
            self.notes[parent as usize].onward = Onward::Something;
        }
        let known = self.seen.len();
        let block = if (known as usize) < self.notes.len() {
            known
        } else {
            let Some(oldest) = self.seen.first() else { return };
            self.seen.remove(oldest);
            self.keys.remove(oldest);
            oldest
        };
        self.keys.insert(key.raw(), block);
        self.seen.push_back(block);
        self.notes[block as usize] = BLANK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> ContentKey {
        ContentKey::from_raw(u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    fn onward(sights: &Sights, n: u32) -> Option<Onward> {
        sights.get(key(n)).map(|sight| sight.onward)
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
