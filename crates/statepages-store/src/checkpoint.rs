//! The checkpoint store: the life of a record, and which units hold its image.
//!
//! ```text
//!               begin                    publish
//!   (absent) ----------> COPYING ------------------------> READY(pins)
//!      ^ ^ ^                |  \                            |    |   |
//!      | | |   fail         |   \ unindex / clear    evict, |    |   | unindex / clear, pins > 0
//!      | | +----------------+    \                  unindex,|    |   v
//!      | |                        v                 clear,  |    |  EVICTING(readers)
//!      | |   publish or fail     EVICTING(writer)   pins 0  |    |   |
//!      | +------------------------+                         |    |   | last unpin
//!      +----------------------------------------------------+    |   |
//!      ^---------------------------------------------------------|---+
//!                                                 pin / unpin: READY <-> READY
//! ```
//!
//! Invariants:
//! - a key leads to one READY record or to none, and to one COPYING record or to none; a COPYING
//!   record is found by no lookup; an EVICTING one is found by nothing, and its end touches no other
//!   record of its key;
//! - ids are never reused; units of an image are arbitrary pages in canonical order, all of them raw
//!   units of their record until the record ends, and they are given back only together;
//! - a record ends only when no writer and no reader is in flight;
//! - eligibility for eviction is READY, unpinned and not protected ([`CheckpointStore::is_evictable`]);
//!   the order of victims is not decided here, and the count of eligible units is exact and O(1);
//! - recency: only the record that is read moves, when it is pinned and again when a pin returns.
//!
//! Called by the control plane, which owns the tickets: every COPYING record is in one receipt, every
//! pin is one queued restore or one entry of a receipt. Keys are opaque here: it knows no tokens.

use statepages_page::{Boundary, CheckpointId, ContentKey, PageId, Pages, RequestId};

use crate::audit::{Names, RecordState, RecordView, push_key};
use crate::key_table::KeyTable;
use crate::order::Order;
use crate::placement::KeepReason;
use crate::pool::PagePool;

/// Index of a record in the store's slab: valid until the record ends.
pub type RecordIndex = u32;

/// Records, their units and their order of use.
#[derive(Debug)]
pub struct CheckpointStore {
    units_per_record: u32,
    records: Vec<Record>,
    units: Vec<PageId>,
    absent: Vec<RecordIndex>,
    ready: KeyTable,
    copying: KeyTable,
    ids: KeyTable,
    /// READY and unpinned records, least recently used first.
    recency: Order,
    writers: u32,
    evicting: u32,
    pins: u32,
    ended: Ended,
    next_id: u64,
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// What it is found by.
    pub key: ContentKey,
    /// Tokens before it.
    pub boundary: Boundary,
    /// Why it is kept.
    pub reason: KeepReason,
    /// The request whose state it is.
    pub request: RequestId,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    id: CheckpointId,
    image: Image,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Copying,
    Ready { pins: u32 },
    EvictingWriter { cause: Cause },
    EvictingReaders { pins: u32, cause: Cause },
}

/// Why a record stopped being findable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The KV under its key was given up.
    Orphaned,
    /// An operator emptied the cache.
    Reset,
}

/// How records ended. Each only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Ended {
    pub(crate) begun: u64,
    pub(crate) evicted: u64,
    pub(crate) orphaned: u64,
    pub(crate) reset: u64,
    pub(crate) failed: u64,
    pub(crate) lost_duplicates: u64,
}

/// What the end of a writer meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Written {
    /// The record is READY.
    Ready(CheckpointId),
    /// The record is gone, and its units are free.
    Ended,
}

/// What a record was when its key was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Unindexed {
    /// There was none.
    Nothing,
    /// It was being written.
    Copying,
    /// It was READY.
    Ready(CheckpointId),
}

