//! The facade: one owner of pool, index, store and slots, which keeps them in step.
//!
//! A residency's life, as far as the control plane knows it:
//!
//! ```text
//!   try_admit --> resident --(append_block, join, advance, file, relocate)--> release
//! ```
//!
//! Invariants that no part can hold alone:
//! - a READY record's key is in the prefix index, and a key that leaves the index takes its pending
//!   boundaries and its record with it, counted once;
//! - no queued restore aims at, and no pending boundary reads, a slot that is free or fenced;
//! - where the backend keeps no order, slot and pages of a released residency stay taken until the
//!   receipts of all batches that touch the slot are in;
//! - what a gate has promised can be had, whatever the victim policy answers.
//!
//! The parts of the facade: admission in `admit.rs`, filing, batches and receipts in `batch.rs`,
//! victims in `room.rs`, the audit in `check.rs`.

use statepages_page::{
    BatchId, Boundary, Bytes, ContentKey, DomainTag, LayoutTag, PageId, Pages, Relocation, SlotId,
    Tokens,
};

use crate::checkpoint::{CheckpointStore, RecordIndex};
use crate::config::Schedulers;
use crate::config::{BackendOrder, Caching, CheckpointInterval, ConfigError, ControlPlaneConfig};
use crate::counters::{Counters, Gauges};
use crate::events::{EventDrain, EventLog};
use crate::index::{Block, PrefixIndex, Publish, Trace};
use crate::keys::PromptKeys;
use crate::order::Order;
use crate::pending::Pending;
use crate::placement::{Placement, Scope};
use crate::pool::{Afterlife, PagePool, RetireTop, Unshare};
use crate::receipt::Cargo;
use crate::residency::Residency;
use crate::restores::Restores;
use crate::room::Planned;
use crate::runtime::StateTransfer;
use crate::slots::{SlotBytes, SlotPool, SlotRelease};
use crate::value::PolicyReport;
use crate::victim::{Notice, VictimPolicy};

/// The control plane. See the crate's head for the order of calls in a step.
#[derive(Debug)]
pub struct ControlPlane {
    pub(crate) config: ControlPlaneConfig,
    pub(crate) images: Images,
    pub(crate) pool: PagePool,
    pub(crate) index: PrefixIndex,
    pub(crate) store: CheckpointStore,
    pub(crate) slots: SlotPool,
    pub(crate) pending: Pending,
    pub(crate) restores: Restores,
    pub(crate) relocations: Vec<Relocation>,
    pub(crate) events: EventLog,
    pub(crate) policy: Box<dyn VictimPolicy>,
    /// Counted here: what is filed and dropped, admitted and lost. Records are counted by the store.
    pub(crate) counters: Counters,
    /// Taken slots that are a residency's; the others are scratch.
    pub(crate) residents: u32,
    pub(crate) batches_in_flight: u32,
    pub(crate) restores_in_flight: u32,
    pub(crate) next_batch: u64,
    /// Resets so far. A residency of an earlier era neither publishes nor files.
    pub(crate) era: u64,
    pub(crate) spare_cargo: Vec<Cargo>,
    pub(crate) spare_tables: Vec<Vec<PageId>>,
    /// Page tables of fenced slots: shares that wait for the slot's receipts.
    pub(crate) fenced_tables: Vec<Vec<PageId>>,
    pub(crate) scratch_pages: Vec<PageId>,
    pub(crate) scratch_plan: Vec<Planned>,
}

/// Whether state is kept, and what an image is then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Images {
    Off,
    On { units: u32, bytes: Bytes, layout: LayoutTag },
}

/// The answer to a request for one more page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Append {
    /// The page is the last of the residency's table.
    Done(PageId),
    /// No page can be had; nothing was given up.
    NoRoom,
}

