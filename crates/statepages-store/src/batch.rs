//! Filing boundaries, building batches, taking their word.
//!
//! Order in one drain: relocations, then stores in the order they were filed, then restores in the
//! order they were queued. A drain happens once per batch that really runs, so a boundary that is
//! filed while nothing runs waits, and so do a queued restore and its pin. Where the backend keeps no
//! order, a boundary also waits while another batch in flight touches its slot.

use statepages_page::{
    BatchId, Boundary, ContentKey, MaintenanceOps, PageId, Relocation, RestoreOp, SlotId, StoreOp,
    Tokens,
};

use crate::checkpoint::{Image, Written};
use crate::config::BackendOrder;
use crate::control::{ControlPlane, Filed, Images, Released};
use crate::index::Trace;
use crate::pending::{Entry, Source};
use crate::placement::KeepReason;
use crate::receipt::{Cargo, Outcome, Proof, Receipt, StoreTicket};
use crate::residency::{Residency, Scratch};
use crate::room::Room;
use crate::slots::{SlotBytes, SlotRelease, Untouch};
use crate::victim::{Notice, StorePurpose};

/// How a batch touches a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Where a drained boundary goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Store,
    Superseded,
    Unfiled,
    SlotGone,
    Duplicate,
    NoRoom,
}

impl ControlPlane {
    /// Files a boundary, to be stored from the residency's slot by the next drain. It is dropped
    /// there if the slot no longer stands at `boundary`. A newer boundary supersedes an older one.
    ///
    /// The forward that ends at `boundary` may still be in flight, so that the next batch can be
    /// built before its results are posted. It then has to be reported ([`Self::advance`]) before
    /// the batch that carries the store is settled, or the store is never visible.
    pub fn file(
        &mut self,
        residency: &Residency,
        boundary: Boundary,
        key: ContentKey,
        reason: KeepReason,
    ) -> Filed {
        if !self.keeps_state() {
            return Filed::Off;
        }
        if residency.era != self.era {
            return Filed::Stale;
        }
        let blocks = self.config.block.blocks_ceil(boundary.tokens()).index();
        let own = residency.pages.get(blocks.wrapping_sub(1)).copied();
        let own = own.unwrap_or_else(|| panic!("{}: no page ends at {boundary:?}", residency.slot));
        let reported = self.slots.computed(residency.slot) >= boundary.tokens();
        if reported && !self.index.is_block_of(own, key) {
            self.counters.filed += 1;
            self.counters.unfiled += 1;
            self.counters.orphaned_keys += 1;
            return Filed::Lost;
        }
        let image = Image { key, boundary, reason, request: residency.request };
        self.file_entry(residency.slot, Entry { image, source: Source::Own })
    }

    /// Takes a slot for a forward to write an interior state into; `None` where no slot is free.
    pub fn reserve_scratch(
        &mut self,
        residency: &Residency,
        boundary: Boundary,
    ) -> Option<Scratch> {
        let slot = self.slots.take(boundary.tokens())?;
        Some(Scratch { request: residency.request, slot, boundary, era: residency.era })
    }

    /// Files the boundary whose state the scratch slot holds. The slot is free again once the batch
    /// that carries the store is settled. The filed boundary outlives its request.
    ///
    /// # Panics
    /// Where a batch that writes the slot is not settled.
    pub fn file_scratch(&mut self, scratch: Scratch, key: ContentKey, reason: KeepReason) -> Filed {
        let era = scratch.era;
        let (request, slot, boundary) = scratch.end();
        if !self.keeps_state() || era != self.era {
            self.release_slot(slot);
            return if era == self.era { Filed::Off } else { Filed::Stale };
        }
        assert!(
            self.slots.is_idle(slot),
            "{slot} is filed before the batch that writes it is done"
        );
        let image = Image { key, boundary, reason, request };
        self.file_entry(slot, Entry { image, source: Source::Scratch })
    }

    /// Gives a scratch slot back unused.
    pub fn release_scratch(&mut self, scratch: Scratch) -> Released {
        let (_, slot, _) = scratch.end();
        self.release_slot(slot)
    }

