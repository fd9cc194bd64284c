//! Faults that the demo puts between the engine and its runner, to show that a wrong resume is seen.
//!
//! ```text
//! skip-restore     restore(U -> slot)          -> nothing: the slot is as its last owner left it
//! wrong-boundary   restore(U -> slot) at P     -> restore(V -> slot) at P, V the image of P - 256
//! ```
//!
//! For the latter every boundary must be kept (an interval of one block), and the pool must have room for all:
//! which units hold the image one block earlier is learned from the stores that pass by. A restore whose
//! earlier image is not known, or has since been written over by another store, is left as it is.

use std::collections::BTreeMap;

use statepages_engine::{RemoteState, RunError, Runner, StepBatch, StepResult};
use statepages_geometry::BLOCK_TOKENS;
use statepages_page::{Boundary, MaintenanceOps, PageId, SlotId};

use crate::args::Fault;

/// A runner with a fault in front of it.
pub(crate) struct FaultyRunner<R> {
    inner: R,
    fault: Injected,
}

enum Injected {
    None,
    SkipRestore,
    WrongBoundary(Images),
}

/// Where images lie, as far as stores and restores have told.
#[derive(Default)]
struct Images {
    /// The boundary that a slot's state was last written to or read from pages at, and the units.
    last: BTreeMap<SlotId, (Boundary, Vec<PageId>)>,
    /// By the first unit of an image: all units of the image one block earlier.
    earlier: BTreeMap<PageId, Vec<PageId>>,
}

impl<R> FaultyRunner<R> {
    pub(crate) fn new(inner: R, fault: Option<Fault>) -> Self {
        let fault = match fault {
            None => Injected::None,
            Some(Fault::SkipRestore) => Injected::SkipRestore,
            Some(Fault::WrongBoundary) => Injected::WrongBoundary(Images::default()),
        };
        Self { inner, fault }
    }
}

impl<R: Runner> Runner for FaultyRunner<R> {
    fn submit(&mut self, mut batch: StepBatch) {
        match &mut self.fault {
            Injected::None => {}
            Injected::SkipRestore => batch.ops.restores.clear(),
            Injected::WrongBoundary(images) => images.shift(&mut batch.ops),
        }
        self.inner.submit(batch);
    }

    fn poll(&mut self) -> Option<StepResult> {
        self.inner.poll()
    }

    fn land(
        &mut self,
        slot: SlotId,
        pages: &[PageId],
        state: &RemoteState,
    ) -> Result<(), RunError> {
        self.inner.land(slot, pages, state)
    }
}

impl Images {
    /// Learns from a batch's operations and puts earlier images into its restores.
    fn shift(&mut self, ops: &mut MaintenanceOps) {
        for relocation in &ops.relocations {
            match self.last.remove(&relocation.from) {
                Some(image) => self.last.insert(relocation.to, image),
                None => self.last.remove(&relocation.to),
            };
        }
        for store in &ops.stores {
            let units = ops.units(store.units).to_vec();
            self.earlier.retain(|first, earlier| {
                !units.contains(first) && !earlier.iter().any(|unit| units.contains(unit))
            });
            if let Some((boundary, earlier)) = self.last.get(&store.slot)
                && boundary.tokens().index() + BLOCK_TOKENS.get() as usize
                    == store.boundary.tokens().index()
            {
                self.earlier.insert(units[0], earlier.clone());
            }
            self.last.insert(store.slot, (store.boundary, units));
        }
        for index in 0..ops.restores.len() {
            let restore = ops.restores[index];
            let units = ops.units(restore.units).to_vec();
            if let Some(earlier) = self.earlier.get(&units[0]) {
                ops.restores[index].units = ops.push_units(earlier);
            }
            self.last.insert(restore.slot, (restore.boundary, units));
        }
    }
}

#[cfg(test)]
mod tests {
    use statepages_page::{Bytes, CheckpointId, LayoutTag, RestoreOp, StoreOp};

    use super::*;

    /// One batch of `(slot, boundary, first of two units)`; what its restores read afterwards.
    fn batch(
        images: &mut Images,
        stores: &[(u32, u32, u32)],
        restores: &[(u32, u32, u32)],
    ) -> Vec<u32> {
        let mut ops = MaintenanceOps::default();
        let (checkpoint, image) = (CheckpointId::new(1), Bytes::new(8));
        let layout = LayoutTag::from_raw(1);
        for &(slot, boundary, first) in stores {
            let units = ops.push_units(&[PageId::new(first), PageId::new(first + 1)]);
            let (slot, boundary) = (SlotId::new(slot), Boundary::from_raw(boundary));
            ops.stores.push(StoreOp { checkpoint, slot, boundary, units, image, layout });
        }
        for &(slot, boundary, first) in restores {
            let units = ops.push_units(&[PageId::new(first), PageId::new(first + 1)]);
            let (slot, boundary) = (SlotId::new(slot), Boundary::from_raw(boundary));
            ops.restores.push(RestoreOp { checkpoint, slot, boundary, units, image, layout });
        }
        images.shift(&mut ops);
        let restores = ops.restores.iter();
        restores.map(|op| ops.units(op.units)[0].index() as u32).collect()
    }

    #[test]
    fn a_restore_gets_the_image_of_one_block_earlier() {
        let mut images = Images::default();
        batch(&mut images, &[(0, 256, 10), (1, 256, 20)], &[]);
        batch(&mut images, &[(0, 512, 12), (1, 512, 22)], &[]);
        assert_eq!(batch(&mut images, &[], &[(2, 512, 12), (3, 512, 22)]), [10, 20]);
        // What the resumer goes on to store has the right image one block earlier.
        batch(&mut images, &[(2, 768, 30)], &[]);
        assert_eq!(batch(&mut images, &[], &[(0, 768, 30)]), [12]);
        // Another request in the slot, and an image written over: nothing is known.
        batch(&mut images, &[(1, 256, 10)], &[]);
        assert_eq!(batch(&mut images, &[], &[(4, 512, 12), (5, 256, 10)]), [12, 10]);
    }
}
