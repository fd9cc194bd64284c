//! Boundaries that are filed and not yet stored.
//!
//! ```text
//!   file --> Pending(slot) --drain--> stored, or dropped for a counted reason
//!                |  ^
//!                |  +-- file of the same (request, key): replaced, nothing is counted
//!                +----- file of another key from the same slot: superseded
//!                +----- release, reset: forgotten      KV under the key lost: unfiled
//! ```
//!
//! Invariants:
//! - a slot is the source of at most one pending boundary, because it holds one state: this alone
//!   makes the newer of two boundaries win, and lets those with bytes of their own survive;
//! - (request, key) is pending at most once;
//! - entries are drained in the order they were filed.
//!
//! Called by the control plane, which counts what it drops.

use statepages_page::{ContentKey, SlotId};

use crate::checkpoint::Image;
use crate::key_table::KeyTable;
use crate::order::Order;

/// Filed boundaries, by the slot that holds their state.
#[derive(Debug)]
pub(crate) struct Pending {
    entries: Vec<Option<Entry>>,
    order: Order,
    keys: KeyTable,
}

/// One filed boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) image: Image,
    pub(crate) source: Source,
}

/// Whose slot holds the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The resident request's own, which moves on with each forward.
    Own,
    /// A scratch slot, which the entry owns.
    Scratch,
}

impl Pending {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            entries: vec![None; slots as usize],
            order: Order::new(slots),
            keys: KeyTable::new(slots),
        }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.order.len()
    }

    pub(crate) fn insert(&mut self, slot: SlotId, entry: Entry) {
        assert!(self.entries[slot.index()].is_none(), "{slot} has a pending boundary");
        self.entries[slot.index()] = Some(entry);
        self.order.push_back(slot.raw());
        self.keys.insert(entry.image.key.raw(), slot.raw());
    }

    pub(crate) fn remove(&mut self, slot: SlotId) -> Option<Entry> {
        let entry = self.entries[slot.index()].take()?;
        self.order.remove(slot.raw());
        self.keys.remove(slot.raw());
        Some(entry)
    }

    pub(crate) fn get(&self, slot: SlotId) -> Option<&Entry> {
        self.entries[slot.index()].as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: SlotId) -> Option<&mut Entry> {
        self.entries[slot.index()].as_mut()
    }

    /// The entry filed longest ago.
    pub(crate) fn first(&self) -> Option<SlotId> {
        self.order.first().map(SlotId::new)
    }

    /// A slot with a pending boundary under `key`, the latest filed first.
    pub(crate) fn with_key(&self, key: ContentKey) -> Option<SlotId> {
        self.keys.get(key.raw()).map(SlotId::new)
    }

    /// The slot from which the same request has filed the same key.
    pub(crate) fn twin(&self, image: &Image) -> Option<SlotId> {
        let same = |&slot: &u32| {
            let entry = self.entries[slot as usize].as_ref();
            entry.is_some_and(|entry| entry.image.request == image.request)
        };
        self.keys.all(image.key.raw()).find(same).map(SlotId::new)
    }

    /// Keys with a pending boundary, in the order of their slots.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ContentKey> {
        self.entries.iter().flatten().map(|entry| entry.image.key)
    }

    /// Slots with a pending boundary, in the order of filing.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.order.iter().map(SlotId::new)
    }
}
