//! What an auditor may see: records one by one, and a canonical form of the whole.
//!
//! For simulators and exhaustive explorers. Two states with equal forms answer every sequence of calls
//! alike, up to the ids of pages, slots, records and batches: vacant pages are interchangeable, and so
//! are free slots, so both are named in the order in which the form mentions them. Left out are
//! counters, what a miss was lost to, and the order of records in the slab, which steer nothing; a
//! tenancy or an era is told by whether it is the present one.

use statepages_page::{Boundary, CheckpointId, ContentKey, PageId, SlotId};

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

    /// Appends the canonical form of the control plane, given the names that its residencies have got
    /// already.
    pub fn canonical(&self, names: &mut Names, out: &mut Vec<u64>) {
        for slot in self.pending.slots() {
            let entry = self.pending.get(slot).expect("a linked slot has a pending boundary");
            out.extend([names.slot(slot), entry.image.request.raw()]);
            push_key(entry.image.key, out);
        }
        out.push(u64::MAX);
        for (slot, record) in self.restores.entries() {
            out.extend([names.slot(slot), self.name(record, names)]);
        }
        out.push(u64::MAX);
        for relocation in &self.relocations {
            out.extend([names.slot(relocation.from), names.slot(relocation.to)]);
        }
        out.push(u64::MAX);
        self.store.canonical(names, out);
        self.pool.canonical(names, out);
        self.slots.canonical(names, out);
        for slot in 0..self.fenced_tables.len() {
            let table = &self.fenced_tables[slot];
            if !table.is_empty() {
                out.push(names.slot(SlotId::new(slot as u32)));
                out.extend(table.iter().map(|&page| names.page(page)));
            }
        }
        out.push(u64::MAX);
        // All pages with content have a name by now; the others are vacant.
        for page in names.pages_by_name() {
            out.push(self.pool.code(page));
            match self.index.block(page) {
                Some(block) => push_key(block.key, out),
                None => out.push(0),
            }
        }
    }

    /// Appends the canonical form of a batch in flight.
    pub fn canonical_receipt(&self, receipt: &Receipt, names: &mut Names, out: &mut Vec<u64>) {
        let cargo = &receipt.cargo;
        for ticket in &cargo.stores {
            out.push(self.name(ticket.record, names));
            out.push(match ticket.proof {
                Proof::Reported => u64::MAX - 1,
                Proof::Awaited { slot, tenancy } => {
                    2 * names.slot(slot) + u64::from(self.slots.tenancy(slot) == tenancy)
                }
            });
        }
        out.push(u64::MAX);
        out.extend(cargo.restores.iter().map(|&record| self.name(record, names)));
        for list in [&cargo.touched, &cargo.written] {
            out.push(u64::MAX);
            for &(slot, tenancy) in list {
                let present = self.slots.tenancy(slot) == tenancy;
                out.push(2 * names.slot(slot) + u64::from(present));
            }
        }
        out.push(u64::MAX);
    }

    /// Appends the canonical form of a resident request's hold.
    pub fn canonical_residency(
        &self,
        residency: &Residency,
        names: &mut Names,
        out: &mut Vec<u64>,
    ) {
        let present = residency.era == self.era;
        out.extend([
            names.slot(residency.slot),
            u64::from(residency.published),
            u64::from(present),
        ]);
        out.extend(residency.pages.iter().map(|&page| names.page(page)));
        out.push(u64::MAX);
    }

    /// A record's canonical name: its first unit's, which no other record has.
    fn name(&self, record: u32, names: &mut Names) -> u64 {
        names.page(self.store.units(record)[0])
    }
}

/// Names of pages and slots, in the order in which a canonical form mentions them first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pages: Vec<PageId>,
    slots: Vec<SlotId>,
}

impl Names {
    /// The page's name, given now where it has none.
    pub fn page(&mut self, page: PageId) -> u64 {
        name_of(&mut self.pages, page)
    }

    /// The slot's name, given now where it has none.
    pub fn slot(&mut self, slot: SlotId) -> u64 {
        name_of(&mut self.slots, slot)
    }

    /// Named pages, by name.
    pub fn pages_by_name(&self) -> impl Iterator<Item = PageId> {
        self.pages.iter().copied()
    }

    /// Named slots, by name.
    pub fn slots_by_name(&self) -> impl Iterator<Item = SlotId> {
        self.slots.iter().copied()
    }
}

fn name_of<T: PartialEq>(named: &mut Vec<T>, id: T) -> u64 {
    let known = named.iter().position(|other| *other == id);
    known.unwrap_or_else(|| {
        named.push(id);
        named.len() - 1
    }) as u64
}

pub(crate) fn push_key(key: ContentKey, out: &mut Vec<u64>) {
    out.extend([key.raw() as u64, (key.raw() >> 64) as u64]);
}
