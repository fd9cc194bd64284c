//! The log of what became findable and what no longer is, for routers and remote indexes.
//!
//! Invariants: one event per block, so keys and tokens cannot fall out of step; bounded by the
//! configuration, allocated at start; when it is full, later events are counted as lost and the
//! reader has to rebuild its view.

use statepages_page::{ContentKey, DomainTag};

/// One change of what the prefix index finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// A block is findable.
    Stored {
        /// Its key.
        key: ContentKey,
        /// Key of the block before it; `None` for the first of a chain.
        parent: Option<ContentKey>,
        /// Domain of the chain.
        domain: DomainTag,
        /// Its tokens.
        tokens: &'a [u32],
    },
    /// A block is no longer findable.
    Removed {
        /// Its key.
        key: ContentKey,
    },
    /// Nothing is findable any more.
    Cleared,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Stored { key: ContentKey, parent: Option<ContentKey>, domain: DomainTag, tokens: u32 },
    Removed { key: ContentKey },
    Cleared,
}

/// The buffer between the index and the owner.
#[derive(Debug)]
pub(crate) struct EventLog {
    entries: Vec<Entry>,
    tokens: Vec<u32>,
    entries_max: usize,
    lost: u64,
}

/// Events taken from the log, in order. The log is empty once this is dropped.
#[derive(Debug)]
pub struct EventDrain<'a> {
    log: &'a mut EventLog,
    at: usize,
    token_at: usize,
    lost: u64,
}

impl EventLog {
    /// A log of at most `entries_max` events of at most `block` tokens each.
    pub(crate) fn new(entries_max: u32, block: u32) -> Self {
        let entries_max = entries_max as usize;
        Self {
            entries: Vec::with_capacity(entries_max),
            tokens: Vec::with_capacity(entries_max * block as usize),
            entries_max,
            lost: 0,
        }
    }

    pub(crate) fn stored(
        &mut self,
        key: ContentKey,
        parent: Option<ContentKey>,
        domain: DomainTag,
        tokens: &[u32],
    ) {
        let count = u32::try_from(tokens.len()).expect("a block's tokens fit u32");
        if self.push(Entry::Stored { key, parent, domain, tokens: count }) {
            self.tokens.extend_from_slice(tokens);
        }
    }

    pub(crate) fn removed(&mut self, key: ContentKey) {
        self.push(Entry::Removed { key });
    }

    pub(crate) fn cleared(&mut self) {
        self.push(Entry::Cleared);
    }

    pub(crate) fn drain(&mut self) -> EventDrain<'_> {
        let lost = std::mem::take(&mut self.lost);
        EventDrain { log: self, at: 0, token_at: 0, lost }
    }

    /// Appends unless full or already behind: after a lost event the rest would be misleading.
    fn push(&mut self, entry: Entry) -> bool {
        let fits = self.lost == 0 && self.entries.len() < self.entries_max;
        if fits {
            self.entries.push(entry);
        } else {
            self.lost += 1;
        }
        fits
    }
}

impl EventDrain<'_> {
    /// Events that found the log full after the last one here. Where it is not zero, a reader
    /// rebuilds its view from [`ControlPlane::indexed`](crate::ControlPlane::indexed).
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<KvEvent<'_>> {
        let entry = *self.log.entries.get(self.at)?;
        self.at += 1;
        Some(match entry {
            Entry::Stored { key, parent, domain, tokens } => {
                let start = self.token_at;
                self.token_at += tokens as usize;
                let tokens = &self.log.tokens[start..self.token_at];
                KvEvent::Stored { key, parent, domain, tokens }
            }
            Entry::Removed { key } => KvEvent::Removed { key },
            Entry::Cleared => KvEvent::Cleared,
        })
    }
}

impl Drop for EventDrain<'_> {
    fn drop(&mut self) {
        self.log.entries.clear();
        self.log.tokens.clear();
    }
}
