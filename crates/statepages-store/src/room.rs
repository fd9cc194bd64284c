//! Making room: victims are chosen by the policy and given up here, whole and in step.
//!
//! Pages for live requests have been promised by the gate, so they are always found; a policy that
//! declines is overruled. Pages for an image are a plan first: only a plan that is complete is
//! carried out, so a declined store has cost nothing.

use statepages_page::{ContentKey, PageId, SlotId};

use crate::checkpoint::{CheckpointStore, RecordIndex, Unindexed};
use crate::config::ControlPlaneConfig;
use crate::control::{ControlPlane, Images};
use crate::index::{PrefixIndex, Trace};
use crate::pending::Source;
use crate::pool::PagePool;
use crate::slots::SlotRelease;
use crate::victim::{
    Notice, Purpose, ReferenceOrder, Removal, StorePurpose, Victim, VictimPolicy, VictimView,
};

/// Victims of a plan. Their pages are listed beside it, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planned {
    /// So many cached pages with nothing on their keys.
    Bare(u32),
    /// A cached page on whose key something hangs, or hung: the record, where that is free to go.
    Page(Option<RecordIndex>),
    /// A record.
    Record(RecordIndex),
}

/// Whether an image's units can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Room {
    /// The pages are held.
    Made,
    /// The policy declined; nothing has changed.
    Declined,
}

impl ControlPlane {
    /// Takes pages that the gate has promised and appends them, live, to a page table.
    pub(crate) fn take_live_pages(&mut self, count: u32, table: &mut Vec<PageId>) {
        for _ in 0..count {
            let page = loop {
                if let Some(page) = self.pool.hold_vacant() {
                    break page;
                }
                let victim = self.choose(Purpose::Live).expect("the gate has promised the page");
                self.give_up(victim);
            };
            self.pool.share(page);
            table.push(page);
        }
    }

    /// Whether an image could be stored now and every resident request still have one more page
    /// without waiting for a receipt. `taken` pages are about to be taken, `joining` requests about
    /// to become resident, and `protected` is about to be pinned.
    pub(crate) fn image_fits(
        &self,
        taken: u32,
        joining: u32,
        protected: Option<RecordIndex>,
    ) -> bool {
        let Images::On { units, .. } = self.images else { return false };
        let available = self.pool.free() + self.store.evictable_units(protected);
        u64::from(available)
            >= u64::from(taken) + u64::from(units) + u64::from(self.residents + joining)
    }

    /// Takes the pages for an image, held and in order: the lowest of those that are vacant and those
    /// that are given up for it. `pages` is empty before, and stays so where the policy declines.
    pub(crate) fn make_room(
        &mut self,
        units: u32,
        image: StorePurpose,
        pages: &mut Vec<PageId>,
    ) -> Room {
        if self.pool.vacant() < units {
            let mut plan = std::mem::take(&mut self.scratch_plan);
            let room = self.plan_room(units, image, &mut plan, pages);
            match room {
                Room::Made => self.carry_out(&plan, pages),
                Room::Declined => self.put_back(&plan, pages),
            }
            plan.clear();
            self.scratch_plan = plan;
            if room == Room::Declined {
                return room;
            }
        }
        self.pool.hold_lowest(units, pages);
        Room::Made
    }

    /// Sets victims aside, out of sight of the next choice, until they and the vacant pages are enough
    /// for an image.
    fn plan_room(
        &mut self,
        units: u32,
        image: StorePurpose,
        plan: &mut Vec<Planned>,
        pages: &mut Vec<PageId>,
    ) -> Room {
        let purpose = Purpose::Store(image);
        let mut gained = self.pool.vacant();
        while gained < units {
            let first = pages.len();
            self.choose_pages(purpose, units - gained, pages);
            if pages.len() == first {
                match self.choose(purpose) {
                    None => return Room::Declined,
                    Some(Victim::Page(page)) => pages.push(page),
                    Some(Victim::Checkpoint(id)) => {
                        let record = self.store.index_of(id);
                        self.store.set_aside(record);
                        plan.push(Planned::Record(record));
                        gained += self.store.units_per_record();
                        continue;
                    }
                }
            }
            gained += self.set_aside(first, plan, pages);
        }
        Room::Made
    }

    /// The policy's next victims, as far as they are cached pages. What giving them up reads is waited
    /// for together.
    fn choose_pages(&mut self, purpose: Purpose, most: u32, pages: &mut Vec<PageId>) {
        let first = pages.len();
        let view = victim_view(&self.pool, &self.store, &self.index, &self.config);
        self.policy.next_pages(&view, purpose, most as usize, pages);
        pages.truncate(first + most as usize);
        for &page in &pages[first..] {
            let victim = Victim::Page(page);
            assert!(view.is_eligible(victim), "the policy chose {victim:?}, which is not eligible");
        }
        self.index.fetch(&pages[first..]);
    }

    /// The policy's next victim; for live requests its refusal does not count.
    fn choose(&mut self, purpose: Purpose) -> Option<Victim> {
        let view = victim_view(&self.pool, &self.store, &self.index, &self.config);
        let victim = match (self.policy.next_victim(&view, purpose), purpose) {
            (None, Purpose::Live) => ReferenceOrder.next_victim(&view, purpose),
            (answer, _) => answer,
        }?;
        assert!(view.is_eligible(victim), "the policy chose {victim:?}, which is not eligible");
        Some(victim)
    }

