//! Making room: victims are chosen by the policy and given up here, whole and in step.
//!
//! Pages for live requests have been promised by the gate, so they are always found; a policy that
//! declines is overruled. Pages for an image are a plan first: only a plan that is complete is
//! carried out, so a declined store has cost nothing.

use std::hint::black_box;

use statepages_page::{ContentKey, PageId, SlotId};

use crate::checkpoint::{RecordIndex, Unindexed};
use crate::control::{ControlPlane, Images};
use crate::index::Trace;
use crate::pending::Source;
use crate::slots::SlotRelease;
use crate::victim::{
    Notice, Purpose, ReferenceOrder, Removal, StorePurpose, Victim, VictimPolicy, VictimView,
};

/// A victim of a plan, with the record that goes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    victim: Victim,
    record: Option<RecordIndex>,
}

/// Whether an image's units can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Room {
    /// So many pages are vacant now.
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

    /// Makes `units` pages vacant.
    pub(crate) fn make_room(&mut self, units: u32, image: StorePurpose) -> Room {
        if self.pool.vacant() >= units {
            return Room::Made;
        }
        let mut plan = std::mem::take(&mut self.scratch_plan);
        let mut gained = self.pool.vacant();
        let mut room = Room::Made;
        loop {
            let Some(victim) = self.choose(Purpose::Store(image)) else {
                room = Room::Declined;
                break;
            };
            if let (Victim::Page(page), true) = (victim, plan.is_empty()) {
                self.fetch_from(page, units);
            }
            let planned = self.plan(victim);
            plan.push(planned);
            self.set_aside(planned);
            gained += self.gain(planned);
            if gained >= units {
                break;
            }
        }
        match room {
            Room::Made => {
                self.carry_out(&plan);
                assert!(self.pool.vacant() >= units, "a complete plan makes the room it planned");
            }
            Room::Declined => plan.iter().rev().for_each(|&planned| self.put_back(planned)),
        }
        plan.clear();
        self.scratch_plan = plan;
        room
    }

    /// The policy's next victim; for live requests its refusal does not count.
    fn choose(&mut self, purpose: Purpose) -> Option<Victim> {
        let view = VictimView {
            pool: &self.pool,
            store: &self.store,
            index: &self.index,
            block: self.config.block,
            protected: None,
        };
        let victim = match (self.policy.next_victim(&view, purpose), purpose) {
            (None, Purpose::Live) => ReferenceOrder.next_victim(&view, purpose),
            (answer, _) => answer,
        }?;
        assert!(view.is_eligible(victim), "the policy chose {victim:?}, which is not eligible");
        Some(victim)
    }

    /// The record that goes with a cached page and is free to go at once.
    fn record_under(&self, page: PageId) -> Option<RecordIndex> {
        if self.index.trace(page) == Trace::Never {
            return None;
        }
        let record = self.store.lookup(self.index.key(page)?)?;
        self.store.is_unpinned_ready(record).then_some(record)
    }

    /// What giving up a victim would free.
    fn plan(&self, victim: Victim) -> Planned {
        let record = match victim {
            Victim::Checkpoint(id) => Some(self.store.index_of(id)),
            Victim::Page(page) => self.record_under(page),
        };
        Planned { victim, record }
    }

    /// Pages that a planned victim makes vacant.
    fn gain(&self, planned: Planned) -> u32 {
        let page = match planned.victim {
            Victim::Checkpoint(_) => 0,
            Victim::Page(_) => 1,
        };
        page + planned.record.map_or(0, |_| self.store.units_per_record())
    }

    /// Takes a planned victim out of sight of the next choice.
    fn set_aside(&mut self, planned: Planned) {
        if let Some(record) = planned.record {
            self.store.set_aside(record);
        }
        if let Victim::Page(page) = planned.victim {
            self.pool.set_aside(page);
        }
    }

    /// Undoes the latest [`Self::set_aside`].
    fn put_back(&mut self, planned: Planned) {
        if let Victim::Page(page) = planned.victim {
            self.pool.put_back(page);
        }
        if let Some(record) = planned.record {
            self.store.put_back(record);
        }
    }

    /// Gives up the victims of a complete plan, in its order.
    fn carry_out(&mut self, plan: &[Planned]) {
        for record in plan.iter().rev().filter_map(|planned| planned.record) {
            self.store.put_back(record);
        }
        for planned in plan {
            match planned.victim {
                Victim::Page(page) => {
                    self.pool.vacate_aside(page);
                    self.forget(page);
                }
                Victim::Checkpoint(_) => self.give_up(planned.victim),
            }
        }
    }

    /// Reads, for the sake of the data caches, what giving up `page` and the cached pages freed next
    /// after it would read: the usual continuation of a plan. Read here, they are waited for
    /// together; read by one choice after the other, nearly one by one.
    fn fetch_from(&self, page: PageId, count: u32) {
        for page in self.pool.cached_from(page).take(count as usize) {
            black_box((self.pool.is_cached(page), self.index.trace(page)));
        }
    }

    /// Gives up an eligible victim.
    pub(crate) fn give_up(&mut self, victim: Victim) {
        match victim {
            Victim::Page(page) => {
                self.pool.vacate(page);
                self.forget(page);
            }
            Victim::Checkpoint(checkpoint) => {
                let record = self.store.index_of(checkpoint);
                let key = self.store.image(record).key;
                self.index.set_trace(key, Trace::Evicted);
                self.store.evict(record, &mut self.pool);
                let removal = Removal::Evicted;
                self.policy.notice(&Notice::Removed { checkpoint, key, removal });
            }
        }
    }

    /// A page that was cached has no content any more.
    fn forget(&mut self, page: PageId) {
        self.policy.notice(&Notice::Uncached { page });
        self.unindex(page);
    }

    /// Takes a page's block out of the index, and with its key all that hangs on it.
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
