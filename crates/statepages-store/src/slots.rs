//! The slot pool of the `copy` class: a pure allocator with fences. It knows no checkpoint.
//!
//! ```text
//!          take                    release, nothing in flight or backend ordered
//!   Free ---------> Taken ----------------------------------------------------> Free
//!    ^               |  |   release, batches in flight, backend unordered
//!    |               |  +---------------------------------------------> Fenced
//!    |               |      depart (its tenant moved to another slot)     |
//!    |               +--------------------------------------------> Departing
//!    |                                                                    |  touch (batch built)
//!    +---------------- last batch in flight settled ----------- Fenced <--+
//! ```
//!
//! Invariants:
//! - a slot is taken lowest id first, by one tenancy at a time; tenancies are never reused, so word
//!   of a batch never reaches a later tenant;
//! - a fenced slot is not free before every batch that touched it under its tenancy is settled;
//! - a departing slot is not free before the batch that carries its relocation is settled;
//! - after a failed batch the bytes of the slots it wrote are unknown, also where a tenant has
//!   moved on since; unknown bytes become known only by a new tenant.
//!
//! Called by the control plane alone.

use statepages_page::{BatchId, SlotId, Tokens};

use crate::config::BackendOrder;
use crate::id_set::IdSet;
use crate::receipt::Proof;

/// Slots and their tenants.
#[derive(Debug)]
pub(crate) struct SlotPool {
    slots: Vec<Slot>,
    free: IdSet,
    fenced: u32,
    next_tenancy: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    tenancy: u64,
    /// Batches that touch the slot under this tenancy and are not settled.
    in_flight: u32,
    last_touch: Option<BatchId>,
    bytes: SlotBytes,
    scheduled: Tokens,
    computed: Tokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Taken,
    Departing { to: SlotId, tenancy: u64 },
    Fenced { moved: Option<(SlotId, u64)> },
}

/// Whether a slot's bytes are what its positions say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotBytes {
    /// They are, once the batches built so far have run.
    Known,
    /// A batch that wrote them failed.
    Unknown,
}

/// What became of a slot that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum SlotRelease {
    Free,
    Fenced,
}

/// What the word of a batch meant for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Untouch {
    /// Somebody holds it, or another batch is in flight, or the tenancy is over.
    Nothing,
    /// It was fenced and is free.
    Freed,
}

impl SlotPool {
    pub(crate) fn new(slots: u32) -> Self {
        let mut free = IdSet::new(slots);
        for id in 0..slots {
            free.insert(id);
        }
        let blank = Slot {
            state: State::Free,
            tenancy: 0,
            in_flight: 0,
            last_touch: None,
            bytes: SlotBytes::Known,
            scheduled: Tokens::ZERO,
            computed: Tokens::ZERO,
        };
        Self { slots: vec![blank; slots as usize], free, fenced: 0, next_tenancy: 0 }
    }

    pub(crate) const fn free(&self) -> u32 {
        self.free.len()
    }

    /// Fenced and departing slots.
    pub(crate) const fn fenced(&self) -> u32 {
        self.fenced
    }

    /// Takes the lowest free slot for a tenant whose state stands at `at`.
    pub(crate) fn take(&mut self, at: Tokens) -> Option<SlotId> {
        let id = self.free.first()?;
        self.free.remove(id);
        self.slots[id as usize] = Slot {
            state: State::Taken,
            tenancy: self.next_tenancy,
            in_flight: 0,
            last_touch: None,
            bytes: SlotBytes::Known,
            scheduled: at,
            computed: at,
        };
        self.next_tenancy += 1;
        Some(SlotId::new(id))
    }

    /// Gives a slot back.
    pub(crate) fn release(&mut self, slot: SlotId, order: BackendOrder) -> SlotRelease {
        let entry = self.taken(slot);
        if order == BackendOrder::Unordered && entry.in_flight > 0 {
            entry.state = State::Fenced { moved: None };
            self.fenced += 1;
            return SlotRelease::Fenced;
        }
        self.set_free(slot);
        SlotRelease::Free
    }

    /// Fences a slot that a batch being built touches for the last time: a scratch slot whose store it
    /// carries.
    pub(crate) fn retire(&mut self, slot: SlotId) {
        let entry = self.taken(slot);
        assert!(entry.in_flight > 0, "{slot} is touched by the batch that ends it");
        entry.state = State::Fenced { moved: None };
        self.fenced += 1;
    }

    /// Moves a tenant to the lowest free slot. The slot it leaves waits for the batch that carries
    /// the relocation.
    pub(crate) fn depart(&mut self, from: SlotId) -> Option<SlotId> {
        let Slot { scheduled, computed, bytes, .. } = *self.taken(from);
        let to = self.take(scheduled)?;
        let target = &mut self.slots[to.index()];
        target.computed = computed;
        target.bytes = bytes;
        let tenancy = target.tenancy;
        self.slots[from.index()].state = State::Departing { to, tenancy };
        self.fenced += 1;
        Some(to)
    }

    /// A batch that is being built carries the relocation of a departing slot, and will be touching
    /// it.
    pub(crate) fn carry(&mut self, from: SlotId) {
        let entry = &mut self.slots[from.index()];
        let State::Departing { to, tenancy } = entry.state else {
            panic!("{from} is not departing: {:?}", entry.state);
        };
        entry.state = State::Fenced { moved: Some((to, tenancy)) };
    }

