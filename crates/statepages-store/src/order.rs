//! A queue over dense indices with removal from the middle: no allocation after start, every
//! operation O(1).
//!
//! Indices lie in nodes of one cache line each, in the order they were pushed, and the nodes form a
//! ring through one extra node, so that no link is ever absent. A walk along the order therefore
//! misses the cache once in [`LANES`] steps: were the indices linked one by one, each step would
//! wait for the last one's miss before it knew its own.
//!
//! Invariants: a linked node other than the root holds an index; a lane is used once between the
//! taking of its node and the node's end, so lanes ascend as their indices were pushed. Whether an
//! index is queued is known by its owner's state, not here; [`Order::len`] lets an audit compare the
//! two.

/// Indices of one node: what a cache line has room for beside the node's links.
const LANES: u32 = 12;

/// The node that closes the ring. It holds nothing.
const ROOT: u32 = 0;

/// Queue over the indices `0..capacity`.
#[derive(Debug)]
pub struct Order {
    nodes: Vec<Node>,
    /// Unlinked nodes, the latest on top.
    spare: Vec<u32>,
    /// Node and lane of an index, as `node * LANES + lane`; of its last place where it has left.
    places: Vec<u32>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node {
    indices: [u32; LANES as usize],
    before: u32,
    after: u32,
    /// Lanes whose index is queued.
    queued: u16,
    /// Lanes used since the node was taken.
    used: u16,
}

impl Order {
    /// The most indices whose places a `u32` can name.
    pub(crate) const CAPACITY_MAX: u32 = u32::MAX / LANES - 1;

    /// An empty queue over the indices below `capacity`.
    pub fn new(capacity: u32) -> Self {
        let node =
            Node { indices: [0; LANES as usize], before: ROOT, after: ROOT, queued: 0, used: 0 };
        assert!(capacity <= Self::CAPACITY_MAX, "places of {capacity} indices fit u32");
        Self {
            // Most nodes at once: one for each index, where every other lane was emptied.
            nodes: vec![node; capacity as usize + 1],
            spare: (1..=capacity).rev().collect(),
            places: vec![0; capacity as usize],
            len: 0,
        }
    }

    /// Bytes held, used or not.
    pub(crate) const fn bytes(&self) -> u64 {
        let spare = self.spare.capacity() * size_of_val(&self.len);
        let numbers = spare + size_of_val(self.places.as_slice());
        (size_of_val(self.nodes.as_slice()) + numbers) as u64
    }

    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Queues an index that is not queued, at the end.
    pub fn push_back(&mut self, index: u32) {
        let mut last = self.nodes[ROOT as usize].before;
        if last == ROOT || u32::from(self.nodes[last as usize].used) == LANES {
            let taken = self.spare.pop().expect("each linked node holds another index");
            let node = &mut self.nodes[taken as usize];
            (node.before, node.after, node.used) = (last, ROOT, 0);
            self.link(taken);
            last = taken;
        }
        let node = &mut self.nodes[last as usize];
        let lane = node.used;
        node.indices[usize::from(lane)] = index;
        node.queued |= 1 << lane;
        node.used += 1;
        self.places[index as usize] = last * LANES + u32::from(lane);
        self.len += 1;
    }

    /// Removes a queued index. It remembers its place, for its return.
    #[inline]
    pub fn remove(&mut self, index: u32) {
        let front = self.nodes[ROOT as usize].after;
        let Node { indices, queued, .. } = &self.nodes[front as usize];
        let first = queued.trailing_zeros();
        // Victims leave from the front. Asking the front first lets the next removal begin before
        // this one's place has come from memory.
        let at_front = indices.get(first as usize) == Some(&index);
        let (at, lane) = if at_front { (front, first) } else { self.place(index) };
        let node = &mut self.nodes[at as usize];
        node.queued &= !(1 << lane);
        if node.queued == 0 {
            self.unlink(at);
        }
        self.len = self.len.checked_sub(1).expect("only a queued index is removed");
    }

    /// [`Self::remove`] of the index of each item, in order. Victims lie at the front in a row: those
    /// of one node leave it together.
    pub(crate) fn remove_all<T: Copy>(&mut self, items: &[T], index: impl Fn(T) -> u32) {
        let mut left = items;
        while let Some(&item) = left.first() {
            let front = self.nodes[ROOT as usize].after;
            let node = &mut self.nodes[front as usize];
            let (mut queued, mut count) = (node.queued, 0);
            for &item in left {
                let first = queued.trailing_zeros() as usize;
                if node.indices.get(first) != Some(&index(item)) {
                    break;
                }
                queued &= queued - 1;
                count += 1;
            }
            if count == 0 {
                self.remove(index(item));
                left = &left[1..];
                continue;
            }
            node.queued = queued;
            if queued == 0 {
                self.unlink(front);
            }
            // No more than a node's lanes.
            self.len -= count as u32;
            left = &left[count..];
        }
    }