impl CheckpointStore {
    /// A store for as many records as `pages_max` can hold; none where there are no images.
    pub fn new(units_per_record: Option<Pages>, pages_max: Pages) -> Self {
        let per = units_per_record.map_or(1, Pages::get);
        let records = units_per_record.map_or(0, |_| pages_max.get() / per);
        let blank = Record {
            id: CheckpointId::new(0),
            image: Image {
                key: ContentKey::from_raw(0),
                boundary: Boundary::ZERO,
                reason: KeepReason::Grid,
                request: RequestId::new(0),
            },
            state: State::Absent,
        };
        Self {
            units_per_record: per,
            records: vec![blank; records as usize],
            units: vec![PageId::new(0); records as usize * per as usize],
            absent: (0..records).rev().collect(),
            ready: KeyTable::new(records),
            copying: KeyTable::new(records),
            ids: KeyTable::new(records),
            recency: Order::new(records),
            writers: 0,
            evicting: 0,
            pins: 0,
            ended: Ended::default(),
            next_id: 0,
        }
    }

    /// Units of one image.
    pub const fn units_per_record(&self) -> u32 {
        self.units_per_record
    }

    /// Records being written that can still become READY.
    pub const fn copying(&self) -> u32 {
        self.copying.len()
    }

    /// Records that a lookup finds.
    pub const fn ready(&self) -> u32 {
        self.ready.len()
    }

    /// Records without a key that a writer or reader still holds.
    pub const fn evicting(&self) -> u32 {
        self.evicting
    }

    pub(crate) const fn ended(&self) -> Ended {
        self.ended
    }

    /// Pins in all.
    pub(crate) const fn pins(&self) -> u32 {
        self.pins
    }

    /// Units with a writer in flight, whether or not their record can still become READY.
    pub(crate) const fn units_in_writing(&self) -> u32 {
        self.writers * self.units_per_record
    }

    /// Units that evictions could free, the record under a protected key left out.
    pub fn evictable_units(&self, protected: Option<RecordIndex>) -> u32 {
        let kept = protected.is_some_and(|index| self.evictable_state(index));
        (self.recency.len() - u32::from(kept)) * self.units_per_record
    }

    /// The READY record of a key.
    pub fn lookup(&self, key: ContentKey) -> Option<RecordIndex> {
        self.ready.get(key.raw())
    }

    /// Whether a record of the key is being written.
    pub fn is_copying(&self, key: ContentKey) -> bool {
        self.copying.get(key.raw()).is_some()
    }

    /// Id of a record.
    pub fn id(&self, index: RecordIndex) -> CheckpointId {
        self.records[index as usize].id
    }

    /// What a record is about.
    pub fn image(&self, index: RecordIndex) -> &Image {
        &self.records[index as usize].image
    }

    /// Units of a record, in canonical order.
    pub fn units(&self, index: RecordIndex) -> &[PageId] {
        let per = self.units_per_record as usize;
        &self.units[index as usize * per..][..per]
    }

    /// Starts a record on held pages. Its writer ends by [`Self::publish`] or [`Self::fail`].
    ///
    /// # Panics
    /// Where the key has a READY or COPYING record, or the pages are not one image's.
    pub fn begin(&mut self, image: Image, units: &[PageId], pool: &mut PagePool) -> RecordIndex {
        assert!(self.lookup(image.key).is_none(), "{:?} is READY already", image.key);
        assert!(!self.is_copying(image.key), "{:?} is COPYING already", image.key);
        let index = self.absent.pop().expect("units of another image mean a record for it");
        let id = CheckpointId::new(self.next_id);
        self.next_id += 1;
        let per = self.units_per_record as usize;
        self.units[index as usize * per..][..per].copy_from_slice(units);
        pool.make_units(units, id);
        self.records[index as usize] = Record { id, image, state: State::Copying };
        self.ids.insert(u128::from(id.raw()), index);
        self.copying.insert(image.key.raw(), index);
        self.writers += 1;
        self.ended.begun += 1;
        index
    }

    /// The writer is done and its bytes are good.
    pub fn publish(&mut self, index: RecordIndex, pool: &mut PagePool) -> Written {
        self.writers -= 1;
        let Record { id, image, state } = self.records[index as usize];
        match state {
            State::Copying => {
                self.copying.remove(index);
                if self.lookup(image.key).is_some() {
                    self.ended.lost_duplicates += 1;
                    self.end(index, pool);
                    return Written::Ended;
                }
                self.ready.insert(image.key.raw(), index);
                self.recency.push_back(index);
                self.records[index as usize].state = State::Ready { pins: 0 };
                Written::Ready(id)
            }
            State::EvictingWriter { cause } => {
                self.end_evicting(index, cause, pool);
                Written::Ended
            }
            other => panic!("{id} has no writer: {other:?}"),
        }
    }