    /// The relocation of a departing slot was cancelled, because its tenant is gone.
    pub(crate) fn cancel_departure(&mut self, from: SlotId, order: BackendOrder) {
        let entry = &mut self.slots[from.index()];
        assert!(matches!(entry.state, State::Departing { .. }), "{from} is departing");
        if order == BackendOrder::Unordered && entry.in_flight > 0 {
            entry.state = State::Fenced { moved: None };
        } else {
            self.fenced -= 1;
            self.set_free(from);
        }
    }

    /// A batch that is being built touches a slot. Answers the tenancy where it is the batch's
    /// first touch, which the receipt then has to return.
    pub(crate) fn touch(&mut self, slot: SlotId, batch: BatchId) -> Option<u64> {
        let entry = &mut self.slots[slot.index()];
        assert_ne!(entry.state, State::Free, "{slot} has a tenant, or had one until this batch");
        if entry.last_touch == Some(batch) {
            return None;
        }
        entry.last_touch = Some(batch);
        entry.in_flight += 1;
        Some(entry.tenancy)
    }

    /// A batch that touched a slot is settled.
    pub(crate) fn untouch(&mut self, slot: SlotId, tenancy: u64) -> Untouch {
        let entry = &mut self.slots[slot.index()];
        if entry.tenancy != tenancy || entry.state == State::Free {
            return Untouch::Nothing;
        }
        entry.in_flight -= 1;
        if entry.in_flight == 0 && matches!(entry.state, State::Fenced { .. }) {
            self.fenced -= 1;
            self.set_free(slot);
            return Untouch::Freed;
        }
        Untouch::Nothing
    }

    /// A batch that wrote a slot failed: its bytes are unknown, and so are those of the slot its
    /// tenant has moved to since. Answers the slot that now holds the tenant, if any does.
    pub(crate) fn poison(&mut self, slot: SlotId, tenancy: u64) {
        let entry = &mut self.slots[slot.index()];
        if entry.tenancy != tenancy {
            return;
        }
        entry.bytes = SlotBytes::Unknown;
        match entry.state {
            State::Departing { to, tenancy } | State::Fenced { moved: Some((to, tenancy)) } => {
                self.poison(to, tenancy);
            }
            State::Free | State::Taken | State::Fenced { moved: None } => {}
        }
    }

    /// The tenancy that a slot has now, or had last.
    pub(crate) fn tenancy(&self, slot: SlotId) -> u64 {
        self.slots[slot.index()].tenancy
    }

    pub(crate) fn is_taken(&self, slot: SlotId) -> bool {
        self.slots[slot.index()].state == State::Taken
    }

    pub(crate) fn bytes(&self, slot: SlotId) -> SlotBytes {
        self.slots[slot.index()].bytes
    }

    pub(crate) fn scheduled(&self, slot: SlotId) -> Tokens {
        self.slots[slot.index()].scheduled
    }

    pub(crate) fn computed(&self, slot: SlotId) -> Tokens {
        self.slots[slot.index()].computed
    }

    /// What shows, now, that the slot's state at `at` is what it is taken for.
    pub(crate) fn proof(&self, slot: SlotId, at: Tokens) -> Proof {
        let entry = &self.slots[slot.index()];
        if entry.computed >= at {
            Proof::Reported
        } else {
            Proof::Awaited { slot, tenancy: entry.tenancy }
        }
    }

    /// Whether the tenant is still there and has reported `at`.
    pub(crate) fn has_reported(&self, slot: SlotId, tenancy: u64, at: Tokens) -> bool {
        let entry = &self.slots[slot.index()];
        entry.tenancy == tenancy
            && entry.state == State::Taken
            && entry.bytes == SlotBytes::Known
            && entry.computed >= at
    }

    /// Whether no batch in flight touches the slot.
    pub(crate) fn is_idle(&self, slot: SlotId) -> bool {
        self.slots[slot.index()].in_flight == 0
    }

    /// Batches in flight that touch the slot.
    pub(crate) fn in_flight(&self, slot: SlotId) -> u32 {
        self.slots[slot.index()].in_flight
    }

    /// Batches in flight that touch the slot, `batch` left out.
    pub(crate) fn in_flight_beside(&self, slot: SlotId, batch: BatchId) -> u32 {
        let entry = &self.slots[slot.index()];
        entry.in_flight - u32::from(entry.last_touch == Some(batch))
    }

    pub(crate) fn set_scheduled(&mut self, slot: SlotId, to: Tokens) {
        self.taken(slot).scheduled = to;
    }

    pub(crate) fn set_computed(&mut self, slot: SlotId, to: Tokens) {
        self.taken(slot).computed = to;
    }

    fn taken(&mut self, slot: SlotId) -> &mut Slot {
        let entry = &mut self.slots[slot.index()];
        assert_eq!(entry.state, State::Taken, "{slot} has a tenant");
        entry
    }

    fn set_free(&mut self, slot: SlotId) {
        self.slots[slot.index()].state = State::Free;
        self.free.insert(slot.raw());
    }

    /// Audits the counts in O(n) and answers the number of taken slots.
    pub(crate) fn check(&self) -> u32 {
        let mut counts = [0u32; 3];
        for (id, slot) in (0u32..).zip(&self.slots) {
            counts[match slot.state {
                State::Free => 0,
                State::Taken => 1,
                State::Departing { .. } | State::Fenced { .. } => 2,
            }] += 1;
            assert_eq!(self.free.contains(id), slot.state == State::Free, "s{id} in the free set");
            assert!(slot.computed <= slot.scheduled, "s{id} computed beyond what was scheduled");
        }
        assert_eq!(counts[0], self.free.len());
        assert_eq!(counts[2], self.fenced);
        counts[1]
    }
}

#[cfg(test)]
mod tests;
