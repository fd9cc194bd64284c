//! Validation of a batch's operations, all of it before the first byte is written.
//!
//! A refusal means that control plane and memory disagree; no part of the batch may run.

use std::fmt;

use statepages_page::{
    Boundary, Bytes, CheckpointId, LayoutTag, MaintenanceOps, PageId, Pages, Relocation, RestoreOp,
    Segment, SlotId, StateLayout, StoreOp,
};

/// An operation that must not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// A relocation of a slot onto itself.
    RelocationOntoItself {
        /// The slot.
        slot: SlotId,
    },
    /// Two relocations write one slot; what the first brought would be lost.
    DuplicateRelocationTarget {
        /// The slot.
        slot: SlotId,
    },
    /// Two restores write one slot.
    DuplicateRestoreTarget {
        /// The slot.
        slot: SlotId,
        /// The second restore's record.
        checkpoint: CheckpointId,
    },
    /// A slot that the memory does not have.
    SlotOutOfRange {
        /// The slot.
        slot: SlotId,
        /// Slots of the memory.
        slots: u32,
    },
    /// An image of another layout.
    Layout {
        /// The operation's record.
        checkpoint: CheckpointId,
        /// Layout of the backend.
        expected: LayoutTag,
        /// Layout of the operation.
        got: LayoutTag,
    },
    /// An image of another size.
    ImageBytes {
        /// The operation's record.
        checkpoint: CheckpointId,
        /// Bytes of the layout's images.
        expected: Bytes,
        /// Bytes of the operation.
        got: Bytes,
    },
    /// An operation with too few or too many units.
    UnitCount {
        /// The operation's record.
        checkpoint: CheckpointId,
        /// Units of the layout's images.
        expected: Pages,
        /// Units of the operation.
        got: Pages,
    },
    /// A unit that the memory does not have.
    UnitOutOfRange {
        /// The operation's record.
        checkpoint: CheckpointId,
        /// The unit.
        unit: PageId,
        /// Pages of the memory.
        pages: Pages,
    },
    /// One unit written twice, or named twice by one restore.
    DuplicateUnit {
        /// The record of the operation that named it again.
        checkpoint: CheckpointId,
        /// The unit.
        unit: PageId,
    },
    /// A restore that reads a unit written by the same batch: it cannot be READY.
    UnitNotReady {
        /// The restore's record.
        checkpoint: CheckpointId,
        /// The unit.
        unit: PageId,
    },
    /// A boundary with fewer positions before it than the image carries.
    BoundaryTooEarly {
        /// The operation's record.
        checkpoint: CheckpointId,
        /// Positions that the image carries.
        rows: u32,
        /// The boundary.
        got: Boundary,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RelocationOntoItself { slot } => {
                write!(f, "relocation: expected two slots, got {slot} twice")
            }
            Self::DuplicateRelocationTarget { slot } => {
                write!(f, "relocation target: expected one relocation to {slot}, got two")
            }
            Self::DuplicateRestoreTarget { slot, checkpoint } => {
                write!(f, "restore target of {checkpoint}: expected one restore to {slot}, got two")
            }
            Self::SlotOutOfRange { slot, slots } => {
                write!(f, "slot: expected one of {slots}, got {slot}")
            }
            Self::Layout { checkpoint, expected, got } => {
                write!(f, "layout of {checkpoint}: expected {expected:?}, got {got:?}")
            }
            Self::ImageBytes { checkpoint, expected, got } => {
                write!(f, "image bytes of {checkpoint}: expected {expected}, got {got}")
            }
            Self::UnitCount { checkpoint, expected, got } => {
                write!(f, "units of {checkpoint}: expected {expected}, got {got}")
            }
            Self::UnitOutOfRange { checkpoint, unit, pages } => {
                write!(f, "unit of {checkpoint}: expected one of {pages} pages, got {unit}")
            }
            Self::DuplicateUnit { checkpoint, unit } => {
                write!(f, "units of {checkpoint}: expected distinct units, got {unit} again")
            }
            Self::UnitNotReady { checkpoint, unit } => {
                write!(f, "units of {checkpoint}: expected READY units, got {unit} being stored")
            }
            Self::BoundaryTooEarly { checkpoint, rows, got } => {
                write!(f, "boundary of {checkpoint}: expected at least {rows}, got {}", got.get())
            }
        }
    }
}

impl std::error::Error for Refused {}

/// Checks bundles against one layout. Keeps its memory between calls.
#[derive(Debug)]
pub struct OpChecker {
    layout: LayoutTag,
    image: Bytes,
    units: Pages,
    /// Positions that the image carries before a boundary.
    rows: u32,
    /// Ticks once per bundle and once per restore. A mark means what it says only while it equals
    /// the tick that set it, so no mark is ever cleared.
    clock: u64,
    relocated: Vec<u64>,
    restored: Vec<u64>,
    stored_units: Vec<u64>,
    read_units: Vec<u64>,
}