/// The answer to a filed boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filed {
    /// It waits for the next drain.
    Pending,
    /// The same request had filed the same key; that entry has been replaced.
    Replaced,
    /// The block under its key has been given up for another of the same key, so that the state
    /// would be found by the wrong requests; it is counted as filed and lost with its KV.
    Lost,
    /// Checkpoints are off; nothing is counted.
    Off,
    /// The cache was reset after the request had been admitted, so what it computes may rest on what
    /// the reset was meant to forget; nothing is counted.
    Stale,
}

/// What became of a released slot and its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// They are free.
    Free,
    /// They are free once the batches in flight that touch them are settled.
    Fenced,
}

/// The answer to a request to move a residency to another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Relocate {
    /// The next drain carries the move; the residency already names its new slot.
    Queued {
        /// The slot it leaves, free once that batch is settled.
        from: SlotId,
        /// The slot it gets.
        to: SlotId,
    },
    /// No slot is free.
    NoSlot,
    /// The backend keeps no order, and a batch in flight touches the slot.
    Busy,
}

/// The answer to a request to shrink the pool by its highest page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Retire {
    /// The page was free and has left the pool.
    Retired(PageId),
    /// The page was a request's. Its content has to be copied before the next batch; the residencies
    /// name the other page already.
    Moved {
        /// The page that has left the pool.
        from: PageId,
        /// The page that took over.
        to: PageId,
    },
    /// The page is a raw unit, a batch is in flight, or no page is vacant to move to.
    Busy(PageId),
    /// The pool is empty.
    Empty,
}

impl ControlPlane {
    /// Builds a control plane and allocates everything it is bounded by.
    pub fn new(
        config: ControlPlaneConfig,
        policy: Box<dyn VictimPolicy>,
    ) -> Result<Self, ConfigError> {
        let ControlPlaneConfig { pages, pages_max, slots, block, .. } = config;
        let nameable = Order::CAPACITY_MAX.min(u32::MAX / block.get());
        if pages > pages_max || pages_max.get() > nameable {
            return Err(ConfigError::Pages { pages, pages_max });
        }
        if slots == 0 {
            return Err(ConfigError::NoSlots);
        }
        if slots > Order::CAPACITY_MAX {
            return Err(ConfigError::Slots { slots });
        }
        let images = images(&config)?;
        let units = match images {
            Images::On { units, .. } => Some(Pages::new(units)),
            Images::Off => None,
        };
        let mut spare_cargo = Vec::new();
        spare_cargo.resize_with(4, || Cargo::with_capacity(slots as usize));
        let mut fenced_tables = Vec::new();
        fenced_tables.resize_with(slots as usize, Vec::new);
        Ok(Self {
            images,
            pool: PagePool::new(pages, pages_max),
            index: PrefixIndex::new(block, pages_max),
            store: CheckpointStore::new(units, pages_max),
            slots: SlotPool::new(slots),
            pending: Pending::new(slots),
            restores: Restores::new(slots),
            relocations: Vec::with_capacity(slots as usize),
            events: EventLog::new(config.events_max, block.get()),
            policy,
            counters: Counters::default(),
            residents: 0,
            batches_in_flight: 0,
            restores_in_flight: 0,
            next_batch: 0,
            era: 0,
            spare_cargo,
            spare_tables: Vec::with_capacity(slots as usize),
            fenced_tables,
            scratch_pages: Vec::new(),
            scratch_plan: Vec::new(),
            config,
        })
    }

    /// What it was built from.
    pub const fn config(&self) -> &ControlPlaneConfig {
        &self.config
    }

    /// The placement rule. Where state is not kept, it places nothing.
    pub fn placement(&self) -> Placement {
        let interval = match self.images {
            Images::On { .. } => self.config.interval,
            Images::Off => CheckpointInterval::Off,
        };
        Placement {
            block: self.config.block,
            interval,
            scope: Scope::EVERY,
            room: self.config.runtime.transfer().successor_room(),
            speculation: self.config.speculation,
        }
    }

