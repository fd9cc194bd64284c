//! Maintenance operations: what a batch's copies do before its forward, ids and positions by value.
//!
//! One [`MaintenanceOps`] travels with one batch. It is refilled, not rebuilt: unit ids of all
//! operations share one vector, so a step allocates nothing once the vectors have grown.

use crate::{Boundary, Bytes, CheckpointId, LayoutTag, PageId, SlotId};

/// Moves a whole active slot. Relocations of a batch take effect first, as if in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relocation {
    /// Slot that is read.
    pub from: SlotId,
    /// Slot that is written.
    pub to: SlotId,
}

/// Where an operation's unit ids lie in its bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitRange {
    start: u32,
    len: u32,
}

/// Scatters the image of `slot` into the units of a COPYING checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreOp {
    /// The record that owns the units.
    pub checkpoint: CheckpointId,
    /// Slot that is read, after the batch's relocations.
    pub slot: SlotId,
    /// The position the slot stands at.
    pub boundary: Boundary,
    /// Units written, in canonical order.
    pub units: UnitRange,
    /// Bytes of the image.
    pub image: Bytes,
    /// Layout of the image.
    pub layout: LayoutTag,
}

/// Gathers the image of a READY, pinned checkpoint into `slot`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreOp {
    /// The record that owns the units.
    pub checkpoint: CheckpointId,
    /// Slot that is written, after the batch's relocations.
    pub slot: SlotId,
    /// The position the slot stands at afterwards.
    pub boundary: Boundary,
    /// Units read, in canonical order.
    pub units: UnitRange,
    /// Bytes of the image.
    pub image: Bytes,
    /// Layout of the image.
    pub layout: LayoutTag,
}

/// Everything one batch's copies do, before its forward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceOps {
    /// Slot moves, in order.
    pub relocations: Vec<Relocation>,
    /// Slot to units.
    pub stores: Vec<StoreOp>,
    /// Units to slot.
    pub restores: Vec<RestoreOp>,
    units: Vec<PageId>,
}

impl MaintenanceOps {
    /// True where the batch has nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.relocations.is_empty() && self.stores.is_empty() && self.restores.is_empty()
    }

    /// Empties the bundle and keeps its memory.
    pub fn clear(&mut self) {
        self.relocations.clear();
        self.stores.clear();
        self.restores.clear();
        self.units.clear();
    }

    /// Appends unit ids and says where they lie.
    ///
    /// # Panics
    /// Where the bundle would hold more than `u32::MAX` unit ids.
    pub fn push_units(&mut self, ids: &[PageId]) -> UnitRange {
        let start = u32::try_from(self.units.len()).expect("unit ids of one batch fit u32");
        let len = u32::try_from(ids.len()).expect("unit ids of one image fit u32");
        start.checked_add(len).expect("unit ids of one batch fit u32");
        self.units.extend_from_slice(ids);
        UnitRange { start, len }
    }

    /// The unit ids of one operation, in canonical order.
    pub fn units(&self, range: UnitRange) -> &[PageId] {
        &self.units[range.start as usize..][..range.len as usize]
    }
}
