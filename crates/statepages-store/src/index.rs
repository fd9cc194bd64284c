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

use std::hint::black_box;

use statepages_page::{BlockSize, ContentKey, DomainTag, PageId, Pages};

use crate::key_table::KeyTable;

/// Findable blocks.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    block: usize,
    tokens: Vec<u32>,
    entries: KeyTable<Entry, CacheLine>,
}

/// What an entry, its key and its links in the table lie in, alone: giving a block up reads one line
/// of the index.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct CacheLine;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Digests as bytes, which need no alignment: with it, an entry would need a second line.
    parent: [u8; 16],
    domain: [u8; 16],
    place: Place,
    trace: Trace,
}

/// Where an entry's block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere: the page has no block, and the rest of the entry means nothing.
    Absent,
    /// At the head of a chain: it has no parent.
    First,
    /// Behind its parent.
    Later,
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
    /// None was ever filed, so no boundary and no record hangs on the key now.
    Never,
    /// One was filed, and nothing has become of it yet.
    Filed,
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

const _: () = assert!(KeyTable::<Entry, CacheLine>::NODE_BYTES == align_of::<CacheLine>());

impl PrefixIndex {
    pub(crate) fn new(block: BlockSize, pages_max: Pages) -> Self {
        let block = block.get() as usize;
        let blank =
            Entry { parent: [0; 16], domain: [0; 16], place: Place::Absent, trace: Trace::Never };
        Self {
            block,
            tokens: vec![0; pages_max.index() * block],
            entries: KeyTable::with_values(pages_max.get(), blank),
        }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.entries.len()
    }

    /// Bytes held, used or not: the most it will ever take.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.tokens) as u64 + self.entries.bytes()
    }

    /// The page that holds exactly this block.
    pub(crate) fn find(&self, block: &Block<'_>) -> Option<PageId> {
        let page = self.page(block.key)?;
        (self.block(page) == Some(*block)).then_some(page)
    }

    /// The page under a key, whatever the block.
    pub(crate) fn page(&self, key: ContentKey) -> Option<PageId> {
        self.entries.get(key.raw()).map(PageId::new)
    }

    /// The block of a page.
    pub(crate) fn block(&self, page: PageId) -> Option<Block<'_>> {
        let Entry { parent, domain, place, .. } = *self.entry(page)?;
        let parent = ContentKey::from_raw(u128::from_le_bytes(parent));
        let parent = (place == Place::Later).then_some(parent);
        let domain = DomainTag::from_raw(u128::from_le_bytes(domain));
        let key = ContentKey::from_raw(self.entries.key(page.raw()));
        let tokens = &self.tokens[page.index() * self.block..][..self.block];
        Some(Block { key, parent, domain, tokens })
    }

    pub(crate) fn key(&self, page: PageId) -> Option<ContentKey> {
        self.entry(page).map(|_| ContentKey::from_raw(self.entries.key(page.raw())))
    }

    /// Whether the block found under `key`, where there is one, is what `page` was published for. The
    /// page has to have kept its content since; whether it is found itself does not matter.
    pub(crate) fn is_block_of(&self, page: PageId, key: ContentKey) -> bool {
        let Some(holder) = self.page(key) else { return true };
        let stands_for = |page: PageId| {
            let Entry { parent, domain, .. } = *self.entries.value(page.raw());
            let tokens = &self.tokens[page.index() * self.block..][..self.block];
            (self.entries.key(page.raw()), parent, domain, tokens)
        };
        holder == page || stands_for(holder) == stands_for(page)
    }

    /// Makes `page` the one found for `block`. `trace` is what is known of its key where the block
    /// is new.
    pub(crate) fn publish(&mut self, page: PageId, block: &Block<'_>, trace: Trace) -> Publish {
        assert!(self.entry(page).is_none(), "{page} has a block already");
        let mut trace = trace;
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
        let place = if parent.is_some() { Place::Later } else { Place::First };
        let parent = parent.map_or([0; 16], |parent| parent.raw().to_le_bytes());
        let domain = domain.raw().to_le_bytes();
        *self.entries.value_mut(page.raw()) = Entry { parent, domain, place, trace };
        self.tokens[page.index() * self.block..][..self.block].copy_from_slice(tokens);
        self.entries.insert(key.raw(), page.raw());
        answer
    }

    /// Forgets the block of a page, if it has one, and says which key is no longer found and what
    /// was known of it.
    #[inline]
    pub(crate) fn remove(&mut self, page: PageId) -> Option<(ContentKey, Trace)> {
        let entry = self.entries.value_mut(page.raw());
        if entry.place == Place::Absent {
            return None;
        }
        entry.place = Place::Absent;
        let trace = entry.trace;
        Some((ContentKey::from_raw(self.entries.remove(page.raw())), trace))
    }

    /// Reads, for the sake of the data caches, what [`Self::remove`] of pages with blocks needs: first
    /// all entries, then all that these name, so that each kind is waited for together.
    pub(crate) fn fetch(&self, pages: &[PageId]) {
        for page in pages {
            black_box(self.entries.value(page.raw()).trace);
        }
        for page in pages {
            self.entries.fetch_links(page.raw());
        }
    }

    /// A page's content has moved to a page without a block; its entry follows.
    pub(crate) fn rename(&mut self, from: PageId, to: PageId) {
        let Some(entry) = self.entry(from).copied() else { return };
        assert!(self.entry(to).is_none(), "{to} has a block already");
        let start = from.index() * self.block;
        self.tokens.copy_within(start..start + self.block, to.index() * self.block);
        let (key, _) = self.remove(from).expect("the page has a block");
        *self.entries.value_mut(to.raw()) = entry;
        self.entries.insert(key.raw(), to.raw());
    }

    /// What is known of the key of a page; nothing, where it has no block.
    pub(crate) fn trace(&self, page: PageId) -> Trace {
        self.entry(page).map_or(Trace::Never, |entry| entry.trace)
    }

    /// Notes what became of a checkpoint under `key`, if the key is found.
    pub(crate) fn set_trace(&mut self, key: ContentKey, trace: Trace) {
        if let Some(page) = self.page(key) {
            self.entries.value_mut(page.raw()).trace = trace;
        }
    }

    /// Notes that a boundary is filed under `key`, if the key is found.
    pub(crate) fn note_filed(&mut self, key: ContentKey) {
        if let Some(page) = self.page(key)
            && self.trace(page) == Trace::Never
        {
            self.entries.value_mut(page.raw()).trace = Trace::Filed;
        }
    }

    pub(crate) fn clear(&mut self) {
        for page in 0..self.entries.capacity() {
            self.entries.value_mut(page).place = Place::Absent;
        }
        self.entries.clear();
    }

    /// Pages with a block, in the order of their ids.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> {
        (0..self.entries.capacity()).map(PageId::new).filter(|&page| self.entry(page).is_some())
    }

    fn entry(&self, page: PageId) -> Option<&Entry> {
        let entry = self.entries.value(page.raw());
        (entry.place != Place::Absent).then_some(entry)
    }
}
