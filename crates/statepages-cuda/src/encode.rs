//! Operations in the form in which kernels read them.
//!
//! ```text
//! table  | relocations | images | units of image 0 | units of image 1 | ...
//! ```
//!
//! Relocations and images take 16 bytes each, a unit id takes 4. The launches of a batch take
//! consecutive records, or each a fixed number of them, the rest idle: then the table fits a captured
//! graph, whatever the batch.
//!
//! A table of up to [`ARGUMENT_BYTES`] may go with the kernels' arguments, which spares the upload and
//! the wait for it.

use statepages_copy::{Launches, Step};
use statepages_page::{Boundary, MaintenanceOps, PageId, SlotId};

/// Bytes of a relocation or an image operation.
pub(crate) const RECORD_BYTES: usize = 16;
/// Bytes of a table that goes with a kernel's arguments: `ARGUMENT_WORDS` of the kernels' source.
pub(crate) const ARGUMENT_BYTES: usize = 3264;
const IDLE: u32 = 0;
const STORE: u32 = 1;
const RESTORE: u32 = 2;
/// Any kind but idle moves a slot.
const RELOCATION: u32 = 1;

/// How many records a table has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableShape {
    pub(crate) relocations: u32,
    pub(crate) images: u32,
    pub(crate) units_per_image: u32,
}

impl TableShape {
    pub(crate) fn bytes(self) -> usize {
        self.units_offset() + 4 * self.images as usize * self.units_per_image as usize
    }

    pub(crate) fn images_offset(self) -> usize {
        RECORD_BYTES * self.relocations as usize
    }

    pub(crate) fn units_offset(self) -> usize {
        self.images_offset() + RECORD_BYTES * self.images as usize
    }
}

/// Consecutive records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Records {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// The records of one launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    pub(crate) relocations: Records,
    pub(crate) images: Records,
}

/// Room that every launch has, whether it uses it or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphShape {
    /// Launches of a batch; two serve all but chains of relocations.
    pub launches: u32,
    /// Relocations of a launch.
    pub relocations: u32,
    /// Stores and restores of a launch.
    pub images: u32,
}

/// A batch that a fixed table has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLarge;

/// Writes a batch one launch behind the other, and says where.
///
/// # Panics
/// Where the table is too small; `shape` is sized by the batch.
pub(crate) fn packed(
    launches: Launches<'_>,
    ops: &MaintenanceOps,
    shape: TableShape,
    table: &mut [u8],
    groups: &mut Vec<Group>,
) {
    groups.clear();
    let (mut relocations, mut images) = (0, 0);
    for launch in launches {
        let writer = Writer { ops, shape };
        let group = writer.launch(launch, (relocations, images), table);
        relocations += group.relocations.count;
        images += group.images.count;
        groups.push(group);
    }
}

/// Writes a batch into the fixed places of a graph, and idles the rest.
pub(crate) fn fixed(
    launches: Launches<'_>,
    ops: &MaintenanceOps,
    graph: GraphShape,
    shape: TableShape,
    table: &mut [u8],
) -> Result<(), TooLarge> {
    // Slots that no memory has: a kernel that overlooked the kind would not pass for a sound one.
    for at in (0..shape.units_offset()).step_by(RECORD_BYTES) {
        record(table, at, [u32::MAX, u32::MAX, 0, IDLE]);
    }
    for (number, launch) in launches.enumerate() {
        let number = number as u32;
        let relocations = launch.iter().filter(|step| matches!(step, Step::Relocate { .. }));
        let relocations = relocations.count();
        let images = launch.len() - relocations;
        if number >= graph.launches
            || relocations > graph.relocations as usize
            || images > graph.images as usize
        {
            return Err(TooLarge);
        }
        let first = (number * graph.relocations, number * graph.images);
        Writer { ops, shape }.launch(launch, first, table);
    }
    Ok(())
}

struct Writer<'a> {
    ops: &'a MaintenanceOps,
    shape: TableShape,
}

impl Writer<'_> {
    fn launch(&self, steps: &[Step], (relocations, images): (u32, u32), table: &mut [u8]) -> Group {
        let mut group = Group {
            relocations: Records { first: relocations, count: 0 },
            images: Records { first: images, count: 0 },
        };
        for &step in steps {
            match step {
                Step::Relocate { from, to } => {
                    let index = group.relocations.first + group.relocations.count;
                    group.relocations.count += 1;
                    let at = RECORD_BYTES * index as usize;
                    record(table, at, [from.raw(), to.raw(), IDLE, RELOCATION]);
                }
                Step::Store { op, from } => {
                    let op = &self.ops.stores[op as usize];
                    let units = self.ops.units(op.units);
                    self.image(&mut group.images, (from, op.boundary, units), STORE, table);
                }
                Step::Restore { op, to } => {
                    let op = &self.ops.restores[op as usize];
                    let units = self.ops.units(op.units);
                    self.image(&mut group.images, (to, op.boundary, units), RESTORE, table);
                }
            }
        }
        group
    }

    fn image(
        &self,
        images: &mut Records,
        (slot, boundary, units): (SlotId, Boundary, &[PageId]),
        kind: u32,
        table: &mut [u8],
    ) {
        let index = images.first + images.count;
        images.count += 1;
        let first_unit = index * self.shape.units_per_image;
        let at = self.shape.images_offset() + RECORD_BYTES * index as usize;
        record(table, at, [slot.raw(), boundary.get(), first_unit, kind]);
        let at = self.shape.units_offset() + 4 * first_unit as usize;
        for (to, unit) in table[at..].chunks_exact_mut(4).zip(units) {
            to.copy_from_slice(&unit.raw().to_le_bytes());
        }
    }
}

fn record(table: &mut [u8], at: usize, words: [u32; 4]) {
    for (to, word) in table[at..][..RECORD_BYTES].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KERNEL_SOURCE;

    /// The driver copies as many bytes of a table as the kernels declare.
    #[test]
    fn kernels_declare_the_size_of_an_argued_table() {
        let declared = format!("#define ARGUMENT_WORDS {}u\n", ARGUMENT_BYTES / 4);
        assert!(KERNEL_SOURCE.contains(&declared), "{declared}");
    }
}