    /// Units of one image; `None` where state is not copied.
    pub fn units_per_checkpoint(&self) -> Option<Pages> {
        self.config.runtime.spec().map(crate::CheckpointSpec::units_per_checkpoint)
    }

    /// Takes one more page for a residency.
    pub fn append_block(&mut self, residency: &mut Residency) -> Append {
        if self.available().get() == 0 {
            return Append::NoRoom;
        }
        self.take_live_pages(1, &mut residency.pages);
        Append::Done(*residency.pages.last().expect("one page was taken"))
    }

    /// The one door out: normal finish, abort, preemption, failed remote load. Drops the pending
    /// boundary, cancels the queued restore, gives back pages and slot.
    pub fn release(&mut self, residency: Residency) -> Released {
        let slot = residency.slot;
        if let Some(entry) = self.pending.remove(slot) {
            self.counters.forgotten += 1;
            self.index.set_trace(entry.image.key, Trace::Dropped);
        }
        self.cancel_restore(slot);
        self.cancel_relocations_into(slot);
        let mut pages = residency.into_pages();
        self.residents -= 1;
        match self.slots.release(slot, self.config.order) {
            SlotRelease::Free => {
                self.free_pages(&mut pages);
                self.spare_tables.push(pages);
                Released::Free
            }
            SlotRelease::Fenced => {
                self.fenced_tables[slot.index()] = pages;
                Released::Fenced
            }
        }
    }

    /// Moves a residency to another free slot, the lowest. Its pending boundary and its queued
    /// restore move with it.
    pub fn relocate(&mut self, residency: &mut Residency) -> Relocate {
        let from = residency.slot;
        if self.waits(from) {
            return Relocate::Busy;
        }
        let Some(to) = self.slots.depart(from) else { return Relocate::NoSlot };
        residency.slot = to;
        if let Some(entry) = self.pending.remove(from) {
            self.pending.insert(to, entry);
        }
        if let Some(record) = self.restores.remove(from) {
            self.restores.push(to, record);
        }
        self.relocations.push(Relocation { from, to });
        Relocate::Queued { from, to }
    }

    /// Tokens whose forward has been built into some batch.
    pub fn scheduled(&self, residency: &Residency) -> Tokens {
        self.slots.scheduled(residency.slot)
    }

    /// Tokens whose forward is done and reported by [`Self::advance`].
    pub fn computed(&self, residency: &Residency) -> Tokens {
        self.slots.computed(residency.slot)
    }

    /// Reports that the first `computed` tokens are done and publishes the blocks they complete.
    /// `keys` holds at least these tokens. Call it after the batch is settled.
    ///
    /// # Panics
    /// Where `computed` lies before what was reported or beyond what was scheduled; where a batch
    /// that wrote the slot failed; where `keys` are short of it.
    pub fn advance(&mut self, residency: &mut Residency, keys: &PromptKeys, computed: Tokens) {
        let slot = residency.slot;
        let known = self.slots.bytes(slot) == SlotBytes::Known;
        assert!(known, "{slot}: a batch that wrote it failed; its request can only be released");
        let (before, scheduled) = (self.slots.computed(slot), self.slots.scheduled(slot));
        assert!(before <= computed, "{slot}: computed goes back from {before} to {computed}");
        assert!(computed <= scheduled, "{slot}: computed {computed} of {scheduled} scheduled");
        self.slots.set_computed(slot, computed);
        if self.config.caching == Caching::Off || residency.era != self.era {
            return;
        }
        let whole = self.config.block.blocks_floor(computed).index();
        assert!(whole <= keys.blocks(), "{slot}: keys of {} blocks for {whole}", keys.blocks());
        for index in residency.published as usize..whole {
            let block = Block {
                key: keys.key(index),
                parent: keys.parent(index),
                domain: keys.domain(),
                tokens: keys.block_tokens(index),
            };
            let depth = Pages::new(u32::try_from(index + 1).expect("blocks of a request fit u32"));
            self.publish(residency.pages[index], &block, depth);
        }
        residency.published = residency.published.max(u32::try_from(whole).expect("blocks fit"));
    }