    /// Sets aside the pages from `first` on, each with the record that goes by it, and answers how many
    /// pages are gained. The list ends at a page with a record: what goes next may be another choice.
    fn set_aside(&mut self, first: usize, plan: &mut Vec<Planned>, pages: &mut Vec<PageId>) -> u32 {
        let (mut at, mut gained) = (first, 0);
        while at < pages.len() {
            let is_bare = |&&page: &&PageId| self.index.trace(page) == Trace::Never;
            let bare = pages[at..].iter().take_while(is_bare).count();
            if bare > 0 {
                self.pool.set_aside_all(&pages[at..at + bare]);
                at += bare;
                let bare = u32::try_from(bare).expect("pages of an image fit u32");
                plan.push(Planned::Bare(bare));
                gained += bare;
                continue;
            }
            let record = self.record_under(pages[at]);
            self.pool.set_aside(pages[at]);
            at += 1;
            plan.push(Planned::Page(record));
            gained += 1;
            if let Some(record) = record {
                self.store.set_aside(record);
                gained += self.store.units_per_record();
                break;
            }
        }
        pages.truncate(at);
        gained
    }

    /// The record that goes with a cached page and is free to go at once.
    fn record_under(&self, page: PageId) -> Option<RecordIndex> {
        let record = self.store.lookup(self.index.key(page)?)?;
        self.store.is_unpinned_ready(record).then_some(record)
    }

    /// Undoes a plan, the latest victim first, and leaves `pages` empty.
    fn put_back(&mut self, plan: &[Planned], pages: &mut Vec<PageId>) {
        for planned in plan.iter().rev() {
            let left = pages.len() - planned.pages();
            for page in pages.drain(left..).rev() {
                self.pool.put_back(page);
            }
            if let Some(record) = planned.record() {
                self.store.put_back(record);
            }
        }
    }

    /// Gives up the victims of a complete plan, in its order. Their pages stay held.
    fn carry_out(&mut self, plan: &[Planned], pages: &[PageId]) {
        for record in plan.iter().rev().filter_map(|planned| planned.record()) {
            self.store.put_back(record);
        }
        let mut left = pages;
        for planned in plan {
            let (own, behind) = left.split_at(planned.pages());
            left = behind;
            match *planned {
                Planned::Bare(_) => self.forget_bare(own),
                Planned::Page(_) => self.forget(own[0]),
                Planned::Record(record) => self.evict(record),
            }
        }
    }

    /// Gives up an eligible victim.
    pub(crate) fn give_up(&mut self, victim: Victim) {
        match victim {
            Victim::Page(page) => {
                self.pool.vacate(page);
                self.forget(page);
            }
            Victim::Checkpoint(checkpoint) => self.evict(self.store.index_of(checkpoint)),
        }
    }

    /// Gives up an eligible record.
    fn evict(&mut self, record: RecordIndex) {
        let (checkpoint, key) = (self.store.id(record), self.store.image(record).key);
        self.index.set_trace(key, Trace::Evicted);
        self.store.evict(record, &mut self.pool);
        let removal = Removal::Evicted;
        self.policy.notice(&Notice::Removed { checkpoint, key, removal });
    }

    /// Pages that were cached have no content any more, and nothing hangs on their keys.
    fn forget_bare(&mut self, pages: &[PageId]) {
        for &page in pages {
            let (key, trace) = self.index.remove(page).expect("a cached page is found");
            assert_eq!(trace, Trace::Never, "{page} is bare");
            self.events.removed(key);
        }
        self.policy.given_up(pages);
    }

    /// A page that was cached has no content any more.
    fn forget(&mut self, page: PageId) {
        self.policy.notice(&Notice::Uncached { page });
        self.unindex(page);
    }

    /// Takes a page's block out of the index, and with its key all that hangs on it.
    #[inline]
    pub(crate) fn unindex(&mut self, page: PageId) {
        if let Some((key, trace)) = self.index.remove(page) {
            self.events.removed(key);
            if trace != Trace::Never {
                self.lose_key(key);
            }
            self.policy.notice(&Notice::Lost { page });
        }
    }

    /// A key is no longer found: its pending boundaries and its record go, counted once.
    fn lose_key(&mut self, key: ContentKey) {
        let mut lost = false;
        while let Some(slot) = self.pending.with_key(key) {
            self.drop_pending(slot);
            self.counters.unfiled += 1;
            lost = true;
        }
        match self.store.unindex(key, &mut self.pool) {
            Unindexed::Nothing => {}
            Unindexed::Copying => lost = true,
            Unindexed::Ready(checkpoint) => {
                let removal = Removal::Orphaned;
                self.policy.notice(&Notice::Removed { checkpoint, key, removal });
                lost = true;
            }
        }
        self.counters.orphaned_keys += u64::from(lost);
    }

    /// Drops a pending boundary, and frees the scratch slot it owns.
    pub(crate) fn drop_pending(&mut self, slot: SlotId) {
        let entry = self.pending.remove(slot).expect("the slot has a pending boundary");
        match entry.source {
            Source::Own => {}
            Source::Scratch => match self.slots.release(slot, self.order()) {
                // A scratch slot has no pages; its fence ends by itself.
                SlotRelease::Free | SlotRelease::Fenced => {}
            },
        }
    }
}

impl Planned {
    /// How many pages of the list are its own.
    fn pages(self) -> usize {
        match self {
            Self::Bare(count) => count as usize,
            Self::Page(_) => 1,
            Self::Record(_) => 0,
        }
    }

    /// The record that goes.
    fn record(self) -> Option<RecordIndex> {
        match self {
            Self::Bare(_) => None,
            Self::Page(record) => record,
            Self::Record(record) => Some(record),
        }
    }
}

/// What a policy may look at, of a control plane whose policy is borrowed itself.
fn victim_view<'a>(
    pool: &'a PagePool,
    store: &'a CheckpointStore,
    index: &'a PrefixIndex,
    config: &ControlPlaneConfig,
) -> VictimView<'a> {
    VictimView { pool, store, index, block: config.block, protected: None }
}
