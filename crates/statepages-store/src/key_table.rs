//! Hash table from 128-bit keys to dense indices: chained through the indices, no allocation after
//! start, no tombstones, and nothing that iterates in hash order.
//!
//! A value can be kept beside each index: what is read with the key then costs no further miss.
//!
//! Links name nodes, and node 0, the *ground*, is nobody's: it ends every chain, and takes what would
//! be written to a neighbour that is not there. Whether a node has neighbours is a coin's toss, so a
//! branch on it would be foretold wrongly every other time.
//!
//! Invariants: an index is in at most one chain; a key may lead to several indices, found in the
//! reverse order of their insertion; nothing that is read of the ground matters.

use std::hint::{black_box, select_unpredictable};

/// The node of an index, which is one more than the index; or [`GROUND`].
type Link = u32;

const GROUND: Link = 0;

/// Multimap of keys over the indices `0..capacity`, with a value for each index. Nodes are aligned
/// as `A` is.
#[derive(Debug)]
pub struct KeyTable<V = (), A = ()> {
    /// First nodes of the chains, and one that no key leads to: the ground's.
    heads: Vec<Link>,
    nodes: Vec<Node<V, A>>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node<V, A> {
    key: u128,
    value: V,
    next: Link,
    /// The node before it in its chain. A node leaves its chain by writes alone: nothing waits for a
    /// neighbour to come from memory.
    before: Link,
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
        let heads = (capacity as usize).next_power_of_two() + 1;
        let node = Node { key: 0, value: blank, next: GROUND, before: GROUND, _align: [] };
        Self { heads: vec![GROUND; heads], nodes: vec![node; capacity as usize + 1], len: 0 }
    }

    /// The value beside an index, whether or not the index is in the table.
    pub(crate) fn value(&self, index: u32) -> &V {
        &self.node(index).value
    }

    pub(crate) fn value_mut(&mut self, index: u32) -> &mut V {
        &mut self.nodes[index as usize + 1].value
    }

    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.nodes.len() - 1).expect("indices fit u32")
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
        let this = index + 1;
        let next = std::mem::replace(&mut self.heads[head], this);
        self.nodes[next as usize].before = this;
        let node = &mut self.nodes[this as usize];
        (node.key, node.next, node.before) = (key, next, GROUND);
        self.len += 1;
    }

    /// Takes out an index that is in the table, and answers its key.
    #[inline]
    pub fn remove(&mut self, index: u32) -> u128 {
        let Node { key, next, before, .. } = *self.node(index);
        let head = select_unpredictable(before == GROUND, self.head(key), self.heads.len() - 1);
        self.heads[head] = next;
        self.nodes[before as usize].next = next;
        self.nodes[next as usize].before = before;
        self.len = self.len.checked_sub(1).expect("only an index in the table is removed");
        key
    }

    /// Reads, for the sake of the data caches, what [`Self::remove`] of an index in the table writes
    /// elsewhere: the head of its chain and its neighbours. Read for several indices in a row, these
    /// are waited for together; written by one removal after the other, nearly one by one.
    #[inline]
    pub(crate) fn fetch_links(&self, index: u32) {
        let Node { key, next, before, .. } = *self.node(index);
        let neighbours = (self.nodes[before as usize].next, self.nodes[next as usize].before);
        black_box((self.heads[self.head(key)], neighbours));
    }

    /// The index that `key` leads to, the latest inserted first.
    pub fn get(&self, key: u128) -> Option<u32> {
        self.all(key).next()
    }

    /// Every index under `key`.
    pub fn all(&self, key: u128) -> impl Iterator<Item = u32> {
        let some = |at: Link| (at != GROUND).then_some(at);
        let first = some(self.heads[self.head(key)]);
        std::iter::successors(first, move |&at| some(self.nodes[at as usize].next))
            .filter(move |&at| self.nodes[at as usize].key == key)
            .map(|at| at - 1)
    }

    /// Key of an index that is in the table.
    pub fn key(&self, index: u32) -> u128 {
        self.node(index).key
    }

    /// Takes out everything.
    pub fn clear(&mut self) {
        self.heads.fill(GROUND);
        self.len = 0;
    }

    fn node(&self, index: u32) -> &Node<V, A> {
        &self.nodes[index as usize + 1]
    }

    fn head(&self, key: u128) -> usize {
        // Content keys are uniform already; the product also spreads small numbers that an
        // embedding engine or a test may use as keys.
        let folded = (key as u64) ^ ((key >> 64) as u64);
        let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) as usize) & (self.heads.len() - 2)
    }
}
