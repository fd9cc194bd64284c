//! Launches of a batch: which copies may run at once, and in what order the rest follow.
//!
//! The bytes afterwards are those of the bundle run one operation after another: relocations in
//! their order, then stores, then restores. Within one launch no slot is both read and written and
//! none is written twice, so a device may run a launch's copies in any order or all at once.
//!
//! # Rules
//! Operations are placed in that sequence, each in the earliest launch that these rules allow:
//! - content is read in a launch after the one that wrote it;
//! - a slot is written in a launch after every read and write of what it held;
//! - content that a relocation moved may be read from the slot it came from, as long as that slot
//!   is not written in the same launch or an earlier one;
//! - a relocation that brings a slot the content it holds already moves nothing.
//!
//! Content that was moved at all was read before its slot was written, so every store finds it where
//! it lay before the batch: stores are all in the first launch, and wait for no relocation.
//!
//! Relocations are few and units are disjoint ([`crate::OpChecker`] has refused the rest), so slots
//! alone decide.

use statepages_page::{MaintenanceOps, Relocation, SlotId};

/// One copy of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Moves a whole slot.
    Relocate {
        /// Slot that is read.
        from: SlotId,
        /// Slot that is written.
        to: SlotId,
    },
    /// Scatters an image.
    Store {
        /// Index of the operation in the bundle's stores.
        op: u32,
        /// Slot that is read; holds what the operation's slot holds after the relocations.
        from: SlotId,
    },
    /// Gathers an image.
    Restore {
        /// Index of the operation in the bundle's restores.
        op: u32,
        /// Slot that is written.
        to: SlotId,
    },
}

/// What is placed so far concerning one slot. Launches are numbered from 0.
#[derive(Clone, Copy)]
struct SlotPlan {
    /// Slot that held the present content before the batch.
    origin: SlotId,
    /// First launch that may read the present content.
    readable: u32,
    /// First launch that may write the slot.
    writable: u32,
    /// Launch that writes over what the slot held before the batch.
    original_until: Option<u32>,
}

/// Places batches in launches. Keeps its memory between calls.
#[derive(Default)]
pub struct Batcher {
    slots: Vec<SlotPlan>,
    /// Steps with their launch; sorted by it once all are placed.
    placed: Vec<(u32, Step)>,
    steps: Vec<Step>,
    /// End of every launch in `steps`.
    ends: Vec<usize>,
}

impl Batcher {
    /// A batcher that has placed nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Places a checked bundle on a memory of `slots` slots. The result stands until the next call.
    ///
    /// # Panics
    /// Where a slot is out of range.
    pub fn place(&mut self, ops: &MaintenanceOps, slots: u32) -> Launches<'_> {
        self.slots.clear();
        self.slots.extend((0..slots).map(|slot| SlotPlan {
            origin: SlotId::new(slot),
            readable: 0,
            writable: 0,
            original_until: None,
        }));
        self.placed.clear();
        for &Relocation { from, to } in &ops.relocations {
            let origin = self.slots[from.index()].origin;
            let SlotPlan { origin: held, writable: earliest, .. } = self.slots[to.index()];
            if held == origin {
                continue;
            }
            let (launch, source) = self.read(from, earliest);
            self.write(to, launch);
            self.slots[to.index()].origin = origin;
            self.placed.push((launch, Step::Relocate { from: source, to }));
        }
        for (op, store) in ops.stores.iter().enumerate() {
            let (launch, from) = self.read(store.slot, 0);
            self.placed.push((launch, Step::Store { op: op as u32, from }));
        }
        for (op, restore) in ops.restores.iter().enumerate() {
            let to = restore.slot;
            let launch = self.slots[to.index()].writable;
            self.write(to, launch);
            self.placed.push((launch, Step::Restore { op: op as u32, to }));
        }
        self.sort_by_launch();
        Launches { steps: &self.steps, ends: &self.ends, launch: 0 }
    }

    /// Chooses launch and slot to read the content of `slot` from, not before launch `earliest`.
    fn read(&mut self, slot: SlotId, earliest: u32) -> (u32, SlotId) {
        let SlotPlan { origin, readable, .. } = self.slots[slot.index()];
        let intact = match self.slots[origin.index()].original_until {
            None => true,
            Some(end) => earliest < end,
        };
        let (launch, source) =
            if intact { (earliest, origin) } else { (earliest.max(readable), slot) };
        let source_plan = &mut self.slots[source.index()];
        source_plan.writable = source_plan.writable.max(launch + 1);
        (launch, source)
    }

    fn write(&mut self, slot: SlotId, launch: u32) {
        let plan = &mut self.slots[slot.index()];
        assert!(launch >= plan.writable, "{slot} is still read or written");
        plan.readable = launch + 1;
        plan.writable = launch + 1;
        plan.original_until = plan.original_until.or(Some(launch));
    }

    /// Counting sort: launches ascend, and within one the placing order stays.
    fn sort_by_launch(&mut self) {
        self.ends.clear();
        for &(launch, _) in &self.placed {
            let launch = launch as usize;
            self.ends.resize(self.ends.len().max(launch + 1), 0);
            self.ends[launch] += 1;
        }
        let mut end = 0;
        for launch in &mut self.ends {
            end += std::mem::replace(launch, end);
        }
        // Each `ends[launch]` is the launch's start here, and has moved to its end below.
        self.steps.clear();
        let filler = Step::Relocate { from: SlotId::new(0), to: SlotId::new(0) };
        self.steps.resize(self.placed.len(), filler);
        for &(launch, step) in &self.placed {
            let at = &mut self.ends[launch as usize];
            self.steps[*at] = step;
            *at += 1;
        }
    }
}