    /// Makes a batch write a scratch slot, as part of the forward of its request.
    pub fn join_scratch(&mut self, receipt: &mut Receipt, scratch: &Scratch) {
        self.touch(scratch.slot, receipt.batch, Access::Write, &mut receipt.cargo);
    }

    /// Starts a batch that really runs: clears `ops` and drains into it the relocations, the pending
    /// stores and the queued restores. Call it before [`Self::join`] of the batch's members.
    pub fn begin_batch(&mut self, ops: &mut MaintenanceOps) -> Receipt {
        ops.clear();
        let batch = self.next_batch_id();
        let mut cargo = self.spare_cargo.pop().unwrap_or_default();
        self.batches_in_flight += 1;
        self.drain_relocations(ops, batch, &mut cargo);
        self.drain_stores(ops, batch, &mut cargo);
        self.drain_restores(ops, batch, &mut cargo);
        Receipt { batch, cargo }
    }

    /// Makes a residency a member of the batch: its forward takes the request to `to` tokens.
    ///
    /// # Panics
    /// Where `to` lies before what was scheduled, or beyond the pages the residency has; where a
    /// batch that wrote the slot failed; where a restore of the residency is still queued; where the
    /// backend keeps no order and another batch in flight touches the slot.
    pub fn join(&mut self, receipt: &mut Receipt, residency: &Residency, to: Tokens) {
        let slot = residency.slot;
        let known = self.slots.bytes(slot) == SlotBytes::Known;
        assert!(known, "{slot}: a batch that wrote it failed; its request can only be released");
        assert!(!self.restores.contains(slot), "{slot}: joined before its restore was drained");
        let others = self.slots.in_flight_beside(slot, receipt.batch);
        let ordered = self.order() == BackendOrder::Ordered;
        assert!(ordered || others == 0, "{slot}: joined while {others} batches that touch it fly");
        let before = self.slots.scheduled(slot);
        assert!(before <= to, "{slot}: scheduled goes back from {before} to {to}");
        let pages = self.config.block.blocks_ceil(to).index();
        assert!(pages <= residency.pages.len(), "{slot}: {to} tokens need {pages} pages");
        self.slots.set_scheduled(slot, to);
        self.touch(slot, receipt.batch, Access::Write, &mut receipt.cargo);
    }

    /// Batches in flight that touch the residency's slot by a copy or a forward. Where the backend
    /// keeps no order, a request joins the next batch only at zero.
    pub fn in_flight(&self, residency: &Residency) -> u32 {
        self.slots.in_flight(residency.slot)
    }

    /// Takes a batch's word: publishes its stores, returns its pins, frees what waited for it.
    /// Receipts may come in any order.
    pub fn settle(&mut self, receipt: Receipt, outcome: Outcome) {
        let mut cargo = receipt.into_cargo();
        self.batches_in_flight -= 1;
        for StoreTicket { record, proof } in cargo.stores.drain(..) {
            let proven = match proof {
                Proof::Reported => true,
                Proof::Awaited { slot, tenancy } => {
                    let boundary = self.store.image(record).boundary;
                    self.slots.has_reported(slot, tenancy, boundary.tokens())
                }
            };
            match outcome {
                Outcome::Done if proven => self.publish_record(record),
                Outcome::Done | Outcome::Failed => {
                    self.index.set_trace(self.store.image(record).key, Trace::Failed);
                    self.store.fail(record, &mut self.pool);
                }
            }
        }
        for record in cargo.restores.drain(..) {
            self.restores_in_flight -= 1;
            self.unpin(record);
        }
        for (slot, tenancy) in cargo.written.drain(..) {
            if outcome == Outcome::Failed {
                self.slots.poison(slot, tenancy);
            }
        }
        for (slot, tenancy) in cargo.touched.drain(..) {
            match self.slots.untouch(slot, tenancy) {
                Untouch::Nothing => {}
                Untouch::Freed => {
                    let mut pages = std::mem::take(&mut self.fenced_tables[slot.index()]);
                    self.free_pages(&mut pages);
                    if pages.capacity() > 0 {
                        self.spare_tables.push(pages);
                    }
                }
            }
        }
        self.spare_cargo.push(cargo);
    }

