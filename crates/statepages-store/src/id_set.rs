//! A set of dense numbers that answers its lowest member in a few word reads.
//!
//! Level 0 has one bit per number; a bit of level `n + 1` is set exactly where the word of level
//! `n` under it is not zero.

/// Set over `0..capacity`.
#[derive(Debug)]
pub(crate) struct IdSet {
    levels: Vec<Vec<u64>>,
    len: u32,
}

impl IdSet {
    pub(crate) fn new(capacity: u32) -> Self {
        let mut levels = Vec::new();
        let mut words = (capacity as usize).div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels, len: 0 };
            }
            words = words.div_ceil(64);
        }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.levels[0][id as usize / 64] & (1 << (id % 64)) != 0
    }

    /// Adds a number that is not a member.
    pub(crate) fn insert(&mut self, id: u32) {
        debug_assert!(!self.contains(id));
        let mut at = id as usize;
        for level in &mut self.levels {
            let was = level[at / 64];
            level[at / 64] = was | 1 << (at % 64);
            if was != 0 {
                break;
            }
            at /= 64;
        }
        self.len += 1;
    }

    /// Takes out a member.
    pub(crate) fn remove(&mut self, id: u32) {
        debug_assert!(self.contains(id));
        clear(&mut self.levels, id as usize);
        self.len -= 1;
    }

    /// The lowest member.
    pub(crate) fn first(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        Some(lowest(&self.levels))
    }

    /// The members, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let some = |bits: u64| (bits != 0).then_some(bits);
        (0..).zip(&self.levels[0]).flat_map(move |(word, &bits): (u32, _)| {
            std::iter::successors(some(bits), move |bits| some(bits & (bits - 1)))
                .map(move |bits| word * 64 + bits.trailing_zeros())
        })
    }

    /// Takes out the lowest member.
    pub(crate) fn take_first(&mut self) -> Option<u32> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// Takes out the `count` lowest members and hands them over, in order. A word that has several of
    /// them is found once.
    pub(crate) fn take_lowest(&mut self, count: u32, mut taken: impl FnMut(u32)) {
        self.len = self.len.checked_sub(count).expect("no more are taken than there are");
        let mut left = count;
        while left > 0 {
            let (words, above) = self.levels.split_first_mut().expect("there is a level");
            let at = lowest(above) as usize;
            let mut word = words[at];
            while word != 0 && left > 0 {
                taken(at as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
                left -= 1;
            }
            words[at] = word;
            if word != 0 {
                break;
            }
            clear(above, at);
        }
    }
}

/// Takes a number out of a level and, with each word that this leaves empty, its bit out of the level
/// above.
fn clear(levels: &mut [Vec<u64>], mut at: usize) {
    for level in levels {
        level[at / 64] &= !(1 << (at % 64));
        if level[at / 64] != 0 {
            break;
        }
        at /= 64;
    }
}

/// The lowest number that some levels lead to: zero where there is no level.
fn lowest(levels: &[Vec<u64>]) -> u32 {
    let down = levels.iter().rev();
    down.fold(0, |at, level| at * 64 + level[at as usize].trailing_zeros())
}
