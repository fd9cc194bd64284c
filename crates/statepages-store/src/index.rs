//! The prefix index: which page holds the KV of a block of tokens.
//!
//! ```text
//!   (absent) --publish--> entry of page A --publish by page B--> entry of page B
//!      ^                        |                                      |
//!      +-------- remove --------+------------------ remove ------------+      clear: all at once
//! ```
//!
//! Invariants:
//! - a key leads to at most one page, the one that published it last; a page has at most one entry;
//! - an entry keeps what its key stands for - parent, domain and tokens - and a hit compares all of
//!   it: an equal key alone proves nothing;
//! - memory is bounded by the pages of the pool and counted ([`PrefixIndex::bytes`]);
//! - an entry remembers what last became of a checkpoint under its key, so that a miss can be told
//!   by its reason; the memory of it ends with the entry.
//!
//! Called by the control plane, which keeps pool, store and event log in step with it.

use statepages_page::{BlockSize, ContentKey, DomainTag, PageId, Pages};

use crate::key_table::KeyTable;

/// Findable blocks.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    block: usize,
    entries: Vec<Option<Entry>>,
    tokens: Vec<u32>,
    keys: KeyTable,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    parent: Option<ContentKey>,
    domain: DomainTag,
    trace: Trace,
}

/// A block and all that its key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    pub(crate) key: ContentKey,
    pub(crate) parent: Option<ContentKey>,
    pub(crate) domain: DomainTag,
    pub(crate) tokens: &'a [u32],
}

/// What last became of a checkpoint under an entry's key, where it is not READY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// None was ever filed.
    Never,
    /// It was filed and not stored.
    Dropped,
    /// It was READY and given up.
    Evicted,
    /// The batch of its store failed.
    Failed,
}

/// What publishing a block did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Publish {
    /// The block was not findable before.
    New,
    /// Another page had the same block; it is no longer found.
    Moved { from: PageId },
    /// Another block has the same key. Nothing is changed.
    Collision { holder: PageId },
}

impl PrefixIndex {
    pub(crate) fn new(block: BlockSize, pages_max: Pages) -> Self {
        let block = block.get() as usize;
        Self {
            block,
            entries: vec![None; pages_max.index()],
            tokens: vec![0; pages_max.index() * block],
            keys: KeyTable::new(pages_max.get()),
        }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.keys.len()
    }

    /// Bytes held, used or not: the most it will ever take.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&*self.entries) + size_of_val(&*self.tokens)) as u64 + self.keys.bytes()
    }

    /// The page that holds exactly this block.
    pub(crate) fn find(&self, block: &Block<'_>) -> Option<PageId> {
        let page = self.page(block.key)?;
        (self.block(page) == Some(*block)).then_some(page)
    }

    /// The page under a key, whatever the block.
    pub(crate) fn page(&self, key: ContentKey) -> Option<PageId> {
        self.keys.get(key.raw()).map(PageId::new)
    }

    /// The block of a page.
    pub(crate) fn block(&self, page: PageId) -> Option<Block<'_>> {
        let Entry { parent, domain, .. } = self.entries[page.index()]?;
        let key = ContentKey::from_raw(self.keys.key(page.raw()));
        let tokens = &self.tokens[page.index() * self.block..][..self.block];
        Some(Block { key, parent, domain, tokens })
    }

    pub(crate) fn key(&self, page: PageId) -> Option<ContentKey> {
        self.entries[page.index()].map(|_| ContentKey::from_raw(self.keys.key(page.raw())))
    }

    /// Makes `page` the one found for `block`.
    pub(crate) fn publish(&mut self, page: PageId, block: &Block<'_>) -> Publish {
        assert!(self.entries[page.index()].is_none(), "{page} has a block already");
        let mut trace = Trace::Never;
        let mut answer = Publish::New;
        if let Some(holder) = self.page(block.key) {
            if self.block(holder) != Some(*block) {
                return Publish::Collision { holder };
            }
            trace = self.trace(holder);
            self.remove(holder);
            answer = Publish::Moved { from: holder };
        }
        let Block { key, parent, domain, tokens } = *block;
        self.entries[page.index()] = Some(Entry { parent, domain, trace });
        self.tokens[page.index() * self.block..][..self.block].copy_from_slice(tokens);
        self.keys.insert(key.raw(), page.raw());
        answer
    }

    /// Forgets the block of a page, if it has one, and says which key is no longer found.
    pub(crate) fn remove(&mut self, page: PageId) -> Option<ContentKey> {
        let key = self.key(page)?;
        self.entries[page.index()] = None;
        self.keys.remove(page.raw());
        Some(key)
    }

    /// A page's content has moved to a page without a block; its entry follows.
    pub(crate) fn rename(&mut self, from: PageId, to: PageId) {
        let Some(key) = self.key(from) else { return };
        assert!(self.entries[to.index()].is_none(), "{to} has a block already");
        let start = from.index() * self.block;
        self.tokens.copy_within(start..start + self.block, to.index() * self.block);
        self.entries[to.index()] = self.entries[from.index()].take();
        self.keys.remove(from.raw());
        self.keys.insert(key.raw(), to.raw());
    }

    pub(crate) fn trace(&self, page: PageId) -> Trace {
        self.entries[page.index()].as_ref().map_or(Trace::Never, |entry| entry.trace)
    }

    /// Notes what became of a checkpoint under `key`, if the key is found.
    pub(crate) fn set_trace(&mut self, key: ContentKey, trace: Trace) {
        if let Some(page) = self.page(key)
            && let Some(entry) = &mut self.entries[page.index()]
        {
            entry.trace = trace;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.fill(None);
        self.keys.clear();
    }

    /// Pages with a block, in the order of their ids.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> {
        (0u32..).zip(&self.entries).filter_map(|(id, entry)| entry.map(|_| PageId::new(id)))
    }
}