    /// The writer is done and its bytes are not good.
    pub fn fail(&mut self, index: RecordIndex, pool: &mut PagePool) {
        self.writers -= 1;
        let Record { id, state, .. } = self.records[index as usize];
        match state {
            State::Copying => {
                self.copying.remove(index);
                self.ended.failed += 1;
                self.end(index, pool);
            }
            State::EvictingWriter { cause } => self.end_evicting(index, cause, pool),
            other => panic!("{id} has no writer: {other:?}"),
        }
    }

    /// Adds a reader to a READY record.
    pub fn pin(&mut self, index: RecordIndex) {
        let record = &mut self.records[index as usize];
        let State::Ready { pins } = &mut record.state else {
            panic!("{} is not READY: {:?}", record.id, record.state);
        };
        if *pins == 0 {
            self.recency.remove(index);
        }
        *pins += 1;
        self.pins += 1;
    }

    /// A reader is done or was cancelled.
    pub fn unpin(&mut self, index: RecordIndex, pool: &mut PagePool) {
        self.pins -= 1;
        let record = &mut self.records[index as usize];
        match &mut record.state {
            State::Ready { pins } if *pins > 0 => {
                *pins -= 1;
                if *pins == 0 {
                    self.recency.push_back(index);
                }
            }
            State::EvictingReaders { pins, .. } if *pins > 1 => *pins -= 1,
            State::EvictingReaders { cause, .. } => {
                let cause = *cause;
                self.end_evicting(index, cause, pool);
            }
            other => panic!("{} has no reader: {other:?}", record.id),
        }
    }

    /// The one rule of what may be given up.
    pub(crate) fn is_evictable(&self, id: CheckpointId, protected: Option<CheckpointId>) -> bool {
        protected != Some(id) && self.find(id).is_some_and(|index| self.evictable_state(index))
    }

    /// The eligible record used longest ago.
    pub(crate) fn oldest_evictable(&self, protected: Option<CheckpointId>) -> Option<CheckpointId> {
        self.skip_protected(self.recency.first(), protected)
    }

    /// The eligible record used next after an eligible one.
    pub(crate) fn evictable_after(
        &self,
        id: CheckpointId,
        protected: Option<CheckpointId>,
    ) -> Option<CheckpointId> {
        assert!(self.is_evictable(id, protected), "{id} is not eligible");
        let index = self.find(id).expect("an eligible record exists");
        self.skip_protected(self.recency.after(index), protected)
    }

    /// Takes an eligible record out of the order, so that a plan may count on it.
    pub(crate) fn set_aside(&mut self, index: RecordIndex) {
        assert!(self.evictable_state(index), "{} is not eligible", self.id(index));
        self.recency.remove(index);
        self.records[index as usize].state = State::Ready { pins: 1 };
    }

    /// Undoes the latest [`Self::set_aside`] that has not been undone.
    pub(crate) fn put_back(&mut self, index: RecordIndex) {
        assert_eq!(self.records[index as usize].state, State::Ready { pins: 1 });
        self.records[index as usize].state = State::Ready { pins: 0 };
        self.recency.put_back(index);
    }

    /// Gives up an eligible record for its units.
    pub fn evict(&mut self, index: RecordIndex, pool: &mut PagePool) {
        assert!(self.evictable_state(index), "{} is not eligible", self.id(index));
        self.recency.remove(index);
        self.ready.remove(index);
        self.ended.evicted += 1;
        self.end(index, pool);
    }

    /// Takes a key away from its record: freed at once, or with its last writer or reader.
    pub fn unindex(&mut self, key: ContentKey, pool: &mut PagePool) -> Unindexed {
        if let Some(index) = self.lookup(key) {
            let id = self.id(index);
            self.ready.remove(index);
            self.take_away(index, Cause::Orphaned, pool);
            Unindexed::Ready(id)
        } else if let Some(index) = self.copying.get(key.raw()) {
            self.copying.remove(index);
            self.take_away(index, Cause::Orphaned, pool);
            Unindexed::Copying
        } else {
            Unindexed::Nothing
        }
    }