    /// Takes back tokens that a verification rejected: what was scheduled is now `accepted`.
    ///
    /// # Panics
    /// Where `accepted` lies before what was computed or beyond what was scheduled.
    pub fn rewind(&mut self, residency: &Residency, accepted: Tokens) {
        let slot = residency.slot;
        let (computed, scheduled) = (self.slots.computed(slot), self.slots.scheduled(slot));
        assert!(computed <= accepted && accepted <= scheduled, "{slot}: rewind to {accepted}");
        self.slots.set_scheduled(slot, accepted);
    }

    /// Reports that a remote load has written pages and slot up to `to`, without a batch: position
    /// and publication move there. A restore of the residency that is still queued is cancelled,
    /// because it would write an older state over the loaded one.
    ///
    /// # Panics
    /// Where `to` lies before what was scheduled.
    pub fn accept_load(&mut self, residency: &mut Residency, keys: &PromptKeys, to: Boundary) {
        let slot = residency.slot;
        let scheduled = self.slots.scheduled(slot);
        assert!(scheduled <= to.tokens(), "{slot}: load to {to:?} behind {scheduled} scheduled");
        self.cancel_restore(slot);
        self.slots.set_scheduled(slot, to.tokens());
        self.advance(residency, keys, to.tokens());
    }

    /// Empties the prefix index and the checkpoints. Queued and in-flight operations stay valid;
    /// none of the four fates moves. Requests that are resident now go on, but nothing they compute
    /// is found by others: a reset may follow new weights, and their state is of the old ones.
    pub fn reset(&mut self) {
        while let Some(slot) = self.pending.first() {
            self.drop_pending(slot);
            self.counters.forgotten += 1;
        }
        let policy = &mut self.policy;
        self.store.clear(&mut self.pool, |checkpoint, key| {
            policy.notice(&Notice::Removed { checkpoint, key, removal: crate::Removal::Reset });
        });
        while let Some(page) = self.pool.oldest_cached() {
            self.pool.vacate(page);
            self.policy.notice(&Notice::Uncached { page });
        }
        self.index.clear();
        self.policy.notice(&Notice::Cleared);
        self.events.cleared();
        self.counters.resets += 1;
        self.era += 1;
    }

    /// Grows the pool by up to `count` pages and says by how many.
    pub fn extend(&mut self, count: Pages) -> Pages {
        self.pool.extend(count)
    }

    /// Shrinks the pool by its highest page where that is nobody's. Where it is a request's, as where
    /// it is a raw unit, the pool stays as it is: no page moves, so nothing has to be copied.
    pub fn retire_free_top(&mut self) -> Retire {
        match self.pool.total().checked_sub(1).map(PageId::new) {
            Some(top) if self.pool.shares(top) > 0 => Retire::Busy(top),
            _ => self.retire_top(&mut []),
        }
    }

    /// Shrinks the pool by its highest page. `residents` are all there are: those that hold the page
    /// name the one it moved to afterwards.
    ///
    /// # Panics
    /// Where the page moves and a residency that holds it is missing from `residents`.
    pub fn retire_top(&mut self, residents: &mut [&mut Residency]) -> Retire {
        if let Some(top) = self.pool.total().checked_sub(1)
            && self.batches_in_flight > 0
        {
            return Retire::Busy(PageId::new(top));
        }
        match self.pool.retire_top() {
            RetireTop::Retired(page) => Retire::Retired(page),
            RetireTop::Evicted(page) => {
                self.policy.notice(&Notice::Uncached { page });
                self.unindex(page);
                Retire::Retired(page)
            }
            RetireTop::Moved { from, to } => {
                self.index.rename(from, to);
                if self.index.key(to).is_some() {
                    self.policy.notice(&Notice::Moved { from, to });
                }
                let tables = residents.iter_mut().map(|residency| &mut residency.pages);
                let mut renamed = 0;
                for page in tables.flatten().filter(|page| **page == from) {
                    *page = to;
                    renamed += 1;
                }
                assert_eq!(renamed, self.pool.shares(to), "every residency with {from} is named");
                Retire::Moved { from, to }
            }
            RetireTop::Refused(page) => Retire::Busy(page),
            RetireTop::Empty => Retire::Empty,
        }
    }

