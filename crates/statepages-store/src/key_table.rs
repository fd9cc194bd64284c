//! Hash table from 128-bit keys to dense indices: chained through the indices, no allocation after
//! start, no tombstones, and nothing that iterates in hash order.
//!
//! A value can be kept beside each index: what is read with the key then costs no further miss.
//!
//! Invariants: an index is in at most one chain; a key may lead to several indices, found in the
//! reverse order of their insertion.

use std::num::NonZeroU32;

/// `index + 1`, so that absence costs no extra space.
type Next = Option<NonZeroU32>;

/// Multimap of keys over the indices `0..capacity`, with a value for each index. Nodes are aligned
/// as `A` is.
#[derive(Debug)]
pub struct KeyTable<V = (), A = ()> {
    heads: Vec<Next>,
    nodes: Vec<Node<V, A>>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node<V, A> {
    key: u128,
    value: V,
    next: Next,
    /// The node before it in its chain; `None` at the head. A node leaves its chain by writes alone:
    /// nothing waits for a neighbour to come from memory.
    before: Next,
    _align: [A; 0],
}

impl KeyTable {
    /// An empty table for the indices below `capacity`.
    pub fn new(capacity: u32) -> Self {
        Self::with_values(capacity, ())
    }
}

#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
impl<V: Copy, A: Copy> KeyTable<V, A> {
    /// Bytes of an index with its key, value and links.
    pub(crate) const NODE_BYTES: usize = size_of::<Node<V, A>>();

    /// An empty table, `blank` beside every index.
    pub(crate) fn with_values(capacity: u32, blank: V) -> Self {
        let heads = (capacity as usize).next_power_of_two();
        let node = Node { key: 0, value: blank, next: None, before: None, _align: [] };
        Self { heads: vec![None; heads], nodes: vec![node; capacity as usize], len: 0 }
    }

    /// The value beside an index, whether or not the index is in the table.
    pub(crate) fn value(&self, index: u32) -> &V {
        &self.nodes[index as usize].value
    }

    pub(crate) fn value_mut(&mut self, index: u32) -> &mut V {
        &mut self.nodes[index as usize].value
    }

    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.nodes.len()).expect("indices fit u32")
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
        let this = NonZeroU32::new(index + 1);
        let next = std::mem::replace(&mut self.heads[head], this);
        if let Some(next) = next {
            self.nodes[slot(next)].before = this;
        }
        let node = &mut self.nodes[index as usize];
        (node.key, node.next, node.before) = (key, next, None);
        self.len += 1;
    }

    /// Takes out an index that is in the table.
    pub fn remove(&mut self, index: u32) {
        let Node { key, next, before, .. } = self.nodes[index as usize];
        if let Some(before) = before {
            self.nodes[slot(before)].next = next;
        } else {
            let head = self.head(key);
            self.heads[head] = next;
        }
        if let Some(next) = next {
            self.nodes[slot(next)].before = before;
        }
        self.len = self.len.checked_sub(1).expect("only an index in the table is removed");
    }

    /// The index that `key` leads to, the latest inserted first.
    pub fn get(&self, key: u128) -> Option<u32> {
        self.all(key).next()
    }

    /// Every index under `key`.
    pub fn all(&self, key: u128) -> impl Iterator<Item = u32> {
        let first = self.heads[self.head(key)];
        std::iter::successors(first, |&at| self.nodes[slot(at)].next)
            .filter(move |&at| self.nodes[slot(at)].key == key)
            .map(|at| at.get() - 1)
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

fn slot(at: NonZeroU32) -> usize {
    (at.get() - 1) as usize
}
