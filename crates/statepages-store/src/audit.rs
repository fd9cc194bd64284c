//! What an auditor may see: records one by one, and a canonical form of the whole.
//!
//! For simulators and exhaustive explorers. The canonical form holds everything that a later answer
//! can depend on and nothing else: records are named by their first unit instead of their id,
//! tenancies and eras by whether they are the present ones, and counters are left out. Two control
//! planes of one configuration with equal forms answer every sequence of calls alike, up to the ids
//! of records and batches.

use statepages_page::{Boundary, CheckpointId, ContentKey, PageId};

use crate::control::ControlPlane;
use crate::receipt::{Proof, Receipt};
use crate::residency::Residency;

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// A batch in flight writes it.
    Copying,
    /// A lookup finds it; so many restores, queued or in flight, read it.
    Ready {
        /// Restores that read it.
        pins: u32,
    },
    /// Its key is gone, and a batch in flight still writes it.
    EvictingWriter,
    /// Its key is gone, and restores still read it.
    EvictingReaders {
        /// Restores that read it.
        pins: u32,
    },
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its id.
    pub id: CheckpointId,
    /// The key it is or was filed under.
    pub key: ContentKey,
    /// Tokens before it.
    pub boundary: Boundary,
    /// Its state.
    pub state: RecordState,
    /// Its units, in canonical order.
    pub units: &'a [PageId],
}

impl ControlPlane {
    /// Every record there is, in the order of the slab.
    pub fn records(&self) -> impl Iterator<Item = RecordView<'_>> {
        self.store.views()
    }

    /// Appends the canonical form of the control plane.
    pub fn canonical(&self, out: &mut Vec<u64>) {
        self.pool.canonical(out);
        self.index.canonical(out);
        self.store.canonical(out);
        self.slots.canonical(out);
        for slot in self.pending.slots() {
            let entry = self.pending.get(slot).expect("a linked slot has a pending boundary");
            out.extend([u64::from(slot.raw()), entry.image.request.raw()]);
            push_key(entry.image.key, out);
        }
        out.push(u64::MAX);
        for (slot, record) in self.restores.entries() {
            out.extend([u64::from(slot.raw()), self.name(record)]);
        }
        out.push(u64::MAX);
        for relocation in &self.relocations {
            out.extend([u64::from(relocation.from.raw()), u64::from(relocation.to.raw())]);
        }
        out.push(u64::MAX);
        for (slot, table) in self.fenced_tables.iter().enumerate() {
            out.push(slot as u64);
            out.extend(table.iter().map(|page| u64::from(page.raw())));
        }
        out.push(u64::MAX);
    }

    /// Appends the canonical form of a batch in flight.
    pub fn canonical_receipt(&self, receipt: &Receipt, out: &mut Vec<u64>) {
        let cargo = &receipt.cargo;
        for ticket in &cargo.stores {
            out.push(self.name(ticket.record));
            out.push(match ticket.proof {
                Proof::Reported => 0,
                Proof::Awaited { slot, tenancy } => {
                    let present = self.slots.tenancy(slot) == tenancy;
                    1 + 2 * u64::from(slot.raw()) + u64::from(present)
                }
            });
        }
        out.push(u64::MAX);
        out.extend(cargo.restores.iter().map(|&record| self.name(record)));
        for list in [&cargo.touched, &cargo.written] {
            out.push(u64::MAX);
            for &(slot, tenancy) in list {
                let present = self.slots.tenancy(slot) == tenancy;
                out.push(2 * u64::from(slot.raw()) + u64::from(present));
            }
        }
        out.push(u64::MAX);
    }

    /// Appends the canonical form of a resident request's hold.
    pub fn canonical_residency(&self, residency: &Residency, out: &mut Vec<u64>) {
        let present = residency.era == self.era;
        out.extend([
            u64::from(residency.slot.raw()),
            u64::from(residency.published),
            u64::from(present),
        ]);
        out.extend(residency.pages.iter().map(|page| u64::from(page.raw())));
        out.push(u64::MAX);
    }

    /// A record's canonical name: its first unit, which no other record has.
    fn name(&self, record: u32) -> u64 {
        u64::from(self.store.units(record)[0].raw())
    }
}

pub(crate) fn push_key(key: ContentKey, out: &mut Vec<u64>) {
    out.extend([key.raw() as u64, (key.raw() >> 64) as u64]);
}