    /// Pages a live request could have now. Exact, O(1), whatever the policy.
    pub fn available(&self) -> Pages {
        Pages::new(self.pool.free() + self.store.evictable_units(None))
    }

    /// Running totals.
    pub fn counters(&self) -> Counters {
        let ended = self.store.ended();
        Counters {
            kept: ended.begun,
            evicted: ended.evicted,
            orphaned_records: ended.orphaned,
            reset: ended.reset,
            failed: ended.failed,
            lost_duplicates: ended.lost_duplicates,
            ..self.counters
        }
    }

    /// What there is now.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            pending: self.pending.len(),
            copying: self.store.copying(),
            ready: self.store.ready(),
            evicting: self.store.evicting(),
            queued_restores: self.restores.len(),
            pages_total: self.pool.total(),
            pages_vacant: self.pool.vacant(),
            pages_cached: self.pool.cached(),
            pages_held: self.pool.held(),
            pages_live: self.pool.live(),
            pages_raw: self.pool.raw(),
            pages_available: self.available().get(),
            slots_free: self.slots.free(),
            slots_fenced: self.slots.fenced(),
            blocks_indexed: self.index.len(),
        }
    }

    /// What the policy knows of itself, where it keeps anything.
    pub fn policy_report(&self) -> Option<PolicyReport> {
        self.policy.report()
    }

    /// Bytes that the prefix index holds for its lifetime.
    pub fn index_bytes(&self) -> Bytes {
        Bytes::new(self.index.bytes())
    }

    /// Takes the KV events since the last call.
    pub fn events(&mut self) -> EventDrain<'_> {
        self.events.drain()
    }

    /// The block that a lookup finds under a key: parent, domain and tokens.
    pub fn block_under(&self, key: ContentKey) -> Option<(Option<ContentKey>, DomainTag, &[u32])> {
        let Block { parent, domain, tokens, .. } = self.index.block(self.index.page(key)?)?;
        Some((parent, domain, tokens))
    }

    /// Every block that a lookup finds: key, parent, domain and tokens, in the order of the pages.
    pub fn indexed(
        &self,
    ) -> impl Iterator<Item = (ContentKey, Option<ContentKey>, DomainTag, &[u32])> {
        self.index.pages().filter_map(|page| {
            let Block { key, parent, domain, tokens } = self.index.block(page)?;
            Some((key, parent, domain, tokens))
        })
    }

    /// Makes a page the one that is found for a block.
    fn publish(&mut self, page: PageId, block: &Block<'_>, depth: Pages) {
        let trace = self.trace_unfound(block.key);
        let mut published = self.index.publish(page, block, trace);
        if let Publish::Collision { holder } = published {
            self.counters.blocks_collided += 1;
            self.unindex(holder);
            self.drop_content(holder);
            let trace = self.trace_unfound(block.key);
            published = self.index.publish(page, block, trace);
        }
        match published {
            Publish::New => {
                self.events.stored(block.key, block.parent, block.domain, block.tokens);
                let (key, parent_key) = (block.key, block.parent);
                let parent = parent_key.and_then(|key| self.index.page(key));
                self.policy.notice(&Notice::Found { page, key, parent_key, parent, depth });
            }
            Publish::Moved { from } => {
                self.counters.blocks_duplicate += 1;
                self.policy.notice(&Notice::Moved { from, to: page });
                self.drop_content(from);
            }
            Publish::Collision { holder } => panic!("{holder} was unindexed"),
        }
    }

    /// What is known of a key that is not found: its boundary may be filed, and its store under way,
    /// before its block is reported.
    fn trace_unfound(&self, key: ContentKey) -> Trace {
        let filed = self.pending.with_key(key).is_some() || self.store.is_copying(key);
        if filed { Trace::Filed } else { Trace::Never }
    }

    /// A page is no longer found by any key: a cached one has no content left.
    fn drop_content(&mut self, page: PageId) {
        if self.pool.is_cached(page) {
            self.pool.vacate(page);
            self.policy.notice(&Notice::Uncached { page });
        }
    }

    /// Gives up a share of each page, the last block first, so that of a chain the tail is given up
    /// before what it hangs on.
    pub(crate) fn free_pages(&mut self, pages: &mut Vec<PageId>) {
        while let Some(page) = pages.pop() {
            let block = self.index.block(page);
            let afterlife = if block.is_some() { Afterlife::Cached } else { Afterlife::Vacant };
            let freed = self.pool.unshare(page, afterlife);
            if let (Some(Block { key, parent, .. }), Unshare::Freed) = (block, freed) {
                self.policy.notice(&Notice::Cached { page, key, parent });
            }
        }
    }

    /// Cancels the restore into a slot that no batch has carried yet, if there is one.
    fn cancel_restore(&mut self, slot: SlotId) {
        if let Some(record) = self.restores.remove(slot) {
            self.unpin(record);
            self.counters.restores_cancelled += 1;
        }
    }

    /// Gives a pin back.
    pub(crate) fn unpin(&mut self, record: RecordIndex) {
        let (checkpoint, key) = (self.store.id(record), self.store.image(record).key);
        self.store.unpin(record, &mut self.pool);
        self.policy.notice(&Notice::Unpinned { checkpoint, key });
    }

    /// Cancels the moves that would write a slot whose tenant goes, and frees what they would read.
    fn cancel_relocations_into(&mut self, slot: SlotId) {
        let mut target = slot;
        while let Some(at) = self.relocations.iter().position(|move_| move_.to == target) {
            let Relocation { from, .. } = self.relocations.remove(at);
            self.slots.cancel_departure(from, self.config.order);
            target = from;
        }
    }

    /// Most units that may be in writing at once: never below one image.
    pub(crate) fn copying_max(&self) -> u32 {
        let asked = self.config.copying_max.map_or(self.pool.total() / 8, Pages::get);
        asked.max(self.store.units_per_record())
    }

    pub(crate) fn next_batch_id(&mut self) -> BatchId {
        self.next_batch += 1;
        BatchId::new(self.next_batch)
    }

    pub(crate) const fn order(&self) -> BackendOrder {
        self.config.order
    }
}

/// Checks that images are possible, and says what one is.
fn images(config: &ControlPlaneConfig) -> Result<Images, ConfigError> {
    let spec = match (config.runtime.transfer(), config.runtime.spec()) {
        (StateTransfer::Copy { .. }, Some(spec)) => spec,
        (StateTransfer::Fork { .. }, _) => return Err(ConfigError::Fork),
        (StateTransfer::Copy { .. } | StateTransfer::None, _) => return Ok(Images::Off),
    };
    if config.pipeline_stages != 1 {
        return Err(ConfigError::CopyAcrossStages { stages: config.pipeline_stages });
    }
    if config.schedulers == Schedulers::SeparatePrefillDecode {
        return Err(ConfigError::CopyAcrossSchedulers);
    }
    if config.caching == Caching::Off || config.interval == CheckpointInterval::Off {
        return Ok(Images::Off);
    }
    let units = spec.units_per_checkpoint();
    if units > config.pages {
        return Err(ConfigError::ImageExceedsPool { units, pages: config.pages });
    }
    Ok(Images::On { units: units.get(), bytes: spec.image_bytes(), layout: spec.layout().tag() })
}
