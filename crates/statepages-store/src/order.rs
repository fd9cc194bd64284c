//! A queue over dense indices with removal from the middle: intrusive links, no allocation.
//!
//! The links form a ring through one extra node behind the last index, so that no link is ever
//! absent. Whether an index is linked is known by its owner's state, not here; [`Order::len`] lets
//! an audit compare the two.

/// Doubly linked ring over the indices `0..capacity`.
#[derive(Debug)]
pub struct Order {
    links: Vec<Link>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Order {
    /// An empty queue over the indices below `capacity`.
    pub fn new(capacity: u32) -> Self {
        let root = Link { before: capacity, after: capacity };
        Self { links: vec![root; capacity as usize + 1], len: 0 }
    }

    fn root(&self) -> u32 {
        u32::try_from(self.links.len() - 1).expect("an order's capacity fits u32")
    }

    /// Bytes held, used or not.
    pub(crate) const fn bytes(&self) -> u64 {
        size_of_val(self.links.as_slice()) as u64
    }

    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Links an index that is not linked, at the end.
    pub fn push_back(&mut self, index: u32) {
        let root = self.root();
        let last = self.links[root as usize].before;
        self.links[index as usize] = Link { before: last, after: root };
        self.links[last as usize].after = index;
        self.links[root as usize].before = index;
        self.len += 1;
    }

    /// Removes a linked index. Its own links stay as they were, for [`Self::put_back`].
    pub fn remove(&mut self, index: u32) {
        let Link { before, after } = self.links[index as usize];
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        self.len = self.len.checked_sub(1).expect("only a linked index is removed");
    }

    /// Undoes the latest removal that has not been undone; nothing else may have changed since.
    pub(crate) fn put_back(&mut self, index: u32) {
        let Link { before, after } = self.links[index as usize];
        self.links[before as usize].after = index;
        self.links[after as usize].before = index;
        self.len += 1;
    }

    /// The index linked longest ago.
    pub fn first(&self) -> Option<u32> {
        self.after(self.root())
    }

    /// The index behind a linked one.
    pub fn after(&self, index: u32) -> Option<u32> {
        let after = self.links[index as usize].after;
        (after != self.root()).then_some(after)
    }

    /// Linked indices, the first linked ahead.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(), |&index| self.after(index))
    }
}
