//! Restores that no batch has carried yet.
//!
//! Invariants: a slot is the target of at most one; each owns one pin of its record, which goes with
//! it into a receipt or back to the store when it is cancelled; drained in the order of queueing.
//!
//! Called by the control plane: queued by an admission, cancelled by the one door out, drained by a
//! batch that really runs.

use statepages_page::SlotId;

use crate::checkpoint::RecordIndex;
use crate::order::Order;

/// Queued restores, by target slot.
#[derive(Debug)]
pub(crate) struct Restores {
    records: Vec<Option<RecordIndex>>,
    order: Order,
}

impl Restores {
    pub(crate) fn new(slots: u32) -> Self {
        Self { records: vec![None; slots as usize], order: Order::new(slots) }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.order.len()
    }

    pub(crate) fn contains(&self, slot: SlotId) -> bool {
        self.records[slot.index()].is_some()
    }

    pub(crate) fn push(&mut self, slot: SlotId, record: RecordIndex) {
        assert!(!self.contains(slot), "{slot} has a queued restore");
        self.records[slot.index()] = Some(record);
        self.order.push_back(slot.raw());
    }

    /// Takes out the restore into a slot; the caller owns its pin.
    pub(crate) fn remove(&mut self, slot: SlotId) -> Option<RecordIndex> {
        let record = self.records[slot.index()].take()?;
        self.order.remove(slot.raw());
        Some(record)
    }

    /// Takes out the restore queued longest ago; the caller owns its pin.
    pub(crate) fn pop(&mut self) -> Option<(SlotId, RecordIndex)> {
        let slot = SlotId::new(self.order.first()?);
        let record = self.remove(slot).expect("a linked slot has a restore");
        Some((slot, record))
    }

    /// Targets and records, in the order of queueing.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SlotId, RecordIndex)> {
        self.slots()
            .map(|slot| (slot, self.records[slot.index()].expect("a linked slot has a restore")))
    }

    /// Targets, in the order of queueing.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.order.iter().map(SlotId::new)
    }
}