/// The launches of a batch, in order.
pub struct Launches<'a> {
    steps: &'a [Step],
    ends: &'a [usize],
    launch: usize,
}

impl<'a> Iterator for Launches<'a> {
    type Item = &'a [Step];

    fn next(&mut self) -> Option<&'a [Step]> {
        let end = *self.ends.get(self.launch)?;
        let start = if self.launch == 0 { 0 } else { self.ends[self.launch - 1] };
        self.launch += 1;
        Some(&self.steps[start..end])
    }
}

#[cfg(test)]
mod tests {
    use statepages_page::{Boundary, Bytes, CheckpointId, LayoutTag, RestoreOp, StoreOp};

    use super::*;

    /// A bundle from slot numbers alone; units play no part in placing.
    fn bundle(relocations: &[(u32, u32)], stores: &[u32], restores: &[u32]) -> MaintenanceOps {
        let mut ops = MaintenanceOps::default();
        let units = ops.push_units(&[]);
        let (boundary, image) = (Boundary::ZERO, Bytes::ZERO);
        let (checkpoint, layout) = (CheckpointId::new(0), LayoutTag::from_raw(0));
        for &(from, to) in relocations {
            let (from, to) = (SlotId::new(from), SlotId::new(to));
            ops.relocations.push(Relocation { from, to });
        }
        for &slot in stores {
            let slot = SlotId::new(slot);
            ops.stores.push(StoreOp { checkpoint, slot, boundary, units, image, layout });
        }
        for &slot in restores {
            let slot = SlotId::new(slot);
            ops.restores.push(RestoreOp { checkpoint, slot, boundary, units, image, layout });
        }
        ops
    }

    /// Renders launches: `m1>2` moves, `s1` stores from slot 1, `r1` restores into slot 1.
    fn check(ops: &MaintenanceOps, expect: &[&str]) {
        let mut batcher = Batcher::new();
        let launches = batcher.place(ops, 8).map(|launch| {
            let steps = launch.iter().map(|step| match step {
                Step::Relocate { from, to } => format!("m{}>{}", from.raw(), to.raw()),
                Step::Store { from, .. } => format!("s{}", from.raw()),
                Step::Restore { to, .. } => format!("r{}", to.raw()),
            });
            steps.collect::<Vec<_>>().join(" ")
        });
        assert_eq!(launches.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn independent_operations_share_a_launch() {
        check(&bundle(&[], &[1, 2], &[3, 4]), &["s1 s2 r3 r4"]);
        check(&bundle(&[(5, 1), (6, 2)], &[3], &[4]), &["m5>1 m6>2 s3 r4"]);
        check(&bundle(&[], &[], &[]), &[]);
    }

    #[test]
    fn store_from_a_relocated_slot_reads_its_source() {
        check(&bundle(&[(1, 2)], &[2], &[]), &["m1>2 s1"]);
        // The source is overwritten only later, so it is still intact in the first launch.
        check(&bundle(&[(1, 2), (3, 1)], &[2], &[]), &["m1>2 s1", "m3>1"]);
        check(&bundle(&[(1, 2), (3, 1)], &[1], &[]), &["m1>2 s3", "m3>1"]);
    }

    #[test]
    fn chain_up_and_down() {
        check(&bundle(&[(1, 2), (2, 3)], &[], &[]), &["m1>2 m1>3"]);
        check(&bundle(&[(2, 3), (1, 2), (0, 1)], &[], &[]), &["m2>3", "m1>2", "m0>1"]);
    }

    /// The source's own content came late and its origin is gone: the last move waits for it.
    #[test]
    fn chain_behind_an_overwritten_origin() {
        let moves = [(0, 1), (2, 0), (3, 4), (1, 3), (5, 6), (3, 5)];
        check(&bundle(&moves, &[5], &[]), &["m0>1 m3>4 m5>6 s0", "m2>0 m1>3", "m3>5"]);
    }

    #[test]
    fn swap_through_a_third_slot() {
        check(&bundle(&[(1, 7), (2, 1), (7, 2)], &[], &[]), &["m1>7", "m2>1", "m7>2"]);
        // Stores of the swapped slots need not wait for the swap.
        check(&bundle(&[(1, 7), (2, 1), (7, 2)], &[1, 2], &[]), &["m1>7 s2 s1", "m2>1", "m7>2"]);
    }

    #[test]
    fn relocate_then_restore() {
        // Onto the slot that was vacated: once it has been read.
        check(&bundle(&[(1, 2)], &[], &[1]), &["m1>2", "r1"]);
        // Onto the slot that was just filled: the relocation is dead, the order still holds.
        check(&bundle(&[(1, 2)], &[], &[2]), &["m1>2", "r2"]);
        check(&bundle(&[(1, 2)], &[2], &[1, 2]), &["m1>2 s1", "r1 r2"]);
    }

    #[test]
    fn store_and_restore_of_one_slot() {
        check(&bundle(&[], &[1, 1], &[1, 2]), &["s1 s1 r2", "r1"]);
    }

    #[test]
    fn there_and_back() {
        check(&bundle(&[(1, 2), (2, 1)], &[], &[]), &["m1>2"]);
    }
}
