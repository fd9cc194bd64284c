//! Several queues over the same dense indices, each index in at most one of them: intrusive links, no
//! allocation.
//!
//! Each queue is a ring through a root node behind the last index. Which queue an index is in, if
//! any, is known by its owner's state, not here.

/// `rings` queues over the indices `0..capacity`.
#[derive(Debug)]
pub(crate) struct Rings {
    links: Vec<Link>,
    capacity: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Rings {
    pub(crate) fn new(capacity: u32, rings: u32) -> Self {
        let total = capacity.checked_add(rings).expect("indices and rings fit u32");
        let links = (0..total).map(|node| Link { before: node, after: node }).collect();
        Self { links, capacity }
    }

    /// Bytes held, used or not.
    pub(crate) const fn bytes(&self) -> u64 {
        size_of_val(self.links.as_slice()) as u64
    }

    /// Appends an index that is in no ring.
    pub(crate) fn push_back(&mut self, ring: u32, index: u32) {
        let root = self.capacity + ring;
        let last = self.links[root as usize].before;
        self.links[index as usize] = Link { before: last, after: root };
        self.links[last as usize].after = index;
        self.links[root as usize].before = index;
    }

    /// Takes an index out of the ring it is in.
    pub(crate) fn remove(&mut self, index: u32) {
        let Link { before, after } = self.links[index as usize];
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
    }

    pub(crate) fn first(&self, ring: u32) -> Option<u32> {
        self.after(self.capacity + ring)
    }

    /// The index behind another one of the same ring.
    pub(crate) fn after(&self, index: u32) -> Option<u32> {
        let after = self.links[index as usize].after;
        (after < self.capacity).then_some(after)
    }

    pub(crate) fn is_empty(&self, ring: u32) -> bool {
        self.first(ring).is_none()
    }

    pub(crate) fn iter(&self, ring: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(ring), |&index| self.after(index))
    }
}