/// What stores and restores have in common.
struct ImageOp<'a> {
    checkpoint: CheckpointId,
    slot: SlotId,
    boundary: Boundary,
    units: &'a [PageId],
    image: Bytes,
    layout: LayoutTag,
}

impl OpChecker {
    /// A checker for operations on `layout`.
    pub fn new(layout: &StateLayout) -> Self {
        let rows = layout.image.segments().iter().map(|segment| match segment {
            Segment::Fixed { .. } => 0,
            Segment::Ring { run, .. } => run.rows,
        });
        Self {
            layout: layout.id.tag(),
            image: layout.image.image_bytes(),
            units: layout.units_per_checkpoint(),
            rows: rows.max().unwrap_or(0),
            clock: 0,
            relocated: Vec::new(),
            restored: Vec::new(),
            stored_units: Vec::new(),
            read_units: Vec::new(),
        }
    }

    /// Checks a bundle against a memory of `pages` pages and `slots` slots.
    pub fn check(&mut self, ops: &MaintenanceOps, pages: Pages, slots: u32) -> Result<(), Refused> {
        for marks in [&mut self.relocated, &mut self.restored] {
            marks.resize(marks.len().max(slots as usize), 0);
        }
        for marks in [&mut self.stored_units, &mut self.read_units] {
            marks.resize(marks.len().max(pages.index()), 0);
        }
        self.clock += 1;
        let bundle = self.clock;
        for &Relocation { from, to } in &ops.relocations {
            slot_in_range(from, slots)?;
            slot_in_range(to, slots)?;
            if from == to {
                return Err(Refused::RelocationOntoItself { slot: to });
            }
            if marked(&mut self.relocated[to.index()], bundle) {
                return Err(Refused::DuplicateRelocationTarget { slot: to });
            }
        }
        for op in &ops.stores {
            let StoreOp { checkpoint, slot, boundary, units, image, layout } = *op;
            let units = ops.units(units);
            let op = ImageOp { checkpoint, slot, boundary, units, image, layout };
            self.check_image(&op, pages, slots)?;
            for &unit in units {
                if marked(&mut self.stored_units[unit.index()], bundle) {
                    return Err(Refused::DuplicateUnit { checkpoint, unit });
                }
            }
        }
        for op in &ops.restores {
            let RestoreOp { checkpoint, slot, boundary, units, image, layout } = *op;
            let units = ops.units(units);
            let op = ImageOp { checkpoint, slot, boundary, units, image, layout };
            self.check_image(&op, pages, slots)?;
            if marked(&mut self.restored[slot.index()], bundle) {
                return Err(Refused::DuplicateRestoreTarget { slot, checkpoint });
            }
            // Several restores may read one record, so a unit repeats only within an operation.
            self.clock += 1;
            for &unit in units {
                if self.stored_units[unit.index()] == bundle {
                    return Err(Refused::UnitNotReady { checkpoint, unit });
                }
                if marked(&mut self.read_units[unit.index()], self.clock) {
                    return Err(Refused::DuplicateUnit { checkpoint, unit });
                }
            }
        }
        Ok(())
    }

    fn check_image(&self, op: &ImageOp<'_>, pages: Pages, slots: u32) -> Result<(), Refused> {
        let checkpoint = op.checkpoint;
        slot_in_range(op.slot, slots)?;
        if op.layout != self.layout {
            let (expected, got) = (self.layout, op.layout);
            return Err(Refused::Layout { checkpoint, expected, got });
        }
        if op.image != self.image {
            let (expected, got) = (self.image, op.image);
            return Err(Refused::ImageBytes { checkpoint, expected, got });
        }
        if op.units.len() != self.units.index() {
            let (expected, got) = (self.units, Pages::new(op.units.len() as u32));
            return Err(Refused::UnitCount { checkpoint, expected, got });
        }
        if op.boundary.get() < self.rows {
            let (rows, got) = (self.rows, op.boundary);
            return Err(Refused::BoundaryTooEarly { checkpoint, rows, got });
        }
        match op.units.iter().find(|unit| unit.index() >= pages.index()) {
            Some(&unit) => Err(Refused::UnitOutOfRange { checkpoint, unit, pages }),
            None => Ok(()),
        }
    }
}

fn slot_in_range(slot: SlotId, slots: u32) -> Result<(), Refused> {
    if slot.raw() < slots { Ok(()) } else { Err(Refused::SlotOutOfRange { slot, slots }) }
}

/// Sets a mark and says whether it was set at the same tick.
fn marked(mark: &mut u64, tick: u64) -> bool {
    std::mem::replace(mark, tick) == tick
}