    fn file_entry(&mut self, slot: SlotId, entry: Entry) -> Filed {
        if let Some(twin) = self.pending.twin(&entry.image) {
            if twin == slot {
                let old = self.pending.get_mut(slot).expect("the twin is pending");
                *old = entry;
            } else {
                self.drop_pending(twin);
                self.supersede(slot);
                self.pending.insert(slot, entry);
            }
            return Filed::Replaced;
        }
        self.supersede(slot);
        self.counters.filed += 1;
        self.index.note_filed(entry.image.key);
        self.pending.insert(slot, entry);
        Filed::Pending
    }

    /// A slot's pending boundary gives way to a newer one.
    fn supersede(&mut self, slot: SlotId) {
        if let Some(old) = self.pending.remove(slot) {
            self.counters.superseded += 1;
            self.index.set_trace(old.image.key, Trace::Dropped);
        }
    }

    fn release_slot(&mut self, slot: SlotId) -> Released {
        match self.slots.release(slot, self.order()) {
            SlotRelease::Free => Released::Free,
            SlotRelease::Fenced => Released::Fenced,
        }
    }

    fn touch(&mut self, slot: SlotId, batch: BatchId, access: Access, cargo: &mut Cargo) {
        if access == Access::Write {
            cargo.written.push((slot, self.slots.tenancy(slot)));
        }
        if let Some(tenancy) = self.slots.touch(slot, batch) {
            cargo.touched.push((slot, tenancy));
        }
    }

    fn drain_relocations(&mut self, ops: &mut MaintenanceOps, batch: BatchId, cargo: &mut Cargo) {
        let mut relocations = std::mem::take(&mut self.relocations);
        for &Relocation { from, to } in &relocations {
            self.touch(from, batch, Access::Read, cargo);
            self.touch(to, batch, Access::Write, cargo);
            self.slots.carry(from);
        }
        ops.relocations.append(&mut relocations);
        self.relocations = relocations;
    }

    fn drain_stores(&mut self, ops: &mut MaintenanceOps, batch: BatchId, cargo: &mut Cargo) {
        let mut pages = std::mem::take(&mut self.scratch_pages);
        pages.clear();
        for _ in 0..self.pending.len() {
            let Some(slot) = self.pending.first() else { break };
            let entry = *self.pending.get(slot).expect("a linked slot has a pending boundary");
            if self.waits(slot) {
                self.pending.remove(slot);
                self.pending.insert(slot, entry);
                continue;
            }
            let mut verdict = self.judge(slot, &entry);
            let units = self.store.units_per_record();
            let Image { key, boundary, reason, .. } = entry.image;
            let purpose = StorePurpose { key, boundary, reason };
            if verdict == Verdict::Store
                && self.make_room(units, purpose, &mut pages) == Room::Declined
            {
                verdict = Verdict::NoRoom;
            }
            if self.pending.first() != Some(slot) {
                // Its own KV was among what was given up: lost and counted there.
                self.pool.vacate_held(&mut pages);
                continue;
            }
            if verdict == Verdict::Store {
                self.hand_out(slot, entry, &pages, ops, batch, cargo);
                pages.clear();
            } else {
                self.turn_down(slot, &entry.image, verdict);
            }
        }
        self.scratch_pages = pages;
    }

    /// Starts the store of a drained boundary on held pages.
    fn hand_out(
        &mut self,
        slot: SlotId,
        entry: Entry,
        pages: &[PageId],
        ops: &mut MaintenanceOps,
        batch: BatchId,
        cargo: &mut Cargo,
    ) {
        let Images::On { bytes, layout, .. } = self.images else {
            panic!("boundaries are filed only where state is kept");
        };
        let record = self.store.begin(entry.image, pages, &mut self.pool);
        let units = ops.push_units(pages);
        ops.stores.push(StoreOp {
            checkpoint: self.store.id(record),
            slot,
            boundary: entry.image.boundary,
            units,
            image: bytes,
            layout,
        });
        let proof = self.slots.proof(slot, entry.image.boundary.tokens());
        cargo.stores.push(StoreTicket { record, proof });
        self.touch(slot, batch, Access::Read, cargo);
        self.pending.remove(slot);
        if entry.source == Source::Scratch {
            self.slots.retire(slot);
        }
    }