    /// The writer is done and its bytes are good, but its key leads nowhere.
    pub fn orphan(&mut self, index: RecordIndex, pool: &mut PagePool) {
        let Record { id, state, .. } = self.records[index as usize];
        assert_eq!(state, State::Copying, "{id} is COPYING");
        self.writers -= 1;
        self.copying.remove(index);
        self.ended.orphaned += 1;
        self.end(index, pool);
    }

    /// Whether a record in writing can still become READY.
    pub fn is_wanted(&self, index: RecordIndex) -> bool {
        self.records[index as usize].state == State::Copying
    }

    /// Takes away every key. `gone` hears of each READY record, in the order of the slab.
    pub fn clear(&mut self, pool: &mut PagePool, mut gone: impl FnMut(CheckpointId, ContentKey)) {
        self.ready.clear();
        self.copying.clear();
        for index in 0..u32::try_from(self.records.len()).expect("records fit u32") {
            let Record { id, image, state } = self.records[index as usize];
            match state {
                State::Copying => self.take_away(index, Cause::Reset, pool),
                State::Ready { .. } => {
                    self.take_away(index, Cause::Reset, pool);
                    gone(id, image.key);
                }
                State::Absent | State::EvictingWriter { .. } | State::EvictingReaders { .. } => {}
            }
        }
    }

    /// The record of an id, until it ends.
    pub fn find(&self, id: CheckpointId) -> Option<RecordIndex> {
        self.ids.get(u128::from(id.raw()))
    }

    pub(crate) fn index_of(&self, id: CheckpointId) -> RecordIndex {
        self.find(id).unwrap_or_else(|| panic!("{id} has ended"))
    }

    fn evictable_state(&self, index: RecordIndex) -> bool {
        self.records[index as usize].state == State::Ready { pins: 0 }
    }

    /// Whether a record may be given up, no matter what is protected.
    pub fn is_unpinned_ready(&self, index: RecordIndex) -> bool {
        self.evictable_state(index)
    }

    fn skip_protected(
        &self,
        from: Option<RecordIndex>,
        protected: Option<CheckpointId>,
    ) -> Option<CheckpointId> {
        std::iter::successors(from, |&index| self.recency.after(index))
            .map(|index| self.id(index))
            .find(|&id| Some(id) != protected)
    }

    /// Moves a record whose key is already gone on to EVICTING, or to its end.
    fn take_away(&mut self, index: RecordIndex, cause: Cause, pool: &mut PagePool) {
        let record = &mut self.records[index as usize];
        match record.state {
            State::Copying => {
                record.state = State::EvictingWriter { cause };
                self.evicting += 1;
            }
            State::Ready { pins: 0 } => {
                self.recency.remove(index);
                self.count(cause);
                self.end(index, pool);
            }
            State::Ready { pins } => {
                record.state = State::EvictingReaders { pins, cause };
                self.evicting += 1;
            }
            other => panic!("{} has no key: {other:?}", record.id),
        }
    }

    fn end_evicting(&mut self, index: RecordIndex, cause: Cause, pool: &mut PagePool) {
        self.evicting -= 1;
        self.count(cause);
        self.end(index, pool);
    }

    const fn count(&mut self, cause: Cause) {
        match cause {
            Cause::Orphaned => self.ended.orphaned += 1,
            Cause::Reset => self.ended.reset += 1,
        }
    }

    fn end(&mut self, index: RecordIndex, pool: &mut PagePool) {
        pool.release_units(self.units(index), self.id(index));
        self.ids.remove(index);
        self.records[index as usize].state = State::Absent;
        self.absent.push(index);
    }