    /// Undoes the latest removal that has not been undone; nothing else may have changed since.
    pub(crate) fn put_back(&mut self, index: u32) {
        let (at, lane) = self.place(index);
        if self.nodes[at as usize].queued == 0 {
            let latest = self.spare.pop();
            assert_eq!(latest, Some(at), "removals are undone in reverse");
            self.link(at);
        }
        self.nodes[at as usize].queued |= 1 << lane;
        self.len += 1;
    }

    /// The index queued longest ago.
    pub fn first(&self) -> Option<u32> {
        self.first_of(self.nodes[ROOT as usize].after)
    }

    /// The index behind a queued one.
    pub fn after(&self, index: u32) -> Option<u32> {
        let (at, lane) = self.place(index);
        let node = &self.nodes[at as usize];
        let behind = node.queued & (u16::MAX << lane << 1);
        if behind == 0 {
            self.first_of(node.after)
        } else {
            Some(node.indices[behind.trailing_zeros() as usize])
        }
    }

    /// Queued indices, the first queued ahead. The walk asks no index for its place.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let first = self.nodes[ROOT as usize].after;
        let node = &self.nodes[first as usize];
        Walk { nodes: &self.nodes, node, left: node.queued }
    }

    fn place(&self, index: u32) -> (u32, u32) {
        let place = self.places[index as usize];
        (place / LANES, place % LANES)
    }

    /// First index of a linked node; `None` for the root.
    fn first_of(&self, at: u32) -> Option<u32> {
        let node = &self.nodes[at as usize];
        (at != ROOT).then(|| node.indices[node.queued.trailing_zeros() as usize])
    }

    /// Takes an empty node out of the ring. Rare enough to be no part of a caller's loop.
    #[inline(never)]
    fn unlink(&mut self, at: u32) {
        let Node { before, after, .. } = self.nodes[at as usize];
        self.nodes[before as usize].after = after;
        self.nodes[after as usize].before = before;
        self.spare.push(at);
    }

    /// Makes a node's neighbours name it.
    fn link(&mut self, at: u32) {
        let Node { before, after, .. } = self.nodes[at as usize];
        self.nodes[before as usize].after = at;
        self.nodes[after as usize].before = at;
    }
}

/// Steps along an order.
struct Walk<'a> {
    nodes: &'a [Node],
    node: &'a Node,
    /// Lanes of the node at hand that lie ahead.
    left: u16,
}

impl Iterator for Walk<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.left == 0 {
            self.node = &self.nodes[self.node.after as usize];
            self.left = self.node.queued;
        }
        // The root holds nothing.
        let lane = (self.left != 0).then(|| self.left.trailing_zeros() as usize)?;
        self.left &= self.left - 1;
        Some(self.node.indices[lane])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Order;

    /// Members after `taken` leave and come back, whatever was done before.
    fn aside_and_back(real: &mut Order, twin: &[u32], taken: u64) {
        let taken: Vec<u32> = (0u64..)
            .zip(twin)
            .filter(|(at, _)| taken >> (at % 64) & 1 == 1)
            .map(|x| *x.1)
            .collect();
        real.remove_all(&taken, |index| index);
        let left: Vec<u32> = twin.iter().copied().filter(|index| !taken.contains(index)).collect();
        assert_eq!(real.iter().collect::<Vec<_>>(), left);
        for &index in taken.iter().rev() {
            real.put_back(index);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn the_order_moves_in_lockstep_with_a_list(
            capacity in 1..60u32,
            acts in prop::collection::vec((0..8u8, any::<u64>()), 1..400),
        ) {
            let mut real = Order::new(capacity);
            let mut twin: Vec<u32> = Vec::new();
            for (act, which) in acts {
                let index = (which % u64::from(capacity)) as u32;
                match (act, twin.iter().position(|&queued| queued == index)) {
                    (0, _) => aside_and_back(&mut real, &twin, which),
                    (1..4, Some(at)) => {
                        real.remove(index);
                        twin.remove(at);
                    }
                    (_, Some(at)) => {
                        prop_assert_eq!(real.after(index), twin.get(at + 1).copied());
                    }
                    (_, None) => {
                        real.push_back(index);
                        twin.push(index);
                    }
                }
                prop_assert_eq!(real.iter().collect::<Vec<_>>(), twin.clone());
                prop_assert_eq!(real.len() as usize, twin.len());
                prop_assert_eq!(real.first(), twin.first().copied());
            }
        }
    }
}
