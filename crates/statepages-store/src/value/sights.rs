//! Blocks seen of late, whether or not their KV is there: how far a prompt is known, and whether
//! others went on from there to something else.
//!
//! Bounded and allocated at start: sets of eight entries, of which the one seen longest ago gives
//! way. An entry is told by 64 bits of its key; a mistake among them costs a wrong hint, never a
//! wrong answer, because what is read is found by the prefix index alone.

use statepages_page::{ContentKey, Pages};

const WAYS: usize = 8;

/// The directory of blocks.
#[derive(Debug)]
pub(crate) struct Sights {
    sets: Vec<[Sight; WAYS]>,
    now: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    print: u64,
    /// When it was seen last; never zero for an entry in use.
    seen: u32,
    onward: Onward,
}

/// What is known to follow a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Onward {
    /// Nothing.
    #[default]
    Nothing,
    /// At least one block.
    Something,
}

impl Sights {
    /// A directory that holds four blocks a page: skew among the sets costs less than half of it, so
    /// it reaches two pools back at least.
    pub(crate) fn new(pages_max: Pages) -> Self {
        let sets = (pages_max.index() * 4 / WAYS).next_power_of_two();
        Self { sets: vec![[Sight::default(); WAYS]; sets], now: 0 }
    }

    /// Bytes held, used or not.
    pub(crate) const fn bytes(&self) -> u64 {
        size_of_val(self.sets.as_slice()) as u64
    }

    /// What follows a block, where it is known.
    pub(crate) fn onward(&self, key: ContentKey) -> Option<Onward> {
        let print = print(key);
        self.set(print)
            .iter()
            .find(|sight| sight.seen > 0 && sight.print == print)
            .map(|s| s.onward)
    }

    /// Sees a block that follows `parent`.
    pub(crate) fn see(&mut self, key: ContentKey, parent: Option<ContentKey>) {
        self.now = self.now.checked_add(1).unwrap_or_else(|| {
            self.forget_order();
            1
        });
        if let Some(parent) = parent.map(print) {
            let set = self.index(parent);
            let mut parents = self.sets[set].iter_mut();
            if let Some(sight) = parents.find(|sight| sight.seen > 0 && sight.print == parent) {
                sight.onward = Onward::Something;
            }
        }
        let (print, now) = (print(key), self.now);
        let set = self.index(print);
        let set = &mut self.sets[set];
        if let Some(sight) = set.iter_mut().find(|sight| sight.seen > 0 && sight.print == print) {
            sight.seen = now;
            return;
        }
        let oldest = set.iter_mut().min_by_key(|sight| sight.seen).expect("a set has ways");
        *oldest = Sight { print, seen: now, onward: Onward::Nothing };
    }

    /// The count of sights is spent: all entries count as equally old from here on.
    fn forget_order(&mut self) {
        for sight in self.sets.iter_mut().flatten() {
            sight.seen = sight.seen.min(1);
        }
    }

    fn set(&self, print: u64) -> &[Sight; WAYS] {
        &self.sets[self.index(print)]
    }

    /// Keys are uniform in production; the product spreads small numbers, too.
    fn index(&self, print: u64) -> usize {
        let spread = print.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread as usize & (self.sets.len() - 1)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "64 bits of a key are what is kept")]
const fn print(key: ContentKey) -> u64 {
    (key.raw() ^ (key.raw() >> 64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> ContentKey {
        ContentKey::from_raw(u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    #[test]
    fn two_pools_back_are_known_and_what_follows_too() {
        let mut sights = Sights::new(Pages::new(1000));
        for n in 1..=2000 {
            sights.see(key(n), (n > 1).then(|| key(n - 1)));
        }
        let known = (1..=2000).filter(|&n| sights.onward(key(n)).is_some()).count();
        assert!(known >= 1990, "{known} of 2000");
        assert_eq!(sights.onward(key(1999)), Some(Onward::Something));
        assert_eq!(sights.onward(key(2000)), Some(Onward::Nothing));
        assert_eq!(sights.onward(key(2001)), None);
    }

    #[test]
    fn it_forgets_the_oldest_and_outlives_its_count() {
        let mut sights = Sights::new(Pages::new(100));
        for n in 0..100_000 {
            sights.see(key(n), None);
        }
        assert_eq!(sights.onward(key(0)), None);
        assert!(sights.onward(key(99_999)).is_some());
        sights.now = u32::MAX;
        sights.see(key(7), None);
        assert!(sights.onward(key(7)).is_some() && sights.onward(key(99_999)).is_some());
    }
}