    /// Every record, in the order of the slab.
    pub fn views(&self) -> impl Iterator<Item = RecordView<'_>> {
        (0u32..self.records.len() as u32).filter_map(|index| self.view(index))
    }

    /// The record at a place of the slab, if there is one.
    pub fn view(&self, index: RecordIndex) -> Option<RecordView<'_>> {
        let record = &self.records[index as usize];
        let state = match record.state {
            State::Absent => return None,
            State::Copying => RecordState::Copying,
            State::Ready { pins } => RecordState::Ready { pins },
            State::EvictingWriter { .. } => RecordState::EvictingWriter,
            State::EvictingReaders { pins, .. } => RecordState::EvictingReaders { pins },
        };
        let Image { key, boundary, .. } = record.image;
        Some(RecordView { id: record.id, key, boundary, state, units: self.units(index) })
    }

    /// Appends all that later answers depend on, the records in the order of keys and states: where
    /// one lies in the slab is no part of it.
    pub(crate) fn canonical(&self, names: &mut Names, out: &mut Vec<u64>) {
        for index in self.recency.iter() {
            out.push(names.page(self.units(index)[0]));
        }
        out.push(u64::MAX);
        let code = |state: RecordState| match state {
            RecordState::Copying => 0,
            RecordState::Ready { pins } => 1 | u64::from(pins) << 8,
            RecordState::EvictingWriter => 2,
            RecordState::EvictingReaders { pins } => 3 | u64::from(pins) << 8,
        };
        let mut records: Vec<RecordView<'_>> = self.views().collect();
        records.sort_by_key(|record| (record.key.raw(), code(record.state)));
        for record in records {
            out.push(code(record.state));
            push_key(record.key, out);
            out.push(u64::from(record.boundary.get()));
            out.extend(record.units.iter().map(|&unit| names.page(unit)));
        }
        out.push(u64::MAX);
    }

    /// Audits tables, counts and units in O(n).
    pub fn check(&self, pool: &PagePool) {
        let mut raw = 0;
        let mut counts = [0u32; 3];
        let (mut writers, mut pins_sum, mut unpinned) = (0, 0, 0);
        for (index, record) in (0u32..).zip(&self.records) {
            let Record { id, image, state } = *record;
            if state == State::Absent {
                continue;
            }
            assert_eq!(self.find(id), Some(index), "{id} is found by its id");
            for (piece, &page) in (0u32..).zip(self.units(index)) {
                assert_eq!(pool.raw_owner(page), Some((id, piece)), "{page} of {id}");
                raw += 1;
            }
            let ready: Vec<_> =
                self.ready.all(image.key.raw()).filter(|&found| found == index).collect();
            let copying: Vec<_> =
                self.copying.all(image.key.raw()).filter(|&found| found == index).collect();
            let (in_ready, in_copying) = match state {
                State::Copying => {
                    counts[0] += 1;
                    writers += 1;
                    (0, 1)
                }
                State::Ready { pins } => {
                    counts[1] += 1;
                    pins_sum += pins;
                    unpinned += u32::from(pins == 0);
                    (1, 0)
                }
                State::EvictingWriter { .. } => {
                    counts[2] += 1;
                    writers += 1;
                    (0, 0)
                }
                State::EvictingReaders { pins, .. } => {
                    assert!(pins > 0, "{id} is EVICTING for readers it has not");
                    counts[2] += 1;
                    pins_sum += pins;
                    (0, 0)
                }
                State::Absent => (0, 0),
            };
            assert_eq!((ready.len(), copying.len()), (in_ready, in_copying), "tables of {id}");
            assert!(self.ready.all(image.key.raw()).count() <= 1, "one READY per key");
            assert!(self.copying.all(image.key.raw()).count() <= 1, "one COPYING per key");
        }
        assert_eq!(counts, [self.copying(), self.ready(), self.evicting]);
        assert_eq!(writers, self.writers, "writers in flight");
        assert_eq!(pins_sum, self.pins, "pins");
        assert_eq!(raw, pool.raw(), "every raw unit belongs to a record");
        let linked: Vec<u32> = self.recency.iter().collect();
        assert_eq!(linked.len(), unpinned as usize, "the order holds what is eligible");
        assert!(linked.iter().all(|&index| self.evictable_state(index)));
        assert_eq!(self.ids.len() as usize + self.absent.len(), self.records.len());
    }

    /// Keys of COPYING and READY records, in the order of the slab.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ContentKey> {
        self.records
            .iter()
            .filter(|record| matches!(record.state, State::Copying | State::Ready { .. }))
            .map(|record| record.image.key)
    }

    /// Keys of READY records, in the order of the slab.
    pub(crate) fn ready_keys(&self) -> impl Iterator<Item = ContentKey> {
        self.records
            .iter()
            .filter(|record| matches!(record.state, State::Ready { .. }))
            .map(|record| record.image.key)
    }
}

#[cfg(test)]
mod tests;
