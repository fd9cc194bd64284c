//! Hash table from 128-bit keys to dense indices: chained through the indices, no allocation after
//! start, no tombstones, and nothing that iterates in hash order.
//!
//! Invariants: an index is in at most one chain; a key may lead to several indices, found in the
//! reverse order of their insertion.

use std::num::NonZeroU32;

/// `index + 1`, so that absence costs no extra space.
type Next = Option<NonZeroU32>;

/// Multimap of keys over the indices `0..capacity`.
#[derive(Debug)]
pub struct KeyTable {
    heads: Vec<Next>,
    nodes: Vec<Node>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u128,
    next: Next,
}

#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
impl KeyTable {
    /// An empty table for the indices below `capacity`.
    pub fn new(capacity: u32) -> Self {
        let heads = (capacity as usize).next_power_of_two();
        Self {
            heads: vec![None; heads],
            nodes: vec![Node { key: 0, next: None }; capacity as usize],
            len: 0,
        }
    }

    /// Indices in the table.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Bytes held, used or not.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&*self.heads) + size_of_val(&*self.nodes)) as u64
    }

    /// Leads `key` to an index that is in no chain.
    pub fn insert(&mut self, key: u128, index: u32) {
        let head = self.head(key);
        self.nodes[index as usize] = Node { key, next: self.heads[head] };
        self.heads[head] = NonZeroU32::new(index + 1);
        self.len += 1;
    }

    /// Takes out an index that is in the table.
    pub fn remove(&mut self, index: u32) {
        let Node { key, next } = self.nodes[index as usize];
        let head = self.head(key);
        let mut at = self.heads[head].expect("the index is in its chain");
        if at.get() == index + 1 {
            self.heads[head] = next;
        } else {
            loop {
                let node = (at.get() - 1) as usize;
                let after = self.nodes[node].next.expect("the index is in its chain");
                if after.get() == index + 1 {
                    self.nodes[node].next = next;
                    break;
                }
                at = after;
            }
        }
        self.len -= 1;
    }

    /// The index that `key` leads to, the latest inserted first.
    pub fn get(&self, key: u128) -> Option<u32> {
        self.all(key).next()
    }

    /// Every index under `key`.
    pub fn all(&self, key: u128) -> impl Iterator<Item = u32> {
        let first = self.heads[self.head(key)];
        std::iter::successors(first, |at| self.nodes[(at.get() - 1) as usize].next)
            .map(|at| at.get() - 1)
            .filter(move |&index| self.nodes[index as usize].key == key)
    }

    /// Key of an index that is in the table.
    pub fn key(&self, index: u32) -> u128 {
        self.nodes[index as usize].key
    }

    /// Takes out everything.
    pub fn clear(&mut self) {
        self.heads.fill(None);
        self.len = 0;
    }

    fn head(&self, key: u128) -> usize {
        // Content keys are uniform already; the product also spreads small numbers that an
        // embedding engine or a test may use as keys.
        let folded = (key as u64) ^ ((key >> 64) as u64);
        let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) as usize) & (self.heads.len() - 1)
    }
}