    /// Drops a drained boundary for a counted reason.
    fn turn_down(&mut self, slot: SlotId, image: &Image, verdict: Verdict) {
        let counters = &mut self.counters;
        let trace = match verdict {
            Verdict::Store => panic!("a boundary that may be stored is not turned down"),
            Verdict::Superseded => {
                counters.superseded += 1;
                Some(Trace::Dropped)
            }
            Verdict::NoRoom => {
                counters.no_room += 1;
                Some(Trace::Dropped)
            }
            Verdict::SlotGone => {
                counters.slot_gone += 1;
                Some(Trace::Failed)
            }
            Verdict::Duplicate => {
                counters.duplicate += 1;
                None
            }
            Verdict::Unfiled => {
                counters.unfiled += 1;
                counters.orphaned_keys += 1;
                None
            }
        };
        if let Some(trace) = trace {
            self.index.set_trace(image.key, trace);
        }
        self.drop_pending(slot);
    }

    /// Whether the backend's batches in flight keep a slot from being touched by another.
    pub(crate) fn waits(&self, slot: SlotId) -> bool {
        self.order() == BackendOrder::Unordered && !self.slots.is_idle(slot)
    }

    /// Whether a drained boundary may be stored, short of asking the policy.
    fn judge(&self, slot: SlotId, entry: &Entry) -> Verdict {
        let Image { key, boundary, .. } = entry.image;
        if self.slots.bytes(slot) == SlotBytes::Unknown {
            return Verdict::SlotGone;
        }
        let moved_on = self.slots.scheduled(slot) != boundary.tokens();
        // A slot whose restore rides this same batch does not hold the state yet.
        if moved_on || self.restores.contains(slot) {
            return Verdict::Superseded;
        }
        // Its block was published, and given up before the boundary was filed: another request had
        // computed the same block, and with that request's page the key went.
        if self.slots.computed(slot) >= boundary.tokens() && self.index.page(key).is_none() {
            return Verdict::Unfiled;
        }
        if self.store.lookup(key).is_some() || self.store.is_copying(key) {
            return Verdict::Duplicate;
        }
        let over = self.store.units_in_writing() + self.store.units_per_record();
        if over > self.copying_max() || !self.image_fits(0, 0, None) {
            return Verdict::NoRoom;
        }
        Verdict::Store
    }

    fn drain_restores(&mut self, ops: &mut MaintenanceOps, batch: BatchId, cargo: &mut Cargo) {
        while let Some((slot, record)) = self.restores.pop() {
            let Images::On { bytes, layout, .. } = self.images else {
                panic!("restores are queued only where state is kept");
            };
            let units = ops.push_units(self.store.units(record));
            ops.restores.push(RestoreOp {
                checkpoint: self.store.id(record),
                slot,
                boundary: self.store.image(record).boundary,
                units,
                image: bytes,
                layout,
            });
            cargo.restores.push(record);
            self.restores_in_flight += 1;
            self.touch(slot, batch, Access::Write, cargo);
        }
    }

    fn publish_record(&mut self, record: u32) {
        let Image { key, boundary, reason, request } = *self.store.image(record);
        if self.store.is_wanted(record) && self.index.page(key).is_none() {
            // Its block was never published: the request ended before its forward was reported.
            self.counters.orphaned_keys += 1;
            self.store.orphan(record, &mut self.pool);
            return;
        }
        match self.store.publish(record, &mut self.pool) {
            Written::Ended => {}
            Written::Ready(checkpoint) => {
                let page = self.index.page(key).expect("a READY record's key is found");
                let parent = self.index.block(page).and_then(|block| block.parent);
                let ready =
                    Notice::Ready { checkpoint, key, page, parent, boundary, reason, request };
                self.policy.notice(&ready);
            }
        }
    }
}
